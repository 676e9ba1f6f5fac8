//! The replica's side: fetch, check, put in place.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use laneway_core::ids::PartitionId;
use laneway_storage::snapshot::{IncomingSnapshot, SnapshotOffer};
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::{SNAPSHOT_CHUNK_BYTES_MAX, SnapshotPart, SnapshotStore};
use crate::fsm::FsmMsg;
use crate::group::Raft;
use crate::peer::{self, PeerCallError, Peers, SnapshotAnswer, Verb};
use crate::types::Vote;

/// Chunks on their way at a time.
const CHUNKS_IN_FLIGHT: usize = 4;

/// Longest wait for one chunk.
const CHUNK_MAX: Duration = Duration::from_secs(10);

/// How long a sender that does not answer is asked again before the transfer is given up. What came stays.
const SENDER_SILENT_MAX: Duration = Duration::from_secs(10);

/// Pause before it is.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// How often files that came damaged are fetched again.
const ROUNDS_MAX: usize = 3;

/// What a replica does with offered snapshots.
pub(crate) struct Receiver {
    partition: PartitionId,
    store: Arc<dyn SnapshotStore>,
    peers: Peers,
    fsm: mpsc::UnboundedSender<FsmMsg>,
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Receiving {
        id: u64,
        bytes: Arc<AtomicU64>,
        task: AbortHandle,
    },
    Failed {
        id: u64,
        reason: String,
    },
    /// The group ends.
    Closed,
}

/// Why a transfer ended.
#[derive(Debug, thiserror::Error)]
enum ReceiveError {
    #[error("{0}")]
    Store(String),
    #[error(transparent)]
    File(#[from] laneway_storage::FileError),
    #[error(transparent)]
    Call(#[from] PeerCallError),
    #[error("the sender gave {found} bytes where {wanted} were asked for")]
    Length { wanted: u32, found: usize },
    #[error("files came damaged {ROUNDS_MAX} times")]
    Damaged,
    #[error("this node stops")]
    Stopping,
}

impl Receiver {
    pub(crate) fn new(
        partition: PartitionId,
        store: Arc<dyn SnapshotStore>,
        peers: Peers,
        fsm: mpsc::UnboundedSender<FsmMsg>,
    ) -> Self {
        Self {
            partition,
            store,
            peers,
            fsm,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops receiving; what came stays for the next time.
    pub(crate) fn close(&self) {
        if let State::Receiving { task, .. } = std::mem::replace(&mut *self.state(), State::Closed) {
            task.abort();
        }
    }

    /// Answers an offer: the first of its kind begins the transfer.
    pub(crate) fn offered(self: &Arc<Self>, raft: &Raft, vote: Vote, offer: SnapshotOffer) -> SnapshotAnswer {
        if let Some(answer) = settled(raft, &vote, offer.applied.0) {
            return answer;
        }
        let mut state = self.state();
        match &*state {
            State::Receiving { id, bytes, .. } if *id == offer.id => {
                return SnapshotAnswer::Receiving(bytes.load(Ordering::Relaxed));
            }
            State::Closed => return SnapshotAnswer::Unknown,
            // The newer leader's.
            State::Receiving { task, .. } => task.abort(),
            State::Idle | State::Failed { .. } => {}
        }
        tracing::info!(
            partition = %self.partition, from = vote.leader_id.node_id, index = offer.applied.0, bytes = offer.bytes(),
            "receiving a snapshot"
        );
        let bytes = Arc::new(AtomicU64::new(0));
        let id = offer.id;
        let this = Arc::clone(self);
        let counted = Arc::clone(&bytes);
        let task = tokio::spawn(async move {
            let outcome = this.receive(vote.leader_id.node_id, offer, &counted).await;
            this.ended(id, outcome);
        });
        *state = State::Receiving {
            id,
            bytes,
            task: task.abort_handle(),
        };
        SnapshotAnswer::Receiving(0)
    }

    /// Answers how far the transfer of snapshot `id` is, that goes up to `index`.
    pub(crate) fn asked(&self, raft: &Raft, vote: &Vote, index: u64, id: u64) -> SnapshotAnswer {
        if let Some(answer) = settled(raft, vote, index) {
            return answer;
        }
        match &*self.state() {
            State::Receiving { id: ours, bytes, .. } if *ours == id => {
                SnapshotAnswer::Receiving(bytes.load(Ordering::Relaxed))
            }
            State::Failed { id: ours, reason } if *ours == id => SnapshotAnswer::Failed(reason.clone()),
            _ => SnapshotAnswer::Unknown,
        }
    }

    /// Reads for a replica that receives from here.
    pub(crate) async fn read(&self, part: SnapshotPart) -> Result<Bytes, String> {
        self.store.read(part).await
    }

    fn ended(&self, id: u64, outcome: Result<bool, ReceiveError>) {
        let mut state = self.state();
        if !matches!(&*state, State::Receiving { id: ours, .. } if *ours == id) {
            return;
        }
        match outcome {
            // The group is about to be closed: until then it goes on receiving, as far as others see.
            Ok(true) => {
                // The machine may have ended already; it is opened on the snapshot all the same.
                let _ = self.fsm.send(FsmMsg::SnapshotPlaced);
            }
            Ok(false) => *state = State::Idle,
            Err(error) => {
                tracing::warn!(partition = %self.partition, %error, "snapshot not received, it is gone on with at the next offer");
                let reason = error.to_string();
                *state = State::Failed { id, reason };
            }
        }
    }

    /// Returns whether the replica must be opened anew.
    async fn receive(
        &self,
        from: u64,
        offer: SnapshotOffer,
        bytes: &AtomicU64,
    ) -> Result<bool, ReceiveError> {
        let incoming = self.store.receive(offer).await.map_err(ReceiveError::Store)?;
        let mut incoming = Arc::new(incoming);
        for _ in 0..ROUNDS_MAX {
            self.fetch_missing(from, &incoming, bytes).await?;
            let checked = Arc::clone(&incoming);
            let wrong = blocking(move || checked.check()).await??;
            if wrong.is_empty() {
                let received = loop {
                    match Arc::try_unwrap(incoming) {
                        Ok(received) => break received,
                        // The thread that checked it is about to let go.
                        Err(shared) => incoming = shared,
                    }
                    tokio::task::yield_now().await;
                };
                return self.store.place(received).await.map_err(ReceiveError::Store);
            }
            tracing::warn!(partition = %self.partition, files = wrong.len(), "files of a snapshot came damaged");
        }
        Err(ReceiveError::Damaged)
    }

    async fn fetch_missing(
        &self,
        from: u64,
        incoming: &Arc<IncomingSnapshot>,
        bytes: &AtomicU64,
    ) -> Result<(), ReceiveError> {
        let listing = Arc::clone(incoming);
        let held: Vec<u64> = blocking(move || {
            (0..listing.offer().files.len())
                .map(|file| listing.held(file))
                .collect::<Result<_, _>>()
        })
        .await??;
        bytes.store(held.iter().sum(), Ordering::Relaxed);
        let id = incoming.offer().id;
        let lengths: Vec<u64> = incoming.offer().files.iter().map(|file| file.bytes).collect();
        let parts = (0u32..)
            .zip(held.into_iter().zip(lengths))
            .flat_map(|(file, (held, length))| parts_of(id, file, held, length));
        // In order, so that each write follows the one before.
        let mut chunks = stream::iter(parts)
            .map(|part| async move { (part, self.fetch(from, part).await) })
            .buffered(CHUNKS_IN_FLIGHT);
        while let Some((part, chunk)) = chunks.next().await {
            let chunk = chunk?;
            let written = u64::from(part.bytes);
            let incoming = Arc::clone(incoming);
            let file = usize::try_from(part.file).expect("usize has at least 32 bits");
            blocking(move || incoming.write(file, part.at, &chunk)).await??;
            bytes.fetch_add(written, Ordering::Relaxed);
        }
        Ok(())
    }

    /// One chunk; a sender that is away for a moment is asked again.
    async fn fetch(&self, from: u64, part: SnapshotPart) -> Result<Bytes, ReceiveError> {
        let give_up = Instant::now() + SENDER_SILENT_MAX;
        loop {
            let body = vec![peer::encode_snapshot_part(part)];
            let fetched = self
                .peers
                .call_bulk(from, self.partition, CHUNK_MAX, Verb::SnapshotChunk, body)
                .await;
            match fetched {
                Ok(chunk) if chunk.len() == usize::try_from(part.bytes).unwrap_or(usize::MAX) => {
                    return Ok(chunk);
                }
                Ok(chunk) => {
                    return Err(ReceiveError::Length {
                        wanted: part.bytes,
                        found: chunk.len(),
                    });
                }
                // It has the snapshot no more, or cannot read it.
                Err(refused @ PeerCallError::Refused { .. }) => return Err(refused.into()),
                Err(error) if Instant::now() >= give_up => return Err(error.into()),
                Err(_) => tokio::time::sleep(ASK_AGAIN).await,
            }
        }
    }
}

/// An answer that needs no transfer: the offer is an old leader's, or the replica has come as far.
fn settled(raft: &Raft, vote: &Vote, index: u64) -> Option<SnapshotAnswer> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    if metrics.vote > *vote {
        return Some(SnapshotAnswer::HigherVote(metrics.vote));
    }
    let applied = metrics.last_applied.as_ref().map(|id| id.index);
    (applied >= Some(index)).then_some(SnapshotAnswer::Installed(metrics.vote))
}

/// What is missing of one file.
fn parts_of(id: u64, file: u32, held: u64, length: u64) -> impl Iterator<Item = SnapshotPart> {
    let step = u64::from(SNAPSHOT_CHUNK_BYTES_MAX);
    (0u64..)
        .map(move |number| held.saturating_add(number.saturating_mul(step)))
        .take_while(move |at| *at < length)
        .map(move |at| SnapshotPart {
            id,
            file,
            at,
            bytes: u32::try_from((length - at).min(step)).expect("at most a chunk"),
        })
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ReceiveError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| ReceiveError::Stopping)
}
