//! How the rest of the node asks a partition.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use laneway_core::command::{Command, RequestKey};
use laneway_core::ids::{LaneId, LeaseId, Offset, PartitionId, QueueId};
use laneway_core::reply::Reply;
use laneway_core::settings::QueueRow;
use laneway_raft::{Group, Leadership};
use laneway_storage::DamagedFile;
use laneway_storage::dedup::{DedupKey, DedupStore};
use laneway_storage::payload::PayloadStore;
use ractor::ActorRef;
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::{PartitionMsg, Running};
use crate::admission::Admission;
use crate::api::{ErrorClass, RequestError};
use crate::caller::{Waits, WhoseOutcome, caller};
use crate::options::NodeLimits;
use crate::snapshot::ReplicaDisk;
use crate::span_cache::SpanCache;

/// How long a start waits for a leader when it needs the whole log applied.
const ELECTION_AT_START_MAX: Duration = Duration::from_secs(30);

/// Between two looks at whether a partition serves by now.
const SERVING_LOOK: Duration = Duration::from_millis(10);

/// Something to be planned by the leader and proposed.
#[expect(
    clippy::large_enum_variant,
    reason = "moved once; a box would be an allocation per command"
)]
pub(crate) enum Ask {
    Push(PushAsk),
    Claim(ClaimAsk),
    /// Proposed as it is, with its blob.
    Command(Command, Bytes),
    /// Catalog changes in version order, all in one entry: none of them can be left out. The answer is that of the last.
    Changes(Vec<Command>),
}

/// Messages for one lane. The frames of all items are ready; the leader drops those of duplicates.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PushAsk {
    pub(crate) request: Option<RequestKey>,
    pub(crate) queue: Arc<QueueRow>,
    pub(crate) lane: Arc<str>,
    pub(crate) items: Vec<PushAskItem>,
    /// Frames back to back.
    pub(crate) block: Bytes,
}

/// One message of a push.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PushAskItem {
    /// Of its transaction id; `None` when it has none.
    pub(crate) key: Option<DedupKey>,
    /// An earlier item with the same key.
    pub(crate) same_as: Option<u32>,
    /// Length of its frame.
    pub(crate) frame_bytes: u32,
}

/// A claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClaimAsk {
    /// Shared with claims of other partitions; without one the leader mints it.
    pub(crate) lease_id: Option<LeaseId>,
    pub(crate) queue: QueueId,
    pub(crate) group: Arc<str>,
    pub(crate) lane: Option<Arc<str>>,
    pub(crate) lanes_max: u16,
    pub(crate) messages_max: u32,
    pub(crate) lease_ms: Option<u64>,
}

/// The stores beside the machine, shared with request tasks.
#[derive(Debug)]
pub(crate) struct Stores {
    pub(crate) payloads: PayloadStore,
    pub(crate) dedup: DedupStore,
    pub(crate) spans: SpanCache,
}

impl Stores {
    /// Files found damaged that are still needed.
    pub(crate) fn damaged(&self) -> Vec<DamagedFile> {
        let mut damaged = self.payloads.damaged();
        damaged.extend(self.dedup.damaged());
        damaged
    }
}

/// A partition as the rest of the node sees it; it outlives restarts of the actor.
#[derive(Debug)]
pub(crate) struct PartitionHandle {
    pub(crate) id: PartitionId,
    pub(crate) admission: Admission,
    /// Catalog changes up to this version are applied here.
    pub(crate) catalog_version: watch::Sender<u64>,
    /// Who leads, as this replica sees it.
    pub(crate) leadership: watch::Sender<Leadership>,
    /// It leads, has applied its term's first entry, and plans.
    pub(crate) serving: AtomicBool,
    pub(crate) applied_index: AtomicU64,
    pub(crate) checkpoint_index: AtomicU64,
    /// Bytes of entries applied since the last checkpoint.
    pub(crate) bytes_since_checkpoint: AtomicU64,
    /// Held by whoever changes the partition's files: maintenance with the present stores, or a recovery that opens new ones.
    disk: Arc<ReplicaDisk>,
    live: RwLock<Live>,
    waits: Waits,
    /// Lanes in which the checkpoint has messages without a place, until it is known why.
    gaps: Mutex<Vec<LaneId>>,
}

#[derive(Debug, Default)]
struct Live {
    actor: Option<ActorRef<PartitionMsg>>,
    group: Option<Group>,
    stores: Option<Arc<Stores>>,
    stopped: Option<String>,
}

impl PartitionHandle {
    pub(crate) fn new(id: PartitionId, limits: &NodeLimits) -> Arc<Self> {
        Arc::new(Self {
            id,
            admission: Admission::new(limits),
            catalog_version: watch::Sender::new(0),
            leadership: watch::Sender::default(),
            serving: AtomicBool::new(false),
            applied_index: AtomicU64::new(0),
            checkpoint_index: AtomicU64::new(0),
            bytes_since_checkpoint: AtomicU64::new(0),
            disk: Arc::default(),
            live: RwLock::default(),
            waits: Waits::new(limits),
            gaps: Mutex::default(),
        })
    }

    pub(super) fn set_gaps(&self, lanes: Vec<LaneId>) {
        *self.gaps.lock().unwrap_or_else(PoisonError::into_inner) = lanes;
    }

    /// The first message of those found without a place at the start that is still retained now that the whole log is
    /// applied. Files go as soon as nothing needs them, which may be before a checkpoint says so: a gap that the log
    /// closes is no damage.
    pub(crate) async fn missing_message(&self) -> Result<Option<(LaneId, Offset)>, RequestError> {
        let gaps = self.take_gaps();
        if gaps.is_empty() {
            return Ok(None);
        }
        let deadline = Instant::now() + ELECTION_AT_START_MAX;
        while let Err(error) = self.read_index().await {
            if self.stopped().is_some() || Instant::now() >= deadline {
                return Err(error);
            }
        }
        self.first_missing(gaps).await
    }

    /// Lanes that seemed to lack messages at the start.
    pub(crate) fn take_gaps(&self) -> Vec<LaneId> {
        std::mem::take(&mut *self.gaps.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The first message of `gaps` that is retained and has no place now.
    pub(crate) async fn first_missing(
        &self,
        gaps: Vec<LaneId>,
    ) -> Result<Option<(LaneId, Offset)>, RequestError> {
        let first_gap = move |running: &Running| {
            gaps.into_iter().find_map(|lane| {
                let view = running.machine.lane(lane)?;
                let offset = running.payloads().first_gap(lane, view.head, view.tail)?;
                Some((lane, offset))
            })
        };
        self.look(first_gap).await
    }

    fn read<T>(&self, get: impl FnOnce(&Live) -> T) -> T {
        get(&self.live.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, set: impl FnOnce(&mut Live)) {
        set(&mut self.live.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Keeps everyone else from the partition's files. Blocking.
    pub(crate) fn lock_disk(&self) -> MutexGuard<'_, ()> {
        self.disk.lock()
    }

    /// The guard of its files.
    pub(crate) fn disk(&self) -> &Arc<ReplicaDisk> {
        &self.disk
    }

    /// A new actor took over.
    pub(crate) fn attach(&self, actor: ActorRef<PartitionMsg>, stores: Arc<Stores>) {
        self.write(|live| {
            live.actor = Some(actor);
            live.stores = Some(stores);
            live.group = None;
        });
    }

    pub(crate) fn attach_group(&self, group: Group) {
        self.write(|live| live.group = Some(group));
    }

    /// The actor is gone; `stopped` says why it stays so.
    pub(crate) fn detach(&self, stopped: Option<String>) -> Option<Group> {
        self.serving.store(false, Ordering::Release);
        self.leadership.send_replace(Leadership::default());
        let mut group = None;
        self.write(|live| {
            live.actor = None;
            // A recovery opens new ones on the same files.
            live.stores = None;
            group = live.group.take();
            live.stopped = stopped;
        });
        group
    }

    pub(crate) fn stopped(&self) -> Option<String> {
        self.read(|live| live.stopped.clone())
    }

    pub(crate) fn group(&self) -> Option<Group> {
        self.read(|live| live.group.clone())
    }

    pub(crate) fn actor(&self) -> Option<ActorRef<PartitionMsg>> {
        self.read(|live| live.actor.clone())
    }

    /// The stores of the present actor.
    pub(crate) fn stores(&self) -> Result<Arc<Stores>, RequestError> {
        self.read(|live| live.stores.clone())
            .ok_or_else(|| self.not_taken_up())
    }

    pub(crate) fn cast(&self, message: PartitionMsg) -> bool {
        self.actor().is_some_and(|actor| actor.cast(message).is_ok())
    }

    /// Has `ask` planned and proposed, and waits for its outcome.
    ///
    /// Errors: `Overloaded` and `Unavailable` mean that nothing was proposed. `OutcomeUnknown` means that it may have
    /// been, or may yet be, applied. Cancel safety: dropping the future does not withdraw what is proposed; a claim
    /// that nobody waits for is given back.
    pub(crate) async fn ask(&self, ask: Ask, bytes: usize) -> Result<Reply, RequestError> {
        let permit = self.admission.admit(bytes)?;
        let (caller, waiting) = caller(Some(permit));
        if !self.cast(PartitionMsg::Ask(ask, caller)) {
            return Err(self.not_taken_up());
        }
        waiting.outcome(self.waits, self).await
    }

    /// Proposes without waiting for the outcome; for hints and clean-up whose loss is harmless.
    pub(crate) fn ask_unheard(&self, ask: Ask) {
        let Ok(permit) = self.admission.admit(0) else {
            return;
        };
        let (caller, _) = caller(Some(permit));
        self.cast(PartitionMsg::Ask(ask, caller));
    }

    /// Gives a claim back, uncharged.
    pub(crate) fn release(&self, lease_id: LeaseId, lanes: Vec<LaneId>) {
        let lanes = lanes.into_iter().map(|lane| (lane, None)).collect();
        let release = laneway_core::command::ReleaseClaim { lease_id, lanes };
        self.ask_unheard(Ask::Command(Command::ReleaseClaim(release), Bytes::new()));
    }

    /// Looks at the machine as it is now; may miss what another leader has committed.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Running) -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        let (reply, answer) = oneshot::channel();
        let look = Box::new(move |running: &Running| {
            // The asker may be gone; then nobody misses the answer.
            drop(reply.send(look(running)));
        });
        if !self.cast(PartitionMsg::Look(look)) {
            return Err(self.not_taken_up());
        }
        answer.await.map_err(|_| self.not_taken_up())
    }

    /// Waits until it leads and has applied all that earlier leaders have answered for.
    pub(crate) async fn until_serving(&self) -> Result<(), RequestError> {
        let deadline = Instant::now() + self.waits.leader;
        while !self.serving.load(Ordering::Acquire) {
            if !self.may_serve_by(deadline) {
                return Err(self.not_taken_up());
            }
            tokio::time::sleep(SERVING_LOOK).await;
        }
        Ok(())
    }

    /// Whether it makes sense to wait for it to serve.
    fn may_serve_by(&self, deadline: Instant) -> bool {
        let seen = *self.leadership.borrow();
        let another_leads = seen.leader.is_some() && !seen.is_self;
        !another_leads && Instant::now() < deadline && self.stopped().is_none()
    }

    /// Waits until everything committed before now is applied here, on the word of a quorum. Only the leader can.
    /// Gives the index up to which it is.
    pub(crate) async fn read_index(&self) -> Result<u64, RequestError> {
        let deadline = Instant::now() + self.waits.leader;
        loop {
            if self.serving.load(Ordering::Acquire)
                && let Some(group) = self.group()
            {
                let outcome = tokio::time::timeout_at(deadline, group.read_index()).await;
                if let Ok(Ok(index)) = outcome {
                    return Ok(index);
                }
            }
            if !self.may_serve_by(deadline) {
                return Err(self.not_taken_up());
            }
            tokio::time::sleep(SERVING_LOOK).await;
        }
    }

    /// [`Self::read_index`], then [`Self::look`].
    pub(crate) async fn look_linear<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Running) -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        self.read_index().await?;
        self.look(look).await
    }
}

impl fmt::Display for PartitionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {}", self.id)
    }
}

impl WhoseOutcome for PartitionHandle {
    fn not_taken_up(&self) -> RequestError {
        let message = match self.stopped() {
            Some(why) => format!("{self} is stopped ({why}); see the node's log"),
            None => format!("{self} has no leader yet; retry after a moment"),
        };
        RequestError::new(ErrorClass::Unavailable, "no_leader", message)
    }
}
