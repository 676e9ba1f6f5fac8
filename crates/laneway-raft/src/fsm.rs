//! What passes between a group and the state machine behind it.

use std::fmt;

use bytes::Bytes;
use tokio::sync::oneshot;

/// Messages of a group to its state machine, on one channel: what is sent first is received first.
#[derive(Debug)]
pub enum FsmMsg {
    /// Committed entries, contiguous, in index order, following the last ones.
    ///
    /// The next batch comes after `done` was sent. Dropping `done` says that the machine failed: the group stops, and
    /// proposals in this batch are reported as not definite.
    Apply {
        /// At least one entry.
        entries: Vec<CommittedEntry>,
        /// Send it when all entries are applied.
        done: oneshot::Sender<()>,
    },
    /// A proposal of this node will not be answered by an [`FsmMsg::Apply`] that it can rely on.
    ProposalFailed {
        /// The number given to [`Group::propose`](crate::Group::propose).
        proposal: u64,
        /// True: it is not in the log and never will be. False: it may have been applied, or may still be.
        definite: bool,
    },
    /// Who leads, as this node sees it. Sent once at start, before anything that is not replay, and at each change.
    ///
    /// A term in which this node leads is always closed by a message with `is_self: false` before the next one opens, and no
    /// `Apply` order is implied: the first entry of the term may be applied before or after this message. A leader may plan as
    /// soon as both were seen: `is_self` for a term, and an applied entry *of that term*.
    LeadershipChanged(Leadership),
    /// Asks for the newest complete checkpoint. `None`: there is none yet. A dropped `reply` counts as `None`.
    Checkpoint {
        /// Where to send its name.
        reply: oneshot::Sender<Option<CheckpointName>>,
    },
    /// A snapshot of the leader was put in place: what the machine holds, and its files, are those of the past. It must end, the
    /// group with it, and be opened anew from disk. Entries may still come before it has.
    SnapshotPlaced,
    /// The group ended by itself and will do nothing more. Not sent after [`Group::shutdown`](crate::Group::shutdown).
    Stopped {
        /// For the log: what ended it.
        reason: String,
    },
}

/// One committed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedEntry {
    /// Position in the group's log, from 0.
    pub index: u64,
    /// Term of the leader that appended it.
    pub term: u64,
    /// Raft node id of that leader.
    pub leader: u64,
    /// What it holds.
    pub payload: CommittedPayload,
}

/// What a committed entry holds.
#[derive(Clone, PartialEq, Eq)]
pub enum CommittedPayload {
    /// The first entry of a leader's term.
    Blank,
    /// A proposal's body, the very bytes that are in the WAL's cache.
    Normal(Bytes),
    /// A membership took effect. Keep the bytes as they are: the next checkpoint stores the latest ones, for
    /// [`AppliedState::membership`] and [`CheckpointName::membership`].
    Membership(Bytes),
}

impl fmt::Debug for CommittedPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blank => f.write_str("Blank"),
            Self::Normal(body) => write!(f, "Normal({} bytes)", body.len()),
            Self::Membership(body) => write!(f, "Membership({} bytes)", body.len()),
        }
    }
}

/// Who leads, as one node sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The term of the newest vote that this node has stored.
    pub term: u64,
    /// Raft node id of the leader of that term, if this node knows one.
    pub leader: Option<u64>,
    /// Whether that is this node.
    pub is_self: bool,
}

/// What the state machine holds when its group opens: the newest complete checkpoint, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedState {
    /// (index, term, leader) of the last entry in it.
    pub applied: Option<(u64, u64, u64)>,
    /// The bytes of the latest [`CommittedPayload::Membership`] in it; empty when there was none.
    pub membership: Bytes,
}

/// A complete checkpoint, by the last entry in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointName {
    /// Index of that entry.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// Raft node id of its leader.
    pub leader: u64,
    /// The bytes of the latest [`CommittedPayload::Membership`] up to it; empty when there was none.
    pub membership: Bytes,
}
