//! What applying a command yields. Refusals are replies, since they are part of the replicated history.

use serde::{Deserialize, Serialize};

use crate::command::Block;
use crate::ids::{DeadLetterId, LaneId, LeaseId, Offset, QueueId};
use crate::time::WallTime;

/// What applying one command yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The answer to whoever proposed it.
    pub reply: Reply,
    /// What every replica's stores must do, in order.
    pub changes: Vec<StoreChange>,
    /// Hints, used on the leader only; they may repeat or get lost around a failover.
    pub effects: Vec<Effect>,
}

impl Outcome {
    /// An answer that changes nothing else.
    pub fn reply(reply: Reply) -> Self {
        Self {
            reply,
            changes: Vec::new(),
            effects: Vec::new(),
        }
    }

    /// A refusal.
    pub fn refused(refusal: Refusal) -> Self {
        Self::reply(Reply::Refused(refusal))
    }
}

/// A command's answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reply {
    /// Of a push.
    Pushed(Pushed),
    /// Of a claim; no lane means that nothing was claimable.
    Claimed(Claimed),
    /// Of an ack.
    Acked(Acked),
    /// Of an extension; `None` when no live lease has the id.
    Extended(Option<Extended>),
    /// Of a release: how many lanes were given back or shortened.
    Released(u32),
    /// Of a replay.
    Replayed(Replayed),
    /// Of the deletion of a dead letter that was there.
    DeadLetterDeleted,
    /// Of a catalog change, taken now or before.
    CatalogTaken,
    /// Of a tick.
    Ticked,
    /// Of a sweep: whether rows are left.
    Swept {
        /// Rows of deleted queues are left.
        more: bool,
    },
    /// Of a trim.
    Trimmed,
    /// Nothing changed.
    Refused(Refusal),
}

/// Why a command changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// The incarnation was deleted.
    QueueGone,
    /// The partition has no room for another lane.
    LanesFull,
    /// The group is not registered on the queue here.
    GroupUnknown,
    /// The plan rests on an earlier one that was refused; propose anew.
    PlanOutdated,
    /// The request id was used for something else.
    RequestIdReused,
    /// No such dead letter.
    DeadLetterGone,
}

/// Answer of a push.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pushed {
    /// The lane, maybe new.
    pub lane: LaneId,
    /// One per item.
    pub items: Vec<PushedItem>,
}

/// Answer for one pushed item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PushedItem {
    /// Offset of the message: the new one, or the one already stored.
    pub offset: Offset,
    /// Wall stamp of that message.
    pub wall: WallTime,
    /// It was stored before.
    pub duplicate: bool,
}

/// Answer of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claimed {
    /// The lease, as proposed; without effect under `auto_ack`.
    pub lease_id: LeaseId,
    /// The lanes claimed, longest-ready first.
    pub lanes: Vec<ClaimedLane>,
}

/// One lane of a claim: the batch `[offset_first, batch_end)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClaimedLane {
    /// The lane.
    pub lane: LaneId,
    /// Its name.
    pub name: String,
    /// First offset of the batch.
    pub offset_first: Offset,
    /// End of the batch, exclusive.
    pub batch_end: Offset,
    /// 1 for a first delivery of a batch that starts here, then growing.
    pub attempt: u32,
}

/// Answer of an ack.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Acked {
    /// One per item, in order.
    pub items: Vec<AckedItem>,
    /// The lease ended with this ack (or with the one that this repeats).
    pub lease_released: bool,
}

/// Answer for one acknowledged message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AckedItem {
    /// Accepted.
    Done,
    /// Accepted, and the target filed its head in the dead-letter store; only on failed and dead-letter items.
    DeadLettered,
    /// Completed, but settled before: a success without effect.
    Noop,
    /// The lease id is not that of the live lease.
    LeaseInvalid,
    /// Not found, or a signal on a message already settled, or no cursor.
    Unresolvable,
    /// No such lane.
    LaneUnknown,
    /// The message was deleted before it could be filed; nothing moved.
    DeadLetterRejected,
}

/// Answer of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extended {
    /// Lanes whose lease has this id and lives.
    pub renewed: u32,
    /// The earliest expiry among them, as a time of day.
    pub expires: WallTime,
}

/// Answer of a replay.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Replayed {
    /// The lane it went to.
    pub lane: LaneId,
    /// Its new offset.
    pub offset: Offset,
    /// Its new wall stamp.
    pub wall: WallTime,
    /// The row as it was.
    pub dead_letter: DeadLetter,
}

/// A dead letter's row. It pins its message's payload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The row.
    pub id: DeadLetterId,
    /// The incarnation of its queue.
    pub queue: QueueId,
    /// The lane of the message.
    pub lane: LaneId,
    /// The offset of the message.
    pub offset: Offset,
    /// The group that failed it.
    pub group: String,
    /// The message's transaction id.
    pub transaction_id: String,
    /// Why.
    pub reason: String,
    /// Charged failures at filing.
    pub retries_used: u32,
    /// When it was filed.
    pub filed: WallTime,
}

/// What every replica's stores (payloads, dedup rows) must do after a command. Not part of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChange {
    /// `count` messages in `block` of the entry's blob are those from `offset_first` on.
    Stored {
        /// The queue.
        queue: QueueId,
        /// The lane.
        lane: LaneId,
        /// First offset.
        offset_first: Offset,
        /// How many.
        count: u32,
        /// Where.
        block: Block,
        /// Whether the transaction ids open a dedup window.
        dedup: bool,
    },
    /// Messages below `head` are deleted, but for pinned ones.
    HeadMoved {
        /// The lane.
        lane: LaneId,
        /// First retained offset.
        head: Offset,
    },
    /// A dead letter holds this message.
    Pinned {
        /// The lane.
        lane: LaneId,
        /// The offset.
        offset: Offset,
    },
    /// No dead letter holds this message any more.
    Unpinned {
        /// The lane.
        lane: LaneId,
        /// The offset.
        offset: Offset,
    },
    /// The lane is gone with all it had.
    LaneDropped {
        /// The lane.
        lane: LaneId,
    },
}

/// A hint to the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The lane became claimable by the group.
    LaneReady {
        /// The queue.
        queue: QueueId,
        /// The group.
        group: String,
        /// The lane.
        lane: LaneId,
    },
    /// The queue is gone: answer its parked pops.
    QueueGone {
        /// The incarnation.
        queue: QueueId,
    },
}
