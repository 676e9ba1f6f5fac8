//! Payloads, backlog files, dedup rows, checkpoints and rows, on the simulated disk and against naive twins.

mod checkpoint;
mod crash;
mod damage;
mod dedup;
mod formats;
mod payload;
mod race;
mod rows;
mod world;
