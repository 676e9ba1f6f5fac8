//! Tests of the partition machine, by command.

mod ack;
mod ack_deleted;
mod cataloging;
mod checkpoint;
mod claim;
mod dead_letter;
mod fuzz;
mod holds;
mod kept;
mod lease;
mod push;
mod query;
mod trim;

use super::{Limits, PartitionMachine};
use crate::command::*;
use crate::ids::*;
use crate::reply::*;
use crate::settings::*;
use crate::time::*;

const PARTITION: PartitionId = PartitionId(3);
const QUEUE: QueueId = QueueId(1);
const GROUP: &str = "g";

/// A machine with a clock: each command is an entry of its own.
struct Driver {
    machine: PartitionMachine,
    lease_us: u64,
    wall_us: u64,
    /// Effects of the last entry, those of its head first.
    effects: Vec<Effect>,
    changes: Vec<StoreChange>,
}

impl Driver {
    /// An empty partition.
    fn empty(limits: Limits) -> Self {
        let machine = PartitionMachine::new(PARTITION, limits);
        let (effects, changes) = (Vec::new(), Vec::new());
        Self {
            machine,
            lease_us: 1_000_000,
            wall_us: 1_000_000_000,
            effects,
            changes,
        }
    }

    fn with_limits(limits: Limits) -> Self {
        let mut driver = Self::empty(limits);
        driver.put_queue(1, |_| {});
        driver.register(GROUP, GroupStart::Beginning);
        driver
    }

    /// A queue [`QUEUE`] with the group [`GROUP`].
    fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    fn wait_ms(&mut self, ms: u64) {
        self.lease_us += ms * 1000;
        self.wall_us += ms * 1000;
    }

    fn begin(&mut self) -> Vec<Effect> {
        let stamps = Stamps {
            lease: LeaseTime(self.lease_us),
            wall: WallTime(self.wall_us),
        };
        let effects = self.machine.begin_entry(stamps);
        self.wall_us = self.machine.stamps().wall.0;
        effects
    }

    fn apply(&mut self, command: Command) -> Reply {
        self.effects = self.begin();
        let outcome = self.machine.apply(command);
        self.effects.extend(outcome.effects);
        self.changes = outcome.changes;
        outcome.reply
    }

    /// Applies a command that must change nothing but the stamps.
    #[track_caller]
    fn apply_idle(&mut self, command: Command) -> Reply {
        self.apply(Command::Tick);
        let digest = self.machine.digest();
        let reply = self.machine.apply(command).reply;
        assert_eq!(
            self.machine.digest(),
            digest,
            "changed by a command answered {reply:?}"
        );
        reply
    }

    fn next_version(&self) -> CatalogVersion {
        CatalogVersion(self.machine.catalog_version().0 + 1)
    }

    /// Puts a row of queue `id` whose settings are the configured ones but for `change`.
    fn put_queue(&mut self, id: u64, change: impl FnOnce(&mut QueueSettings)) {
        let version = self.next_version();
        let mut row = queue_row(id, version);
        change(&mut row.settings);
        assert_eq!(
            self.apply(Command::PutQueue(PutQueue { row, version })),
            Reply::CatalogTaken
        );
    }

    fn delete_queue(&mut self, queue: QueueId) {
        let version = self.next_version();
        assert_eq!(
            self.apply(Command::DeleteQueue(DeleteQueue { queue, version })),
            Reply::CatalogTaken
        );
    }

    fn register(&mut self, group: &str, start: GroupStart) {
        self.register_at(QUEUE, group, start, vec![]);
    }

    fn register_at(&mut self, queue: QueueId, group: &str, start: GroupStart, starts: Vec<(LaneId, Offset)>) {
        let version = self.next_version();
        let queue = self
            .machine
            .queue(queue)
            .cloned()
            .unwrap_or_else(|| queue_row(queue.0, version));
        let group = GroupRow {
            name: group.to_owned(),
            start,
            registered: WallTime(5),
            version,
        };
        let register = RegisterGroup { queue, group, starts };
        assert_eq!(self.apply(Command::RegisterGroup(register)), Reply::CatalogTaken);
    }

    /// Pushes `count` messages to a lane of [`QUEUE`].
    fn push(&mut self, lane: &str, count: usize) -> LaneId {
        let items = vec![PushItem::Store; count];
        match self.apply(Command::Push(Push {
            items,
            ..push_to(lane)
        })) {
            Reply::Pushed(pushed) => pushed.lane,
            reply => panic!("{reply:?}"),
        }
    }

    fn claim_with(&mut self, claim: Claim) -> Vec<ClaimedLane> {
        match self.apply(Command::Claim(claim)) {
            Reply::Claimed(claimed) => claimed.lanes,
            reply => panic!("{reply:?}"),
        }
    }

    /// Claims for [`GROUP`] under lease `id`: lanes as (name, first, end, attempt).
    fn claim(&mut self, id: u128, lanes_max: u16, messages_max: u32) -> Vec<(String, u64, u64, u32)> {
        let lanes = self.claim_with(Claim {
            lanes_max,
            messages_max,
            ..claim_by(id)
        });
        let short = |lane: ClaimedLane| (lane.name, lane.offset_first.0, lane.batch_end.0, lane.attempt);
        lanes.into_iter().map(short).collect()
    }

    /// Claims all of one lane.
    #[track_caller]
    fn claim_lane(&mut self, id: u128, lane: LaneId) {
        let lanes = self.claim_with(Claim {
            lane: Some(lane),
            ..claim_by(id)
        });
        assert_eq!(lanes.len(), 1);
    }

    fn ack(&mut self, lane: LaneId, lease: Option<u128>, items: &[(AckStatus, u64)]) -> Acked {
        self.ack_with(ack_of(lane, lease, items))
    }

    fn ack_with(&mut self, ack: Ack) -> Acked {
        match self.apply(Command::Ack(ack)) {
            Reply::Acked(acked) => acked,
            reply => panic!("{reply:?}"),
        }
    }

    /// (cursor, retries used, attempt, consumed) of [`GROUP`].
    fn state(&self, lane: LaneId) -> (u64, u32, u32, u64) {
        let group = self.machine.group(lane, GROUP).unwrap();
        (group.cursor.0, group.retries_used, group.attempt, group.consumed)
    }

    fn is_leased(&self, lane: LaneId) -> bool {
        self.machine.group(lane, GROUP).unwrap().lease.is_some()
    }

    fn claimable(&self) -> bool {
        self.machine.claimable(QUEUE, GROUP, None, self.machine.stamps())
    }
}

fn queue_row(id: u64, version: CatalogVersion) -> QueueRow {
    let settings = QueueSettings::configured();
    let (id, name) = (QueueId(id), format!("queue {id}"));
    QueueRow {
        id,
        name,
        settings,
        version,
        listed: true,
        created: WallTime(7),
    }
}

fn push_to(lane: &str) -> Push {
    let (lane, block) = (lane.to_owned(), Block { at: 0, bytes: 9 });
    Push {
        request: None,
        queue: QUEUE,
        lane,
        rider: None,
        items: vec![],
        block,
    }
}

fn claim_by(id: u128) -> Claim {
    Claim {
        lease_id: LeaseId(id),
        queue: QUEUE,
        group: GROUP.to_owned(),
        lane: None,
        lanes_max: 1,
        messages_max: 1000,
        lease_ms: Some(10_000),
        auto_ack: false,
    }
}

/// An ack whose items each have one candidate.
fn ack_of(lane: LaneId, lease: Option<u128>, items: &[(AckStatus, u64)]) -> Ack {
    Ack {
        request: None,
        lane,
        group: GROUP.to_owned(),
        lease_id: lease.map(LeaseId),
        items_hash: items.iter().fold(1, |hash, item| {
            hash * 1009 + u128::from(item.1) * 4 + item.0 as u128
        }),
        items: items
            .iter()
            .map(|(status, offset)| ack_item(*status, &[*offset]))
            .collect(),
    }
}

fn ack_item(status: AckStatus, candidates: &[u64]) -> AckItem {
    let candidates: Vec<Offset> = candidates.iter().copied().map(Offset).collect();
    let signals = matches!(status, AckStatus::Failed | AckStatus::DeadLetter);
    let transaction_id = signals.then(|| format!("t{}", candidates.first().map_or(0, |offset| offset.0)));
    AckItem {
        status,
        candidates,
        transaction_id,
        error: None,
    }
}

fn request(id: &str, content: u64) -> Option<RequestKey> {
    Some(RequestKey {
        id: id.to_owned(),
        part: 0,
        content,
    })
}

fn ready(group: &str, lane: LaneId) -> Effect {
    Effect::LaneReady {
        queue: QUEUE,
        group: group.to_owned(),
        lane,
    }
}
