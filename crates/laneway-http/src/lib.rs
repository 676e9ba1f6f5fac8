//! The HTTP gateway of a Laneway node: Queen's wire contract on top of [`laneway_node::Node`].
//!
//! A request is routed on its raw path, its segments and query are percent-decoded after, its body is parsed by serde with
//! payloads left as raw text, and the answer is written with those very bytes. Names, ranges and sizes are checked here, so
//! that the node only sees sane requests. Failures become statuses in one place ([`mod@error`]).
//!
//! **Invariants.** Nothing that a client sends panics. A refused request changed nothing. A pop's claim is given back when
//! the client is gone before the first byte of its answer. Every failure has a machine code and a text; those that an
//! operator must see are logged, at a bounded rate.
//!
//! Deliberately absent: authentication, TLS, HTTP/2, and any state of its own beyond counters.

mod body;
mod counts;
mod error;
mod failure_log;
mod fuzz;
mod gateway;
mod json;
mod metrics;
mod names;
mod options;
mod query;
mod routes;
mod serve;
mod stamp;

pub use fuzz::{FUZZ_ROUTES, fuzz_body};
pub use options::HttpOptions;
pub use serve::serve;
