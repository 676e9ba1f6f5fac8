//! Rows of a partition's checkpoint: the whole state of the machine, keyed.
//!
//! The machine keeps its state as exactly these rows; everything else in it is derived from them. The encodings are
//! frozen: variants are numbered by their order here, and both they and fields are only ever appended.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::command::RequestKey;
use crate::ids::{CatalogVersion, DeadLetterId, LaneId, LeaseId, Offset, PartitionId, QueueId, Slot};
use crate::reply::{DeadLetter, Reply};
use crate::settings::{GroupRow, QueueRow};
use crate::time::{LeaseTime, Stamps, WallTime};

/// Which row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RowKey {
    /// The one [`MetaRow`].
    Meta,
    /// A slot that lanes were born in.
    Slot(Slot),
    /// A live queue.
    Queue(QueueId),
    /// A group of a live queue: groups of a queue are numbered from 0 in order of registration.
    Group(QueueId, u32),
    /// A deleted queue whose lanes await their sweep.
    Tombstone(QueueId),
    /// A lane, also one of a deleted queue that awaits its sweep.
    Lane(LaneId),
    /// A dead letter, also one that awaits a sweep.
    DeadLetter(DeadLetterId),
    /// The kept answer of a request id, by age.
    Request(u64),
    /// The kept answer of an ack that ended a lease, by age.
    Settled(u64),
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Row {
    /// Of [`RowKey::Meta`].
    Meta(Box<MetaRow>),
    /// Of [`RowKey::Slot`].
    Slot(SlotRow),
    /// Of [`RowKey::Queue`].
    Queue(Box<QueueRow>),
    /// Of [`RowKey::Group`].
    Group(GroupRow),
    /// Of [`RowKey::Tombstone`].
    Tombstone(TombstoneRow),
    /// Of [`RowKey::Lane`].
    Lane(Box<LaneRow>),
    /// Of [`RowKey::DeadLetter`].
    DeadLetter(Box<DeadLetter>),
    /// Of [`RowKey::Request`].
    Request(Box<RequestRow>),
    /// Of [`RowKey::Settled`].
    Settled(Box<SettledRow>),
}

/// Counters and stamps of the whole partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MetaRow {
    /// The partition that the rows belong to.
    pub partition: PartitionId,
    /// Stamps of the last entry.
    pub stamps: Stamps,
    /// All catalog changes up to this one were taken.
    pub catalog_version: CatalogVersion,
    /// The next sequence in the ready order.
    pub ready_next: u64,
    /// Sequence of the next dead letter.
    pub dead_letter_next: u64,
    /// Number of the next kept answer, of both kinds.
    pub kept_next: u64,
    /// Messages ever stored by pushes.
    pub pushed: u64,
    /// Messages ever handed out by claims, repeats included.
    pub delivered: u64,
    /// Positions ever passed by cursors, over all groups.
    pub settled: u64,
    /// Dead letters ever filed.
    pub dead_lettered: u64,
    /// Leases that ever lapsed.
    pub leases_expired: u64,
}

/// A slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SlotRow {
    /// Sequence of the next lane born here.
    pub lane_next: u32,
}

/// What is left of a deleted queue, besides its lanes and their dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TombstoneRow {
    /// The catalog change that deleted it.
    pub version: CatalogVersion,
}

/// A lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LaneRow {
    /// Its queue.
    pub queue: QueueId,
    /// Its name.
    pub name: Box<str>,
    /// First retained offset.
    pub head: Offset,
    /// Next offset to be written.
    pub tail: Offset,
    /// Wall stamp of the newest message.
    pub newest: WallTime,
    /// Messages that `delayed_processing_seconds` may hold back; `None` when there are none.
    pub unripe: Option<Box<Unripe>>,
    /// By number of the group; one per registered group of the queue.
    pub groups: Box<[GroupState]>,
}

/// Stamps of the messages from the first run on, ascending. What lies before is ripe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Unripe {
    /// Not empty.
    pub runs: VecDeque<UnripeRun>,
}

/// Messages from `first` to the next run (or the tail) were stored at `wall`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UnripeRun {
    /// First offset.
    pub first: Offset,
    /// Their wall stamp.
    pub wall: WallTime,
}

/// A group on a lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GroupState {
    /// First offset that it has not settled. A head beyond it counts instead.
    pub cursor: Offset,
    /// The lease; it may have lapsed without having been swept.
    pub lease: Option<Box<Lease>>,
    /// Charged failures since the last completed batch or dead letter.
    pub retries_used: u32,
    /// Deliveries of the batch that starts at `attempt_at`; 0 when it was settled.
    pub attempt: u32,
    /// Start of the last delivered batch.
    pub attempt_at: Offset,
    /// Messages settled in all.
    pub consumed: u64,
    /// Whether a claim can have it.
    pub standing: Standing,
}

/// An exclusive, timed right to the batch from the cursor to `batch_end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// Shared by all lanes of one claim.
    pub id: LeaseId,
    /// End of the batch, exclusive.
    pub batch_end: Offset,
    /// It lives while lease time is below this.
    pub deadline: LeaseTime,
}

/// What a group may expect of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Standing {
    /// Nothing to deliver, or leased.
    Idle,
    /// Claimable; claims go by this sequence.
    Ready(u64),
    /// Held back until this wall time.
    Held(WallTime),
}

/// The answer to a client's request id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RequestRow {
    /// The request.
    pub request: RequestKey,
    /// When it was answered.
    pub kept: LeaseTime,
    /// The answer.
    pub reply: Reply,
}

/// The answer to an ack that ended a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SettledRow {
    /// The lease.
    pub lease: LeaseId,
    /// The lane.
    pub lane: LaneId,
    /// Hash of the exact item list.
    pub items_hash: u128,
    /// When it was answered.
    pub kept: LeaseTime,
    /// The answer.
    pub reply: Reply,
}

impl GroupState {
    /// A group that has met nothing yet.
    pub(crate) fn at(cursor: Offset) -> Self {
        Self {
            cursor,
            lease: None,
            retries_used: 0,
            attempt: 0,
            attempt_at: Offset(0),
            consumed: 0,
            standing: Standing::Idle,
        }
    }

    /// The lease, unless it has lapsed at `now`.
    pub(crate) fn live_lease(&self, now: LeaseTime) -> Option<Lease> {
        self.lease
            .as_deref()
            .copied()
            .filter(|lease| now < lease.deadline)
    }
}
