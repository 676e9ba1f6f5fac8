//! What a replica of any group, partition or catalog, is opened with.

use std::path::PathBuf;
use std::sync::Arc;

use laneway_core::ids::PartitionId;
use laneway_raft::{AppliedState, CheckpointName, FsmMsg, Group, GroupOptions, Peers};
use laneway_storage::FileError;
use laneway_storage::checkpoint::MANIFEST_NAME;
use laneway_storage::rows::RowStore;
use laneway_storage::snapshot::Generation;
use laneway_storage::vfs::Vfs;
use laneway_storage::wal::{RecoveredPartition, Wal};
use tokio::sync::mpsc;

use crate::clock::ClusterClock;
use crate::metrics::NodeCounters;
use crate::options::{NodeLimits, RaftOptions, StorageOptions};
use crate::parking::Parking;
use crate::partition::OpenError;
use crate::snapshot::{ReplicaDisk, ReplicaSnapshots, SnapshotHub};

/// Kept for a restart of the actor. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaContext {
    pub(crate) raft_id: u64,
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) wal: Wal,
    pub(crate) rows: Arc<dyn RowStore>,
    /// The replica's own folder.
    pub(crate) dir: PathBuf,
    pub(crate) parking: Arc<Parking>,
    pub(crate) counters: Arc<NodeCounters>,
    pub(crate) clock: Arc<ClusterClock>,
    pub(crate) limits: Arc<NodeLimits>,
    pub(crate) storage: Arc<StorageOptions>,
    pub(crate) raft: Arc<RaftOptions>,
    /// The way to the other replicas, if there are any.
    pub(crate) peers: Option<Peers>,
    /// Those that are sent; shared by all replicas.
    pub(crate) snapshots: Arc<SnapshotHub>,
    /// Raft ids to found the group with, if this node founds it and it was never founded.
    pub(crate) voters: Vec<u64>,
}

/// What a replica was found to live on.
pub(crate) struct Found {
    /// The folder of its files now.
    pub(crate) dir: PathBuf,
    /// It came as a snapshot: its membership may be older than this replica's part in it.
    pub(crate) received: bool,
    pub(crate) snapshots: ReplicaSnapshots,
}

impl Found {
    /// Looks up where the replica with the base folder of `context` lives. Blocking, under the lock of its disk.
    pub(crate) fn look(
        context: &ReplicaContext,
        partition: PartitionId,
        disk: &Arc<ReplicaDisk>,
    ) -> Result<(Self, Generation), FileError> {
        let generation = Generation::find(&*context.vfs, &context.dir)?;
        let found = Self {
            dir: generation.dir.clone(),
            received: generation.id != 0,
            snapshots: ReplicaSnapshots::new(context, partition, Arc::clone(disk)),
        };
        Ok((found, generation))
    }
}

/// Ends the switch to a snapshot that was put in place, once the replica was read from it: the log goes on behind it, and what
/// else there is of other generations goes. Without one it only tidies up. Blocking, under the lock of its disk.
pub(crate) fn settle(
    context: &ReplicaContext,
    partition: PartitionId,
    mut generation: Generation,
    applied: Option<u64>,
) -> Result<(), OpenError> {
    if let Some(at) = generation.restart {
        context.wal.restart_behind(partition, at)?;
        tracing::info!(%partition, index = at.0, "the log goes on behind the snapshot");
    }
    generation.settle(&context.vfs, applied)?;
    context
        .snapshots
        .take_up(&context.vfs, &context.wal, &context.dir, partition)?;
    Ok(())
}

/// The log must hold what follows the checkpoint: files that were taken away show here.
fn check_log(
    context: &ReplicaContext,
    partition: PartitionId,
    found: &Found,
    checkpoint: Option<u64>,
    recovered: &RecoveredPartition,
) -> Result<(), OpenError> {
    if let Some(checkpoint) = checkpoint
        && recovered.last.is_none_or(|(last, _, _)| last < checkpoint)
    {
        return Err(OpenError::LogTooShort {
            dir: context.wal.dir().to_owned(),
            partition,
            checkpoint,
        });
    }
    if let Some((purged, _, _)) = recovered.purged
        && checkpoint.is_none_or(|checkpoint| checkpoint < purged)
    {
        return Err(OpenError::CheckpointMissing {
            manifest: found.dir.join(MANIFEST_NAME),
            partition,
            purged,
            checkpoint,
        });
    }
    Ok(())
}

/// Opens the Raft group; its messages, replay included, go through `to_actor` in order until that returns false.
pub(crate) async fn open_group(
    context: &ReplicaContext,
    partition: PartitionId,
    checkpoint: Option<CheckpointName>,
    found: Found,
    to_actor: impl Fn(FsmMsg) -> bool + Send + 'static,
) -> Result<Group, OpenError> {
    let start_error = |what: String| OpenError::Start(partition, what);
    let (fsm, mut messages) = mpsc::unbounded_channel();
    // A dead actor drops them; then Raft sees that nobody applies, and stops.
    tokio::spawn(async move {
        while let Some(message) = messages.recv().await {
            if !to_actor(message) {
                return;
            }
        }
    });
    let applied = match checkpoint {
        Some(name) => AppliedState {
            applied: Some((name.index, name.term, name.leader)),
            membership: name.membership,
        },
        None => AppliedState::default(),
    };
    let options = GroupOptions {
        heartbeat_ms: context.raft.heartbeat_ms,
        election_ms_min: context.raft.election_ms_min,
        election_ms_max: context.raft.election_ms_max,
        ..GroupOptions::new(partition, context.raft_id)
    };
    let recovered = context.wal.recovered(partition);
    let checkpoint = applied.applied.map(|(index, _, _)| index);
    check_log(context, partition, &found, checkpoint, &recovered)?;
    let group = Group::open(
        options,
        context.wal.clone(),
        recovered,
        applied,
        fsm,
        context.peers.clone(),
        Some(Arc::new(found.snapshots)),
    )
    .await
    .map_err(|error| start_error(error.to_string()))?;
    if context.peers.is_none() {
        let voters = context.voters.iter().copied().collect();
        group
            .initialize(voters)
            .await
            .map_err(|error| start_error(error.to_string()))?;
    }
    // One of several nodes may have been removed, or wait to be added; its number and cluster are checked elsewhere.
    if context.peers.is_none() && !found.received && !group.is_member() {
        group.shutdown().await;
        return Err(OpenError::OtherIdentity {
            dir: context.dir.clone(),
            partition,
        });
    }
    Ok(group)
}
