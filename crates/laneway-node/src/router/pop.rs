//! Pop: rotate over the partitions, park when nothing is there, read the payloads of what was claimed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use laneway_core::command::{Command, ReleaseClaim};
use laneway_core::ids::{LeaseId, MessageId, Offset, PartitionId, Slot};
use laneway_core::reply::{Claimed, ClaimedLane, Refusal, Reply};
use laneway_core::settings::{GroupStart, QueueRow};
use laneway_core::time::WallTime;
use laneway_storage::payload::StoredMessage;
use tokio::time::Instant;

use super::{refused, unexpected};
use crate::api::{
    ErrorClass, PopReply, PopRequest, PopSource, PoppedLane, PoppedMessage, QUEUE_MODE_GROUP, RequestError,
};
use crate::claim_guard::ClaimGuard;
use crate::node::Node;
use crate::parking::Hint;
use crate::partition::{Ask, ClaimAsk, PartitionHandle, Stores};
use crate::span_cache::SpanCache;

/// Reads up to this size are done at once: most come from memory, and a thread's wake-up costs more than the rest.
const INLINE_READ_BYTES_MAX: u64 = 128 * 1024;

/// What one look at the partitions found.
enum Found {
    Messages(PopReply),
    /// Nothing; with the trouble that some partition met.
    Nothing(Option<RequestError>),
}

impl Node {
    /// Claims deliverable messages, waiting for some if asked to.
    ///
    /// Durability: the lease (or, with auto-ack, the settlement) is on stable storage of a quorum. Cancel safety:
    /// dropping the future or the reply before [`PopReply::delivered`] gives the claim back, uncharged; with auto-ack the
    /// messages are settled nevertheless.
    pub async fn pop(&self, mut request: PopRequest) -> Result<PopReply, RequestError> {
        self.check_pop_names(&request)?;
        if &*request.group == QUEUE_MODE_GROUP {
            request.start = GroupStart::Beginning;
        }
        request.batch = request.batch.clamp(1, self.inner.limits.pop_messages_max);
        let deadline = request.wait.map(|wait| Instant::now() + wait);
        let began = self.inner.catalog.machine().stamps().wall;
        let mut queues = self.pop_queues(&request, began).await?;
        let mut trouble = match self.look_everywhere(&request, &queues, None).await? {
            Found::Messages(reply) => return Ok(reply),
            Found::Nothing(trouble) => trouble,
        };
        let Some(deadline) = deadline else {
            return self.nothing(trouble, &queues, &request).await;
        };
        let _slot = self.parking_slot()?;
        let discovery = matches!(request.source, PopSource::Discovery { .. });
        loop {
            let keys = queues
                .iter()
                .map(|row| (row.id, Arc::clone(&request.group)))
                .collect();
            let parked = self
                .inner
                .parking
                .park(keys, pinned(&request.source).cloned(), discovery);
            let mut hinted = None;
            loop {
                match self.look_everywhere(&request, &queues, hinted).await? {
                    Found::Messages(reply) => return Ok(reply),
                    Found::Nothing(now) => trouble = now,
                }
                if hinted.take().is_some() && parked.hint_used() {
                    continue;
                }
                match tokio::time::timeout_at(deadline, parked.hint()).await {
                    Err(_) => return self.nothing(trouble, &queues, &request).await,
                    Ok(Hint::Lane { partition, .. }) => hinted = Some(partition),
                    Ok(Hint::QueueGone) if !discovery => return Ok(empty()),
                    Ok(Hint::QueueGone | Hint::LookAgain) => break,
                }
            }
            drop(parked);
            queues = self.pop_queues(&request, began).await?;
        }
    }

    fn check_pop_names(&self, request: &PopRequest) -> Result<(), RequestError> {
        match &request.source {
            PopSource::Queue(queue) => self.check_names(queue, &[&request.group]),
            PopSource::Lane(queue, lane) => self.check_names(queue, &[&request.group, lane]),
            PopSource::Discovery { .. } => self.check_names("", &[&request.group]),
        }
    }

    fn parking_slot(&self) -> Result<tokio::sync::SemaphorePermit<'_>, RequestError> {
        self.inner.parking_slots.try_acquire().map_err(|_| {
            let message = "too many pops are waiting on this node; retry after a moment";
            RequestError::new(ErrorClass::Overloaded, "overloaded", message)
        })
    }

    /// The queues that the pop may take from, with its group registered everywhere. What is pushed into a queue born after
    /// the pop `began` is all new to it.
    async fn pop_queues(
        &self,
        request: &PopRequest,
        began: WallTime,
    ) -> Result<Vec<Arc<QueueRow>>, RequestError> {
        let names: Vec<(Arc<str>, GroupStart)> = match &request.source {
            PopSource::Queue(queue) | PopSource::Lane(queue, _) => vec![(Arc::clone(queue), request.start)],
            PopSource::Discovery { namespace, task } => {
                let matches =
                    |wanted: &Option<Arc<str>>, is: &str| wanted.as_deref().is_none_or(|want| want == is);
                let catalog = self.inner.catalog.machine();
                catalog
                    .queues()
                    .filter(|row| row.listed)
                    .filter(|row| {
                        matches(namespace, &row.settings.namespace) && matches(task, &row.settings.task)
                    })
                    .map(|row| {
                        let born_since = row.created > began && request.start == GroupStart::Registration;
                        let start = if born_since {
                            GroupStart::Beginning
                        } else {
                            request.start
                        };
                        (row.name.as_str().into(), start)
                    })
                    .collect()
            }
        };
        let mut queues = Vec::with_capacity(names.len());
        for (name, start) in names {
            queues.push(Arc::new(self.group_for_pop(&name, &request.group, start).await?));
        }
        Ok(queues)
    }

    /// One round over queues and partitions, or only the hinted partition.
    async fn look_everywhere(
        &self,
        request: &PopRequest,
        queues: &[Arc<QueueRow>],
        hinted: Option<PartitionId>,
    ) -> Result<Found, RequestError> {
        let mut trouble = None;
        let start = self.inner.rotation.fetch_add(1, Ordering::Relaxed);
        for at in 0..queues.len() {
            let row = &queues[(start + at) % queues.len()];
            let mut gathered = empty();
            let mut room = Room::new(request, row);
            for partition in self.candidates(row, request, start, hinted) {
                match self.claim_from(partition, row, request, &room).await {
                    Ok(Some(reply)) => room.take(reply, &mut gathered),
                    Ok(None) => {}
                    Err(error) if matches!(error.class, ErrorClass::Unavailable) => trouble = Some(error),
                    // What is claimed already is worth more than the trouble, which the next pop meets again.
                    Err(_) if !gathered.lanes.is_empty() => break,
                    Err(error) => return Err(error),
                }
                if !room.is_left(self.inner.limits.pop_bytes_max) {
                    break;
                }
            }
            if !gathered.lanes.is_empty() {
                return Ok(Found::Messages(gathered));
            }
        }
        Ok(Found::Nothing(trouble))
    }

    fn candidates(
        &self,
        row: &QueueRow,
        request: &PopRequest,
        start: usize,
        hinted: Option<PartitionId>,
    ) -> Vec<&Arc<PartitionHandle>> {
        if let Some(lane) = pinned(&request.source) {
            return vec![self.partition_of_slot(Slot::of(row.id, lane))];
        }
        if let Some(partition) = hinted.and_then(|id| self.partition(id)) {
            return vec![partition];
        }
        let partitions = &self.inner.partitions;
        (0..partitions.len())
            .map(|at| &partitions[(start + at) % partitions.len()])
            .collect()
    }

    async fn claim_from(
        &self,
        partition: &Arc<PartitionHandle>,
        row: &Arc<QueueRow>,
        request: &PopRequest,
        room: &Room,
    ) -> Result<Option<PopReply>, RequestError> {
        let ask = ClaimAsk {
            lease_id: room.lease_id,
            queue: row.id,
            group: Arc::clone(&request.group),
            lane: pinned(&request.source).cloned(),
            lanes_max: room.lanes,
            messages_max: room.messages,
            lease_ms: request.lease_ms,
            auto_ack: request.auto_ack,
        };
        match partition.ask(Ask::Claim(ask), 0).await? {
            Reply::Claimed(claimed) if claimed.lanes.is_empty() => Ok(None),
            Reply::Claimed(claimed) => self
                .deliver(partition, row, claimed, request.auto_ack)
                .await
                .map(Some),
            // Deleted meanwhile: there is nothing to get, and the next look finds the queue as it is then.
            Reply::Refused(Refusal::QueueGone) => Ok(None),
            Reply::Refused(refusal) => Err(refused(refusal)),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Reads what was claimed. What has no room in the answer is given back.
    async fn deliver(
        &self,
        partition: &Arc<PartitionHandle>,
        row: &QueueRow,
        mut claimed: Claimed,
        auto_ack: bool,
    ) -> Result<PopReply, RequestError> {
        let lease_id = (!auto_ack).then_some(claimed.lease_id);
        let guard = lease_id.map(|lease| {
            let lanes = claimed.lanes.iter().map(|lane| lane.lane).collect();
            ClaimGuard::new(Arc::clone(partition), lease, lanes)
        });
        let stores = partition.stores()?;
        if lease_id.is_some() {
            self.cut_to_fit(partition, &stores, &mut claimed).await?;
        }
        let queue: Arc<str> = row.name.as_str().into();
        let mut lanes = Vec::with_capacity(claimed.lanes.len());
        for lane in claimed.lanes {
            let stored = read_lane(&stores, &lane).await?;
            if let Some(lease) = lease_id {
                remember_span(&stores, lease, &lane, &stored);
            }
            lanes.push(PoppedLane {
                queue: Arc::clone(&queue),
                name: lane.name.as_str().into(),
                lane: lane.lane,
                attempt: lane.attempt,
                messages: stored
                    .into_iter()
                    .map(|message| to_message(lane.lane, message))
                    .collect(),
            });
        }
        Ok(PopReply {
            lease_id,
            lanes,
            guards: guard.into_iter().collect(),
        })
    }

    async fn cut_to_fit(
        &self,
        partition: &Arc<PartitionHandle>,
        stores: &Stores,
        claimed: &mut Claimed,
    ) -> Result<(), RequestError> {
        let mut room = self.inner.limits.pop_bytes_max;
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

    /// "Nothing" is said only on the word of a quorum.
    async fn nothing(
        &self,
        trouble: Option<RequestError>,
        queues: &[Arc<QueueRow>],
        request: &PopRequest,
    ) -> Result<PopReply, RequestError> {
        if let Some(error) = trouble {
            return Err(error);
        }
        if let (Some(lane), Some(row)) = (pinned(&request.source), queues.first()) {
            self.partition_of_slot(Slot::of(row.id, lane))
                .read_index()
                .await?;
        } else {
            for partition in &self.inner.partitions {
                partition.read_index().await?;
            }
        }
        Ok(empty())
    }
}

/// What one answer may still take. With several lanes it may gather from several partitions, all under one lease id.
struct Room {
    lease_id: Option<LeaseId>,
    lanes: u16,
    messages: u32,
    bytes: u64,
}

impl Room {
    fn new(request: &PopRequest, row: &QueueRow) -> Self {
        // Such an id names no partition: whoever is asked about it asks them all.
        let shared = || LeaseId::new(row.created, PartitionId::CATALOG, rand::random());
        Self {
            lease_id: (request.lanes_max > 1).then(shared),
            lanes: request.lanes_max.max(1),
            messages: request.batch,
            bytes: 0,
        }
    }

    fn take(&mut self, reply: PopReply, gathered: &mut PopReply) {
        for lane in &reply.lanes {
            self.lanes = self.lanes.saturating_sub(1);
            let messages = u32::try_from(lane.messages.len()).unwrap_or(u32::MAX);
            self.messages = self.messages.saturating_sub(messages);
            self.bytes += lane
                .messages
                .iter()
                .map(|message| message.payload.len() as u64)
                .sum::<u64>();
        }
        gathered.lease_id = gathered.lease_id.or(reply.lease_id);
        gathered.lanes.extend(reply.lanes);
        gathered.guards.extend(reply.guards);
    }

    fn is_left(&self, bytes_max: u64) -> bool {
        self.lanes > 0 && self.messages > 0 && self.bytes < bytes_max
    }
}

fn empty() -> PopReply {
    PopReply {
        lease_id: None,
        lanes: Vec::new(),
        guards: Vec::new(),
    }
}

fn pinned(source: &PopSource) -> Option<&Arc<str>> {
    match source {
        PopSource::Lane(_, lane) => Some(lane),
        PopSource::Queue(_) | PopSource::Discovery { .. } => None,
    }
}

async fn read_lane(stores: &Arc<Stores>, lane: &ClaimedLane) -> Result<Vec<StoredMessage>, RequestError> {
    let (id, from, to) = (lane.lane, lane.offset_first, lane.batch_end);
    let stores = Arc::clone(stores);
    let read = move |stores: &Stores| stores.payloads.read(id, from, to, u64::MAX);
    let messages = if stores.payloads.bytes(id, from, to) <= INLINE_READ_BYTES_MAX {
        read(&stores)
    } else {
        tokio::task::spawn_blocking(move || read(&stores))
            .await
            .map_err(|error| unreadable(&error))?
    };
    messages.map_err(|error| unreadable(&error))
}

pub(super) fn unreadable(error: &impl std::fmt::Display) -> RequestError {
    tracing::error!(%error, "stored messages cannot be read");
    RequestError::new(
        ErrorClass::Internal,
        "internal",
        "stored messages cannot be read; see the node's log",
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
pub(super) fn transaction_id(lane: laneway_core::ids::LaneId, message: &StoredMessage) -> String {
    if message.transaction_id.is_empty() {
        MessageId::new(message.wall, lane, message.offset).to_string()
    } else {
        message.transaction_id.clone()
    }
}

/// A stored message as clients see it.
pub(super) fn to_message(lane: laneway_core::ids::LaneId, message: StoredMessage) -> PoppedMessage {
    PoppedMessage {
        id: MessageId::new(message.wall, lane, message.offset),
        offset: message.offset,
        transaction_id: transaction_id(lane, &message),
        created: message.wall,
        payload: message.payload,
    }
}
