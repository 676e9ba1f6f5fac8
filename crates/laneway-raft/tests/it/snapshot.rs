//! A replica that needs entries which its leader has purged gets all of it in files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use laneway_core::ids::PartitionId;
use laneway_raft::{
    AppliedState, CheckpointName, CommittedPayload, GroupState, Peers, SnapshotPart, SnapshotStore,
};
use laneway_storage::checkpoint::CheckpointStore;
use laneway_storage::snapshot::{Generation, IncomingSnapshot, OutgoingSnapshot, SnapshotOffer};
use laneway_storage::vfs::{RealVfs, Vfs};
use laneway_storage::wal::Wal;
use tokio::sync::watch;

use crate::cluster::{free_ports, options, raft_id, start_peers};
use crate::harness::{Replica, Seen, bodies, body, open_wal};

const PARTITION: u16 = 2;
const P: PartitionId = PartitionId(PARTITION);

/// Bytes that make a snapshot take many chunks.
const BALLAST_BYTES: usize = 9 << 20;

/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps each applied body as a row.
struct Store {
    base: PathBuf,
    seen: OnceLock<watch::Receiver<Seen>>,
    held: Mutex<Option<Arc<OutgoingSnapshot>>>,
    made: AtomicUsize,
    taken: AtomicU64,
    read: AtomicUsize,
    /// Bytes of the first file, behind which each read fails.
    readable: watch::Sender<u64>,
}

impl Store {
    fn open(vfs: &Arc<dyn Vfs>, base: PathBuf, readable: u64) -> Arc<Self> {
        Arc::new(Self {
            held: Mutex::new(OutgoingSnapshot::find(vfs, &base, P).unwrap().map(Arc::new)),
            base,
            seen: OnceLock::new(),
            made: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            read: AtomicUsize::new(0),
            readable: watch::Sender::new(readable),
        })
    }

    fn held_snapshot(&self) -> Option<Arc<OutgoingSnapshot>> {
        self.held.lock().unwrap().clone()
    }

    fn make(&self) -> OutgoingSnapshot {
        let vfs: Arc<dyn Vfs> = Arc::new(RealVfs);
        let seen = self.seen.get().expect("the group is open").borrow().clone();
        let last = seen.applied.last().expect("something is applied");
        let (id, dir) = OutgoingSnapshot::create(&*vfs, &self.base).unwrap();
        let (checkpoints, _) = CheckpointStore::open(Arc::clone(&vfs), dir.clone(), P).unwrap();
        let mut writer = checkpoints.begin(true).unwrap();
        for entry in &seen.applied {
            if let CommittedPayload::Normal(body) = &entry.payload {
                writer.row(&entry.index.to_be_bytes(), Some(body)).unwrap();
            }
        }
        let applied = (last.index, last.term, last.leader);
        writer.finish(applied, seen.membership(), Vec::new()).unwrap();
        let ballast: Vec<u8> = (0..BALLAST_BYTES)
            .map(|at| u8::try_from(at / 7 % 256).unwrap())
            .collect();
        std::fs::write(dir.join("0000000000000001.backlog"), ballast).unwrap();
        self.made.fetch_add(1, Ordering::SeqCst);
        OutgoingSnapshot::seal(vfs, dir, id, P).unwrap()
    }
}

impl SnapshotStore for Store {
    fn held(&self) -> Option<CheckpointName> {
        let held = self.held_snapshot()?;
        let (index, term, leader) = held.offer().applied;
        let membership = held.membership().clone();
        Some(CheckpointName {
            index,
            term,
            leader,
            membership,
        })
    }

    fn offer(&self, index_min: u64) -> BoxFuture<'_, Result<SnapshotOffer, String>> {
        Box::pin(async move {
            let held = self
                .held_snapshot()
                .filter(|held| held.offer().applied.0 >= index_min);
            let held = held.unwrap_or_else(|| {
                let made = Arc::new(self.make());
                *self.held.lock().unwrap() = Some(Arc::clone(&made));
                made
            });
            Ok(held.offer().clone())
        })
    }

    fn read(&self, part: SnapshotPart) -> BoxFuture<'_, Result<Bytes, String>> {
        Box::pin(async move {
            self.read.fetch_add(1, Ordering::SeqCst);
            let readable = *self.readable.borrow();
            if readable < u64::MAX && (part.file > 0 || part.at >= readable) {
                return Err("interrupted by the test".to_owned());
            }
            let held = self.held_snapshot().ok_or("nothing is held")?;
            assert_eq!(held.offer().id, part.id);
            let read = held.read(part.file as usize, part.at, part.bytes as usize);
            Ok(read.unwrap().expect("the file is offered"))
        })
    }

    fn keep(&self, id: u64) {
        assert_eq!(self.held_snapshot().map(|held| held.offer().id), Some(id));
    }

    fn taken(&self, index: u64) {
        self.taken.fetch_max(index, Ordering::SeqCst);
    }

    fn receive(&self, offer: SnapshotOffer) -> BoxFuture<'_, Result<IncomingSnapshot, String>> {
        Box::pin(
            async move { Ok(IncomingSnapshot::open(Arc::new(RealVfs), self.base.clone(), offer).unwrap()) },
        )
    }

    fn place(&self, received: IncomingSnapshot) -> BoxFuture<'_, Result<bool, String>> {
        Box::pin(async move {
            let offer = received.offer();
            let vfs: Arc<dyn Vfs> = Arc::new(RealVfs);
            Generation::switch(&vfs, &self.base, offer.id, offer.applied).unwrap();
            Ok(true)
        })
    }
}

struct Side {
    peers: Peers,
    replica: Replica,
    store: Arc<Store>,
    wal: Wal,
    /// Bodies that came with the snapshot.
    restored: Vec<Bytes>,
}

impl Side {
    async fn start(number: u16, dir: &Path, ports: &[u16], readable: u64) -> Self {
        let peers = start_peers(options(number, ports)).await;
        let (wal, _) = open_wal(&dir.join(number.to_string()));
        let base = dir.join(format!("{number}-replica"));
        let vfs: Arc<dyn Vfs> = Arc::new(RealVfs);
        vfs.create_dir_all(&base).unwrap();
        let mut generation = Generation::find(&*vfs, &base).unwrap();
        let (applied, restored) = restore(&vfs, &generation);
        if let Some(at) = generation.restart {
            wal.restart_behind(P, at).unwrap();
        }
        generation
            .settle(&vfs, applied.applied.map(|(index, ..)| index))
            .unwrap();
        let store = Store::open(&vfs, base, readable);
        let snapshots: Arc<dyn SnapshotStore> = store.clone();
        let replica = Replica::open_with_snapshots(
            PARTITION,
            raft_id(number),
            &wal,
            applied,
            peers.clone(),
            snapshots,
        )
        .await
        .expect("a group opens on what it has");
        let _ = store.seen.set(replica.machine.watch());
        Self {
            peers,
            replica,
            store,
            wal,
            restored,
        }
    }

    async fn stop(self) {
        self.peers.shutdown();
        self.replica.shut_down().await;
        self.wal.close();
    }

    async fn holds(&self, numbers: std::ops::Range<u64>) {
        let wanted = bodies(numbers);
        let all = |seen: &Seen| [self.restored.clone(), seen.bodies()].concat();
        self.replica.machine.wait(|seen| all(seen) == wanted).await;
    }
}

fn restore(vfs: &Arc<dyn Vfs>, generation: &Generation) -> (AppliedState, Vec<Bytes>) {
    if generation.id == 0 {
        return Default::default();
    }
    let (checkpoints, manifest) = CheckpointStore::open(Arc::clone(vfs), generation.dir.clone(), P).unwrap();
    let manifest = manifest.expect("a snapshot has a manifest");
    let mut restored = Vec::new();
    let load = checkpoints.load(&manifest, &mut |_, row| {
        restored.push(Bytes::copy_from_slice(row.expect("a full one removes nothing")));
        Ok(())
    });
    load.unwrap();
    let applied = AppliedState {
        applied: Some(manifest.applied),
        membership: manifest.membership,
    };
    (applied, restored)
}

/// Node 1 alone, with 50 bodies applied of which 40 are purged.
async fn leader_with_purged_log(dir: &Path, ports: &[u16], readable: u64) -> (Side, u64) {
    let one = Side::start(1, dir, ports, readable).await;
    one.replica
        .group
        .initialize(BTreeSet::from([raft_id(1)]))
        .await
        .unwrap();
    let term = one.replica.term().await;
    one.replica.apply(term, 0..50).await;
    let name = one.replica.machine.seen().checkpoint(41);
    one.replica.machine.checkpoint.send_replace(Some(name));
    assert_eq!(one.replica.group.purge(u64::MAX).await, Ok(Some(41)));
    (one, term)
}

/// That node, and node 2 as a learner which has received three chunks and cannot get the fourth.
async fn interrupted_transfer(dir: &Path, ports: &[u16]) -> (Side, u64, Side) {
    let (one, term) = leader_with_purged_log(dir, ports, 3 << 20).await;
    let two = Side::start(2, dir, ports, u64::MAX).await;
    one.replica.group.add_learner(raft_id(2)).await.unwrap();
    // So many are read only after the first attempt has failed: the receiver goes on with each offer.
    let interrupted = async {
        while one.store.read.load(Ordering::SeqCst) < 9 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, interrupted)
        .await
        .expect("the transfer begins, and begins again");
    (one, term, two)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn learner_behind_the_purged_log_gets_a_snapshot_through_interruptions() {
    let dir = tempfile::tempdir().unwrap();
    let ports = free_ports(2);
    let (one, term, two) = interrupted_transfer(dir.path(), &ports).await;
    one.replica.apply(term, 50..60).await;
    let later = one.replica.machine.seen().checkpoint(55);
    one.replica.machine.checkpoint.send_replace(Some(later));
    let held = one.store.held().expect("a snapshot is held").index;
    assert_eq!(
        one.replica.group.purge(u64::MAX).await,
        Ok(Some(held)),
        "the log behind what is sent stays"
    );

    // The receiver dies in the middle and goes on where it was.
    two.stop().await;
    one.store.read.store(0, Ordering::SeqCst);
    one.store.readable.send_replace(u64::MAX);
    let two = Side::start(2, dir.path(), &ports, u64::MAX).await;
    two.replica.machine.wait(|seen| seen.placed).await;
    assert_eq!(
        two.replica.machine.seen().applied,
        [],
        "the running machine is left alone"
    );
    let offer = one.store.held_snapshot().unwrap().offer().clone();
    let chunks: u64 = offer.files.iter().map(|file| file.bytes.div_ceil(1 << 20)).sum();
    let read = one.store.read.load(Ordering::SeqCst) as u64;
    assert!(
        read < chunks,
        "{read} of {chunks} chunks were fetched after the restart"
    );
    assert_eq!(
        one.store.made.load(Ordering::SeqCst),
        1,
        "one snapshot served all attempts"
    );

    two.stop().await;
    let two = Side::start(2, dir.path(), &ports, u64::MAX).await;
    assert!(!two.restored.is_empty());
    two.holds(0..60).await;
    assert_eq!(two.replica.group.metrics().state, GroupState::Learner);
    let matched = async {
        while one.replica.group.matched()[&raft_id(2)] < Some(60) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, matched)
        .await
        .expect("the leader knows how far it is");

    assert_eq!(one.store.taken.load(Ordering::SeqCst), held);

    // It is as good as any other: it leads.
    let both = BTreeSet::from([raft_id(1), raft_id(2)]);
    one.replica.group.set_voters(both).await.unwrap();
    one.replica.group.transfer_leader(raft_id(2)).await.unwrap();
    let later = two.replica.term().await;
    two.replica.apply(later, 60..70).await;
    two.holds(0..70).await;
    one.holds(0..70).await;
    two.stop().await;
    one.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sender_that_restarts_offers_the_same_snapshot_again() {
    let dir = tempfile::tempdir().unwrap();
    let ports = free_ports(2);
    let (one, _, two) = interrupted_transfer(dir.path(), &ports).await;
    let id = one.store.held_snapshot().unwrap().offer().id;
    // Its machine keeps nothing beside the log: it is told again what the purged part held.
    let seen = one.replica.machine.seen();
    let purged = one.replica.group.metrics().purged.expect("something is purged");
    let name = seen.checkpoint(purged);
    one.stop().await;

    let one = restart_on(name, dir.path(), &ports).await;
    one.replica.term().await;
    assert_eq!(one.store.held_snapshot().unwrap().offer().id, id);
    two.replica.machine.wait(|seen| seen.placed).await;
    assert_eq!(one.store.made.load(Ordering::SeqCst), 0);
    assert_eq!(one.replica.machine.seen().bodies().last(), Some(&body(49)));
    two.stop().await;
    one.stop().await;
}

/// Node 1 with a machine that has applied what `name` names.
async fn restart_on(name: CheckpointName, dir: &Path, ports: &[u16]) -> Side {
    let peers = start_peers(options(1, ports)).await;
    let (wal, _) = open_wal(&dir.join("1"));
    let base = dir.join("1-replica");
    let vfs: Arc<dyn Vfs> = Arc::new(RealVfs);
    let store = Store::open(&vfs, base, u64::MAX);
    let applied = AppliedState {
        applied: Some((name.index, name.term, name.leader)),
        membership: name.membership,
    };
    let snapshots: Arc<dyn SnapshotStore> = store.clone();
    let replica =
        Replica::open_with_snapshots(PARTITION, raft_id(1), &wal, applied, peers.clone(), snapshots)
            .await
            .unwrap();
    let _ = store.seen.set(replica.machine.watch());
    Side {
        peers,
        replica,
        store,
        wal,
        restored: Vec::new(),
    }
}
