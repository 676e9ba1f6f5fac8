//! From a claim to its messages: cut to what the answer has room for, and read.

use std::sync::Arc;

use bytes::Bytes;
use laneway_core::command::{Command, ReleaseClaim};
use laneway_core::ids::{LaneId, LeaseId, MessageId, Offset, PartitionId};
use laneway_core::reply::{Claimed, ClaimedLane, Refusal, Reply};
use laneway_storage::payload::StoredMessage;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::super::{refused, unexpected};
use crate::api::{ErrorClass, PopReply, PoppedLane, PoppedMessage, RequestError};
use crate::claim_guard::ClaimGuard;
use crate::leader::{AtLeader, Verb};
use crate::node::Node;
use crate::partition::{Ask, ClaimAsk, PartitionHandle, Stores};
use crate::span_cache::SpanCache;

/// A claim with its messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(super) ask: ClaimAsk,
    pub(super) queue_name: Arc<str>,
    /// Bytes of messages in the answer; what has no room is given back.
    pub(super) bytes_max: u64,
    /// By the client, who names transaction ids.
    pub(super) will_be_acked: bool,
    /// A quorum is asked first.
    pub(super) confirmed: bool,
}

/// What was claimed and read.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Delivered {
    lease_id: LeaseId,
    pub(crate) lanes: Vec<PoppedLane>,
    /// Of each message in order, while the payloads travel by themselves.
    payload_bytes: Vec<u32>,
}

impl AtLeader for Claim {
    const VERB: Verb = Verb::Claim;
    const WRITES: bool = true;
    type Answer = Option<Delivered>;

    async fn run(self, node: Node, group: PartitionId) -> Result<Option<Delivered>, RequestError> {
        let partition = node.own_partition(group)?;
        if self.confirmed {
            partition.read_index().await?;
        }
        let mut reply = partition.ask(Ask::Claim(self.ask.clone()), 0).await?;
        if matches!(reply, Reply::Refused(Refusal::GroupUnknown | Refusal::QueueGone)) && !self.confirmed {
            // The gateway's replica may have applied what a quorum without this node has committed.
            partition.read_index().await?;
            reply = partition.ask(Ask::Claim(self.ask), 0).await?;
        }
        match reply {
            Reply::Claimed(claimed) if claimed.lanes.is_empty() => Ok(None),
            Reply::Claimed(claimed) => {
                let guard = ClaimGuard::of(&node, group, &claimed);
                deliver(
                    partition,
                    guard,
                    &self.queue_name,
                    claimed,
                    self.bytes_max,
                    self.will_be_acked,
                )
                .await
            }
            // Deleted meanwhile: there is nothing to get, and the next look finds the queue as it is then.
            Reply::Refused(Refusal::QueueGone) => Ok(None),
            Reply::Refused(refusal) => Err(refused(refusal)),
            reply => Err(unexpected(&reply)),
        }
    }

    fn take_answer_payload(answer: &mut Option<Delivered>) -> Vec<Bytes> {
        let Some(delivered) = answer else {
            return Vec::new();
        };
        let mut payloads = Vec::new();
        for message in delivered.messages() {
            payloads.push(std::mem::take(&mut message.payload));
        }
        delivered.payload_bytes = payloads
            .iter()
            .map(|payload| u32::try_from(payload.len()).expect("a request body is far below 4 GiB"))
            .collect();
        payloads
    }

    fn set_answer_payload(answer: &mut Option<Delivered>, mut payload: Bytes) -> bool {
        let Some(delivered) = answer else {
            return payload.is_empty();
        };
        let mut lengths = std::mem::take(&mut delivered.payload_bytes).into_iter();
        for message in delivered.messages() {
            let bytes = lengths.next().map(|bytes| bytes as usize);
            let Some(bytes) = bytes.filter(|bytes| *bytes <= payload.len()) else {
                return false;
            };
            message.payload = payload.split_to(bytes);
        }
        payload.is_empty() && lengths.next().is_none()
    }
}

impl Delivered {
    pub(crate) fn new(lease_id: LeaseId, lanes: Vec<PoppedLane>) -> Self {
        Self {
            lease_id,
            lanes,
            payload_bytes: Vec::new(),
        }
    }

    fn messages(&mut self) -> impl Iterator<Item = &mut PoppedMessage> {
        self.lanes.iter_mut().flat_map(|lane| &mut lane.messages)
    }
}

impl Node {
    /// Claims at the leader, which is looked for until `leader_by`. The claim of a pop that nobody waits for any more by the time of the answer is given back.
    pub(super) async fn claim_at_leader(
        &self,
        partition: PartitionId,
        claim: Claim,
        leader_by: Instant,
    ) -> Result<Option<PopReply>, RequestError> {
        let node = self.clone();
        // A task of its own: who stops waiting for it drops the answer, not the question.
        let claiming = tokio::spawn(async move {
            let delivered = node.at_leader_by(leader_by, partition, claim).await?;
            Ok(delivered.map(|Delivered { lease_id, lanes, .. }| {
                let claimed = lanes.iter().map(|lane| lane.lane).collect();
                PopReply {
                    guards: vec![ClaimGuard::new(&node, partition, lease_id, claimed)],
                    lease_id: Some(lease_id),
                    lanes,
                }
            }))
        });
        claiming.await.unwrap_or_else(|error| Err(unreadable(&error)))
    }
}

/// Reads what was claimed; `None` when all of it was deleted meanwhile. What has no room in the answer or cannot be read is
/// given back; it is an error when nothing can be read. What is answered is for the gateway to give back.
async fn deliver(
    partition: &Arc<PartitionHandle>,
    mut guard: ClaimGuard,
    queue: &Arc<str>,
    mut claimed: Claimed,
    bytes_max: u64,
    will_be_acked: bool,
) -> Result<Option<Delivered>, RequestError> {
    let lease_id = claimed.lease_id;
    let stores = partition.stores()?;
    cut_to_fit(partition, &stores, &mut claimed, bytes_max).await?;
    let mut lanes = Vec::with_capacity(claimed.lanes.len());
    let mut damage = None;
    for lane in claimed.lanes {
        let stored = match read_lane(&stores, &lane).await {
            Ok(stored) => stored,
            // One damaged lane must not keep the others of its claim from being read.
            Err(error) => {
                damage = Some(error);
                Vec::new()
            }
        };
        if stored.is_empty() {
            partition.release(lease_id, vec![lane.lane]);
            guard.keep_lane(lane.lane);
            continue;
        }
        if will_be_acked {
            remember_span(&stores, lease_id, &lane, &stored);
        }
        lanes.push(PoppedLane {
            queue: Arc::clone(queue),
            name: lane.name.as_str().into(),
            lane: lane.lane,
            attempt: lane.attempt,
            messages: stored
                .into_iter()
                .map(|message| to_message(lane.lane, message))
                .collect(),
        });
    }
    if lanes.is_empty() {
        return damage.map_or(Ok(None), Err);
    }
    guard.keep();
    Ok(Some(Delivered::new(lease_id, lanes)))
}

/// Shortens or drops lanes so that what is left fits, but for a first message that is larger by itself.
async fn cut_to_fit(
    partition: &Arc<PartitionHandle>,
    stores: &Stores,
    claimed: &mut Claimed,
    bytes_max: u64,
) -> Result<(), RequestError> {
    let mut room = bytes_max;
    let mut cuts: Vec<(_, Option<Offset>)> = Vec::new();
    let mut kept = Vec::with_capacity(claimed.lanes.len());
    for mut lane in std::mem::take(&mut claimed.lanes) {
        if room == 0 && !kept.is_empty() {
            cuts.push((lane.lane, None));
            continue;
        }
        let end = stores
            .payloads
            .fits(lane.lane, lane.offset_first, lane.batch_end, room);
        if end < lane.batch_end {
            cuts.push((lane.lane, Some(end)));
            lane.batch_end = end;
            room = 0;
        } else {
            room = room.saturating_sub(stores.payloads.bytes(lane.lane, lane.offset_first, end));
        }
        kept.push(lane);
    }
    claimed.lanes = kept;
    if cuts.is_empty() {
        return Ok(());
    }
    let release = ReleaseClaim {
        lease_id: claimed.lease_id,
        lanes: cuts,
    };
    match partition
        .ask(Ask::Command(Command::ReleaseClaim(release), Bytes::new()), 0)
        .await?
    {
        Reply::Released(_) => Ok(()),
        reply => Err(unexpected(&reply)),
    }
}

/// From memory at once; what must come from disk is read on a thread that may wait for it.
async fn read_lane(stores: &Arc<Stores>, lane: &ClaimedLane) -> Result<Vec<StoredMessage>, RequestError> {
    let (id, from, to) = (lane.lane, lane.offset_first, lane.batch_end);
    if let Some(messages) = stores.payloads.read_cached(id, from, to, u64::MAX) {
        return Ok(messages);
    }
    let stores = Arc::clone(stores);
    tokio::task::spawn_blocking(move || stores.payloads.read(id, from, to, u64::MAX))
        .await
        .map_err(|error| unreadable(&error))?
        .map_err(|error| unreadable(&error))
}

pub(in crate::router) fn unreadable(error: &impl std::fmt::Display) -> RequestError {
    tracing::error!(%error, "stored messages cannot be read");
    RequestError::new(
        ErrorClass::Internal,
        "internal",
        "stored messages cannot be read and stay where they are; the node's log names the damage",
    )
}

/// Hashes of the transaction ids, as an ack will name them. A hole (deleted meanwhile) ends the span.
fn remember_span(stores: &Stores, lease: LeaseId, lane: &ClaimedLane, stored: &[StoredMessage]) {
    let mut hashes = Vec::with_capacity(stored.len());
    let mut next = stored.first().map_or(lane.offset_first, |message| message.offset);
    let first = next;
    for message in stored {
        if message.offset != next {
            break;
        }
        hashes.push(SpanCache::hash(&transaction_id(lane.lane, message)));
        next = next.plus(1);
    }
    stores.spans.put(lease, lane.lane, first, hashes);
}

/// The transaction id that clients see: the given one, else the message id's text.
pub(in crate::router) fn transaction_id(lane: LaneId, message: &StoredMessage) -> String {
    if message.transaction_id.is_empty() {
        MessageId::new(message.wall, lane, message.offset).to_string()
    } else {
        message.transaction_id.clone()
    }
}

/// A stored message as clients see it.
pub(in crate::router) fn to_message(lane: LaneId, message: StoredMessage) -> PoppedMessage {
    PoppedMessage {
        id: MessageId::new(message.wall, lane, message.offset),
        offset: message.offset,
        transaction_id: transaction_id(lane, &message),
        created: message.wall,
        payload: message.payload,
    }
}
