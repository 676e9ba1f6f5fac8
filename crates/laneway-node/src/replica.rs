//! What a replica of any group, partition or catalog, is opened with.

use std::path::PathBuf;
use std::sync::Arc;

use laneway_core::ids::PartitionId;
use laneway_raft::{AppliedState, CheckpointName, FsmMsg, Group, GroupOptions, Peers};
use laneway_storage::checkpoint::MANIFEST_NAME;
use laneway_storage::rows::RowStore;
use laneway_storage::vfs::Vfs;
use laneway_storage::wal::Wal;
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::metrics::NodeCounters;
use crate::options::{NodeLimits, RaftOptions, StorageOptions};
use crate::parking::Parking;
use crate::partition::OpenError;

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
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limits: Arc<NodeLimits>,
    pub(crate) storage: Arc<StorageOptions>,
    pub(crate) raft: Arc<RaftOptions>,
    /// The way to the other replicas, if there are any.
    pub(crate) peers: Option<Peers>,
    /// Raft ids to found the group with, if this node founds it and it was never founded.
    pub(crate) voters: Vec<u64>,
}

/// Opens the Raft group; its messages, replay included, go through `to_actor` in order until that returns false.
pub(crate) async fn open_group(
    context: &ReplicaContext,
    partition: PartitionId,
    checkpoint: Option<CheckpointName>,
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
    if let Some((checkpoint, _, _)) = applied.applied
        && recovered.last.is_none_or(|(last, _, _)| last < checkpoint)
    {
        return Err(OpenError::LogTooShort {
            dir: context.wal.dir().to_owned(),
            partition,
            checkpoint,
        });
    }
    let checkpoint = applied.applied.map(|(index, _, _)| index);
    if let Some((purged, _, _)) = recovered.purged
        && checkpoint.is_none_or(|checkpoint| checkpoint < purged)
    {
        return Err(OpenError::CheckpointMissing {
            manifest: context.dir.join(MANIFEST_NAME),
            partition,
            purged,
            checkpoint,
        });
    }
    let group = Group::open(
        options,
        context.wal.clone(),
        recovered,
        applied,
        fsm,
        context.peers.clone(),
        None,
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
    if !group.is_member() {
        group.shutdown().await;
        return Err(OpenError::OtherIdentity {
            dir: context.dir.clone(),
            partition,
        });
    }
    Ok(group)
}
