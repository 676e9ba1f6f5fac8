//! Errors, one type per operation.

use crate::format::FormatError;

/// [`Group::open`](super::Group::open) failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The options contradict each other.
    #[error("invalid raft options: {reason}")]
    InvalidOptions {
        /// Which, and why.
        reason: String,
    },
    /// A stored vote, commit position or membership is damaged.
    #[error("the group's stored state is damaged: {reason}")]
    Damaged {
        /// Which, and how.
        reason: String,
    },
    /// Entries that the checkpoint lacks were purged: the checkpoint is not the newest one, or it is lost.
    #[error("the log is purged up to {}, but the checkpoint ends at {}", index(*.purged), index(*.applied))]
    CheckpointBehindLog {
        /// Index up to which the log is purged.
        purged: Option<u64>,
        /// Index of the checkpoint.
        applied: Option<u64>,
    },
    /// The log could not be read, or the machine failed while it was replayed.
    #[error("replay failed: {reason}")]
    Replay {
        /// What went wrong.
        reason: String,
    },
}

/// An index, or that there is none.
fn index(index: Option<u64>) -> String {
    index.map_or_else(|| "no entry".to_owned(), |index| format!("entry {index}"))
}

impl From<FormatError> for OpenError {
    fn from(error: FormatError) -> Self {
        Self::Damaged {
            reason: error.to_string(),
        }
    }
}

/// [`Group::initialize`](super::Group::initialize) failed.
#[derive(Debug, thiserror::Error)]
pub enum InitializeError {
    /// This node is not among the voters.
    #[error("node {node_id:#018x} is not among the voters")]
    NotAVoter {
        /// This node.
        node_id: u64,
    },
    /// The group ended.
    #[error("the raft group has ended: {reason}")]
    Stopped {
        /// Why.
        reason: String,
    },
}

/// [`Group::read_index`](super::Group::read_index) failed: nothing may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadIndexError {
    /// This node does not lead, or lost the lead meanwhile.
    #[error("not the leader")]
    NotLeader {
        /// Raft node id of the leader, if known.
        leader: Option<u64>,
    },
    /// No quorum confirmed the lead in time.
    #[error("no quorum confirmed the lead")]
    NoQuorum,
    /// The group ended.
    #[error("the raft group has ended")]
    Stopped,
}

/// [`Group::name_checkpoint`](super::Group::name_checkpoint) failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameCheckpointError {
    /// The group ended.
    #[error("the raft group has ended")]
    Stopped,
}

/// [`Group::purge`](super::Group::purge) failed: the log is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PurgeError {
    /// There is no complete checkpoint.
    #[error("there is no checkpoint to purge up to")]
    NoCheckpoint,
    /// The group ended.
    #[error("the raft group has ended")]
    Stopped,
}
