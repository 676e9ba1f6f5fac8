//! Random commands: two machines given the same log must answer alike, though one of them is restored from checkpoints
//! again and again; and what is derived must always agree with the rows.

use std::collections::BTreeMap;

use super::super::index::{GroupNumber, Index};
use super::checkpoint::{cut, restore};
use super::*;
use crate::rows::Standing;

const QUEUES: u64 = 3;
const GROUPS: [&str; 3] = ["g", "a", QUEUE_MODE_GROUP];
const LANES: [&str; 5] = ["a", "b", "c", "Default", "ü"];

struct Random(u64);

impl Random {
    /// splitmix64
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, odds: u64) -> bool {
        self.below(odds) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        let at = self.below(from.len() as u64);
        from[usize::try_from(at).unwrap()].clone()
    }
}

struct Fuzz {
    random: Random,
    stamps: Stamps,
    version: u64,
    lease_next: u128,
    leases: Vec<(LeaseId, LaneId)>,
    lanes: Vec<LaneId>,
    /// Ids of the incarnations now in use.
    queues: Vec<u64>,
    expire_max: u32,
}

impl Fuzz {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let expire_max = random.pick(&[1, 3, 1000]);
        Self {
            random,
            stamps: Stamps {
                lease: LeaseTime(1),
                wall: WallTime(1),
            },
            version: 0,
            lease_next: 1,
            leases: vec![(LeaseId(0), LaneId(0))],
            lanes: vec![LaneId(0)],
            queues: (1..=QUEUES).collect(),
            expire_max,
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            lanes_max: 12,
            kept_answers_max: 4,
            kept_answer_ms: 700,
            expire_max: self.expire_max,
        }
    }

    fn queue(&mut self) -> QueueId {
        QueueId(self.random.pick(&self.queues.clone()))
    }

    fn row(&mut self) -> QueueRow {
        let version = CatalogVersion(self.version.saturating_sub(self.random.below(3)));
        let mut row = queue_row(self.queue().0, version);
        let settings = &mut row.settings;
        settings.retry_limit = u32::try_from(self.random.below(3)).unwrap();
        settings.lease_seconds = 1 + self.random.below(2);
        settings.dead_letter_queue = self.random.one_in(2);
        settings.dlq_after_max_retries = false;
        settings.dedup_window_seconds = self.random.below(2);
        if self.random.one_in(2) {
            settings.delayed_processing_seconds = self.random.below(3);
            settings.window_buffer_seconds = self.random.below(3) * self.random.below(2);
        }
        row
    }

    fn next_version(&mut self) -> CatalogVersion {
        self.version += self.random.pick(&[0, 1, 1, 1, 2]);
        CatalogVersion(self.version)
    }

    fn request(&mut self) -> Option<RequestKey> {
        let id = self.random.pick(&["r", "s", "t", "u"]);
        let content = self.random.below(2);
        self.random.one_in(4).then(|| request(id, content)).flatten()
    }

    fn lane(&mut self) -> LaneId {
        self.random.pick(&self.lanes.clone())
    }

    fn push(&mut self) -> Command {
        let count = self.random.below(4);
        let items = (0..count).map(|_| match self.random.below(8) {
            0 => PushItem::DuplicateOf {
                offset: Offset(self.random.below(6)),
                wall: WallTime(1),
            },
            1 => PushItem::DuplicateOfItem(u32::try_from(self.random.below(3)).unwrap()),
            _ => PushItem::Store,
        });
        let items = items.collect();
        let rider = self.random.one_in(5).then(|| self.row());
        let (queue, request) = (self.queue(), self.request());
        let lane = self.random.pick(&LANES);
        Command::Push(Push {
            queue,
            rider,
            items,
            request,
            ..push_to(lane)
        })
    }

    fn claim(&mut self) -> Command {
        let lane = self.lane();
        self.lease_next += 1;
        Command::Claim(Claim {
            lease_id: LeaseId(self.lease_next),
            queue: self.queue(),
            group: self.random.pick(&GROUPS).to_owned(),
            lane: self.random.one_in(3).then_some(lane),
            lanes_max: u16::try_from(self.random.below(4)).unwrap(),
            messages_max: u32::try_from(self.random.below(6)).unwrap(),
            lease_ms: self.random.one_in(2).then(|| self.random.below(3_000)),
            auto_ack: self.random.one_in(4),
        })
    }

    fn ack(&mut self) -> Command {
        let (lease, lane) = self.random.pick(&self.leases.clone());
        let all = [
            AckStatus::Completed,
            AckStatus::Retry,
            AckStatus::Failed,
            AckStatus::DeadLetter,
        ];
        let count = 1 + self.random.below(3);
        let items: Vec<AckItem> = (0..count)
            .map(|_| {
                let candidates: Vec<u64> = (0..self.random.below(3)).map(|_| self.random.below(12)).collect();
                let status = if self.random.one_in(2) {
                    AckStatus::Completed
                } else {
                    self.random.pick(&all)
                };
                ack_item(status, &candidates)
            })
            .collect();
        Command::Ack(Ack {
            request: self.request(),
            lane: if self.random.one_in(6) { self.lane() } else { lane },
            group: self.random.pick(&GROUPS).to_owned(),
            lease_id: (!self.random.one_in(4)).then_some(lease),
            items_hash: self.random.below(3).into(),
            items,
        })
    }

    fn release(&mut self) -> Command {
        let (lease_id, lane) = self.random.pick(&self.leases.clone());
        let end = self.random.one_in(2).then(|| Offset(self.random.below(8)));
        Command::ReleaseClaim(ReleaseClaim {
            lease_id,
            lanes: vec![(lane, end)],
        })
    }

    fn dead_letter(&mut self) -> Command {
        let id = DeadLetterId::new(PARTITION, self.random.below(20));
        let request = self.request();
        if self.random.one_in(2) {
            return Command::DeleteDeadLetter(DeleteDeadLetter { request, id });
        }
        Command::ReplayDeadLetter(ReplayDeadLetter {
            request,
            id,
            block: Block::default(),
        })
    }

    fn catalog(&mut self) -> Command {
        let version = self.next_version();
        match self.random.below(8) {
            0 => {
                let at = self.random.below(QUEUES);
                let next = self.queues.iter().max().unwrap() + 1;
                let old = std::mem::replace(&mut self.queues[usize::try_from(at).unwrap()], next);
                Command::DeleteQueue(DeleteQueue {
                    queue: QueueId(old),
                    version,
                })
            }
            1..4 => Command::PutQueue(PutQueue {
                row: self.row(),
                version,
            }),
            _ => {
                let at = GroupStart::At(WallTime(self.stamps.wall.0 + self.random.below(2_000_000)));
                let start = self
                    .random
                    .pick(&[GroupStart::Beginning, GroupStart::Registration, at]);
                let name = self.random.pick(&GROUPS).to_owned();
                let group = GroupRow {
                    name,
                    start,
                    registered: WallTime(1),
                    version,
                };
                let starts = vec![(self.lane(), Offset(self.random.below(9)))];
                Command::RegisterGroup(RegisterGroup {
                    queue: self.row(),
                    group,
                    starts,
                })
            }
        }
    }

    fn command(&mut self) -> Command {
        match self.random.below(24) {
            0..7 => self.push(),
            7..12 => self.claim(),
            12..17 => self.ack(),
            17 => self.release(),
            18 => self.dead_letter(),
            19 | 20 => self.catalog(),
            21 => {
                let (lease_id, _) = self.random.pick(&self.leases.clone());
                let lease_ms = self.random.below(3_000);
                Command::Extend(Extend {
                    request: self.request(),
                    lease_id,
                    lease_ms,
                })
            }
            22 => Command::Sweep(Sweep {
                rows_max: u32::try_from(self.random.below(3)).unwrap(),
            }),
            _ => Command::Trim(Trim {
                queue: self.queue(),
                completed_only: self.random.one_in(2),
                lanes: vec![(self.lane(), Offset(self.random.below(8)))],
            }),
        }
    }

    fn tick(&mut self) -> Stamps {
        self.stamps.lease.0 += self.random.below(400_000);
        self.stamps.wall.0 += self.random.below(400_000);
        if self.random.one_in(20) {
            self.stamps.wall.0 -= self.stamps.wall.0 / 2;
        }
        self.stamps
    }

    fn learn(&mut self, reply: &Reply) {
        match reply {
            Reply::Pushed(pushed) => self.lanes.push(pushed.lane),
            Reply::Claimed(claimed) => {
                self.leases
                    .extend(claimed.lanes.iter().map(|lane| (claimed.lease_id, lane.lane)));
            }
            _ => {}
        }
        let keep = self.leases.len().saturating_sub(6);
        self.leases.drain(..keep);
        let keep = self.lanes.len().saturating_sub(12);
        self.lanes.drain(..keep);
    }
}

/// One entry of one or two commands on both machines.
fn entry(fuzz: &mut Fuzz, machine: &mut PartitionMachine, twin: &mut PartitionMachine) {
    let stamps = fuzz.tick();
    assert_eq!(machine.begin_entry(stamps), twin.begin_entry(stamps));
    for _ in 0..=fuzz.random.below(2) {
        let command = fuzz.command();
        let foreseen = foresee(machine, &command);
        let outcome = machine.apply(command.clone());
        assert_eq!(outcome, twin.apply(command.clone()), "{command:?}");
        if let (Some(foreseen), Reply::Claimed(claimed)) = (foreseen, &outcome.reply) {
            assert_eq!(foreseen, !claimed.lanes.is_empty(), "{command:?}");
        }
        fuzz.learn(&outcome.reply);
        check_derived(machine);
    }
}

/// What `claimable` says of a claim now, when the sweep of this entry was not cut short.
fn foresee(machine: &PartitionMachine, command: &Command) -> Option<bool> {
    let Command::Claim(claim) = command else {
        return None;
    };
    let asks = claim.lanes_max > 0 && claim.messages_max > 0;
    let at_rest = machine
        .next_lease_deadline()
        .is_none_or(|deadline| deadline > machine.now())
        && machine
            .next_ripening()
            .is_none_or(|until| until.0 > machine.wall().0 + 1);
    (asks && at_rest).then(|| machine.claimable(claim.queue, &claim.group, claim.lane, machine.stamps()))
}

/// Compares everything derived with what a load would derive, and standings with their definition.
fn check_derived(machine: &PartitionMachine) {
    for lane in machine
        .tables
        .lanes
        .values()
        .filter(|lane| machine.index.queues.contains_key(&lane.queue))
    {
        for (number, state) in (0..).map(GroupNumber).zip(&lane.groups) {
            let swept = state.lease.is_none();
            let deliverable = machine.deliverable(lane, number, machine.stamps()).is_some();
            match state.standing {
                Standing::Ready(_) => assert!(swept && deliverable, "{lane:?}"),
                Standing::Held(until) => {
                    assert!(swept && deliverable == (until <= machine.wall()), "{lane:?}")
                }
                Standing::Idle => assert!(!swept || !deliverable, "{lane:?}"),
            }
            assert!(lane.head <= lane.tail && state.cursor <= lane.tail);
        }
    }
}

/// The index without what a load leaves out: times and groups of deleted queues.
fn comparable(machine: &PartitionMachine) -> Index {
    let mut index = machine.index.clone();
    let live: BTreeMap<LaneId, bool> = machine
        .tables
        .lanes
        .iter()
        .map(|(id, lane)| (*id, index.queues.contains_key(&lane.queue)))
        .collect();
    index.deadlines.retain(|entry| live[&entry.1]);
    index.leases.retain(|entry| live[&entry.1]);
    index.ripenings.retain(|entry| live[&entry.1]);
    for dead in index.dead.values_mut() {
        dead.groups.clear();
        dead.by_name.clear();
        dead.order = std::sync::Arc::default();
        dead.queue_mode = None;
        dead.sums = Default::default();
    }
    index
}

fn run(seed: u64, entries: u32) {
    let mut fuzz = Fuzz::new(seed);
    let mut machine = PartitionMachine::new(PARTITION, fuzz.limits());
    let mut twin = PartitionMachine::new(PARTITION, fuzz.limits());
    let mut rows = BTreeMap::new();
    for at in 0..entries {
        entry(&mut fuzz, &mut machine, &mut twin);
        if !fuzz.random.one_in(5) {
            continue;
        }
        if fuzz.random.one_in(4) {
            machine.begin_checkpoint(fuzz.random.one_in(2));
            machine.checkpoint_step(1 + usize::try_from(fuzz.random.below(30)).unwrap());
            entry(&mut fuzz, &mut machine, &mut twin);
            machine.abandon_checkpoint();
        }
        let digest = machine.digest();
        let dump = machine.dump();
        let index = comparable(&machine);
        let full = rows.is_empty() || fuzz.random.one_in(6);
        let rows_max = 1 + usize::try_from(fuzz.random.below(8)).unwrap();
        cut(&mut machine, full, rows_max, &mut rows, &mut |machine| {
            if fuzz.random.one_in(3) {
                entry(&mut fuzz, machine, &mut twin);
            }
        });
        let restored = restore(&rows, fuzz.limits()).unwrap();
        assert_eq!(restored.digest(), digest, "seed {seed}, entry {at}");
        assert_eq!(restored.dump(), dump);
        assert_eq!(comparable(&restored), index);
        if machine.digest() == digest {
            twin = restored;
        }
    }
    assert_eq!(machine.digest(), twin.digest());
}

#[test]
fn random_logs_restore_at_any_step() {
    for seed in 0..24 {
        run(seed, 300);
    }
}
