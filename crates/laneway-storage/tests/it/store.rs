//! Payloads, backlog files, dedup rows, checkpoints and rows, on the simulated disk and against naive twins.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::cast_possible_truncation, reason = "a test's numbers are small")]

mod checkpoint;
mod crash;
mod damage;
mod dedup;
mod formats;
mod payload;
mod race;
mod rows;
mod snapshot;
mod world;
