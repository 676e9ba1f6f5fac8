//! The catalog's actor: proposes changes, applies them, tells the propagator.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

use bytes::Bytes;
use laneway_core::catalog::{CatalogCommand, CatalogEntry, CatalogReply, CatalogRow, CatalogRowKey};
use laneway_core::ids::PartitionId;
use laneway_raft::{CheckpointName, CommittedEntry, CommittedPayload, FsmMsg, Group, Leadership};
use laneway_storage::codec::{self, Origin};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;

use super::{CatalogHandle, OpenedCatalog};
use crate::api::{ErrorClass, RequestError};
use crate::caller::outcome_unknown;
use crate::clock::{Clock, TimeKeeper};
use crate::parking::Parking;
use crate::partition::LogPosition;
use crate::supervisor::SNAPSHOT_PLACED;

/// Entries proposed and not yet applied.
const ENTRIES_IN_FLIGHT_MAX: usize = 4;

/// Commands in one entry.
const COMMANDS_PER_ENTRY_MAX: usize = 1_000;

/// Rows in one part of a checkpoint.
const ROWS_PER_STEP: usize = 4_000;

type Caller = crate::caller::Caller<CatalogReply>;

/// What the catalog's actor is told.
#[expect(
    clippy::large_enum_variant,
    reason = "moved once; a box would be an allocation per command"
)]
pub(crate) enum CatalogMsg {
    /// Commit this change.
    Propose(CatalogCommand, Caller),
    /// Form entries from what is queued by now.
    Flush,
    /// Raft speaks.
    Raft(FsmMsg),
    /// The group is open.
    Opened(Group),
    /// Cut a checkpoint.
    BeginCheckpoint { full: bool, to: Sender<CatalogPart> },
    /// Send more rows of it.
    CheckpointStep,
    /// It was not written; its rows count as changed again.
    AbandonCheckpoint,
    /// It is complete on disk.
    CheckpointWritten(CheckpointName),
}

/// A part of a checkpoint on its way to the file.
pub(crate) enum CatalogPart {
    /// First: where it is cut.
    Cut { applied: LogPosition, membership: Bytes },
    /// Rows as of the cut; `done` with the last ones.
    Rows {
        rows: Vec<(CatalogRowKey, Option<CatalogRow>)>,
        done: bool,
    },
}

/// The catalog's actor.
pub(crate) struct CatalogActor;

/// Its state.
pub(crate) struct RunningCatalog {
    myself: ActorRef<CatalogMsg>,
    handle: Arc<CatalogHandle>,
    raft_id: u64,
    clock: Arc<dyn Clock>,
    parking: Arc<Parking>,
    group: Option<Group>,
    applied: Option<LogPosition>,
    membership: Bytes,
    checkpoint: Option<CheckpointName>,
    rows_wanted: Option<Sender<CatalogPart>>,
    leading: Option<u64>,
    office: Option<u64>,
    keeper: TimeKeeper,
    replay_end: Option<u64>,
    poisoned: bool,
    queue: VecDeque<(CatalogCommand, Caller)>,
    flush_cast: bool,
    filed: HashMap<u64, Vec<Caller>>,
    next_proposal: u64,
}

impl Actor for CatalogActor {
    type Msg = CatalogMsg;
    type State = RunningCatalog;
    type Arguments = Box<OpenedCatalog>;

    async fn pre_start(
        &self,
        myself: ActorRef<CatalogMsg>,
        opened: Box<OpenedCatalog>,
    ) -> Result<RunningCatalog, ActorProcessingErr> {
        Ok(RunningCatalog::new(myself, *opened))
    }

    async fn handle(
        &self,
        _myself: ActorRef<CatalogMsg>,
        message: CatalogMsg,
        running: &mut RunningCatalog,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            CatalogMsg::Propose(command, caller) => {
                running.queue.push_back((command, caller));
                running.want_flush();
            }
            CatalogMsg::Flush => running.flush(),
            CatalogMsg::Raft(message) => running.raft(message),
            CatalogMsg::Opened(group) => {
                running.handle.attach_group(group.clone());
                running.group = Some(group);
                running.want_flush();
            }
            CatalogMsg::BeginCheckpoint { full, to } => running.begin_checkpoint(full, to),
            CatalogMsg::CheckpointStep => running.checkpoint_step(),
            CatalogMsg::AbandonCheckpoint => {
                running.rows_wanted = None;
                running.handle.machine_mut().abandon_checkpoint();
            }
            CatalogMsg::CheckpointWritten(name) => {
                running
                    .handle
                    .checkpoint_index
                    .store(name.index, Ordering::Release);
                running.checkpoint = Some(name);
            }
        }
        Ok(())
    }
}

impl RunningCatalog {
    fn new(myself: ActorRef<CatalogMsg>, opened: OpenedCatalog) -> Self {
        let OpenedCatalog {
            context,
            handle,
            applied,
            membership,
            checkpoint,
            found: _,
        } = opened;
        // Numbers of an earlier process may still stand in the log; no clock tells where.
        let next_proposal = rand::random::<u64>() >> 1;
        Self {
            myself,
            handle,
            raft_id: context.raft_id,
            clock: context.clock,
            parking: context.parking,
            group: None,
            applied,
            membership,
            checkpoint,
            rows_wanted: None,
            leading: None,
            office: None,
            keeper: TimeKeeper::default(),
            replay_end: context.wal.last(PartitionId::CATALOG).map(|(index, ..)| index),
            poisoned: false,
            queue: VecDeque::new(),
            flush_cast: false,
            filed: HashMap::new(),
            next_proposal,
        }
    }

    fn may_propose(&self) -> bool {
        self.office.is_some() && !self.poisoned && self.filed.len() < ENTRIES_IN_FLIGHT_MAX
    }

    fn want_flush(&mut self) {
        if !self.flush_cast && !self.queue.is_empty() && self.may_propose() {
            self.flush_cast = self.myself.cast(CatalogMsg::Flush).is_ok();
        }
    }

    fn flush(&mut self) {
        self.flush_cast = false;
        while self.may_propose() && !self.queue.is_empty() {
            let (Some(term), Some(group)) = (self.office, self.group.clone()) else {
                return;
            };
            let Some(stamps) = self.keeper.next(&*self.clock) else {
                return;
            };
            let mut commands = Vec::new();
            let mut callers = Vec::new();
            while commands.len() < COMMANDS_PER_ENTRY_MAX {
                let Some((command, caller)) = self.queue.pop_front() else {
                    break;
                };
                if caller.take_up() {
                    commands.push(command);
                    callers.push(caller);
                }
            }
            if commands.is_empty() {
                continue;
            }
            let proposal = self.next_proposal;
            self.next_proposal += 1;
            let origin = Origin {
                node: self.raft_id,
                proposal,
            };
            group.propose(
                term,
                proposal,
                codec::encode_catalog_entry(origin, &CatalogEntry { stamps, commands }),
            );
            self.filed.insert(proposal, callers);
        }
    }

    fn raft(&mut self, message: FsmMsg) {
        match message {
            FsmMsg::Apply { entries, done } => self.apply(entries, done),
            FsmMsg::ProposalFailed { proposal, definite } => self.proposal_failed(proposal, definite),
            FsmMsg::LeadershipChanged(leadership) => self.leadership_changed(&leadership),
            FsmMsg::Checkpoint { reply } => drop(reply.send(self.checkpoint.clone())),
            FsmMsg::SnapshotPlaced => self.snapshot_placed(),
            FsmMsg::Stopped { reason } => {
                tracing::error!(error = reason, "catalog group stopped");
                self.leave_office();
                self.leading = None;
                self.myself.stop(Some(format!("raft group stopped: {reason}")));
            }
        }
    }

    /// What is here is the past: the supervisor opens the replica anew on the snapshot.
    fn snapshot_placed(&mut self) {
        self.leave_office();
        self.leading = None;
        self.myself.stop(Some(SNAPSHOT_PLACED.to_owned()));
    }

    fn apply(&mut self, entries: Vec<CommittedEntry>, done: oneshot::Sender<()>) {
        for entry in entries {
            let next = self.applied.map_or(0, |applied| applied.index + 1);
            assert_eq!(entry.index, next, "catalog: the log has a hole or comes twice");
            match entry.payload {
                CommittedPayload::Blank => {}
                CommittedPayload::Membership(membership) => self.membership = membership,
                CommittedPayload::Normal(body) => self.apply_body(entry.index, entry.term, &body),
            }
            self.applied = Some(LogPosition {
                index: entry.index,
                term: entry.term,
                leader: entry.leader,
            });
            self.handle.applied_index.store(entry.index, Ordering::Release);
            self.take_office_at(entry.term);
        }
        // The group may have been shut down meanwhile; then nobody waits.
        let _ = done.send(());
        // Every proposal beside a failed one may be out now.
        self.poisoned &= !self.filed.is_empty();
        self.want_flush();
    }

    /// The entry is of the leader of now, and did not wait in the log for this process to start.
    fn is_fresh(&self, index: u64, term: u64) -> bool {
        let leader = *self.handle.leadership.borrow();
        let is_new = self.replay_end.is_none_or(|end| index > end);
        is_new && leader.leader.is_some() && !leader.is_self && leader.term == term
    }

    fn apply_body(&mut self, index: u64, term: u64, body: &Bytes) {
        let (origin, entry) = codec::decode_catalog_entry(body)
            .unwrap_or_else(|error| panic!("entry {index} of the catalog: {error}"));
        let callers = if origin.node == self.raft_id {
            self.filed.remove(&origin.proposal)
        } else {
            None
        };
        if self.is_fresh(index, term) {
            self.keeper.observe(&*self.clock, term, entry.stamps);
        }
        let mut replies = Vec::with_capacity(entry.commands.len());
        let version = {
            let mut machine = self.handle.machine_mut();
            machine.begin_entry(entry.stamps);
            for command in entry.commands {
                replies.push(machine.apply(command));
            }
            machine.version().0
        };
        if self
            .handle
            .version
            .send_if_modified(|known| std::mem::replace(known, version) != version)
        {
            self.parking.catalog_changed();
        }
        for (reply, caller) in replies.into_iter().zip(callers.into_iter().flatten()) {
            drop(caller.answer(Ok(reply)));
        }
    }

    fn leadership_changed(&mut self, leadership: &Leadership) {
        self.handle.leadership.send_replace(*leadership);
        if !leadership.is_self {
            self.leave_office();
            self.leading = None;
        } else if self.leading != Some(leadership.term) {
            self.leave_office();
            self.leading = Some(leadership.term);
            if let Some(applied) = self.applied {
                self.take_office_at(applied.term);
            }
        }
    }

    fn take_office_at(&mut self, applied_term: u64) {
        let Some(term) = self.leading else { return };
        if self.office.is_some() || applied_term != term {
            return;
        }
        let last = self.handle.machine().stamps();
        self.keeper.take_office(&*self.clock, last);
        self.office = Some(term);
        self.handle.serving.store(true, Ordering::Release);
        tracing::info!(term, "catalog serves");
        self.want_flush();
    }

    fn leave_office(&mut self) {
        self.keeper.leave_office();
        self.handle.serving.store(false, Ordering::Release);
        self.office = None;
        self.poisoned = false;
        let error = outcome_unknown("leadership changed while it was in the log", &*self.handle);
        for caller in std::mem::take(&mut self.filed).into_values().flatten() {
            drop(caller.answer(Err(error.clone())));
        }
        for (_, caller) in std::mem::take(&mut self.queue) {
            drop(caller.answer(Err(leader_changed())));
        }
    }

    fn proposal_failed(&mut self, proposal: u64, definite: bool) {
        let Some(callers) = self.filed.remove(&proposal) else {
            return;
        };
        let error = if definite {
            leader_changed()
        } else {
            outcome_unknown(
                "the entry was proposed, but its outcome is not known",
                &*self.handle,
            )
        };
        for caller in callers {
            drop(caller.answer(Err(error.clone())));
        }
        self.poisoned = !self.filed.is_empty();
        self.want_flush();
    }

    fn begin_checkpoint(&mut self, full: bool, to: Sender<CatalogPart>) {
        // Nothing is applied yet: `to` is dropped, and there is no checkpoint.
        let Some(applied) = self.applied else { return };
        let mut machine = self.handle.machine_mut();
        if self.rows_wanted.take().is_some() {
            machine.abandon_checkpoint();
        }
        machine.begin_checkpoint(full);
        let cut = CatalogPart::Cut {
            applied,
            membership: self.membership.clone(),
        };
        if to.send(cut).is_ok() {
            self.rows_wanted = Some(to);
        } else {
            machine.abandon_checkpoint();
        }
    }

    fn checkpoint_step(&mut self) {
        let Some(to) = self.rows_wanted.take() else { return };
        let mut machine = self.handle.machine_mut();
        let step = machine.checkpoint_step(ROWS_PER_STEP);
        let done = step.done;
        if to
            .send(CatalogPart::Rows {
                rows: step.rows,
                done,
            })
            .is_err()
        {
            machine.abandon_checkpoint();
        } else if !done {
            self.rows_wanted = Some(to);
        }
    }
}

/// Nothing was done.
fn leader_changed() -> RequestError {
    let message = "the catalog's leader changed before the request was taken; retry after a moment";
    RequestError::new(ErrorClass::Unavailable, "no_leader", message)
}
