//! The `laneway` binary as a process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod broker;
mod ctl;
mod dev_nodes;
#[cfg(feature = "failpoints")]
mod failpoints;
mod queen_client;
mod queen_nodes;
mod refusals;
mod restart;
