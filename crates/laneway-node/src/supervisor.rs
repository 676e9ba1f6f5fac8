//! Keeps the actors of a node alive: a panic in one of them restarts that one from disk and leaves the others alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use laneway_core::ids::PartitionId;
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};

use crate::catalog::{CatalogHandle, OpenedCatalog};
use crate::partition::{OpenError, Opened, PartitionHandle};
use crate::replica::ReplicaContext;

/// Panics at one applied index after which the replica stays down.
const PANICS_AT_ONE_INDEX_MAX: u32 = 3;

/// Pause before a restart; doubles with each panic at one index.
const RESTART_PAUSE: Duration = Duration::from_millis(100);

/// Why an actor ends whose replica is to be opened on the snapshot that was put in place.
pub(crate) const SNAPSHOT_PLACED: &str = "a snapshot was put in place";

/// A replica, with what it takes to open it again.
#[derive(Clone, Debug)]
pub(crate) enum Replica {
    Partition(Arc<PartitionHandle>, ReplicaContext),
    Catalog(Arc<CatalogHandle>, ReplicaContext),
}

impl Replica {
    pub(crate) fn id(&self) -> PartitionId {
        match self {
            Self::Partition(handle, _) => handle.id,
            Self::Catalog(..) => PartitionId::CATALOG,
        }
    }

    fn applied_index(&self) -> u64 {
        match self {
            Self::Partition(handle, _) => handle.applied_index.load(Ordering::Acquire),
            Self::Catalog(handle, _) => handle.applied_index.load(Ordering::Acquire),
        }
    }

    fn detach(&self, stopped: Option<String>) -> Option<laneway_raft::Group> {
        match self {
            Self::Partition(handle, _) => handle.detach(stopped),
            Self::Catalog(handle, _) => handle.detach(stopped),
        }
    }

    fn context(&self) -> &ReplicaContext {
        match self {
            Self::Partition(_, context) | Self::Catalog(_, context) => context,
        }
    }
}

/// What the supervisor is told.
pub(crate) enum SupervisorMsg {
    /// Watch this actor.
    Started(ActorId, Replica),
    /// Open this replica again now.
    Restart(Replica),
    /// The node stops: let actors end.
    Stopping,
}

/// The supervisor of one node.
pub(crate) struct NodeSupervisor;

/// Its state.
#[derive(Default)]
pub(crate) struct Watch {
    replicas: HashMap<ActorId, Replica>,
    /// Panics in a row at one applied index.
    panics: HashMap<PartitionId, (u64, u32)>,
    stopping: bool,
}

impl Actor for NodeSupervisor {
    type Msg = SupervisorMsg;
    type State = Watch;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<SupervisorMsg>, (): ()) -> Result<Watch, ActorProcessingErr> {
        Ok(Watch::default())
    }

    async fn handle(
        &self,
        myself: ActorRef<SupervisorMsg>,
        message: SupervisorMsg,
        watch: &mut Watch,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SupervisorMsg::Started(actor, replica) => {
                watch.replicas.insert(actor, replica);
            }
            SupervisorMsg::Restart(replica) if !watch.stopping => {
                tokio::spawn(restart(myself, replica));
            }
            SupervisorMsg::Restart(_) => {}
            SupervisorMsg::Stopping => watch.stopping = true,
        }
        Ok(())
    }

    /// The default would stop the supervisor itself when a child ends.
    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<SupervisorMsg>,
        event: SupervisionEvent,
        watch: &mut Watch,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(actor, error) => {
                watch.ended(&myself, actor.get_id(), &error.to_string());
            }
            SupervisionEvent::ActorTerminated(actor, _, reason) => {
                let reason = reason.unwrap_or_else(|| "it stopped".to_owned());
                watch.ended(&myself, actor.get_id(), &reason);
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl Watch {
    fn ended(&mut self, myself: &ActorRef<SupervisorMsg>, actor: ActorId, reason: &str) {
        let Some(replica) = self.replicas.remove(&actor) else {
            return;
        };
        if self.stopping {
            shut(replica.detach(None));
            return;
        }
        if reason == SNAPSHOT_PLACED {
            tracing::info!(partition = %replica.id(), "partition opens on a snapshot");
            restart_after(Duration::ZERO, myself.clone(), replica);
            return;
        }
        let index = replica.applied_index();
        let (at, panics) = self.panics.entry(replica.id()).or_insert((index, 0));
        if *at != index {
            (*at, *panics) = (index, 0);
        }
        *panics += 1;
        let (partition, panics) = (replica.id(), *panics);
        tracing::error!(%partition, index, panics, error = reason, "partition actor ended");
        if panics >= PANICS_AT_ONE_INDEX_MAX {
            let why = format!("its actor ended {panics} times at index {index}: {reason}");
            tracing::error!(%partition, index, "partition stays down");
            shut(replica.detach(Some(why)));
            return;
        }
        let pause = RESTART_PAUSE * 2u32.saturating_pow(panics - 1);
        restart_after(pause, myself.clone(), replica);
    }
}

/// Opens a replica again once its old group has let go of the log.
fn restart_after(pause: Duration, supervisor: ActorRef<SupervisorMsg>, replica: Replica) {
    let group = replica.detach(None);
    tokio::spawn(async move {
        if let Some(group) = group {
            group.shutdown().await;
        }
        tokio::time::sleep(pause).await;
        drop(supervisor.cast(SupervisorMsg::Restart(replica)));
    });
}

/// A group whose machine is gone must not go on.
fn shut(group: Option<laneway_raft::Group>) {
    if let Some(group) = group {
        tokio::spawn(async move { group.shutdown().await });
    }
}

async fn restart(supervisor: ActorRef<SupervisorMsg>, replica: Replica) {
    let partition = replica.id();
    tracing::info!(%partition, "partition restarts from disk");
    if let Err(error) = start(&supervisor, replica.clone()).await {
        tracing::error!(%partition, %error, "partition does not start again");
        replica.detach(Some(error.to_string()));
    }
}

/// Recovers a replica and starts its actor and group. Returns when its log is replayed.
pub(crate) async fn start(supervisor: &ActorRef<SupervisorMsg>, replica: Replica) -> Result<(), OpenError> {
    let failed = |what: String| OpenError::Start(replica.id(), what);
    let context = replica.context().clone();
    let (actor, group) = match &replica {
        Replica::Partition(handle, _) => {
            let handle = Arc::clone(handle);
            let recover = tokio::task::spawn_blocking(move || Opened::recover(handle, context));
            let opened = recover.await.map_err(|error| failed(error.to_string()))??;
            let (actor, group) = opened.start(supervisor.get_cell()).await?;
            (actor.get_id(), group)
        }
        Replica::Catalog(handle, _) => {
            let handle = Arc::clone(handle);
            let recover = tokio::task::spawn_blocking(move || OpenedCatalog::recover(context, &handle));
            let opened = recover.await.map_err(|error| failed(error.to_string()))??;
            let (actor, group) = opened.start(supervisor.get_cell()).await?;
            (actor.get_id(), group)
        }
    };
    drop(supervisor.cast(SupervisorMsg::Started(actor, replica.clone())));
    group.await.map_err(|error| failed(error.to_string()))?
}
