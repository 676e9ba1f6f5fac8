//! The catalog: the group that orders what concerns all partitions (queues, consumer groups), and its handle.
//!
//! The machine is shared for reading, so that gateways look queues up without a message; only the actor changes it.

mod actor;
mod open;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use laneway_core::catalog::{CatalogCommand, CatalogMachine, CatalogRefusal, CatalogReply};
use laneway_core::ids::{CatalogVersion, PartitionId};
use laneway_raft::{Group, Leadership};
use ractor::ActorRef;
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) use actor::{CatalogActor, CatalogMsg, CatalogPart};
pub(crate) use open::OpenedCatalog;

use crate::admission::Admission;
use crate::api::{ErrorClass, RequestError};
use crate::caller::{Waits, WhoseOutcome, caller};
use crate::options::NodeLimits;
use crate::snapshot::ReplicaDisk;

/// The catalog as the rest of the node sees it.
#[derive(Debug)]
pub(crate) struct CatalogHandle {
    machine: RwLock<CatalogMachine>,
    /// Version of the newest applied change.
    pub(crate) version: watch::Sender<u64>,
    /// Who leads, as this replica sees it.
    pub(crate) leadership: watch::Sender<Leadership>,
    pub(crate) serving: AtomicBool,
    pub(crate) applied_index: AtomicU64,
    pub(crate) checkpoint_index: AtomicU64,
    /// Held by whoever changes the catalog's files.
    disk: Arc<ReplicaDisk>,
    live: RwLock<Live>,
    admission: Admission,
    waits: Waits,
}

#[derive(Debug, Default)]
struct Live {
    actor: Option<ActorRef<CatalogMsg>>,
    group: Option<Group>,
    stopped: Option<String>,
}

impl CatalogHandle {
    /// Empty until [`OpenedCatalog::recover`] fills it.
    pub(crate) fn new(limits: &NodeLimits) -> Arc<Self> {
        Arc::new(Self {
            version: watch::Sender::new(0),
            machine: RwLock::new(CatalogMachine::new(open::catalog_limits(limits))),
            leadership: watch::Sender::default(),
            serving: AtomicBool::new(false),
            applied_index: AtomicU64::new(0),
            checkpoint_index: AtomicU64::new(0),
            disk: Arc::default(),
            live: RwLock::default(),
            admission: Admission::new(limits),
            waits: Waits::new(limits),
        })
    }

    /// The machine as applied here; may miss what another leader has committed.
    pub(crate) fn machine(&self) -> RwLockReadGuard<'_, CatalogMachine> {
        self.machine.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guard of its files.
    pub(crate) fn disk(&self) -> &Arc<ReplicaDisk> {
        &self.disk
    }

    /// For the actor alone.
    fn machine_mut(&self) -> RwLockWriteGuard<'_, CatalogMachine> {
        self.machine.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self) -> RwLockReadGuard<'_, Live> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn live_mut(&self) -> RwLockWriteGuard<'_, Live> {
        self.live.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn attach(&self, actor: ActorRef<CatalogMsg>) {
        let mut live = self.live_mut();
        live.actor = Some(actor);
        live.group = None;
    }

    pub(crate) fn attach_group(&self, group: Group) {
        self.live_mut().group = Some(group);
    }

    /// The actor is gone; `stopped` says why it stays so.
    pub(crate) fn detach(&self, stopped: Option<String>) -> Option<Group> {
        self.serving.store(false, Ordering::Release);
        self.leadership.send_replace(Leadership::default());
        let mut live = self.live_mut();
        live.actor = None;
        live.stopped = stopped;
        live.group.take()
    }

    pub(crate) fn stopped(&self) -> Option<String> {
        self.live().stopped.clone()
    }

    pub(crate) fn group(&self) -> Option<Group> {
        self.live().group.clone()
    }

    pub(crate) fn cast(&self, message: CatalogMsg) -> bool {
        let actor = self.live().actor.clone();
        actor.is_some_and(|actor| actor.cast(message).is_ok())
    }

    /// Has a change committed. Errors as [`crate::partition::PartitionHandle::ask`].
    pub(crate) async fn propose(&self, command: CatalogCommand) -> Result<CatalogReply, RequestError> {
        let permit = self.admission.admit(0)?;
        let (caller, waiting) = caller(Some(permit));
        if !self.cast(CatalogMsg::Propose(command, caller)) {
            return Err(self.not_taken_up());
        }
        match waiting.outcome(self.waits, self).await? {
            CatalogReply::Refused(refusal) => {
                let message = match refusal {
                    CatalogRefusal::QueuesFull => {
                        "there are as many queues as queues_max allows; delete some or raise it"
                    }
                    CatalogRefusal::GroupsFull => {
                        "the queue has as many consumer groups as groups_max allows; use one of them or raise it"
                    }
                };
                Err(RequestError::new(ErrorClass::Overloaded, "overloaded", message))
            }
            reply => Ok(reply),
        }
    }

    /// Waits until everything committed before now is applied here, on the word of a quorum. Only the leader can.
    pub(crate) async fn read_index(&self) -> Result<(), RequestError> {
        let deadline = Instant::now() + self.waits.leader;
        loop {
            let another_leads = {
                let seen = self.leadership.borrow();
                seen.leader.is_some() && !seen.is_self
            };
            if self.serving.load(Ordering::Acquire)
                && let Some(group) = self.group()
                && matches!(
                    tokio::time::timeout_at(deadline, group.read_index()).await,
                    Ok(Ok(_))
                )
            {
                return Ok(());
            }
            if another_leads || Instant::now() >= deadline || self.stopped().is_some() {
                return Err(self.not_taken_up());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The catalog's version as applied here.
    pub(crate) fn version(&self) -> CatalogVersion {
        CatalogVersion(*self.version.borrow())
    }
}

impl fmt::Display for CatalogHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        PartitionId::CATALOG.fmt(f)
    }
}

impl WhoseOutcome for CatalogHandle {
    fn not_taken_up(&self) -> RequestError {
        let message = match self.stopped() {
            Some(why) => format!("the {self} is stopped ({why}); see the node's log"),
            None => format!("the {self} has no leader yet; retry after a moment"),
        };
        RequestError::new(ErrorClass::Unavailable, "no_leader", message)
    }
}
