//! Recovering the catalog from disk and starting its actor and its Raft group.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use laneway_core::catalog::{CatalogLimits, CatalogMachine, CatalogRow, CatalogRowKey};
use laneway_core::ids::PartitionId;
use laneway_raft::CheckpointName;
use laneway_storage::checkpoint::CheckpointStore;
use laneway_storage::codec;
use ractor::{Actor, ActorCell, ActorRef};

use super::{CatalogActor, CatalogHandle, CatalogMsg};
use crate::options::NodeLimits;
use crate::partition::{LogPosition, OpenError};
use crate::replica::{Found, ReplicaContext, open_group, settle};

/// The recovered catalog, before its log is replayed.
pub(crate) struct OpenedCatalog {
    pub(crate) context: ReplicaContext,
    pub(crate) handle: Arc<CatalogHandle>,
    pub(crate) applied: Option<LogPosition>,
    pub(crate) membership: Bytes,
    pub(crate) checkpoint: Option<CheckpointName>,
    pub(crate) found: Option<Found>,
}

impl OpenedCatalog {
    /// Reads the newest checkpoint into the handle's machine. Blocking.
    pub(crate) fn recover(context: ReplicaContext, handle: &Arc<CatalogHandle>) -> Result<Self, OpenError> {
        let _disk = handle.disk().lock();
        let mut machine = CatalogMachine::new(catalog_limits(&context.limits));
        let (found, generation) = Found::look(&context, PartitionId::CATALOG, handle.disk())?;
        let dir = found.dir.clone();
        let (checkpoints, manifest) =
            CheckpointStore::open(Arc::clone(&context.vfs), dir.clone(), PartitionId::CATALOG)?;
        if let Some(manifest) = &manifest {
            checkpoints.load(manifest, &mut |key, row| {
                let key: CatalogRowKey = codec::decode(key)?;
                let row: Option<CatalogRow> = row.map(codec::decode).transpose()?;
                machine.load_row(key, row);
                Ok(())
            })?;
            machine.finish_load().map_err(|error| OpenError::Rows {
                dir,
                what: error.to_string(),
            })?;
        }
        let ends_at = manifest.as_ref().map(|manifest| manifest.applied.0);
        settle(&context, PartitionId::CATALOG, generation, ends_at)?;
        handle.version.send_replace(machine.version().0);
        *handle.machine_mut() = machine;
        let (mut applied, mut membership, mut checkpoint) = (None, Bytes::new(), None);
        if let Some(manifest) = manifest {
            let (index, term, leader) = manifest.applied;
            applied = Some(LogPosition { index, term, leader });
            membership = manifest.membership.clone();
            checkpoint = Some(CheckpointName {
                index,
                term,
                leader,
                membership: manifest.membership,
            });
            handle.applied_index.store(index, Ordering::Release);
            handle.checkpoint_index.store(index, Ordering::Release);
        }
        Ok(Self {
            context,
            handle: Arc::clone(handle),
            applied,
            membership,
            checkpoint,
            found: Some(found),
        })
    }

    /// Starts the actor under `supervisor`, then its group: that replays the log through the actor.
    pub(crate) async fn start(
        mut self,
        supervisor: ActorCell,
    ) -> Result<
        (
            ActorRef<CatalogMsg>,
            tokio::task::JoinHandle<Result<(), OpenError>>,
        ),
        OpenError,
    > {
        let context = self.context.clone();
        let handle = Arc::clone(&self.handle);
        let applied = self.checkpoint.clone();
        let found = self.found.take().expect("recovering has found it");
        let (actor, _) = Actor::spawn_linked(None, CatalogActor, Box::new(self), supervisor)
            .await
            .map_err(|error| OpenError::Start(PartitionId::CATALOG, error.to_string()))?;
        handle.attach(actor.clone());
        let to_actor = actor.clone();
        let forward = move |message| to_actor.cast(CatalogMsg::Raft(message)).is_ok();
        let opened = actor.clone();
        let group_task = tokio::spawn(async move {
            let group = open_group(&context, PartitionId::CATALOG, applied, found, forward).await?;
            // A dead actor is the supervisor's business.
            drop(opened.cast(CatalogMsg::Opened(group)));
            Ok(())
        });
        Ok((actor, group_task))
    }
}

/// The catalog's bounds.
pub(super) fn catalog_limits(limits: &NodeLimits) -> CatalogLimits {
    CatalogLimits {
        queues_max: limits.queues_max,
        groups_per_queue_max: limits.groups_max,
    }
}
