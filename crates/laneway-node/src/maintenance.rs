//! The thread that keeps the disk in order: checkpoints, purging, recycling of WAL segments, compaction, free space.

mod checkpoint;
mod purge;
mod scrub;
mod snapshot;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use laneway_core::ids::PartitionId;
use laneway_storage::FileError;
use laneway_storage::payload::PayloadError;
use laneway_storage::vfs::Vfs;
use laneway_storage::wal::{Wal, WalError};

use self::scrub::Scrubs;

use crate::catalog::CatalogHandle;
use crate::options::StorageOptions;
use crate::partition::{PartitionHandle, PartitionMsg, Stores};
use crate::replica::ReplicaContext;
use crate::snapshot::{MakeSnapshot, SnapshotHub};

/// Between two rounds.
const ROUND: Duration = Duration::from_millis(200);

/// Between two looks at retention and at the free space.
const RETAIN_EVERY: Duration = Duration::from_secs(1);

/// Bytes of entries after which a partition gets a checkpoint before its time.
const CHECKPOINT_BYTES: u64 = 64 * 1024 * 1024;

/// An actor that does not answer for so long is being restarted; the checkpoint is given up.
const ROWS_WAIT: Duration = Duration::from_secs(30);

/// Free space of the data directory's file system, as last seen.
#[derive(Debug)]
pub(crate) struct Disk {
    free: AtomicU64,
    low: AtomicBool,
    free_bytes_min: u64,
}

impl Disk {
    pub(crate) fn new(free_bytes_min: u64) -> Self {
        Self {
            free: AtomicU64::new(u64::MAX),
            low: AtomicBool::new(false),
            free_bytes_min,
        }
    }

    pub(crate) fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed)
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Looks; says so once when it becomes low and once when it no longer is. `wal` says whether the log has room in
    /// reserve: without it, it could take no push either.
    pub(crate) fn look(&self, vfs: &dyn Vfs, dir: &std::path::Path, wal: &Wal) {
        let free = match vfs.free_bytes(dir) {
            Ok(free) => free,
            Err(error) => {
                tracing::warn!(%error, "free disk space is not readable");
                return;
            }
        };
        self.free.store(free, Ordering::Relaxed);
        let low = free < self.free_bytes_min || !wal.reserve();
        if self.low.swap(low, Ordering::Relaxed) != low {
            if low {
                tracing::warn!(
                    free,
                    reserve = self.free_bytes_min,
                    "disk is low, pushes are refused"
                );
            } else {
                tracing::info!(free, "disk has room again, pushes are taken");
            }
        }
    }
}

/// What the thread works on.
pub(crate) struct Work {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) wal: Wal,
    pub(crate) disk: Arc<Disk>,
    pub(crate) data_dir: std::path::PathBuf,
    pub(crate) storage: Arc<StorageOptions>,
    pub(crate) catalog: (Arc<CatalogHandle>, ReplicaContext),
    pub(crate) partitions: Vec<(Arc<PartitionHandle>, ReplicaContext)>,
    pub(crate) runtime: tokio::runtime::Handle,
    /// Bytes of checkpoint files, for status.
    pub(crate) checkpoint_bytes: Arc<AtomicU64>,
}

/// The running thread; stopping it waits for the round under way.
#[derive(Debug)]
pub(crate) struct Maintenance {
    stop: Mutex<Option<mpsc::Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    snapshots: Arc<SnapshotHub>,
}

impl Maintenance {
    pub(crate) fn start(work: Work) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let (maker, wanted) = mpsc::channel();
        let snapshots = Arc::clone(&work.catalog.1.snapshots);
        snapshots.connect(maker);
        let thread = std::thread::Builder::new()
            .name("maintenance".to_owned())
            .spawn(move || {
                Round::new(work).run(&stopped, &wanted);
            })?;
        Ok(Self {
            stop: Mutex::new(Some(stop)),
            thread: Mutex::new(Some(thread)),
            snapshots,
        })
    }

    /// Blocking.
    pub(crate) fn stop(&self) {
        self.snapshots.disconnect();
        drop(self.stop.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the maintenance thread had panicked");
        }
    }
}

struct Round {
    work: Work,
    last_checkpoint: HashMap<PartitionId, Instant>,
    full_wanted: HashMap<PartitionId, bool>,
    checkpoint_bytes: HashMap<PartitionId, u64>,
    last_retain: Instant,
    scrubs: Scrubs,
    /// Segments that cannot be copied from because they are damaged.
    damaged_segments: HashSet<u64>,
    /// What last kept each chore from being done, so that it is told once and not in every round.
    hindrances: HashMap<(&'static str, PartitionId), String>,
}

/// Why a checkpoint was not written.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error("its actor does not answer")]
    NoActor,
    #[error(transparent)]
    Checkpoint(#[from] laneway_storage::checkpoint::CheckpointError),
    #[error(transparent)]
    Dedup(#[from] laneway_storage::dedup::DedupError),
    #[error(transparent)]
    Payload(#[from] PayloadError),
    #[error(transparent)]
    Wal(#[from] WalError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("a snapshot was put in place, it is being opened")]
    Superseded,
    #[error("{0}")]
    NotExported(String),
}

impl RoundError {
    /// A segment is not what was written: another attempt would end like this one.
    fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Payload(PayloadError::Damaged { .. } | PayloadError::Wal(WalError::Corrupt { .. }))
        )
    }
}

impl Round {
    fn new(work: Work) -> Self {
        Self {
            work,
            last_checkpoint: HashMap::new(),
            full_wanted: HashMap::new(),
            checkpoint_bytes: HashMap::new(),
            last_retain: Instant::now(),
            scrubs: Scrubs::default(),
            damaged_segments: HashSet::new(),
            hindrances: HashMap::new(),
        }
    }

    fn run(&mut self, stopped: &Receiver<()>, wanted: &Receiver<MakeSnapshot>) {
        loop {
            match stopped.recv_timeout(ROUND) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.last_retain.elapsed() >= RETAIN_EVERY {
                self.last_retain = Instant::now();
                self.work
                    .disk
                    .look(&*self.work.vfs, &self.work.data_dir, &self.work.wal);
                for (partition, _) in &self.work.partitions {
                    partition.cast(PartitionMsg::Retain);
                }
                self.purge_kept();
            }
            self.snapshots().give_up(self.work.disk.is_low());
            while let Ok(ask) = wanted.try_recv() {
                self.make_snapshot(ask);
            }
            self.checkpoints();
            self.recycle();
            self.compact();
            self.scrubs
                .round(self.work.partitions.iter().map(|(partition, _)| partition));
        }
    }

    fn checkpoints(&mut self) {
        // While the log is held for a snapshot's receiver, more checkpoints would not make it shorter.
        let pressed = self.is_pressed() && !self.snapshots().holds_any();
        for at in 0..self.work.partitions.len() {
            let (partition, context) = self.work.partitions[at].clone();
            let applied = partition.applied_index.load(Ordering::Acquire);
            let written = partition.checkpoint_index.load(Ordering::Acquire);
            let bytes = partition.bytes_since_checkpoint.load(Ordering::Relaxed);
            let dedup_rows = partition
                .stores()
                .map_or(0, |stores| stores.dedup.stats().rows_in_memory);
            let rows = dedup_rows >= self.work.storage.dedup_rows_in_memory_max / 4;
            if applied > written && (pressed || rows || self.due(partition.id, bytes)) {
                let outcome = self.checkpoint_partition(&partition, &context, None);
                self.written(partition.id, outcome.map(|written| written.bytes));
            }
        }
        let (catalog, context) = self.work.catalog.clone();
        let applied = catalog.applied_index.load(Ordering::Acquire);
        let written = catalog.checkpoint_index.load(Ordering::Acquire);
        if applied > written && (pressed || self.due(PartitionId::CATALOG, 0)) {
            let outcome = self.checkpoint_catalog(&catalog, &context, None);
            self.written(PartitionId::CATALOG, outcome.map(|written| written.bytes));
        }
    }

    fn due(&self, partition: PartitionId, bytes: u64) -> bool {
        let pause = Duration::from_millis(self.work.storage.checkpoint_ms_max);
        bytes >= CHECKPOINT_BYTES
            || self
                .last_checkpoint
                .get(&partition)
                .is_none_or(|last| last.elapsed() >= pause)
    }

    fn written(&mut self, partition: PartitionId, outcome: Result<u64, RoundError>) {
        self.last_checkpoint.insert(partition, Instant::now());
        match outcome {
            Ok(bytes) => {
                self.full_wanted.insert(partition, false);
                self.checkpoint_bytes.insert(partition, bytes);
                let sum = self.checkpoint_bytes.values().sum();
                self.work.checkpoint_bytes.store(sum, Ordering::Relaxed);
            }
            // What was to be written is of the past.
            Err(RoundError::Superseded) => {}
            Err(error) => {
                // The rows of the failed one are lost to the next delta: it must be whole.
                self.full_wanted.insert(partition, true);
                tracing::warn!(%partition, %error, "checkpoint not written, the log is kept");
            }
        }
    }

    /// The log has as many segments as it should.
    fn is_pressed(&self) -> bool {
        self.segments_in_use() >= self.work.storage.wal_segments_max as usize
    }

    fn segments_in_use(&self) -> usize {
        self.work.wal.segments().len()
    }

    /// Moves what lives in the oldest segments to backlog files, until the log is small again.
    fn recycle(&mut self) {
        let partitions: Vec<_> = self
            .work
            .partitions
            .iter()
            .map(|(partition, _)| Arc::clone(partition))
            .collect();
        let _disks: Vec<_> = partitions.iter().map(|partition| partition.lock_disk()).collect();
        let stores: Vec<_> = partitions
            .iter()
            .filter_map(|partition| partition.stores().ok())
            .collect();
        if stores.len() < partitions.len() {
            // A partition that is down may have payloads in any segment.
            return;
        }
        let segments = self.work.wal.segments();
        let mut in_use = segments.len();
        let mut hindrance = None;
        for segment in segments
            .iter()
            .filter(|segment| !segment.active && !segment.log_needed)
        {
            let live: u64 = stores
                .iter()
                .map(|stores| stores.payloads.segment_live_bytes(segment.id))
                .sum();
            let wanted = live == 0 || in_use >= self.work.storage.wal_segments_max as usize;
            if !wanted || live > 0 && self.damaged_segments.contains(&segment.id) {
                continue;
            }
            match free(&self.work.wal, &stores, segment.id) {
                Ok(true) => {
                    self.damaged_segments.remove(&segment.id);
                    in_use -= 1;
                }
                Ok(false) => {}
                Err(error) => {
                    if error.is_damage() {
                        self.damaged_segments.insert(segment.id);
                    }
                    hindrance.get_or_insert(error);
                }
            }
        }
        // A damaged segment is passed over from now on, and was told of.
        self.tell("recycle wal segments", PartitionId::CATALOG, hindrance);
    }

    fn compact(&mut self) {
        for at in 0..self.work.partitions.len() {
            let partition = Arc::clone(&self.work.partitions[at].0);
            let _disk = partition.lock_disk();
            let Ok(stores) = partition.stores() else { continue };
            let outcome = stores.payloads.compact();
            self.tell(
                "compact backlog files",
                partition.id,
                outcome.err().map(RoundError::from),
            );
        }
    }

    /// Says what keeps a chore from being done, when it begins to, or another thing does.
    fn tell(&mut self, chore: &'static str, partition: PartitionId, hindrance: Option<RoundError>) {
        let Some(error) = hindrance else {
            self.hindrances.remove(&(chore, partition));
            return;
        };
        let text = error.to_string();
        if self.hindrances.get(&(chore, partition)) != Some(&text) {
            tracing::warn!(%partition, chore, %error, "maintenance cannot do this now, it tries again");
            self.hindrances.insert((chore, partition), text);
        }
    }
}

/// Copies what is alive in a segment and gives it back. False: it is still needed.
fn free(wal: &Wal, stores: &[Arc<Stores>], segment: u64) -> Result<bool, RoundError> {
    let mut clear = true;
    for stores in stores {
        clear &= stores.payloads.evacuate(segment)?.clear;
    }
    // What was applied in the meantime is copied in the next round; a recycled segment would take it along.
    Ok(clear && wal.release_segment(segment)?)
}
