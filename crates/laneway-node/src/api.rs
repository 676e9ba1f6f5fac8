//! What a gateway asks of a node and what it gets back. Plain data; [`crate::Node`] has one async method for each request.

mod cluster;
mod observe;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use laneway_core::catalog::SettingsPatch;
use laneway_core::command::AckStatus;
use laneway_core::ids::{DeadLetterId, LaneId, LeaseId, MessageId, Offset, ParseIdError};
use laneway_core::reply::{AckedItem, DeadLetter};
use laneway_core::settings::GroupStart;
use laneway_core::time::WallTime;
use serde::{Deserialize, Deserializer, Serialize};

pub use cluster::{ClusterChange, ClusterChanged, ClusterGroup, ClusterMember, ClusterNode, ClusterStatus};
pub use observe::{
    Counts, GroupDigest, GroupStatus, Histogram, LaneInfo, MessageGroup, MessageInfo, MessageStatus, Metrics,
    NodeStatus, QueueInfo, QueueMetrics, Readiness, StorageStatus,
};

/// Name of the group of a pop that names none.
pub const QUEUE_MODE_GROUP: &str = "__QUEUE_MODE__";

/// Longest client request id, in bytes.
pub const REQUEST_ID_BYTES_MAX: usize = 64;

/// What kind of failure a request met. The gateway derives status, retry advice and log level from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorClass {
    /// The caller must change the request. Nothing changed.
    Invalid,
    /// There is no such thing. Nothing changed.
    NotFound,
    /// The request contradicts the present state. Nothing changed.
    Conflict,
    /// The request is over a size bound. Nothing changed.
    TooLarge,
    /// The disk is (nearly) full. Nothing changed.
    StorageFull,
    /// A bound of work in progress was met. Nothing changed.
    Overloaded,
    /// No leader or no quorum. Nothing changed.
    Unavailable,
    /// It may or may not have been done; repeat it with the same request id.
    OutcomeUnknown,
    /// A fault of the broker.
    Internal,
}

/// Codes of refusals, as in the wire contract.
const CODES: [&str; 12] = [
    "bad_request",
    "conflict",
    "internal",
    "name_too_long",
    "no_leader",
    "not_found",
    "outcome_unknown",
    "overloaded",
    "queue_deleted",
    "request_id_reused",
    "retry",
    "storage_full",
];

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
#[error("{message}")]
pub struct RequestError {
    /// Its kind.
    pub class: ErrorClass,
    /// Machine-readable code of the wire contract, such as `no_leader` or `storage_full`.
    pub code: &'static str,
    /// For a person: what happened, why, what to do.
    pub message: String,
}

/// A [`RequestError`] of a peer.
#[derive(Deserialize)]
struct RequestErrorRow {
    class: ErrorClass,
    code: String,
    message: String,
}

impl<'de> Deserialize<'de> for RequestError {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let row = RequestErrorRow::deserialize(deserializer)?;
        // A code that only a later release knows is an internal error here.
        let code = CODES.into_iter().find(|known| **known == row.code);
        Ok(Self::new(row.class, code.unwrap_or("internal"), row.message))
    }
}

/// A client's id of one request, 1 to [`REQUEST_ID_BYTES_MAX`] bytes; its outcome is kept for a repeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestId(pub Arc<str>);

/// Messages to push, in any mix of queues and lanes.
#[derive(Clone, Debug)]
pub struct PushRequest {
    /// For a repeat.
    pub request_id: Option<RequestId>,
    /// In request order.
    pub items: Vec<PushItem>,
}

/// One message to push.
#[derive(Clone, Debug)]
pub struct PushItem {
    /// Queue name.
    pub queue: Arc<str>,
    /// Lane name.
    pub lane: Arc<str>,
    /// De-duplication key; empty = none given.
    pub transaction_id: Arc<str>,
    /// Raw JSON text.
    pub payload: Bytes,
}

/// Answer for one pushed item.
#[derive(Clone, Debug)]
pub enum PushReply {
    /// Stored now, durably.
    Queued(Pushed),
    /// Stored before; the position is that of the stored message.
    Duplicate(Pushed),
    /// Its (queue, lane) part of the request was refused.
    Refused(RequestError),
}

/// Position of a pushed message.
#[derive(Clone, Debug)]
pub struct Pushed {
    /// The message.
    pub message_id: MessageId,
    /// Its lane.
    pub lane: LaneId,
    /// Its offset.
    pub offset: Offset,
}

/// Which lanes a pop may take from.
#[derive(Clone, Debug)]
pub enum PopSource {
    /// All lanes of a queue.
    Queue(Arc<str>),
    /// One lane of a queue.
    Lane(Arc<str>, Arc<str>),
    /// All lanes of all queues with this namespace and task (each optional).
    Discovery {
        /// Namespace to equal.
        namespace: Option<Arc<str>>,
        /// Task to equal.
        task: Option<Arc<str>>,
    },
}

/// A pop.
#[derive(Clone, Debug)]
pub struct PopRequest {
    /// Where from.
    pub source: PopSource,
    /// Consumer group ([`QUEUE_MODE_GROUP`] when none was named).
    pub group: Arc<str>,
    /// Where the group starts if this pop registers it; ignored in queue mode (always the beginning).
    pub start: GroupStart,
    /// Most messages in the answer.
    pub batch: u32,
    /// Most lanes in the answer.
    pub lanes_max: u16,
    /// How long to park when nothing is deliverable; `None` = not at all.
    pub wait: Option<Duration>,
    /// Settle at delivery.
    pub auto_ack: bool,
    /// Lease length; the queue's when `None`.
    pub lease_ms: Option<u64>,
}

/// Answer of a pop. Dropping it before [`PopReply::delivered`] gives the claim back, uncharged.
#[derive(Debug)]
pub struct PopReply {
    /// The lease; `None` under auto-ack or when nothing was claimed.
    pub lease_id: Option<LeaseId>,
    /// The lanes claimed; empty when nothing was deliverable until the wait ran out.
    pub lanes: Vec<PoppedLane>,
    /// One per partition claimed from.
    pub(crate) guards: Vec<crate::claim_guard::ClaimGuard>,
}

impl PopReply {
    /// The first byte of the answer is on its way: from now on the claim runs to its deadline.
    pub fn delivered(&mut self) {
        for guard in self.guards.drain(..) {
            guard.keep();
        }
    }
}

/// Messages of one lane of a pop.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoppedLane {
    /// Queue name.
    pub queue: Arc<str>,
    /// Lane name.
    pub name: Arc<str>,
    /// The lane.
    pub lane: LaneId,
    /// 1 for a first delivery.
    pub attempt: u32,
    /// In offset order.
    pub messages: Vec<PoppedMessage>,
}

/// A delivered (or looked at) message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoppedMessage {
    /// The message.
    pub id: MessageId,
    /// Its offset.
    pub offset: Offset,
    /// Its transaction id: the given one, else the message id's text.
    pub transaction_id: String,
    /// When it was pushed.
    pub created: WallTime,
    /// Raw JSON text.
    pub payload: Bytes,
}

/// Acknowledgments of one call; items may span lanes, groups and leases.
#[derive(Clone, Debug)]
pub struct AckRequest {
    /// For a repeat.
    pub request_id: Option<RequestId>,
    /// In request order.
    pub items: Vec<AckItem>,
}

/// One acknowledgment.
#[derive(Clone, Debug)]
pub struct AckItem {
    /// Lane, as text of the request that may be no lane id at all (a refusal of the item, not of the call).
    pub lane: Result<LaneId, ParseIdError>,
    /// Which message.
    pub transaction_id: Arc<str>,
    /// Group.
    pub group: Arc<str>,
    /// What happened to it.
    pub status: AckStatus,
    /// The lease: `None` = a bare ack; `Some(Err)` = a text that is no lease id (refused as an unknown lease).
    pub lease_id: Option<Result<LeaseId, ParseIdError>>,
    /// Kept on a dead letter's row.
    pub error: Option<Arc<str>>,
}

/// Answer for one acknowledgment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckReply {
    /// What became of it.
    pub outcome: AckOutcome,
    /// The lease ended with this target's ack.
    pub lease_released: bool,
}

/// What became of one acknowledgment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    /// The machine's verdict.
    Applied(AckedItem),
    /// The text given as lane is no lane id.
    NotALaneId,
    /// Its (lane, group, lease) part of the request was refused, or may have been done.
    Refused(RequestError),
}

/// Answer of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendReply {
    /// Lanes whose lease was lengthened; 0 = no live lease with that id.
    pub renewed: u32,
    /// The earliest expiry among them.
    pub expires: Option<WallTime>,
}

/// A change of a queue's settings.
#[derive(Clone, Debug)]
pub struct ConfigureRequest {
    /// Queue name.
    pub queue: Arc<str>,
    /// Options given.
    pub patch: SettingsPatch,
    /// Keep stored values of options not given, instead of their defaults.
    pub merge: bool,
}

/// Which dead letters to list, newest first.
#[derive(Clone, Debug)]
pub struct DeadLetterFilter {
    /// Only of this queue.
    pub queue: Option<Arc<str>>,
    /// Only of this group.
    pub group: Option<Arc<str>>,
    /// At most so many.
    pub limit: usize,
    /// After so many.
    pub skip: usize,
}

/// A dead letter with its message.
#[derive(Clone, Debug)]
pub struct DeadLetterInfo {
    /// Its row.
    pub row: DeadLetter,
    /// Its queue's name.
    pub queue: String,
    /// Its lane's name.
    pub lane_name: String,
    /// The message.
    pub message: PoppedMessage,
}

/// Which dead letter a request means.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum DeadLetterRef {
    /// By lane and transaction id: the newest row with it (replay), or all of them (delete).
    Message(LaneId, Arc<str>),
    /// By row.
    Row(DeadLetterId),
}

/// Answer of a replay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReplayReply {
    /// The row as it was.
    pub dead_letter: DeadLetter,
    /// Its queue's name.
    pub queue: String,
    /// Its lane's name.
    pub lane_name: String,
    /// The new message.
    pub message_id: MessageId,
    /// The new message's transaction id.
    pub transaction_id: String,
    /// The new message's offset.
    pub offset: Offset,
}

impl RequestError {
    /// A refusal of `class` with the contract's `code`.
    pub fn new(class: ErrorClass, code: &'static str, message: impl fmt::Display) -> Self {
        debug_assert!(CODES.contains(&code), "code {code} is not listed");
        Self {
            class,
            code,
            message: message.to_string(),
        }
    }

    /// Nothing was done, because no leader took the request up.
    pub(crate) fn is_no_leader(&self) -> bool {
        self.code == "no_leader"
    }
}
