//! The pure machines of Laneway.
//!
//! A machine is a function of its log: `apply` reads no clock, file, network, random number or task, so the same
//! snapshot and the same log give the same bytes on every replica.
//!
//! **Invariants.** Nothing here iterates a hash map. `apply` returns no `Result`: a refusal is a reply, because it is
//! part of the replicated history. Payload bytes never enter a machine; a [`command::Push`] names a range of the entry's blob.
//! A machine's state is its rows ([`rows`]); what it keeps beside them is derived and rebuilt after a load.
//!
//! **Deliberately absent**: dedup rows and payload locations (stores beside the machine, told by [`reply::StoreChange`]),
//! logging and counting (the node does both, from the outcomes).

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

pub mod catalog;
pub mod command;
mod digest;
pub mod dump;
pub mod ids;
pub mod partition;
pub mod reply;
pub mod rows;
pub mod settings;
pub mod time;
mod tracker;

pub use tracker::CheckpointStep;
