//! Rust client of Laneway's HTTP API: one method for each verb, with the bodies of `laneway-wire` and typed errors.
//!
//! **Invariants.** Nothing is retried here: only the caller knows whether a repeat is wanted. A call that may or may not have
//! been carried out fails with an error whose [`ClientError::outcome_unknown`] is true; repeating it with the same request id
//! ([`Client::with_request_id`]) is then safe.
//!
//! Deliberately absent: consume loops, buffering, fail-over between nodes. The published Queen clients have them.

mod ack;
mod cluster;
mod configure;
mod error;
mod extend;
mod path;
mod pop;
mod push;
mod queue;
mod redrive;
mod status;
mod transport;

pub use ack::Ack;
pub use cluster::ClusterChange;
pub use error::{ClientError, Refusal};
pub use laneway_wire as wire;
pub use pop::{Pop, Start};
pub use push::Push;
pub use redrive::{DeadLetter, DeadLetterQuery};
pub use transport::Client;
