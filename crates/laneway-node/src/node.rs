//! A running node: what it is made of, starting and stopping it.

mod condemned;
mod founding;
mod standing;
mod start;
mod status;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use laneway_raft::{Group, Peers};
use laneway_storage::vfs::{RealVfs, Vfs, VfsLock};
use laneway_storage::wal::Wal;
use ractor::ActorRef;
use tokio::sync::Semaphore;

use crate::catalog::CatalogHandle;
use crate::clock::ClusterClock;
use crate::cluster::{Pulses, feel_pulses};
use crate::identity::write_whole;
use crate::maintenance::{Disk, Maintenance};
use crate::metrics::NodeCounters;
use crate::options::{NodeLimits, NodeOptions};
use crate::parking::Parking;
use crate::partition::PartitionHandle;
use crate::supervisor::SupervisorMsg;

pub(crate) use standing::Standing;
pub(crate) use start::aside::VOTERS_MIN;
pub use start::{Recovered, StartError};

/// Longest wait for actors to end at a stop.
const ACTOR_STOP_WAIT: Duration = Duration::from_secs(5);

/// A running node. Cheap to clone; every clone is the same node.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) limits: Arc<NodeLimits>,
    pub(crate) standing: Arc<Standing>,
    pub(crate) peers: Option<Peers>,
    /// Of all nodes of the cluster file, for people.
    pub(crate) addresses: BTreeMap<u16, String>,
    takeover: Duration,
    pub(crate) quorum_lost_after: Duration,
    pub(crate) pulses: Pulses,
    pub(crate) clock: Arc<ClusterClock>,
    data_dir: PathBuf,
    started: Instant,
    pub(crate) catalog: Arc<CatalogHandle>,
    pub(crate) partitions: Vec<Arc<PartitionHandle>>,
    pub(crate) parking: Arc<Parking>,
    pub(crate) parking_slots: Semaphore,
    pub(crate) counters: Arc<NodeCounters>,
    pub(crate) disk: Arc<Disk>,
    /// Where the next pop starts to look.
    pub(crate) rotation: AtomicUsize,
    wal: Wal,
    checkpoint_bytes: Arc<AtomicU64>,
    /// Why the data must not be used any more.
    condemned: OnceLock<String>,
    supervisor: ActorRef<SupervisorMsg>,
    maintenance: Maintenance,
    tasks: Mutex<Vec<tokio::task::JoinHandle<()>>>,
    /// Held until the node has stopped.
    lock: Mutex<Option<Box<dyn VfsLock>>>,
}

impl Inner {
    /// Notes for the next start how many voters each group has at least, if this node is one of them: whether damaged data
    /// can come from the others. Blocking.
    pub(crate) fn note_voters(&self, vfs: &dyn Vfs, voters: usize) -> std::io::Result<()> {
        let file = self.data_dir.join(start::aside::VOTERS_FILE);
        write_whole(vfs, &self.data_dir, &file, format!("{voters}\n").as_bytes())
    }

    /// All groups that are open here: the partitions', then the catalog's.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Group> + '_ {
        let partitions = self.partitions.iter().map(|partition| partition.group());
        partitions.chain([self.catalog.group()]).flatten()
    }
}

impl Node {
    /// Starts a node on its data directory, which is made when missing, and replays what the last process left.
    ///
    /// Returns when all partitions are recovered; they may still be electing (see [`Node::readiness`]). Errors: nothing
    /// was changed when the data directory is refused. Damaged data of one of three or more nodes is no error: it is moved
    /// aside, and the node gets everything from the others.
    pub async fn start(options: NodeOptions) -> Result<(Self, Recovered), StartError> {
        start::start_node(options, Arc::new(RealVfs)).await
    }

    /// Starts what concerns the other nodes.
    fn run_with_peers(&self, vfs: Arc<dyn Vfs>) {
        let Some(peers) = &self.inner.peers else { return };
        let founding = founding::found_or_join(self.clone(), peers.clone());
        let telling = crate::parking::tell_interests(self.clone(), peers.clone());
        let tending = crate::cluster::tend(self.clone(), self.inner.takeover, vfs);
        self.inner
            .tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend([
                tokio::spawn(founding),
                tokio::spawn(tending),
                tokio::spawn(telling),
                tokio::spawn(feel_pulses(self.clone(), peers.clone())),
                tokio::spawn(condemned::judge_gaps(self.clone())),
            ]);
    }

    /// Stops: no request is taken any more, what is in the log is on disk. Idempotent.
    pub async fn shutdown(&self) {
        drop(self.inner.supervisor.cast(SupervisorMsg::Stopping));
        for task in std::mem::take(&mut *self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner)) {
            task.abort();
        }
        self.hand_over().await;
        let inner = Arc::clone(&self.inner);
        if tokio::task::spawn_blocking(move || inner.maintenance.stop())
            .await
            .is_err()
        {
            tracing::error!("the maintenance thread did not stop");
        }
        for group in self.inner.groups() {
            group.shutdown().await;
        }
        if let Some(peers) = &self.inner.peers {
            peers.shutdown();
        }
        self.inner
            .supervisor
            .stop_children_and_wait(None, Some(ACTOR_STOP_WAIT))
            .await;
        if self
            .inner
            .supervisor
            .stop_and_wait(None, Some(ACTOR_STOP_WAIT))
            .await
            .is_err()
        {
            tracing::warn!("the supervisor did not stop in time");
        }
        close_wal(&self.inner.wal).await;
        // Nothing writes any more: another process may have the directory.
        drop(
            self.inner
                .lock
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
    }

    /// Why the node can do nothing any more, if that is so, and what to do: stop the process.
    pub fn failure(&self) -> Option<String> {
        if let Some(reason) = self.inner.condemned.get() {
            return Some(format!(
                "{reason}: start again, the data is then moved aside and comes from the other nodes"
            ));
        }
        let error = self.inner.wal.failure()?;
        Some(format!(
            "{error}: everything acknowledged is on disk; mend the disk and start again"
        ))
    }
}

/// Writes what is queued and lets go of the log's directory.
async fn close_wal(wal: &Wal) {
    let wal = wal.clone();
    if tokio::task::spawn_blocking(move || wal.close()).await.is_err() {
        tracing::error!("the log did not close");
    }
}
