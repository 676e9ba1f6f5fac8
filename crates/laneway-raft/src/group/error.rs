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
    #[error("node {} is not among the voters", crate::node_number(*node_id))]
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

/// [`Group::add_learner`](super::Group::add_learner), [`Group::remove_learner`](super::Group::remove_learner) or
/// [`Group::set_voters`](super::Group::set_voters) failed.
///
/// "Definite" means that the membership was not changed and will not be by this call. Of `set_voters` it holds for its first entry
/// alone: where the second failed, [`Members::joint`](super::Members::joint) shows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// This node does not lead, or hands the lead over. Definite.
    #[error("not the leader")]
    NotLeader {
        /// Raft node id of the leader, if known.
        leader: Option<u64>,
    },
    /// Another change is not committed yet, or came in between. Definite; retry after a moment.
    #[error("another change of the members is in progress")]
    InProgress,
    /// A voter that is no member (add it as a learner first), or a voter that would cease to be a member. Definite.
    #[error(
        "node {} is not in the right role for this change: a new voter must be a learner first, and a voter cannot be removed as a learner",
        crate::node_number(*raft_id)
    )]
    UnknownMember {
        /// Which.
        raft_id: u64,
    },
    /// No voter would be left. Definite.
    #[error("no voter would be left")]
    NoVoters,
    /// Refused for a reason that these calls should not meet. Definite.
    #[error("the change was refused: {reason}")]
    Refused {
        /// openraft's words.
        reason: String,
    },
    /// The lead was lost while the change was on its way: it may come about. Not definite; look at
    /// [`Group::members`](super::Group::members) of the next leader.
    #[error("the lead was lost during the change, it may come about")]
    Unknown,
    /// The group ended. Not definite.
    #[error("the raft group has ended")]
    Stopped,
}

/// [`Group::transfer_leader`](super::Group::transfer_leader) failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// This node does not lead, or lost the lead before it was offered. Nothing was done.
    #[error("not the leader")]
    NotLeader {
        /// Raft node id of the leader, if known.
        leader: Option<u64>,
    },
    /// The target does not vote. Nothing was done.
    #[error("node {} is not a voter", crate::node_number(*raft_id))]
    NotAVoter {
        /// The target.
        raft_id: u64,
    },
    /// The target would have to catch up first: it lacks too much, or did not get the last entries in time. This node leads on and
    /// takes proposals.
    #[error(
        "node {} lacks {entries} entries, it has to catch up first",
        crate::node_number(*raft_id)
    )]
    Behind {
        /// The target.
        raft_id: u64,
        /// How many it lacks.
        entries: u64,
    },
    /// Another node was elected instead; or nobody yet: then no proposals are taken until somebody is.
    #[error("the lead did not go to that node in time")]
    NotTaken,
    /// The group ended.
    #[error("the raft group has ended")]
    Stopped,
}
