//! The gateway over real sockets, in front of a real node in a temporary directory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod ack;
mod admin;
mod bad_input;
mod broker;
mod client;
mod configure;
mod connections;
mod names;
mod pop;
mod push;
mod redrive;
mod resources;
mod waiting;
