//! Pop: rotate over the partitions, park when nothing is there.

mod deliver;
mod settle;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::try_join_all;
use laneway_core::ids::{LeaseId, PartitionId, Slot};
use laneway_core::settings::{GroupStart, QueueRow};
use laneway_core::time::WallTime;
use tokio::time::Instant;

pub(crate) use deliver::Claim;
#[cfg(test)]
pub(crate) use deliver::Delivered;
pub(super) use deliver::{to_message, unreadable};

use super::plain::Claimable;
use crate::api::{ErrorClass, PopReply, PopRequest, PopSource, QUEUE_MODE_GROUP, RequestError};
use crate::node::Node;
use crate::parking::Hint;
use crate::partition::{ClaimAsk, PartitionHandle};

/// Lease of an auto-ack pop while it reads and settles. As long as its lanes stay blocked when this process dies in between;
/// one that takes longer settles nothing and gives back what it claimed.
const AUTO_ACK_LEASE_MS: u64 = 5_000;

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
    /// dropping the future or the reply before [`PopReply::delivered`] gives the claim back, uncharged. With auto-ack the
    /// messages are settled once they are read, as the last step: only dropping the future before that gives them back.
    pub async fn pop(&self, request: PopRequest) -> Result<PopReply, RequestError> {
        self.pop_until(request, std::future::pending()).await
    }

    /// [`Node::pop`] that no longer waits once `stop_waiting` resolves: the answer is then empty. It ends the wait only; what
    /// is being claimed or settled at that time is finished and answered, as nobody else could give those messages.
    ///
    /// Durability and cancel safety as [`Node::pop`].
    pub async fn pop_until(
        &self,
        request: PopRequest,
        stop_waiting: impl Future<Output = ()>,
    ) -> Result<PopReply, RequestError> {
        let (group, auto_ack) = (Arc::clone(&request.group), request.auto_ack);
        let reply = self.claim(request, stop_waiting).await?;
        if auto_ack {
            self.settle(&group, reply).await
        } else {
            Ok(reply)
        }
    }

    /// Claims and reads.
    async fn claim(
        &self,
        mut request: PopRequest,
        stop_waiting: impl Future<Output = ()>,
    ) -> Result<PopReply, RequestError> {
        self.check_pop_names(&request)?;
        if &*request.group == QUEUE_MODE_GROUP {
            request.start = GroupStart::Beginning;
        }
        request.batch = request.batch.clamp(1, self.inner.limits.pop_messages_max);
        let deadline = request.wait.map(|wait| Instant::now() + wait);
        let patience = Patience::new(deadline, Duration::from_millis(self.inner.limits.leader_wait_ms));
        let began = self.inner.catalog.machine().stamps().wall;
        let mut queues = self.pop_queues(&request, began, patience).await?;
        let first = Look::new(patience);
        let mut trouble = match self.look_everywhere(&request, &queues, first).await? {
            Found::Messages(reply) => return Ok(reply),
            Found::Nothing(trouble) => trouble,
        };
        let Some(deadline) = deadline else {
            return self.nothing(trouble, &queues, &request, patience).await;
        };
        let _slot = self.parking_slot()?;
        let discovery = matches!(request.source, PopSource::Discovery { .. });
        let mut stop_waiting = pin!(stop_waiting);
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
                let look = Look {
                    hinted,
                    ..Look::new(patience)
                };
                match self.look_everywhere(&request, &queues, look).await? {
                    Found::Messages(reply) => return Ok(reply),
                    Found::Nothing(now) => trouble = now,
                }
                if hinted.take().is_some() && parked.hint_used() {
                    continue;
                }
                let hint = tokio::select! {
                    biased;
                    () = &mut stop_waiting => return Ok(empty()),
                    hint = tokio::time::timeout_at(deadline, parked.hint()) => hint,
                };
                match hint {
                    Err(_) => return self.nothing(trouble, &queues, &request, patience).await,
                    Ok(Hint::Lane { partition, .. }) => hinted = Some(partition),
                    Ok(Hint::QueueGone) if !discovery => return Ok(empty()),
                    Ok(Hint::QueueGone | Hint::LookAgain) => break,
                }
            }
            drop(parked);
            queues = self.pop_queues(&request, began, patience).await?;
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
            let message = format!(
                "{} pops wait on this node, which is its limit; retry after a moment or raise parked_pops_max",
                self.inner.limits.parked_pops_max
            );
            RequestError::new(ErrorClass::Overloaded, "overloaded", message)
        })
    }

    /// The queues that the pop may take from, with its group registered everywhere. What is pushed into a queue born after
    /// the pop `began` is all new to it.
    async fn pop_queues(
        &self,
        request: &PopRequest,
        began: WallTime,
        patience: Patience,
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
            let row = self.group_for_pop(&name, &request.group, start, patience.leader_by(Instant::now()));
            queues.push(Arc::new(row.await?));
        }
        Ok(queues)
    }

    /// One round over queues and partitions, or only the hinted partition.
    async fn look_everywhere(
        &self,
        request: &PopRequest,
        queues: &[Arc<QueueRow>],
        look: Look,
    ) -> Result<Found, RequestError> {
        let (mut trouble, mut damage) = (None, None);
        let start = self.inner.rotation.fetch_add(1, Ordering::Relaxed);
        for at in 0..queues.len() {
            let row = &queues[(start + at) % queues.len()];
            let mut gathered = empty();
            let mut room = Room::new(request, row);
            for partition in self.candidates(row, request, start, look.hinted) {
                // One wait for a leader is enough for a pop that other partitions can still answer.
                if trouble.is_some() && self.lack_of(partition.id).is_some() {
                    continue;
                }
                match self.claim_from(partition, row, request, &room, look).await {
                    Ok(Some(reply)) => room.take(reply, &mut gathered),
                    Ok(None) => {}
                    Err(error) if matches!(error.class, ErrorClass::Unavailable) => trouble = Some(error),
                    // Damage in one lane: what others hold can still be had.
                    Err(error) if matches!(error.class, ErrorClass::Internal) => damage = Some(error),
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
        damage.map_or(Ok(Found::Nothing(trouble)), Err)
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
        look: Look,
    ) -> Result<Option<PopReply>, RequestError> {
        let ask = ClaimAsk {
            lease_id: room.lease_id,
            queue: row.id,
            group: Arc::clone(&request.group),
            lane: pinned(&request.source).cloned(),
            lanes_max: room.lanes,
            messages_max: room.messages,
            lease_ms: if request.auto_ack {
                Some(AUTO_ACK_LEASE_MS)
            } else {
                request.lease_ms
            },
        };
        let claim = Claim {
            ask,
            queue_name: row.name.as_str().into(),
            bytes_max: self.inner.limits.pop_bytes_max.saturating_sub(room.bytes),
            will_be_acked: !request.auto_ack,
            confirmed: look.confirmed,
        };
        self.claim_at_leader(partition.id, claim, look.patience.leader_by(Instant::now()))
            .await
    }

    /// "Nothing" is said only on the word of a quorum that was given after the request came: a leader that was replaced
    /// without knowing it finds nothing, too.
    async fn nothing(
        &self,
        trouble: Option<RequestError>,
        queues: &[Arc<QueueRow>],
        request: &PopRequest,
        patience: Patience,
    ) -> Result<PopReply, RequestError> {
        if let Some(error) = trouble {
            return Err(error);
        }
        let claimable = Claimable {
            queues: queues.iter().map(|row| row.id).collect(),
            group: Arc::clone(&request.group),
            lane: pinned(&request.source).cloned(),
        };
        let partitions: Vec<PartitionId> = match (pinned(&request.source), queues.first()) {
            (Some(lane), Some(row)) => vec![self.partition_of_slot(Slot::of(row.id, lane)).id],
            _ => self
                .inner
                .partitions
                .iter()
                .map(|partition| partition.id)
                .collect(),
        };
        let leader_by = patience.leader_by(Instant::now());
        let asked = partitions
            .into_iter()
            .map(|partition| self.at_leader_by(leader_by, partition, claimable.clone()));
        if try_join_all(asked).await?.contains(&true) {
            let look = Look {
                confirmed: true,
                ..Look::new(patience)
            };
            match self.look_everywhere(request, queues, look).await? {
                Found::Messages(reply) => return Ok(reply),
                Found::Nothing(Some(trouble)) => return Err(trouble),
                Found::Nothing(None) => {}
            }
        }
        Ok(empty())
    }
}

/// How long the steps of one pop wait for leaders: each for `leader_wait_ms`, all together for that beyond the pop's own wait.
#[derive(Clone, Copy, Debug)]
struct Patience {
    each: Duration,
    end: Instant,
}

impl Patience {
    /// Of a pop that waits for messages until `deadline`, if at all.
    fn new(deadline: Option<Instant>, each: Duration) -> Self {
        let end = deadline.unwrap_or_else(Instant::now) + each;
        Self { each, end }
    }

    /// Until when a step that begins `now` looks for a leader.
    fn leader_by(self, now: Instant) -> Instant {
        self.end.min(now + self.each)
    }
}

/// How the partitions are looked at.
#[derive(Clone, Copy)]
struct Look {
    /// Only this one.
    hinted: Option<PartitionId>,
    /// Each leader asks a quorum first, so that what it does not find was not there.
    confirmed: bool,
    patience: Patience,
}

impl Look {
    fn new(patience: Patience) -> Self {
        Self {
            hinted: None,
            confirmed: false,
            patience,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_a_pop_share_one_wait_for_leaders() {
        let second = Duration::from_secs(1);
        let began = Instant::now();
        let at_once = Patience {
            each: 3 * second,
            end: began + 3 * second,
        };
        assert_eq!(at_once.leader_by(began), began + 3 * second);
        assert_eq!(at_once.leader_by(began + 2 * second), began + 3 * second);
        let waits = Patience {
            each: 3 * second,
            end: began + 8 * second,
        };
        assert_eq!(waits.leader_by(began), began + 3 * second);
        assert_eq!(waits.leader_by(began + 7 * second), began + 8 * second);
    }
}
