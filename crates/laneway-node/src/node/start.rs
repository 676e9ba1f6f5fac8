//! Opens a data directory and starts everything on it, or says why not.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use laneway_core::ids::PartitionId;
use laneway_storage::rows::{RowStore, SledRowStore};
use laneway_storage::vfs::{Vfs, VfsLock};
use laneway_storage::wal::{Wal, WalOpenError, WalOptions};
use ractor::{Actor, ActorRef};
use tokio::sync::Semaphore;

use super::{ACTOR_STOP_WAIT, Inner, Node, close_wal};
use crate::catalog::CatalogHandle;
use crate::clock::SystemClock;
use crate::identity::{Identity, IdentityError};
use crate::maintenance::{Disk, Maintenance, Work};
use crate::options::{NodeOptions, PARTITIONS_DEFAULT, PARTITIONS_MAX};
use crate::partition::{OpenError, PartitionHandle};
use crate::propagator;
use crate::replica::ReplicaContext;
use crate::supervisor::{NodeSupervisor, Replica, SupervisorMsg, start};

const LOCK_FILE: &str = "lock";

/// Why a node does not start. The text is one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process has the data directory.
    #[error("data directory {} is in use by another process; stop it, or choose another directory", .dir.display())]
    DataDirInUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The data belongs to somebody else.
    #[error(
        "data directory {} belongs to node {found_node} of cluster {found_cluster:?}, not to node {node} of cluster {cluster:?}; choose another directory or correct the configuration",
        .dir.display()
    )]
    OtherNode {
        /// The directory.
        dir: PathBuf,
        /// As configured.
        node: u16,
        /// As configured.
        cluster: String,
        /// As found.
        found_node: u16,
        /// As found.
        found_cluster: String,
    },
    /// The number of partitions is fixed when the data directory is made.
    #[error(
        "data directory {} was made with {found} partitions, not {configured}; leave the option out or start with an empty directory",
        .dir.display()
    )]
    PartitionsDiffer {
        /// The directory.
        dir: PathBuf,
        /// As configured.
        configured: u16,
        /// As found.
        found: u16,
    },
    /// An option is out of range.
    #[error("{option} is {value}, it must be {range}")]
    Option {
        /// Its name.
        option: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        range: String,
    },
    /// A file is damaged.
    #[error(
        "{what}; restore the data directory from a backup, or start with an empty one: the broker does not guess"
    )]
    Damaged {
        /// Which file, and how.
        what: String,
    },
    /// The data directory has data but not the file that says whose.
    #[error(
        "data directory {} has data, but {} is missing; restore that file from a backup or choose an empty directory",
        .dir.display(),
        .dir.join("identity").display()
    )]
    NoIdentity {
        /// The directory.
        dir: PathBuf,
    },
    /// The data directory has an identity but no log.
    #[error(
        "the log of data directory {} is gone: there is no segment in {}; put the files back, or restore the data directory from a backup, or move it aside and start empty",
        .dir.display(),
        .wal.display()
    )]
    NoLog {
        /// The directory.
        dir: PathBuf,
        /// The log's folder.
        wal: PathBuf,
    },
    /// The log cannot be opened.
    #[error(transparent)]
    Wal(#[from] WalOpenError),
    /// A partition cannot be opened.
    #[error("partition {partition}: {what}")]
    Partition {
        /// Which.
        partition: PartitionId,
        /// Why.
        what: String,
    },
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// Which file or what act.
        what: String,
        /// Its answer.
        source: std::io::Error,
    },
}

/// What a start found on disk, for one log line.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The data directory was empty.
    pub new: bool,
    /// Cluster id.
    pub cluster_id: String,
    /// WAL segments read.
    pub wal_segments: usize,
    /// Log entries after the checkpoints, applied again.
    pub entries: u64,
    /// Bytes of a torn last write that were cut; nobody was told that they were stored.
    pub torn_bytes_cut: u64,
    /// Time it took.
    pub took: Duration,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.new {
            return f.write_str("new data directory");
        }
        write!(
            f,
            "{} wal segments, {} entries above checkpoints",
            self.wal_segments, self.entries
        )?;
        if self.torn_bytes_cut > 0 {
            write!(f, ", {} bytes of an unfinished write cut", self.torn_bytes_cut)?;
        }
        write!(f, ", {} ms", self.took.as_millis())
    }
}

pub(super) fn io_error(what: impl fmt::Display, source: std::io::Error) -> StartError {
    StartError::Io {
        what: what.to_string(),
        source,
    }
}

/// An opened data directory, before anything runs on it.
pub(super) struct Foundation {
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
    pub(super) fn open(options: NodeOptions, vfs: Arc<dyn Vfs>) -> Result<Self, StartError> {
        check(&options)?;
        let dir = options.data_dir.clone();
        let in_dir = |source| io_error(dir.display(), source);
        vfs.create_dir_all(&dir).map_err(in_dir)?;
        let lock = vfs
            .lock_exclusive(&dir.join(LOCK_FILE))
            .map_err(|error| match error.kind() {
                std::io::ErrorKind::WouldBlock => StartError::DataDirInUse { dir: dir.clone() },
                _ => in_dir(error),
            })?;
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
    fn context(&self) -> ReplicaContext {
        ReplicaContext {
            raft_id: self.identity.raft_id(),
            vfs: Arc::clone(&self.vfs),
            wal: self.wal.clone(),
            rows: Arc::clone(&self.rows),
            dir: self.options.data_dir.clone(),
            parking: Arc::default(),
            counters: Arc::default(),
            clock: Arc::new(SystemClock::default()),
            limits: Arc::new(self.options.limits.clone()),
            storage: Arc::new(self.options.storage.clone()),
            raft: Arc::new(self.options.raft.clone()),
            voters: vec![self.identity.raft_id()],
        }
    }

    pub(super) async fn build(self, started: Instant) -> Result<(Node, Recovered), StartError> {
        let context = self.context();
        let (limits, storage) = (Arc::clone(&context.limits), Arc::clone(&context.storage));
        let (parking, counters) = (Arc::clone(&context.parking), Arc::clone(&context.counters));
        let data_dir = self.options.data_dir.clone();
        let in_dir = |dir: PathBuf| ReplicaContext {
            dir,
            ..context.clone()
        };
        let catalog = (CatalogHandle::new(&limits), in_dir(data_dir.join("catalog")));
        let partitions: Vec<_> = (0..self.identity.partitions)
            .map(|number| {
                let dir = data_dir.join("partitions").join(format!("{number:04}"));
                (PartitionHandle::new(PartitionId(number), &limits), in_dir(dir))
            })
            .collect();
        let supervisor = match start_replicas(&catalog, &partitions).await {
            Ok(supervisor) => supervisor,
            Err(error) => {
                close_wal(&self.wal).await;
                return Err(error);
            }
        };
        let disk = Arc::new(Disk::new(limits.disk_free_bytes_min));
        disk.look(&*self.vfs, &data_dir, &self.wal);
        let checkpoint_bytes = Arc::new(AtomicU64::new(0));
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
        let inner = Inner {
            parking_slots: Semaphore::new(limits.parked_pops_max as usize),
            limits,
            identity: self.identity,
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
            supervisor,
            maintenance,
            lock: Mutex::new(Some(self.lock)),
        };
        Ok((
            Node {
                inner: Arc::new(inner),
            },
            recovered,
        ))
    }
}

/// Starts the supervisor and all replicas; returns when each has replayed its log.
async fn start_replicas(
    catalog: &(Arc<CatalogHandle>, ReplicaContext),
    partitions: &[(Arc<PartitionHandle>, ReplicaContext)],
) -> Result<ActorRef<SupervisorMsg>, StartError> {
    let failed = |partition, error: OpenError| StartError::Partition {
        partition,
        what: error.to_string(),
    };
    let (supervisor, _) = Actor::spawn(None, NodeSupervisor, ()).await.map_err(|error| {
        let what = error.to_string();
        StartError::Partition {
            partition: PartitionId::CATALOG,
            what,
        }
    })?;
    let mut replicas = vec![Replica::Catalog(Arc::clone(&catalog.0), catalog.1.clone())];
    for (handle, context) in partitions {
        replicas.push(Replica::Partition(Arc::clone(handle), context.clone()));
    }
    let starts = replicas.into_iter().map(|replica| {
        let supervisor = supervisor.clone();
        async move { (replica.id(), start(&supervisor, replica).await) }
    });
    for (partition, outcome) in futures_util::future::join_all(starts).await {
        if let Err(error) = outcome {
            drop(supervisor.cast(SupervisorMsg::Stopping));
            supervisor
                .stop_children_and_wait(None, Some(ACTOR_STOP_WAIT))
                .await;
            supervisor.stop(None);
            return Err(failed(partition, error));
        }
    }
    Ok(supervisor)
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
    if options.limits.entries_in_flight_max == 0 {
        return wrong("entries_in_flight_max", 0, "at least 1");
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
    Ok(Identity {
        cluster: options.cluster.clone(),
        cluster_id: rand::random(),
        node: options.node,
        generation: rand::random::<u64>() >> 16,
        partitions,
    })
}
