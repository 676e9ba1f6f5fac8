//! Tests of the storage crate's public API.

mod codec;
mod golden;
mod store;
mod vfs;
mod wal;
