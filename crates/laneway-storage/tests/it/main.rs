//! Tests of the storage crate's public API.
#![allow(clippy::unwrap_used, reason = "a helper that cannot go on fails its test")]
#![allow(clippy::cast_possible_truncation, reason = "sizes of tests are small")]

mod codec;
mod golden;
mod store;
mod vfs;
mod wal;
