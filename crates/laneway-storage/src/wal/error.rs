//! How operations of the log fail.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use laneway_core::ids::PartitionId;

use super::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

/// Why an operation of the log failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WalError {
    /// A write or sync failed earlier or just now. Final for the whole node: nothing is known of what was not yet
    /// confirmed. Restart the process, which reads back what is really there.
    #[error("the log has failed and takes no more writes: {reason}")]
    Failed {
        /// The first error.
        reason: Arc<str>,
    },
    /// The disk has no room for another segment. Definite: the entries are not in the log, neither are those of the
    /// same partition that were queued behind them. Votes, truncations and purges still work.
    #[error("the disk has no room for another segment of the log")]
    Full,
    /// The log was closed.
    #[error("the log is closed")]
    Closed,
    /// The caller's mistake: entries must follow the last one without a gap.
    #[error("entry {found} of partition {partition} does not follow the log, which goes on at {expected}")]
    Gap {
        /// The partition.
        partition: PartitionId,
        /// The next index.
        expected: u64,
        /// The index given.
        found: u64,
    },
    /// The body of an entry, a vote or a committed position is over its bound.
    #[error("a record of {bytes} bytes is over the limit of {bytes_max}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// The entry is purged.
    #[error("entry {index} of partition {partition} is purged, the log begins at {first}")]
    Purged {
        /// The partition.
        partition: PartitionId,
        /// The index asked for.
        index: u64,
        /// The first index there is.
        first: u64,
    },
    /// The segment does not exist, or no longer.
    #[error("there is no log segment {segment}")]
    NoSegment {
        /// Its number.
        segment: u64,
    },
    /// The bytes on disk are not those that were written. Stop the partition; never skip the entry.
    #[error("log segment {segment} is damaged at byte {at}")]
    Corrupt {
        /// Its number.
        segment: u64,
        /// File position.
        at: u64,
    },
    /// A read or a release failed.
    #[error("log segment {segment}: {reason}")]
    Io {
        /// Its number.
        segment: u64,
        /// What the operating system said.
        reason: Arc<str>,
    },
}

/// Why a log could not be opened. The message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum WalOpenError {
    /// An option is out of its range.
    #[error("wal segment size {bytes} is not between {SEGMENT_BYTES_MIN} and {SEGMENT_BYTES_MAX} bytes")]
    SegmentBytes {
        /// The value.
        bytes: u64,
    },
    /// Another process has the log open.
    #[error("{} is locked: another process uses this data directory; stop it first", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// No room for the first segment.
    #[error("no room for a log segment of {bytes} bytes in {}: free some space and start again", dir.display())]
    Full {
        /// The log's directory.
        dir: PathBuf,
        /// Bytes needed.
        bytes: u64,
    },
    /// Bytes that no crash explains: acknowledged data may be lost, so nothing was changed.
    #[error(
        "{} is damaged at byte {at}: {what}; do not edit or delete it: restore this node's data directory from a backup, or move the directory aside and start with an empty one, without what it held",
        file.display()
    )]
    Damaged {
        /// The segment file.
        file: PathBuf,
        /// Position in it.
        at: u64,
        /// What is wrong.
        what: String,
    },
    /// Entries that were neither purged nor truncated are gone, with the file that held them.
    #[error(
        "a log segment is missing from {}: it held entries {first} to {last} of partition {partition}; put the file back, or restore this node's data directory from a backup",
        dir.display()
    )]
    MissingEntries {
        /// The log's directory.
        dir: PathBuf,
        /// The partition.
        partition: PartitionId,
        /// First entry missed.
        first: u64,
        /// Last entry missed.
        last: u64,
    },
    /// The newest segment is gone, and with it entries that were acknowledged.
    #[error(
        "{} is missing: {} names it as the newest log segment, which holds the entries acknowledged last; put the file back with all that were removed along with it, or restore this node's data directory from a backup, or move the directory aside and start with an empty one, without what it held",
        file.display(),
        newest.display()
    )]
    NewestSegmentMissing {
        /// The segment file.
        file: PathBuf,
        /// The file that names it.
        newest: PathBuf,
    },
    /// The file that names the newest segment is gone, so nothing tells whether that is still there.
    #[error(
        "{} is missing, though the log segments beside it were written with it: newer segments may be gone as well, and the entries acknowledged last with them; put the file back with all that were removed along with it, or restore this node's data directory from a backup, or move the directory aside and start with an empty one, without what it held",
        newest.display()
    )]
    NewestMissing {
        /// The file.
        newest: PathBuf,
    },
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}
