//! Snapshots of this node's replicas: the one that each holds for sending, and putting received ones in place.
//!
//! Making one is the maintenance thread's work, for that owns the files. What is held pins its files by names of its own, and
//! keeps the log behind it from being purged; it goes when nobody has read from it for a while, or the disk gets low.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use laneway_core::ids::PartitionId;
use laneway_raft::{CheckpointName, SnapshotPart, SnapshotStore};
use laneway_storage::FileError;
use laneway_storage::checkpoint::CheckpointStore;
use laneway_storage::snapshot::{Generation, IncomingSnapshot, OutgoingSnapshot, SnapshotOffer};
use laneway_storage::vfs::Vfs;
use laneway_storage::wal::Wal;
use tokio::sync::oneshot;

use crate::replica::ReplicaContext;

/// A snapshot of whose receivers nothing was heard for so long is given up. One may be opening a large machine on it.
const IDLE_MAX: Duration = Duration::from_secs(120);

/// One that a receiver has is given up after this, unless another one reads it: it holds the log.
const LINGER: Duration = Duration::from_secs(5);

/// A snapshot older than this is given up in any case, with the log that it holds.
const AGE_MAX: Duration = Duration::from_secs(30 * 60);

/// Guards the files of one replica.
#[derive(Debug, Default)]
pub(crate) struct ReplicaDisk {
    lock: Mutex<()>,
    /// A snapshot was put in place: the machine that runs must write no more.
    superseded: AtomicBool,
    /// How often the replica was opened: what was begun for an earlier machine is not ended for this one.
    openings: AtomicU64,
}

impl ReplicaDisk {
    /// Keeps everyone else from the files. Blocking.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be asked under the lock.
    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Acquire)
    }

    /// The replica is being opened on what is in place now. Under the lock.
    fn opened(&self) -> u64 {
        self.superseded.store(false, Ordering::Release);
        self.openings.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn check_opening(&self, opening: u64) -> Result<(), String> {
        if self.openings.load(Ordering::Acquire) == opening && !self.is_superseded() {
            Ok(())
        } else {
            Err("the replica is being opened anew".to_owned())
        }
    }
}

/// Asks the maintenance thread to make a snapshot; the folder is still to be sealed.
pub(crate) struct MakeSnapshot {
    pub(crate) partition: PartitionId,
    pub(crate) reply: oneshot::Sender<Result<MadeSnapshot, String>>,
}

/// A folder that holds a snapshot.
pub(crate) struct MadeSnapshot {
    pub(crate) id: u64,
    pub(crate) dir: PathBuf,
}

/// The snapshots of all replicas.
#[derive(Debug, Default)]
pub(crate) struct SnapshotHub {
    maker: Mutex<Option<mpsc::Sender<MakeSnapshot>>>,
    slots: Mutex<HashMap<PartitionId, Slot>>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Index of one that is being made.
    making: Option<u64>,
    held: Option<Arc<Held>>,
}

#[derive(Debug)]
struct Held {
    snapshot: OutgoingSnapshot,
    made: Instant,
    over: Mutex<Instant>,
}

impl Held {
    fn new(snapshot: OutgoingSnapshot) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            snapshot,
            made: now,
            over: Mutex::new(now + IDLE_MAX),
        })
    }

    fn index(&self) -> u64 {
        self.snapshot.offer().applied.0
    }

    /// Holds it for so long from now.
    fn keep(&self, time: Duration) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + time;
    }

    fn is_over(&self) -> bool {
        let over = *self.over.lock().unwrap_or_else(PoisonError::into_inner);
        Instant::now() >= over || self.made.elapsed() > AGE_MAX
    }

    fn remove(&self, partition: PartitionId) {
        if let Err(error) = self.snapshot.remove() {
            tracing::warn!(%partition, %error, "could not remove a snapshot that was sent");
        }
    }
}

impl SnapshotHub {
    fn slots(&self) -> MutexGuard<'_, HashMap<PartitionId, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on snapshots can be made.
    pub(crate) fn connect(&self, maker: mpsc::Sender<MakeSnapshot>) {
        *self.maker.lock().unwrap_or_else(PoisonError::into_inner) = Some(maker);
    }

    /// Nothing is made any more.
    pub(crate) fn disconnect(&self) {
        self.maker.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// The log of `partition` behind this entry is wanted by who receives a snapshot.
    pub(crate) fn hold(&self, partition: PartitionId) -> Option<u64> {
        let slots = self.slots();
        let slot = slots.get(&partition)?;
        let held = slot.held.as_ref().map(|held| held.index());
        slot.making.into_iter().chain(held).min()
    }

    /// Whether the log of any partition is held.
    pub(crate) fn holds_any(&self) -> bool {
        let mut slots = self.slots();
        slots.retain(|_, slot| slot.making.is_some() || slot.held.is_some());
        !slots.is_empty()
    }

    /// One is being made of what was applied up to `index`, or no longer.
    pub(crate) fn making(&self, partition: PartitionId, index: Option<u64>) {
        self.slots().entry(partition).or_default().making = index;
    }

    /// Gives up what is no longer used, or all of it.
    pub(crate) fn give_up(&self, all: bool) {
        let over: Vec<(PartitionId, Arc<Held>)> = self
            .slots()
            .iter_mut()
            .filter_map(|(partition, slot)| {
                let over = slot.held.take_if(|held| all || held.is_over())?;
                Some((*partition, over))
            })
            .collect();
        for (partition, held) in over {
            tracing::info!(%partition, index = held.index(), "a snapshot is held for sending no longer");
            held.remove(partition);
        }
    }

    /// Takes what an earlier process held, if it is still of use: a receiver may be in the middle of it. Blocking.
    pub(crate) fn take_up(
        &self,
        vfs: &Arc<dyn Vfs>,
        wal: &Wal,
        base: &std::path::Path,
        partition: PartitionId,
    ) -> Result<(), FileError> {
        let purged = wal.purged(partition).map(|(index, ..)| index);
        let of_no_use = |index: u64| purged > Some(index);
        if let Some(held) = self.held(partition) {
            // The log was begun anew behind a snapshot that was received meanwhile.
            if of_no_use(held.index()) {
                self.slots().entry(partition).or_default().held = None;
                tracing::info!(%partition, index = held.index(), "a snapshot is held for sending no longer: the log behind it is gone");
                held.remove(partition);
            }
            return Ok(());
        }
        let Some(found) = OutgoingSnapshot::find(vfs, base, partition)? else {
            return Ok(());
        };
        if of_no_use(found.offer().applied.0) {
            return found.remove();
        }
        self.slots().entry(partition).or_default().held = Some(Held::new(found));
        Ok(())
    }

    fn held(&self, partition: PartitionId) -> Option<Arc<Held>> {
        self.slots().get(&partition)?.held.clone()
    }

    fn put(&self, partition: PartitionId, held: Arc<Held>) {
        let old = {
            let mut slots = self.slots();
            let slot = slots.entry(partition).or_default();
            slot.making = None;
            slot.held.replace(held)
        };
        if let Some(old) = old {
            old.remove(partition);
        }
    }

    async fn make(
        self: Arc<Self>,
        vfs: Arc<dyn Vfs>,
        partition: PartitionId,
    ) -> Result<SnapshotOffer, String> {
        let (reply, made) = oneshot::channel();
        let maker = self.maker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let ask = MakeSnapshot { partition, reply };
        if maker.is_none_or(|maker| maker.send(ask).is_err()) {
            return Err("this node is starting or stopping".to_owned());
        }
        let sealed = match made.await {
            Ok(Ok(MadeSnapshot { id, dir })) => {
                blocking(move || OutgoingSnapshot::seal(vfs, dir, id, partition)).await
            }
            Ok(Err(reason)) => Err(reason),
            Err(_) => Err("this node is stopping".to_owned()),
        };
        match sealed {
            Ok(snapshot) => {
                let offer = snapshot.offer().clone();
                tracing::info!(
                    %partition, index = offer.applied.0, bytes = offer.bytes(), files = offer.files.len(),
                    "made a snapshot for a replica that is too far behind"
                );
                self.put(partition, Held::new(snapshot));
                Ok(offer)
            }
            Err(reason) => {
                self.making(partition, None);
                Err(reason)
            }
        }
    }
}

/// The snapshots of one replica.
pub(crate) struct ReplicaSnapshots {
    hub: Arc<SnapshotHub>,
    vfs: Arc<dyn Vfs>,
    base: PathBuf,
    partition: PartitionId,
    disk: Arc<ReplicaDisk>,
    opening: u64,
    free_bytes_min: u64,
    /// Held while one is made, so that several receivers share it.
    making: Arc<tokio::sync::Mutex<()>>,
}

impl ReplicaSnapshots {
    /// For a replica that is being opened, under the lock of its disk.
    pub(crate) fn new(context: &ReplicaContext, partition: PartitionId, disk: Arc<ReplicaDisk>) -> Self {
        Self {
            hub: Arc::clone(&context.snapshots),
            vfs: Arc::clone(&context.vfs),
            base: context.dir.clone(),
            partition,
            opening: disk.opened(),
            disk,
            free_bytes_min: context.limits.disk_free_bytes_min,
            making: Arc::default(),
        }
    }

    async fn offer_held_or_new(&self, index_min: u64) -> Result<SnapshotOffer, String> {
        let making = Arc::clone(&self.making).lock_owned().await;
        if let Some(held) = self.hub.held(self.partition)
            && held.index() >= index_min
        {
            return Ok(held.snapshot.offer().clone());
        }
        // A task of its own: it ends well even if who asked goes.
        let make = Arc::clone(&self.hub).make(Arc::clone(&self.vfs), self.partition);
        let made = tokio::spawn(async move {
            let made = make.await;
            drop(making);
            made
        });
        made.await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

impl SnapshotStore for ReplicaSnapshots {
    fn held(&self) -> Option<CheckpointName> {
        let held = self.hub.held(self.partition)?;
        let (index, term, leader) = held.snapshot.offer().applied;
        let membership = held.snapshot.membership().clone();
        Some(CheckpointName {
            index,
            term,
            leader,
            membership,
        })
    }

    fn offer(&self, index_min: u64) -> BoxFuture<'_, Result<SnapshotOffer, String>> {
        Box::pin(self.offer_held_or_new(index_min))
    }

    fn read(&self, part: SnapshotPart) -> BoxFuture<'_, Result<Bytes, String>> {
        Box::pin(async move {
            let held = self
                .hub
                .held(self.partition)
                .filter(|held| held.snapshot.offer().id == part.id)
                .ok_or("that snapshot is no longer held here")?;
            held.keep(IDLE_MAX);
            let file = usize::try_from(part.file).map_err(|error| error.to_string())?;
            let bytes = usize::try_from(part.bytes).map_err(|error| error.to_string())?;
            let read = blocking(move || held.snapshot.read(file, part.at, bytes)).await?;
            read.ok_or_else(|| format!("snapshot {:016x} has no file {file}", part.id))
        })
    }

    fn keep(&self, id: u64) {
        let held = self.hub.held(self.partition);
        if let Some(held) = held.filter(|held| held.snapshot.offer().id == id) {
            held.keep(IDLE_MAX);
        }
    }

    fn taken(&self, index: u64) {
        let held = self.hub.held(self.partition);
        if let Some(held) = held.filter(|held| held.index() == index) {
            held.keep(LINGER);
        }
    }

    fn receive(&self, offer: SnapshotOffer) -> BoxFuture<'_, Result<IncomingSnapshot, String>> {
        let (vfs, base, partition) = (Arc::clone(&self.vfs), self.base.clone(), self.partition);
        let (disk, opening, free_bytes_min) = (Arc::clone(&self.disk), self.opening, self.free_bytes_min);
        Box::pin(blocking(move || {
            let _disk = disk.lock();
            disk.check_opening(opening)?;
            receive(vfs, base, partition, offer, free_bytes_min)
        }))
    }

    fn place(&self, received: IncomingSnapshot) -> BoxFuture<'_, Result<bool, String>> {
        let (vfs, partition) = (Arc::clone(&self.vfs), self.partition);
        let (disk, opening) = (Arc::clone(&self.disk), self.opening);
        Box::pin(blocking(move || {
            let _disk = disk.lock();
            disk.check_opening(opening)?;
            let placed = place(&vfs, partition, &received)?;
            if placed {
                disk.superseded.store(true, Ordering::Release);
            }
            Ok::<bool, String>(placed)
        }))
    }
}

fn receive(
    vfs: Arc<dyn Vfs>,
    base: PathBuf,
    partition: PartitionId,
    offer: SnapshotOffer,
    free_bytes_min: u64,
) -> Result<IncomingSnapshot, String> {
    if offer.partition != partition {
        return Err(format!("a snapshot of partition {} was offered", offer.partition));
    }
    let current = Generation::find(&*vfs, &base).map_err(|error| error.to_string())?;
    if current.id == offer.id {
        return Err("this snapshot is in place already".to_owned());
    }
    let wanted = offer.bytes();
    let incoming =
        IncomingSnapshot::open(Arc::clone(&vfs), base.clone(), offer).map_err(|error| error.to_string())?;
    let files = 0..incoming.offer().files.len();
    let held: Result<u64, FileError> = files.map(|file| incoming.held(file)).sum();
    let missing = wanted.saturating_sub(held.map_err(|error| error.to_string())?);
    let free = vfs.free_bytes(&base).map_err(|error| error.to_string())?;
    if missing.saturating_add(free_bytes_min) > free {
        return Err(format!(
            "{missing} bytes are still to come and {free_bytes_min} must stay free, but only {free} are; make room in {}",
            base.display()
        ));
    }
    Ok(incoming)
}

/// Under the disk's lock: nobody writes a checkpoint or purges the log for one meanwhile.
fn place(vfs: &Arc<dyn Vfs>, partition: PartitionId, received: &IncomingSnapshot) -> Result<bool, String> {
    let text = |error: FileError| error.to_string();
    let (base, offer) = (received.base(), received.offer());
    let current = Generation::find(&**vfs, base).map_err(text)?;
    let (_, manifest) =
        CheckpointStore::open(Arc::clone(vfs), current.dir, partition).map_err(|error| error.to_string())?;
    // The log may be purged up to that checkpoint: the snapshot would be of no use without the entries between.
    if manifest.is_some_and(|manifest| manifest.applied.0 >= offer.applied.0) {
        received.remove().map_err(text)?;
        return Ok(false);
    }
    Generation::switch(vfs, base, offer.id, offer.applied).map_err(text)?;
    tracing::info!(%partition, index = offer.applied.0, "a snapshot is in place, opening it");
    Ok(true)
}

async fn blocking<T: Send + 'static, E: ToString + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use laneway_storage::vfs::RealVfs;
    use laneway_storage::wal::WalOptions;

    use super::*;

    const P: PartitionId = PartitionId(1);

    fn made(vfs: &Arc<dyn Vfs>, base: &std::path::Path, index: u64) -> OutgoingSnapshot {
        let (id, dir) = OutgoingSnapshot::create(&**vfs, base).unwrap();
        let (store, _) = CheckpointStore::open(Arc::clone(vfs), dir.clone(), P).unwrap();
        let writer = store.begin(true).unwrap();
        writer.finish((index, 1, 1), Bytes::new(), Vec::new()).unwrap();
        OutgoingSnapshot::seal(Arc::clone(vfs), dir, id, P).unwrap()
    }

    #[test]
    fn held_snapshot_outlives_a_restart_unless_the_log_behind_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let vfs: Arc<dyn Vfs> = Arc::new(RealVfs);
        let base = dir.path().join("0001");
        let options = WalOptions {
            segment_bytes: 64 * 1024,
            ..WalOptions::default()
        };
        let (wal, _) = Wal::open(Arc::clone(&vfs), dir.path().join("wal"), options).unwrap();
        made(&vfs, &base, 5);
        let hub = SnapshotHub::default();
        assert_eq!((hub.hold(P), hub.holds_any()), (None, false));
        hub.take_up(&vfs, &wal, &base, P).unwrap();
        assert_eq!((hub.hold(P), hub.holds_any()), (Some(5), true));
        hub.making(P, Some(3));
        assert_eq!(hub.hold(P), Some(3), "that of the older one");
        hub.put(P, Held::new(made(&vfs, &base, 7)));
        assert_eq!(hub.hold(P), Some(7));
        hub.give_up(false);
        assert_eq!(hub.hold(P), Some(7), "nobody had time to ask for it");

        wal.restart_behind(P, (7, 1, 1)).unwrap();
        hub.take_up(&vfs, &wal, &base, P).unwrap();
        assert_eq!(hub.hold(P), Some(7), "the log goes on behind it");
        let ahead = SnapshotHub::default();
        ahead.put(P, Held::new(made(&vfs, &base, 6)));
        ahead.take_up(&vfs, &wal, &base, P).unwrap();
        assert_eq!(ahead.hold(P), None, "a snapshot that was received is newer");

        let later = SnapshotHub::default();
        later.take_up(&vfs, &wal, &base, P).unwrap();
        assert_eq!(later.hold(P), Some(7));
        later.give_up(true);
        assert_eq!((later.hold(P), later.holds_any()), (None, false));
        made(&vfs, &base, 6);
        later.take_up(&vfs, &wal, &base, P).unwrap();
        assert_eq!(later.hold(P), None, "the log begins behind it");
        assert!(vfs.list(&base).unwrap().is_empty());
        wal.close();
    }

    #[test]
    fn snapshot_that_a_receiver_has_lingers_for_others() {
        let dir = tempfile::tempdir().unwrap();
        let vfs: Arc<dyn Vfs> = Arc::new(RealVfs);
        let held = Held::new(made(&vfs, &dir.path().join("0001"), 5));
        held.keep(Duration::ZERO);
        assert!(held.is_over());
        held.keep(LINGER);
        assert!(!held.is_over());
    }
}
