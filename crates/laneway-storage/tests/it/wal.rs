//! The write-ahead log, on the simulated and the real file system.

mod basic;
mod crash;
mod damage;
#[cfg(feature = "failpoints")]
mod failpoints;
mod full;
mod model;
mod newest;
mod real;
pub(crate) mod support;
