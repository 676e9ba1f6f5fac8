//! How a start ends: what it found, or why it was refused.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use laneway_core::ids::{LaneId, Offset, PartitionId};
use laneway_storage::wal::WalOpenError;

/// Why a node does not start. The text is one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process has the data directory.
    #[error("data directory {} is in use by another process; stop it, or choose another directory", .dir.display())]
    DataDirInUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The data belongs to somebody else.
    #[error(
        "data directory {} belongs to node {found_node} of cluster {found_cluster:?}, not to node {node} of cluster {cluster:?}; choose another directory or correct the configuration",
        .dir.display()
    )]
    OtherNode {
        /// The directory.
        dir: PathBuf,
        /// As configured.
        node: u16,
        /// As configured.
        cluster: String,
        /// As found.
        found_node: u16,
        /// As found.
        found_cluster: String,
    },
    /// The number of partitions is fixed when the data directory is made.
    #[error(
        "data directory {} was made with {found} partitions, not {configured}; give partitions = {found} in the cluster file, or with laneway dev leave --partitions out; other data needs an empty directory",
        .dir.display()
    )]
    PartitionsDiffer {
        /// The directory.
        dir: PathBuf,
        /// As configured.
        configured: u16,
        /// As found.
        found: u16,
    },
    /// An option is out of range.
    #[error("{option} is {value}, it must be {range}")]
    Option {
        /// Its name.
        option: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        range: String,
    },
    /// The clock is of no use for time stamps.
    #[error("the machine's clock shows a time before 1970: set it, then start again")]
    Clock,
    /// A file is damaged.
    #[error(
        "{what}; restore the data directory from a backup, or start with an empty one: the broker does not guess"
    )]
    Damaged {
        /// Which file, and how.
        what: String,
    },
    /// The data directory has data but not the file that says whose.
    #[error(
        "data directory {} has data, but {} is missing; restore that file from a backup or choose an empty directory",
        .dir.display(),
        .dir.join("identity").display()
    )]
    NoIdentity {
        /// The directory.
        dir: PathBuf,
    },
    /// The data directory has an identity but no log.
    #[error(
        "the log of data directory {} is gone: there is no segment in {}; put the files back, or restore the data directory from a backup, or move it aside and start empty",
        .dir.display(),
        .wal.display()
    )]
    NoLog {
        /// The directory.
        dir: PathBuf,
        /// The log's folder.
        wal: PathBuf,
    },
    /// The log cannot be opened.
    #[error(transparent)]
    Wal(#[from] WalOpenError),
    /// A file with messages is gone.
    #[error(
        "messages of partition {partition} are missing from {}: lane {lane} has none at offset {offset}; a backlog file or log segment was removed: put it back or restore the data directory from a backup",
        .dir.display()
    )]
    MessagesMissing {
        /// The partition's folder.
        dir: PathBuf,
        /// Which partition.
        partition: PartitionId,
        /// Which lane.
        lane: LaneId,
        /// First offset missed.
        offset: Offset,
    },
    /// A partition cannot be opened.
    #[error("partition {partition}: {what}")]
    Partition {
        /// Which.
        partition: PartitionId,
        /// What is on disk is not what was written.
        damaged: bool,
        /// Why.
        what: String,
    },
    /// The port for peers is not to be had.
    #[error(
        "cannot listen for peers on {listen}: {source}; stop the process that listens there or correct peer_listen"
    )]
    PeerPort {
        /// As configured.
        listen: String,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// Which file or what act.
        what: String,
        /// Its answer.
        source: std::io::Error,
    },
}

/// What a start found on disk, for one log line.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The data directory was empty.
    pub new: bool,
    /// Cluster id.
    pub cluster_id: String,
    /// WAL segments read.
    pub wal_segments: usize,
    /// Log entries in them.
    pub entries: u64,
    /// Bytes of a torn last write that were cut; nobody was told that they were stored.
    pub torn_bytes_cut: u64,
    /// Time it took.
    pub took: Duration,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.new {
            return f.write_str("new data directory");
        }
        write!(
            f,
            "{} wal segments with {} entries",
            self.wal_segments, self.entries
        )?;
        if self.torn_bytes_cut > 0 {
            write!(f, ", {} bytes of an unfinished write cut", self.torn_bytes_cut)?;
        }
        write!(f, ", {} ms", self.took.as_millis())
    }
}
