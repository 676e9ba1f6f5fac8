//! Groups on a real WAL in a temporary directory.

mod checkpoint;
mod cluster;
mod failure;
mod full_disk;
#[cfg(test)] // clippy's leave to unwrap goes by this
mod harness;
mod leadership;
mod membership;
mod propose;
mod read;
mod restart;
mod sharing;
#[cfg(test)]
mod snapshot;
