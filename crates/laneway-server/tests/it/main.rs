//! The `laneway` binary as a process.

mod broker;
mod ctl;
mod queen_client;
mod refusals;
mod restart;
