//! The partition machine once more, written to be read: vectors, scans, no index.
//!
//! It keeps every message's stamp and flag for ever, looks at everything on every step, and shares only data types with
//! `laneway-core`. Rules come from the wire contract (§2.1–2.5, §5) and architecture §4.

mod ack;
mod catalog;
mod claim;
mod dead_letter;
mod kept;
mod lease;
mod push;
mod query;
mod ready;
mod trim;

use laneway_core::command::Command;
use laneway_core::dump::{GroupDump, LaneDump, LeaseDump, QueueDump, StateDump};
use laneway_core::ids::{CatalogVersion, DeadLetterId, LaneId, LeaseId, Offset, PartitionId, QueueId, Slot};
use laneway_core::reply::{DeadLetter, Effect, Outcome, Refusal, Reply, StoreChange};
use laneway_core::settings::{GroupRow, QueueRow};
use laneway_core::time::{LeaseTime, Stamps, WallTime};

use self::kept::{KeptRequest, KeptSettled};
pub use self::query::Counts;

/// The bounds that a machine is built with.
#[derive(Clone, Copy, Debug)]
pub struct ModelLimits {
    /// Lanes of live and of not yet swept queues.
    pub lanes_max: usize,
    /// Kept answers of either kind.
    pub kept_answers_max: usize,
    /// How long an answer is kept, in ms of lease time.
    pub kept_answer_ms: u64,
    /// Leases expired, and lanes ripened, at the head of one entry.
    pub expire_max: usize,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Model {
    partition: PartitionId,
    limits: ModelLimits,
    stamps: Stamps,
    catalog_version: CatalogVersion,
    queues: Vec<Queue>,
    /// Every queue ever deleted.
    tombstones: Vec<QueueId>,
    /// Lanes made so far in each slot.
    sequences: Vec<(Slot, u32)>,
    /// In lane id order; those of dead queues until they are swept.
    lanes: Vec<Lane>,
    /// In filing order; those of dead queues until they are swept.
    dead_letters: Vec<DeadLetter>,
    dead_letters_filed: u64,
    ready_numbers: u64,
    requests: Vec<KeptRequest>,
    settled: Vec<KeptSettled>,
    changes: Vec<StoreChange>,
    effects: Vec<Effect>,
}

#[derive(Clone, Debug)]
struct Queue {
    row: QueueRow,
    /// By name.
    groups: Vec<GroupRow>,
}

#[derive(Clone, Debug)]
struct Lane {
    id: LaneId,
    queue: QueueId,
    name: String,
    head: Offset,
    messages: Vec<Message>,
    /// By name; one for each registered group.
    groups: Vec<Group>,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    wall: WallTime,
    /// Pushed while its queue had a delay, and not ripe since.
    delayed: bool,
}

#[derive(Clone, Debug)]
struct Group {
    name: String,
    cursor: Offset,
    lease: Option<Lease>,
    retries_used: u32,
    attempt: u32,
    attempt_at: Offset,
    consumed: u64,
    /// Number drawn when it became claimable.
    ready: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    id: LeaseId,
    batch_end: Offset,
    deadline: LeaseTime,
}

impl Lane {
    fn tail(&self) -> Offset {
        Offset(self.messages.len() as u64)
    }
}

impl Group {
    fn new(name: &str, cursor: Offset) -> Self {
        let name = name.to_owned();
        Self {
            name,
            cursor,
            lease: None,
            retries_used: 0,
            attempt: 0,
            attempt_at: Offset(0),
            consumed: 0,
            ready: None,
        }
    }

    fn live_lease(&self, now: LeaseTime) -> Option<Lease> {
        self.lease.filter(|lease| now < lease.deadline)
    }
}

impl Model {
    /// An empty machine.
    pub fn new(partition: PartitionId, limits: ModelLimits) -> Self {
        Self {
            partition,
            limits,
            stamps: Stamps::default(),
            catalog_version: CatalogVersion(0),
            queues: Vec::new(),
            tombstones: Vec::new(),
            sequences: Vec::new(),
            lanes: Vec::new(),
            dead_letters: Vec::new(),
            dead_letters_filed: 0,
            ready_numbers: 0,
            requests: Vec::new(),
            settled: Vec::new(),
            changes: Vec::new(),
            effects: Vec::new(),
        }
    }

    /// The head of an entry.
    pub fn begin_entry(&mut self, given: Stamps) -> Vec<Effect> {
        self.stamps.lease = self.stamps.lease.max(given.lease);
        self.stamps.wall = WallTime(self.stamps.wall.0 + 1).max(given.wall);
        self.expire();
        self.ripen();
        self.forget_old_answers();
        std::mem::take(&mut self.effects)
    }

    /// One command of the entry.
    pub fn apply(&mut self, command: Command) -> Outcome {
        let request = match &command {
            Command::Push(push) => push.request.clone(),
            Command::Ack(ack) => ack.request.clone(),
            Command::Extend(extend) => extend.request.clone(),
            Command::ReplayDeadLetter(replay) => replay.request.clone(),
            Command::DeleteDeadLetter(delete) => delete.request.clone(),
            _ => None,
        };
        let reply = match self.answer_kept_for(request.as_ref()) {
            Some(reply) => reply,
            None => {
                let reply = self.dispatch(command);
                self.keep_answer(request, &reply);
                reply
            }
        };
        let changes = std::mem::take(&mut self.changes);
        let effects = std::mem::take(&mut self.effects);
        Outcome {
            reply,
            changes,
            effects,
        }
    }

    fn dispatch(&mut self, command: Command) -> Reply {
        match command {
            Command::Push(push) => self.push(push).unwrap_or_else(Reply::Refused),
            Command::Claim(claim) => self.claim(claim).unwrap_or_else(Reply::Refused),
            Command::Ack(ack) => Reply::Acked(self.ack(ack)),
            Command::Extend(extend) => Reply::Extended(self.extend(&extend)),
            Command::ReleaseClaim(release) => Reply::Released(self.release_claim(&release)),
            Command::ReplayDeadLetter(replay) => self.replay(&replay).unwrap_or_else(Reply::Refused),
            Command::DeleteDeadLetter(delete) => {
                self.delete_dead_letter(&delete).unwrap_or_else(Reply::Refused)
            }
            Command::PutQueue(put) => self.put_queue(put),
            Command::DeleteQueue(delete) => self.delete_queue(delete),
            Command::RegisterGroup(register) => self.register_group(register),
            Command::Tick => Reply::Ticked,
            Command::Sweep(sweep) => self.sweep(sweep.rows_max as usize),
            Command::Trim(trim) => self.trim(trim),
        }
    }

    /// What a client can observe.
    pub fn dump(&self) -> StateDump {
        let mut queues: Vec<_> = self
            .queues
            .iter()
            .map(|queue| QueueDump {
                row: queue.row.clone(),
                groups: queue.groups.clone(),
            })
            .collect();
        queues.sort_by_key(|queue| queue.row.id);
        StateDump {
            stamps: self.stamps,
            catalog_version: self.catalog_version,
            queues,
            lanes: self
                .lanes
                .iter()
                .filter(|lane| self.is_live(lane.queue))
                .map(|lane| self.dump_lane(lane))
                .collect(),
            dead_letters: self
                .dead_letters
                .iter()
                .filter(|row| self.is_live(row.queue))
                .cloned()
                .collect(),
        }
    }

    fn dump_lane(&self, lane: &Lane) -> LaneDump {
        let groups = lane.groups.iter().map(|group| GroupDump {
            name: group.name.clone(),
            cursor: group.cursor,
            lease: group.live_lease(self.stamps.lease).map(|lease| LeaseDump {
                id: lease.id,
                batch_end: lease.batch_end,
                deadline: lease.deadline,
            }),
            retries_used: group.retries_used,
            attempt: group.attempt,
            attempt_at: group.attempt_at,
            consumed: group.consumed,
        });
        LaneDump {
            id: lane.id,
            queue: lane.queue,
            name: lane.name.clone(),
            head: lane.head,
            tail: lane.tail(),
            groups: groups.collect(),
        }
    }

    /// Stamps of the last entry.
    pub fn stamps(&self) -> Stamps {
        self.stamps
    }

    fn is_live(&self, queue: QueueId) -> bool {
        self.queue(queue).is_some()
    }

    fn queue(&self, id: QueueId) -> Option<&Queue> {
        self.queues.iter().find(|queue| queue.row.id == id)
    }

    /// Position of a lane of a live queue.
    fn lane_at(&self, id: LaneId) -> Option<usize> {
        self.lanes
            .iter()
            .position(|lane| lane.id == id && self.is_live(lane.queue))
    }

    fn next_dead_letter_id(&mut self) -> DeadLetterId {
        let id = DeadLetterId::new(self.partition, self.dead_letters_filed);
        self.dead_letters_filed += 1;
        id
    }
}

type Answer = Result<Reply, Refusal>;
