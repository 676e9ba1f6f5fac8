//! What goes into a partition's log. Commands are plans of one leader's term; see the crate docs for who decides what.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::ids::{CatalogVersion, DeadLetterId, LaneId, LeaseId, Offset, QueueId};
use crate::settings::{GroupRow, QueueRow};
use crate::time::{Stamps, WallTime};

/// One entry of a partition's log: stamps, commands, and one blob with the payload blocks of all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The leader's two stamps; `apply` clamps them so that neither goes back.
    pub stamps: Stamps,
    /// Applied in order.
    pub commands: Vec<Command>,
    /// Payload blocks; commands name ranges of it. Never read by the machine.
    pub blob: Bytes,
}

/// A command. Each variant has a number of its own ([`Command::tag`]) that is never reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// 1
    Push(Push),
    /// 2
    Claim(Claim),
    /// 3
    Ack(Ack),
    /// 4
    Extend(Extend),
    /// 5
    ReleaseClaim(ReleaseClaim),
    /// 6
    ReplayDeadLetter(ReplayDeadLetter),
    /// 7
    DeleteDeadLetter(DeleteDeadLetter),
    /// 8
    PutQueue(PutQueue),
    /// 9
    DeleteQueue(DeleteQueue),
    /// 10
    RegisterGroup(RegisterGroup),
    /// 11: only the stamps matter.
    Tick,
    /// 12
    Sweep(Sweep),
    /// 15
    Trim(Trim),
}

impl Command {
    /// The persisted number of the variant. 13 (seek) and 14 (delete group) are reserved, as are 20–59.
    pub fn tag(&self) -> u8 {
        match self {
            Self::Push(_) => 1,
            Self::Claim(_) => 2,
            Self::Ack(_) => 3,
            Self::Extend(_) => 4,
            Self::ReleaseClaim(_) => 5,
            Self::ReplayDeadLetter(_) => 6,
            Self::DeleteDeadLetter(_) => 7,
            Self::PutQueue(_) => 8,
            Self::DeleteQueue(_) => 9,
            Self::RegisterGroup(_) => 10,
            Self::Tick => 11,
            Self::Sweep(_) => 12,
            Self::Trim(_) => 15,
        }
    }
}

/// A client's request id, so that a repeat gets the kept answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestKey {
    /// Header `x-laneway-request-id`, 1 to 64 bytes.
    pub id: String,
    /// Which of the commands that one request fans out to, in request order.
    pub part: u32,
    /// Hash of what the command asks for; another value under the same id is refused.
    pub content: u64,
}

/// A range of the entry's blob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// First byte.
    pub at: u32,
    /// Length in bytes.
    pub bytes: u32,
}

/// Appends messages to one lane, creating it if it is new. Atomic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Push {
    /// For kept answers.
    pub request: Option<RequestKey>,
    /// The incarnation pushed to; a dead one is refused.
    pub queue: QueueId,
    /// The lane's name.
    pub lane: String,
    /// The queue's row, when the leader saw that this partition may not have it.
    pub rider: Option<QueueRow>,
    /// One per item of the request, in order.
    pub items: Vec<PushItem>,
    /// Frames of the stored items, in order.
    pub block: Block,
}

/// What the leader decided for one pushed item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PushItem {
    /// Append it at the tail.
    Store,
    /// Its transaction id is that of a stored message, or of one stored by an earlier entry or command of the log.
    DuplicateOf {
        /// That message's offset.
        offset: Offset,
        /// That message's wall stamp.
        wall: WallTime,
    },
    /// Its transaction id is that of an earlier item of the same command.
    DuplicateOfItem(u32),
}

/// Leases (or, with `auto_ack`, consumes) deliverable messages of one or several lanes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Minted by the leader; shared by every lane claimed.
    pub lease_id: LeaseId,
    /// The incarnation popped from.
    pub queue: QueueId,
    /// The consumer group.
    pub group: String,
    /// Only this lane, or any claimable one, longest-ready first.
    pub lane: Option<LaneId>,
    /// At most so many lanes; at least 1.
    pub lanes_max: u16,
    /// At most so many messages in all; at least 1.
    pub messages_max: u32,
    /// Lease length; the queue's own when `None`.
    pub lease_ms: Option<u64>,
    /// Settle at once, take no lease.
    pub auto_ack: bool,
}

/// Settles or fails messages of one (lane, group, lease). Atomic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// For kept answers.
    pub request: Option<RequestKey>,
    /// The lane.
    pub lane: LaneId,
    /// The consumer group.
    pub group: String,
    /// The lease it is done under; `None` is a bare ack.
    pub lease_id: Option<LeaseId>,
    /// Hash of the exact item list as the client sent it, so that a repeat is known as one.
    pub items_hash: u128,
    /// At least one, in request order.
    pub items: Vec<AckItem>,
}

/// One acknowledged message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AckItem {
    /// What happened to it.
    pub status: AckStatus,
    /// Every offset known to carry its transaction id, ascending; empty when none was found.
    pub candidates: Vec<Offset>,
    /// The transaction id, present when `status` is `Failed` or `DeadLetter`: the dead letter's row keeps it.
    pub transaction_id: Option<String>,
    /// Why it failed; kept on the dead letter's row.
    pub error: Option<String>,
}

/// Status word of an ack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AckStatus {
    /// Done.
    Completed,
    /// Redeliver, uncharged.
    Retry,
    /// Redeliver, charged to the retry budget; dead-letter when it is spent.
    Failed,
    /// Dead-letter now.
    DeadLetter,
}

/// Lengthens every live lease with this id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extend {
    /// For kept answers.
    pub request: Option<RequestKey>,
    /// The lease.
    pub lease_id: LeaseId,
    /// New length from now, in ms; never shortens.
    pub lease_ms: u64,
}

/// Gives back, uncharged, a claim that nobody received, or the part of it that its answer has no room for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseClaim {
    /// The lease.
    pub lease_id: LeaseId,
    /// Per lane: the new batch end, or `None` to give the whole lane back. Lanes not named keep their lease.
    pub lanes: Vec<(LaneId, Option<Offset>)>,
}

/// Moves a dead letter back to the tail of its lane, with a copy of its payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayDeadLetter {
    /// For kept answers.
    pub request: Option<RequestKey>,
    /// The row.
    pub id: DeadLetterId,
    /// One frame: the payload under its new transaction id.
    pub block: Block,
}

/// Deletes a dead letter's row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteDeadLetter {
    /// For kept answers.
    pub request: Option<RequestKey>,
    /// The row.
    pub id: DeadLetterId,
}

/// The catalog brings a queue's row. Ignored when the partition has a newer one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutQueue {
    /// The row.
    pub row: QueueRow,
    /// The catalog change that this is; the partition then has all up to it. `None` for a rider.
    pub version: CatalogVersion,
}

/// The catalog deletes an incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteQueue {
    /// The incarnation.
    pub queue: QueueId,
    /// The catalog change that this is.
    pub version: CatalogVersion,
}

/// The catalog registers a consumer group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterGroup {
    /// The queue's row: it may be unknown here.
    pub queue: QueueRow,
    /// The registration; its version is the catalog change that this is.
    pub group: GroupRow,
    /// For [`crate::settings::GroupStart::At`]: the first offset at or after that time, for each lane where it is not 0.
    /// Resolved by the leader; every message pushed later in the log is compared by its stamp.
    pub starts: Vec<(LaneId, Offset)>,
}

/// Drops rows of deleted queues, a bounded number at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// At most so many.
    pub rows_max: u32,
}

/// Retention: deletes the messages of some lanes below an offset that the leader resolved from their age.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trim {
    /// The incarnation.
    pub queue: QueueId,
    /// Stop at the lowest cursor of the queue's registered groups (with none, delete nothing).
    pub completed_only: bool,
    /// New first offset of each lane.
    pub lanes: Vec<(LaneId, Offset)>,
}
