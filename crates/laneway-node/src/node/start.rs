//! Opens a data directory and starts everything on it, or says why not.

pub(super) mod aside;
mod outcome;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use laneway_core::ids::PartitionId;
use laneway_raft::{PeerOptions, Peers, TcpTransport};
use laneway_storage::rows::{RowStore, SledRowStore};
use laneway_storage::vfs::{Vfs, VfsLock};
use laneway_storage::wal::{Wal, WalOptions};
use ractor::{Actor, ActorRef};
use tokio::sync::Semaphore;

pub use outcome::{Recovered, StartError};

use super::{ACTOR_STOP_WAIT, Inner, Node, Standing, close_wal, condemned};
use crate::catalog::CatalogHandle;
use crate::clock::{ClusterClock, SystemClock};
use crate::cluster::Pulses;
use crate::identity::{Identity, IdentityError};
use crate::leader::NodeService;
use crate::maintenance::{Disk, Maintenance, Work};
use crate::options::{NodeOptions, PARTITIONS_DEFAULT, PARTITIONS_MAX};
use crate::parking::Parking;
use crate::partition::{OpenError, PartitionHandle};
use crate::propagator;
use crate::replica::ReplicaContext;
use crate::supervisor::{NodeSupervisor, Replica, SupervisorMsg, start};

const LOCK_FILE: &str = "lock";

fn io_error(what: impl fmt::Display, source: std::io::Error) -> StartError {
    StartError::Io {
        what: what.to_string(),
        source,
    }
}

/// An opened data directory, before anything runs on it.
struct Foundation {
    options: NodeOptions,
    vfs: Arc<dyn Vfs>,
    identity: Identity,
    new: bool,
    wal: Wal,
    wal_segments: usize,
    entries: u64,
    torn_bytes_cut: u64,
    rows: Arc<dyn RowStore>,
    lock: Box<dyn VfsLock>,
}

impl Foundation {
    /// Blocking.
    fn open(options: NodeOptions, vfs: Arc<dyn Vfs>) -> Result<Self, StartError> {
        check(&options)?;
        if SystemTime::now() < SystemTime::UNIX_EPOCH {
            return Err(StartError::Clock);
        }
        let dir = options.data_dir.clone();
        let in_dir = |source| io_error(dir.display(), source);
        vfs.create_dir_all(&dir).map_err(in_dir)?;
        let lock = vfs
            .lock_exclusive(&dir.join(LOCK_FILE))
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::WouldBlock => StartError::DataDirInUse { dir: dir.clone() },
                _ => in_dir(error),
            })?;
        let condemned = condemned::reason(&*vfs, &dir).map_err(in_dir)?;
        if let Some(what) = condemned.filter(|_| options.peers.is_some()) {
            return Err(StartError::Damaged { what });
        }
        let found = Identity::read(&*vfs, &dir).map_err(|error| match error {
            IdentityError::Damaged { .. } => StartError::Damaged {
                what: error.to_string(),
            },
            IdentityError::Io { file, source } => io_error(file.display(), source),
        })?;
        let new = found.is_none();
        let identity = match found {
            Some(identity) => accept(identity, &options)?,
            None => found_identity(&options, &*vfs, &dir)?,
        };
        let wal_options = WalOptions {
            segment_bytes: options.storage.wal_segment_bytes,
            segments_max: options.storage.wal_segments_max,
            tail_cache_bytes: options.storage.tail_cache_bytes,
        };
        let wal_dir = dir.join("wal");
        // The identity is written when the log is there: once it was, an empty folder is no new log but a lost one.
        if !new && !Wal::exists(&*vfs, &wal_dir).map_err(|source| io_error(wal_dir.display(), source))? {
            return Err(StartError::NoLog { dir, wal: wal_dir });
        }
        let (wal, recovery) = Wal::open(Arc::clone(&vfs), wal_dir, wal_options)?;
        if new && !recovery.partitions.is_empty() {
            // A log in which nothing was ever written is that of a first start that did not get so far.
            wal.close();
            return Err(StartError::NoIdentity { dir });
        }
        let rows = SledRowStore::open(&dir.join("rows"))
            .map_err(|error| io_error(dir.join("rows").display(), std::io::Error::other(error)))?;
        if new {
            // Only now: a start that fails before leaves a directory that a next one may still take.
            identity
                .write(&*vfs, &dir)
                .map_err(|error| io_error("writing the identity", std::io::Error::other(error)))?;
        }
        Ok(Self {
            options,
            vfs,
            identity,
            new,
            wal,
            wal_segments: recovery.segments,
            entries: recovery.entries,
            torn_bytes_cut: recovery.torn_bytes_cut,
            rows: Arc::new(rows),
            lock,
        })
    }

    fn recovered(&self, started: Instant) -> Recovered {
        Recovered {
            new: self.new,
            cluster_id: format!("{:016x}", self.identity.cluster_id),
            wal_segments: self.wal_segments,
            entries: self.entries,
            torn_bytes_cut: self.torn_bytes_cut,
            took: started.elapsed(),
        }
    }

    /// What all replicas share; each has a folder of its own.
    fn context(&self, peers: Option<Peers>) -> ReplicaContext {
        let others = peers.as_ref().map_or(0, |peers| peers.nodes().count());
        ReplicaContext {
            raft_id: self.identity.raft_id(),
            vfs: Arc::clone(&self.vfs),
            wal: self.wal.clone(),
            rows: Arc::clone(&self.rows),
            dir: self.options.data_dir.clone(),
            parking: Parking::new(peers.clone()),
            counters: Arc::default(),
            clock: Arc::new(ClusterClock::new(Arc::new(SystemClock::default()), others)),
            limits: Arc::new(self.options.limits.clone()),
            storage: Arc::new(self.options.storage.clone()),
            raft: Arc::new(self.options.raft.clone()),
            peers,
            snapshots: Arc::default(),
            voters: vec![self.identity.raft_id()],
        }
    }

    fn standing(&self) -> Arc<Standing> {
        let net = self.options.peers.as_ref();
        let standing = Standing::new(
            self.identity.clone(),
            Arc::clone(&self.vfs),
            self.options.data_dir.clone(),
            net.map_or(0, |net| net.fingerprint),
        );
        Arc::new(standing)
    }

    /// The catalog and the partitions, not yet open.
    fn replicas(&self, context: &ReplicaContext) -> (CatalogReplica, Vec<PartitionReplica>) {
        let limits = &context.limits;
        let in_dir = |dir: PathBuf| ReplicaContext {
            dir,
            ..context.clone()
        };
        let data_dir = &self.options.data_dir;
        let catalog = (CatalogHandle::new(limits), in_dir(data_dir.join("catalog")));
        let partitions = (0..self.identity.partitions).map(|number| {
            let dir = data_dir.join("partitions").join(format!("{number:04}"));
            (PartitionHandle::new(PartitionId(number), limits), in_dir(dir))
        });
        (catalog, partitions.collect())
    }

    /// Opens the peer port, if there is one.
    async fn start_peers(
        &self,
        standing: &Standing,
        service: Arc<NodeService>,
    ) -> Result<Option<Peers>, StartError> {
        let Some(net) = &self.options.peers else {
            return Ok(None);
        };
        let node = self.identity.node;
        let others = net.addresses.iter().filter(|(peer, _)| **peer != node);
        let options = PeerOptions {
            introduction: standing.introduction(),
            addresses: others.map(|(peer, address)| (*peer, address.clone())).collect(),
            listen: net.listen.clone(),
            takeover: Duration::from_millis(net.takeover_ms),
        };
        match Peers::start(Arc::new(TcpTransport), options, service).await {
            Ok(peers) => Ok(Some(peers)),
            Err(source) => {
                close_wal(&self.wal).await;
                let listen = net.listen.clone();
                Err(StartError::PeerPort { listen, source })
            }
        }
    }

    /// Starts the supervisor and all replicas, or leaves nothing running.
    async fn bring_up(
        &self,
        catalog: &CatalogReplica,
        partitions: &[PartitionReplica],
        peers: Option<&Peers>,
    ) -> Result<ActorRef<SupervisorMsg>, StartError> {
        let brought_up = bring_up(catalog, partitions).await;
        if brought_up.is_err() {
            if let Some(peers) = peers {
                peers.shutdown();
            }
            close_wal(&self.wal).await;
        }
        brought_up
    }

    async fn build(self, started: Instant) -> Result<(Node, Recovered), StartError> {
        let standing = self.standing();
        let service = Arc::new(NodeService::default());
        let peers = self.start_peers(&standing, Arc::clone(&service)).await?;
        let context = self.context(peers.clone());
        let (limits, storage) = (Arc::clone(&context.limits), Arc::clone(&context.storage));
        let (parking, counters) = (Arc::clone(&context.parking), Arc::clone(&context.counters));
        let clock = Arc::clone(&context.clock);
        let (catalog, partitions) = self.replicas(&context);
        let data_dir = self.options.data_dir.clone();
        let supervisor = self.bring_up(&catalog, &partitions, peers.as_ref()).await?;
        let disk = Arc::new(Disk::new(limits.disk_free_bytes_min));
        disk.look(&*self.vfs, &data_dir, &self.wal);
        let checkpoint_bytes = Arc::<AtomicU64>::default();
        let handles: Vec<_> = partitions.iter().map(|(handle, _)| Arc::clone(handle)).collect();
        let catalog_handle = Arc::clone(&catalog.0);
        let maintenance = Maintenance::start(Work {
            vfs: Arc::clone(&self.vfs),
            wal: self.wal.clone(),
            disk: Arc::clone(&disk),
            data_dir: data_dir.clone(),
            storage: Arc::clone(&storage),
            catalog,
            partitions,
            runtime: tokio::runtime::Handle::current(),
            checkpoint_bytes: Arc::clone(&checkpoint_bytes),
        })
        .map_err(|source| io_error("starting a thread", source))?;
        let recovered = self.recovered(started);
        let net = self.options.peers;
        let inner = Inner {
            parking_slots: Semaphore::new(limits.parked_pops_max as usize),
            limits,
            standing,
            peers,
            takeover: Duration::from_millis(net.as_ref().map_or(0, |net| net.takeover_ms)),
            addresses: net.map(|net| net.addresses).unwrap_or_default(),
            pulses: Pulses::default(),
            clock,
            quorum_lost_after: self.options.raft.quorum_lost_after(),
            data_dir,
            started,
            tasks: Mutex::new(background(&catalog_handle, &handles)),
            catalog: catalog_handle,
            partitions: handles,
            parking,
            counters,
            disk,
            rotation: AtomicUsize::new(0),
            wal: self.wal,
            checkpoint_bytes,
            condemned: OnceLock::new(),
            supervisor,
            maintenance,
            lock: Mutex::new(Some(self.lock)),
        };
        let node = Node {
            inner: Arc::new(inner),
        };
        service.serve(&node.inner);
        node.run_with_peers(self.vfs);
        Ok((node, recovered))
    }
}

type CatalogReplica = (Arc<CatalogHandle>, ReplicaContext);
type PartitionReplica = (Arc<PartitionHandle>, ReplicaContext);

/// Opens and starts; data that is damaged is moved aside when the other nodes can give it back.
pub(super) async fn start_node(
    options: NodeOptions,
    vfs: Arc<dyn Vfs>,
) -> Result<(Node, Recovered), StartError> {
    match open_and_build(options.clone(), Arc::clone(&vfs)).await {
        Err(error) if aside::can_be_replaced(&*vfs, &options, &error) => {
            let dir = options.data_dir.clone();
            let moving_in = Arc::clone(&vfs);
            let moved = tokio::task::spawn_blocking(move || aside::set_aside(&*moving_in, &dir)).await;
            let moved = moved.map_err(std::io::Error::other).and_then(|moved| moved);
            let aside = moved
                .map_err(|source| io_error(format_args!("moving damaged data aside ({error})"), source))?;
            tracing::error!(
                damage = aside::without_advice(&error.to_string()),
                moved_to = %aside.display(),
                "the data of this node is damaged and moved aside: nothing needs to be restored, it starts empty and gets everything from the others; delete the folder when it has"
            );
            open_and_build(options, vfs).await
        }
        outcome => outcome,
    }
}

async fn open_and_build(options: NodeOptions, vfs: Arc<dyn Vfs>) -> Result<(Node, Recovered), StartError> {
    let started = Instant::now();
    let opened = tokio::task::spawn_blocking(move || Foundation::open(options, vfs))
        .await
        .map_err(|error| io_error("opening the data directory", std::io::Error::other(error)))??;
    opened.build(started).await
}

/// Starts the supervisor and all replicas, or leaves nothing running.
async fn bring_up(
    catalog: &CatalogReplica,
    partitions: &[PartitionReplica],
) -> Result<ActorRef<SupervisorMsg>, StartError> {
    let (supervisor, _) = Actor::spawn(None, NodeSupervisor, ())
        .await
        .map_err(|error| io_error("starting the supervisor", std::io::Error::other(error)))?;
    let mut started = start_replicas(&supervisor, catalog, partitions).await;
    if started.is_ok() && catalog.1.peers.is_none() {
        started = check_messages(partitions).await;
    }
    if let Err(error) = started {
        abandon(&supervisor, &catalog.0, partitions).await;
        return Err(error);
    }
    Ok(supervisor)
}

/// Starts all replicas; returns when each has replayed its log.
async fn start_replicas(
    supervisor: &ActorRef<SupervisorMsg>,
    catalog: &CatalogReplica,
    partitions: &[PartitionReplica],
) -> Result<(), StartError> {
    let mut replicas = vec![Replica::Catalog(Arc::clone(&catalog.0), catalog.1.clone())];
    for (handle, context) in partitions {
        replicas.push(Replica::Partition(Arc::clone(handle), context.clone()));
    }
    let starts = replicas.into_iter().map(|replica| {
        let supervisor = supervisor.clone();
        async move { (replica.id(), start(&supervisor, replica).await) }
    });
    for (partition, outcome) in futures_util::future::join_all(starts).await {
        outcome.map_err(|error: OpenError| StartError::Partition {
            partition,
            damaged: aside::partition_is_damaged(&error),
            what: error.to_string(),
        })?;
    }
    Ok(())
}

/// Refuses data from which a file with messages was removed.
async fn check_messages(partitions: &[PartitionReplica]) -> Result<(), StartError> {
    for (handle, context) in partitions {
        let missing = handle.missing_message().await;
        let missing = missing.map_err(|error| StartError::Partition {
            partition: handle.id,
            damaged: false,
            what: error.to_string(),
        })?;
        if let Some((lane, offset)) = missing {
            return Err(StartError::MessagesMissing {
                dir: context.dir.clone(),
                partition: handle.id,
                lane,
                offset,
            });
        }
    }
    Ok(())
}

/// Ends what was started.
async fn abandon(
    supervisor: &ActorRef<SupervisorMsg>,
    catalog: &CatalogHandle,
    partitions: &[PartitionReplica],
) {
    drop(supervisor.cast(SupervisorMsg::Stopping));
    let groups = partitions.iter().map(|(handle, _)| handle.group());
    for group in groups.chain([catalog.group()]).flatten() {
        group.shutdown().await;
    }
    supervisor
        .stop_children_and_wait(None, Some(ACTOR_STOP_WAIT))
        .await;
    supervisor.stop(None);
}

fn background(
    catalog: &Arc<CatalogHandle>,
    partitions: &[Arc<PartitionHandle>],
) -> Vec<tokio::task::JoinHandle<()>> {
    let mut tasks: Vec<_> = partitions
        .iter()
        .map(|partition| tokio::spawn(propagator::propagate(Arc::clone(catalog), Arc::clone(partition))))
        .collect();
    let forget = propagator::forget_tombstones(Arc::clone(catalog), partitions.to_vec());
    tasks.push(tokio::spawn(forget));
    tasks
}

fn check(options: &NodeOptions) -> Result<(), StartError> {
    let wrong = |option, value: u64, range: &str| {
        Err(StartError::Option {
            option,
            value,
            range: range.to_owned(),
        })
    };
    if options.partitions > PARTITIONS_MAX {
        return wrong("partitions", options.partitions.into(), "1 to 1024");
    }
    if options.node == 0 {
        return wrong("node", 0, "at least 1");
    }
    if options.raft.election_ms_min >= options.raft.election_ms_max {
        return wrong(
            "election_ms_min",
            options.raft.election_ms_min,
            "below election_ms_max",
        );
    }
    Ok(())
}

fn accept(identity: Identity, options: &NodeOptions) -> Result<Identity, StartError> {
    if identity.node != options.node || identity.cluster != options.cluster {
        return Err(StartError::OtherNode {
            dir: options.data_dir.clone(),
            node: options.node,
            cluster: options.cluster.clone(),
            found_node: identity.node,
            found_cluster: identity.cluster,
        });
    }
    if options.partitions != 0 && identity.partitions != options.partitions {
        return Err(StartError::PartitionsDiffer {
            dir: options.data_dir.clone(),
            configured: options.partitions,
            found: identity.partitions,
        });
    }
    Ok(identity)
}

/// Mints an identity for an empty directory; one with data but no identity is refused. Whether there is data in the log
/// is seen when that is open.
fn found_identity(options: &NodeOptions, vfs: &dyn Vfs, dir: &Path) -> Result<Identity, StartError> {
    for data in ["partitions", "catalog"] {
        let path = dir.join(data);
        if vfs
            .exists(&path)
            .map_err(|source| io_error(path.display(), source))?
        {
            return Err(StartError::NoIdentity { dir: dir.to_owned() });
        }
    }
    let partitions = if options.partitions == 0 {
        PARTITIONS_DEFAULT
    } else {
        options.partitions
    };
    let generation = rand::random::<u64>() >> 16;
    let mut identity = Identity {
        cluster: options.cluster.clone(),
        cluster_id: 0,
        node: options.node,
        generation,
        partitions,
        voters: Vec::new(),
    };
    if options.peers.is_none() {
        // A node of its own founds its cluster at once.
        identity.cluster_id = rand::random::<u64>().max(1);
        identity.voters = vec![identity.raft_id()];
    }
    Ok(identity)
}
