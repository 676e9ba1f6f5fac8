//! Laneway under fault and under load: real processes, killed, measured and judged.
//!
//! The commands of the binary `chaos`: [`kill9`] kills a broker in mid-work and judges the history of its clients with the
//! oracle of `laneway-sim`; [`cluster`] does that and more to several nodes; [`leases`] watches leases over changes of
//! leadership; [`clock`] gives one node a wrong time of day; [`backlog`] weighs the disk, memory and restart time of large backlogs; [`load`] measures throughput and
//! latency; [`soak`] looks for elections that nothing called for.
//!
//! **Invariants.** Everything is bounded in time and count, talks to loopback only, writes only below the directory it was
//! given, and ends only processes that it started. Requests and answers are written from the wire contract and share no
//! type with the broker.

pub mod api;
pub mod backlog;
pub mod clock;
pub mod cluster;
pub mod disk;
mod held;
pub mod http;
mod judge;
pub mod kill9;
pub mod leases;
pub mod load;
pub mod payload;
pub mod peer;
pub mod recorder;
pub mod sched;
pub mod server;
pub mod soak;
pub mod stats;
pub mod sync_rate;
mod utc;
mod workload;

#[cfg(test)]
mod fake;
