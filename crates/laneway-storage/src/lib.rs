//! Durable storage of a Laneway node.
//!
//! One write-ahead log per node carries the entries of all partitions ([`wal::Wal`]); everything else on disk is
//! derived from it or tied to it by a checkpoint. Files are reached through [`vfs::Vfs`] only, and every persisted
//! byte is made and read by [`codec`] or by the format modules of the stores.
//!
//! **Invariants.** What was reported durable survives power loss. A failed sync is final: it is never retried, for the
//! kernel may have dropped the pages. Bytes from disk are checked before they are believed; bad ones are an error that
//! names the file, never a panic. Every persisted format begins with a version byte and has a golden file.
//!
//! **Deliberately absent**: Raft's rules (the log stores what it is told), clocks that decide anything, and retries.

mod backlog;
pub mod checkpoint;
pub mod codec;
mod damage;
pub mod dedup;
pub mod failpoint;
pub mod payload;
pub mod rows;
mod sealed;
pub mod snapshot;
pub mod vfs;
pub mod wal;

pub use backlog::check_backlog_bytes;
pub use damage::{DamagedFile, ScrubCursor};
pub use sealed::FileError;
