//! The state of a running partition, and how requests become entries.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use laneway_core::command::{Command, Entry};
use laneway_core::ids::PartitionId;
use laneway_core::partition::PartitionMachine;
use laneway_core::time::Stamps;
use laneway_raft::{CheckpointName, Group};
use laneway_storage::codec::{self, Origin};
use laneway_storage::payload::PayloadStore;
use laneway_storage::wal::Wal;
use ractor::ActorRef;

use super::leadership::leader_changed;
use super::overlay::Overlay;
use super::plan::Plan;
use super::timers::Timers;
use super::{Ask, Caller, Opened, PartitionHandle, PartitionMsg, Stores};
use crate::api::RequestError;
use crate::clock::{Clock, TimeKeeper};
use crate::metrics::NodeCounters;
use crate::options::NodeLimits;
use crate::parking::Parking;

/// Position of an entry in a partition's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPosition {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) leader: u64,
}

/// A partition's actor state: the machine, and all that only its leader needs.
pub(crate) struct Running {
    pub(super) myself: ActorRef<PartitionMsg>,
    pub(crate) id: PartitionId,
    pub(super) raft_id: u64,
    pub(super) handle: Arc<PartitionHandle>,
    pub(crate) machine: PartitionMachine,
    pub(super) stores: Arc<Stores>,
    pub(super) wal: Wal,
    pub(super) group: Option<Group>,
    pub(super) parking: Arc<Parking>,
    pub(super) counters: Arc<NodeCounters>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) limits: Arc<NodeLimits>,
    /// Last applied entry; `None` before the group was founded.
    pub(crate) applied: Option<LogPosition>,
    pub(super) membership: Bytes,
    pub(super) checkpoint: Option<CheckpointName>,
    pub(super) rows_wanted: Option<std::sync::mpsc::Sender<super::CheckpointPart>>,
    /// Term in which this node leads, whether or not it serves yet.
    pub(super) leading: Option<u64>,
    /// The same, once that term's first entry is applied.
    pub(super) office: Option<u64>,
    pub(super) keeper: TimeKeeper,
    /// Last entry that was in the log when this process started.
    pub(super) replay_end: Option<u64>,
    pub(super) overlay: Overlay,
    /// Requests to be planned; the leader's own have no caller.
    pub(super) queue: VecDeque<(Ask, Option<Caller>)>,
    pub(super) flush_cast: bool,
    /// The entry in flight.
    pub(super) filed: Option<Filed>,
    pub(super) next_proposal: u64,
    pub(super) timers: Timers,
    pub(super) retention_from: usize,
}

/// A proposed entry and who waits for it.
pub(super) struct Filed {
    pub(super) proposal: u64,
    pub(super) callers: Vec<Option<Caller>>,
    pub(super) at: Instant,
}

impl Running {
    pub(super) fn new(myself: ActorRef<PartitionMsg>, opened: Opened) -> Self {
        let Opened {
            handle,
            context,
            machine,
            stores,
            applied,
            membership,
            checkpoint,
            found: _,
        } = opened;
        // Numbers of an earlier process may still stand in the log; no clock tells where.
        let next_proposal = rand::random::<u64>() >> 1;
        let replay_end = context.wal.last(handle.id).map(|(index, ..)| index);
        Self {
            myself,
            id: handle.id,
            raft_id: context.raft_id,
            handle,
            machine,
            stores,
            wal: context.wal,
            group: None,
            parking: context.parking,
            counters: context.counters,
            clock: context.clock,
            limits: context.limits,
            applied,
            membership,
            checkpoint,
            rows_wanted: None,
            leading: None,
            office: None,
            keeper: TimeKeeper::default(),
            replay_end,
            overlay: Overlay::default(),
            queue: VecDeque::new(),
            flush_cast: false,
            filed: None,
            next_proposal,
            timers: Timers::default(),
            retention_from: 0,
        }
    }

    /// What the stamps of an entry made now would be; before it has led, those of the last entry.
    pub(crate) fn now(&self) -> Stamps {
        self.keeper
            .peek(&*self.clock)
            .unwrap_or_else(|| self.machine.stamps())
    }

    /// Queues a request. The first one casts a flush; what is queued by then joins one entry.
    pub(super) fn ask(&mut self, ask: Ask, caller: Caller) {
        self.queue.push_back((ask, Some(caller)));
        self.want_flush();
    }

    pub(super) fn want_flush(&mut self) {
        if !self.flush_cast && !self.queue.is_empty() && self.may_propose() {
            self.flush_cast = self.myself.cast(PartitionMsg::Flush).is_ok();
        }
    }

    /// One entry at a time: Raft may refuse an entry (its lease is over for a moment) and take the next one in the same term,
    /// and a plan that rests on an entry which never comes to be could call a message a duplicate of one that was never stored.
    fn may_propose(&self) -> bool {
        self.office.is_some() && self.filed.is_none()
    }

    /// Forms and proposes an entry from the queue, unless one is in flight.
    pub(super) fn flush(&mut self) {
        self.flush_cast = false;
        while self.may_propose() && !self.queue.is_empty() {
            let Some(stamps) = self.keeper.next(&*self.clock) else {
                return;
            };
            let mut draft = Draft::new(stamps, self.next_proposal);
            while draft.bytes < self.limits.entry_bytes_max as usize {
                let Some((ask, caller)) = self.queue.pop_front() else {
                    break;
                };
                self.draft(ask, caller, &mut draft);
            }
            self.propose(draft);
        }
    }

    fn draft(&mut self, ask: Ask, caller: Option<Caller>, draft: &mut Draft) {
        if caller.as_ref().is_some_and(|caller| !caller.take_up()) {
            return;
        }
        let ask = match ask {
            Ask::Changes(changes) => return draft.put_changes(changes, caller),
            ask => ask,
        };
        match self.plan(ask, draft) {
            Plan::Propose(command) => {
                draft.bytes += COMMAND_BYTES_GUESS;
                draft.commands.push(command);
                draft.callers.push(caller);
            }
            Plan::Answer(answer) => {
                if let Some(caller) = caller {
                    drop(caller.answer(answer));
                }
            }
        }
    }

    /// Queues a command of the leader's own; nobody waits for it.
    pub(super) fn propose_own(&mut self, command: Command) {
        self.queue.push_back((Ask::Command(command, Bytes::new()), None));
        self.want_flush();
    }

    fn propose(&mut self, draft: Draft) {
        let (Some(term), Some(group)) = (self.office, &self.group) else {
            return;
        };
        if draft.commands.is_empty() {
            return;
        }
        self.next_proposal += 1;
        let entry = Entry {
            stamps: draft.stamps,
            commands: draft.commands,
            blob: draft.blob.freeze(),
        };
        let origin = Origin {
            node: self.raft_id,
            proposal: draft.proposal,
        };
        let body = codec::encode_entry(origin, &entry);
        group.propose(term, draft.proposal, body);
        let filed = Filed {
            proposal: draft.proposal,
            callers: draft.callers,
            at: Instant::now(),
        };
        self.filed = Some(filed);
    }

    /// Answers everyone whose proposal may or may not come to be, and forgets the plans.
    pub(super) fn fail_filed(&mut self, error: &RequestError) {
        if let Some(filed) = self.filed.take() {
            for caller in filed.callers.into_iter().flatten() {
                drop(caller.answer(Err(error.clone())));
            }
        }
        self.overlay.clear();
    }

    /// Sends those on their way whose requests only a leader can take up.
    pub(super) fn refuse_queued(&mut self) {
        for (_, caller) in std::mem::take(&mut self.queue) {
            if let Some(caller) = caller {
                drop(caller.answer(Err(leader_changed())));
            }
        }
    }

    pub(super) fn set_serving(&self, serving: bool) {
        self.handle.serving.store(serving, Ordering::Release);
    }

    /// Free room in the log: nothing is proposed or waiting.
    pub(super) fn idle(&self) -> bool {
        self.filed.is_none() && self.queue.is_empty()
    }

    pub(super) fn commit_took(&self, since: Instant) {
        self.counters.commit_seconds.observe(since.elapsed());
    }

    /// Where the messages are.
    pub(crate) fn payloads(&self) -> &PayloadStore {
        &self.stores.payloads
    }
}

/// What a command counts for in an entry's size, beside its payload.
const COMMAND_BYTES_GUESS: usize = 160;

/// An entry being formed.
pub(super) struct Draft {
    pub(super) stamps: Stamps,
    pub(super) proposal: u64,
    pub(super) commands: Vec<Command>,
    pub(super) callers: Vec<Option<Caller>>,
    pub(super) blob: BytesMut,
    pub(super) bytes: usize,
}

impl Draft {
    fn new(stamps: Stamps, proposal: u64) -> Self {
        Self {
            stamps,
            proposal,
            commands: Vec::new(),
            callers: Vec::new(),
            blob: BytesMut::new(),
            bytes: 0,
        }
    }

    fn put_changes(&mut self, changes: Vec<Command>, caller: Option<Caller>) {
        for change in changes {
            self.bytes += COMMAND_BYTES_GUESS;
            self.commands.push(change);
            self.callers.push(None);
        }
        if let Some(last) = self.callers.last_mut() {
            *last = caller;
        }
    }

    /// Puts payload frames into the entry's blob.
    pub(super) fn put_block(&mut self, frames: &[u8]) -> laneway_core::command::Block {
        let at = u32::try_from(self.blob.len())
            .expect("an entry is far below 4 GiB: see entry_bytes_max and the body limit");
        let bytes = u32::try_from(frames.len()).expect("a request body is far below 4 GiB");
        self.blob.extend_from_slice(frames);
        self.bytes += frames.len();
        laneway_core::command::Block { at, bytes }
    }
}
