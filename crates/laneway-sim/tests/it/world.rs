//! Turns acts into commands, playing leader, catalog and clients.

use std::collections::BTreeMap;

use laneway_core::command::{
    Ack, AckItem, Block, Claim, Command, DeleteDeadLetter, DeleteQueue, Extend, Push, PushItem, PutQueue,
    RegisterGroup, ReleaseClaim, ReplayDeadLetter, RequestKey, Sweep, Trim,
};
use laneway_core::dump::{LaneDump, StateDump};
use laneway_core::ids::{CatalogVersion, DeadLetterId, LaneId, LeaseId, Offset, PartitionId, QueueId};
use laneway_core::reply::Reply;
use laneway_core::settings::{GroupRow, GroupStart, QueueRow, QueueSettings};
use laneway_core::time::{Stamps, WallTime};

use crate::commands::{Act, Item, LeaseChoice, Pick, Request, Rider, Settings, Signal, Start, Target};

const QUEUES: usize = 2;
const GROUPS: [&str; 3] = ["__QUEUE_MODE__", "b", "c"];
const LANES: [&str; 5] = ["v", "w", "x", "y", "z"];

/// What leader, catalog and clients remember.
#[derive(Default)]
pub(crate) struct World {
    version: u64,
    rows: BTreeMap<usize, QueueRow>,
    old_rows: Vec<QueueRow>,
    catalog_changes: Vec<Command>,
    /// Has reached the machine at most as a rider so far.
    withheld: Option<Command>,
    leases: Vec<(LeaseId, Vec<LaneId>)>,
    acks: Vec<Ack>,
    letters: Vec<DeadLetterId>,
    lanes_seen: Vec<LaneId>,
    items_hash: u128,
}

fn pick<T: Clone>(from: &[T], at: Pick) -> Option<T> {
    if from.is_empty() {
        None
    } else {
        Some(from[usize::from(at) % from.len()].clone())
    }
}

fn request_key(request: Option<Request>) -> Option<RequestKey> {
    let request = request?;
    Some(RequestKey {
        id: format!("r{}", request.id),
        part: u32::from(request.part),
        content: u64::from(request.content),
    })
}

/// The leader's clocks, so far from the last stamps.
pub(crate) fn given(last: Stamps, lease_ms: i64, wall_ms: i64) -> Stamps {
    let mut stamps = last;
    stamps.lease.0 = stamps.lease.0.saturating_add_signed(lease_ms * 1000);
    stamps.wall.0 = stamps.wall.0.saturating_add_signed(wall_ms * 1000);
    stamps
}

impl World {
    /// Two queues, one with two groups, so that most acts find something.
    pub(crate) fn opening(&mut self) -> Vec<Command> {
        let mut commands: Vec<_> = (0..QUEUES)
            .map(|at| self.put(at, QueueSettings::implicit("q")))
            .collect();
        for group in &GROUPS[..2] {
            commands.push(self.register(0, group, GroupStart::Beginning, Vec::new()));
        }
        commands
    }

    /// The command for an act as things are; `None` when there is nothing to do it to.
    pub(crate) fn command(&mut self, act: &Act, dump: &StateDump) -> Option<Command> {
        match act.clone() {
            Act::Push {
                queue,
                lane,
                items,
                rider,
                request,
            } => self.push(queue, lane, &items, rider, request),
            Act::Claim { .. } => self.claim(act, dump),
            Act::Ack {
                at,
                lease,
                items,
                request,
            } => self.ack(at, lease, &items, request, dump),
            Act::AckAgain { which, request } => {
                let ack = pick(&self.acks, which)?;
                Some(Command::Ack(Ack {
                    request: request_key(request),
                    ..ack
                }))
            }
            Act::Extend {
                lease,
                lease_ms,
                request,
            } => {
                let (request, lease_id) = (request_key(request), self.recent_lease(lease)?.0);
                Some(Command::Extend(Extend {
                    request,
                    lease_id,
                    lease_ms,
                }))
            }
            Act::Release { lease, ends } => self.release(lease, &ends, dump),
            Act::Replay { letter, request } => {
                let (request, id) = (request_key(request), pick(&self.letters, letter)?);
                let block = Block { at: 3, bytes: 5 };
                Some(Command::ReplayDeadLetter(ReplayDeadLetter { request, id, block }))
            }
            Act::DeleteLetter { letter, request } => {
                let (request, id) = (request_key(request), pick(&self.letters, letter)?);
                Some(Command::DeleteDeadLetter(DeleteDeadLetter { request, id }))
            }
            Act::TrimLeased { at, count } => {
                let (id, group) = self.ack_target(Target::Leased(at), dump)?;
                let lane = dump.lanes.iter().find(|lane| lane.id == id)?;
                let cursor = lane.groups.iter().find(|state| state.name == group)?.cursor;
                Some(Command::Trim(Trim {
                    queue: lane.queue,
                    completed_only: false,
                    lanes: vec![(id, cursor.plus(u64::from(count)))],
                }))
            }
            Act::Tick => Some(Command::Tick),
            act => self.catalog_command(act, dump),
        }
    }

    fn catalog_command(&mut self, act: Act, dump: &StateDump) -> Option<Command> {
        let is_change = matches!(
            act,
            Act::Configure { .. } | Act::DeleteQueue { .. } | Act::Register { .. }
        );
        // Changes come in the catalog's order: no later one before the one withheld.
        if is_change && let Some(late) = self.withheld.take() {
            return Some(late);
        }
        match act {
            Act::Configure {
                queue,
                settings,
                withheld,
            } => {
                let command = self.put(usize::from(queue) % QUEUES, settings_of(settings));
                if withheld {
                    self.withheld = Some(command);
                    return None;
                }
                Some(command)
            }
            Act::DeleteQueue { queue } => self.delete_queue(queue),
            Act::Register {
                queue,
                group,
                start,
                starts,
            } => {
                // A plan names each lane once.
                let starts: BTreeMap<LaneId, Offset> = self.lanes_at(&starts).into_iter().collect();
                let group = GROUPS[usize::from(group) % GROUPS.len()];
                Some(self.register(queue, group, start_of(start, dump), starts.into_iter().collect()))
            }
            Act::CatalogAgain { which } => pick(&self.catalog_changes, which),
            Act::Sweep { rows } => Some(Command::Sweep(Sweep {
                rows_max: u32::from(rows),
            })),
            Act::Trim {
                queue,
                completed_only,
                lanes,
            } => {
                let queue = self.queue_id(queue)?;
                Some(Command::Trim(Trim {
                    queue,
                    completed_only,
                    lanes: self.lanes_at(&lanes),
                }))
            }
            _ => None,
        }
    }

    /// Learns what a command gave.
    pub(crate) fn saw(&mut self, reply: &Reply, dump: &StateDump) {
        if let Reply::Claimed(claimed) = reply
            && !claimed.lanes.is_empty()
        {
            self.leases.push((
                claimed.lease_id,
                claimed.lanes.iter().map(|lane| lane.lane).collect(),
            ));
        }
        for lane in &dump.lanes {
            if !self.lanes_seen.contains(&lane.id) {
                self.lanes_seen.push(lane.id);
            }
        }
        for row in &dump.dead_letters {
            if !self.letters.contains(&row.id) {
                self.letters.push(row.id);
            }
        }
    }

    fn push(
        &mut self,
        queue: Pick,
        lane: Pick,
        items: &[Item],
        rider: Rider,
        request: Option<Request>,
    ) -> Option<Command> {
        let id = self.queue_id(queue)?;
        let items = items.iter().map(|item| match *item {
            Item::Store => PushItem::Store,
            Item::Duplicate { offset } => PushItem::DuplicateOf {
                offset: Offset(u64::from(offset)),
                wall: WallTime(77),
            },
            Item::Repeat(item) => PushItem::DuplicateOfItem(u32::from(item)),
        });
        let of_queue = |rows: &[QueueRow]| {
            rows.iter()
                .filter(|row| row.id == id)
                .cloned()
                .collect::<Vec<_>>()
        };
        let rider = match rider {
            Rider::None => None,
            // Of a deleted queue, what a client that has not heard of it would send.
            Rider::Newest => of_queue(&self.old_rows).pop(),
            Rider::Older(at) => pick(&of_queue(&self.old_rows), at),
        };
        Some(Command::Push(Push {
            request: request_key(request),
            queue: id,
            lane: LANES[usize::from(lane) % LANES.len()].to_owned(),
            rider,
            items: items.collect(),
            block: Block { at: 1, bytes: 2 },
        }))
    }

    fn claim(&mut self, act: &Act, dump: &StateDump) -> Option<Command> {
        let Act::Claim {
            queue,
            group,
            lane,
            lanes,
            messages,
            lease_ms,
            auto_ack,
        } = act.clone()
        else {
            return None;
        };
        let queue = self.queue_id(queue)?;
        let groups = dump
            .queues
            .iter()
            .find(|at| at.row.id == queue)
            .map(|at| at.groups.as_slice());
        // One claim in eight names a group that may not be registered.
        let known = groups
            .filter(|_| group % 8 != 0)
            .and_then(|groups| pick(groups, group / 8));
        let group = known.map_or_else(
            || GROUPS[usize::from(group) % GROUPS.len()].to_owned(),
            |row| row.name,
        );
        let minted = u64::try_from(self.leases.len()).expect("few");
        let lease_id = LeaseId::new(dump.stamps.wall, PartitionId(1), minted);
        Some(Command::Claim(Claim {
            lease_id,
            queue,
            group,
            lane: lane.and_then(|at| pick(&self.lanes_seen, at)),
            lanes_max: u16::from(lanes),
            messages_max: u32::from(messages),
            lease_ms,
            auto_ack,
        }))
    }

    fn ack(
        &mut self,
        at: Target,
        lease: LeaseChoice,
        items: &[Signal],
        request: Option<Request>,
        dump: &StateDump,
    ) -> Option<Command> {
        let (lane, group) = self.ack_target(at, dump)?;
        let state = dump.lanes.iter().find(|at| at.id == lane);
        let state = state.and_then(|lane| lane.groups.iter().find(|at| at.name == group));
        let live = state.and_then(|state| state.lease.as_ref()).map(|lease| lease.id);
        let of_lane = self
            .leases
            .iter()
            .rev()
            .find(|(_, lanes)| lanes.contains(&lane))
            .map(|(id, _)| *id);
        let lease_id = match lease {
            LeaseChoice::Own => live.or(of_lane),
            LeaseChoice::Bare => None,
            LeaseChoice::Other(at) => self.recent_lease(at).map(|(id, _)| id),
        };
        let cursor = state.map_or(0, |state| state.cursor.0);
        let items = items
            .iter()
            .enumerate()
            .map(|(at, signal)| ack_item(at, signal, cursor))
            .collect();
        self.items_hash += 1;
        let ack = Ack {
            request: request_key(request),
            lane,
            group,
            lease_id,
            items_hash: self.items_hash,
            items,
        };
        self.acks.push(ack.clone());
        Some(Command::Ack(ack))
    }

    fn ack_target(&self, at: Target, dump: &StateDump) -> Option<(LaneId, String)> {
        let leased = |lane: &LaneDump| -> Vec<(LaneId, String)> {
            let held = lane.groups.iter().filter(|group| group.lease.is_some());
            held.map(|group| (lane.id, group.name.clone())).collect()
        };
        match at {
            Target::Leased(at) => pick(&dump.lanes.iter().flat_map(leased).collect::<Vec<_>>(), at),
            Target::Any { lane, group } => Some((
                pick(&self.lanes_seen, lane)?,
                GROUPS[usize::from(group) % GROUPS.len()].to_owned(),
            )),
            Target::DeadLane(at) => {
                let dead = |id: &&LaneId| dump.lanes.iter().all(|lane| lane.id != **id);
                let dead: Vec<LaneId> = self.lanes_seen.iter().filter(dead).copied().collect();
                Some((pick(&dead, at).unwrap_or(LaneId(5)), GROUPS[0].to_owned()))
            }
        }
    }

    fn release(&mut self, lease: Pick, ends: &[(Pick, Option<i8>)], dump: &StateDump) -> Option<Command> {
        let (lease_id, lanes) = self.recent_lease(lease)?;
        let mut named = Vec::new();
        for (at, end) in ends {
            let lane = if *at < 200 {
                pick(&lanes, *at)?
            } else {
                pick(&self.lanes_seen, *at)?
            };
            let groups = dump
                .lanes
                .iter()
                .find(|dump| dump.id == lane)
                .map(|lane| lane.groups.as_slice());
            let held = groups
                .unwrap_or_default()
                .iter()
                .find(|group| group.lease.as_ref().is_some_and(|lease| lease.id == lease_id));
            let cursor = held.map_or(0, |group| group.cursor.0);
            named.push((
                lane,
                end.map(|end| Offset(cursor.saturating_add_signed(i64::from(end)))),
            ));
        }
        Some(Command::ReleaseClaim(ReleaseClaim {
            lease_id,
            lanes: named,
        }))
    }

    fn put(&mut self, at: usize, settings: QueueSettings) -> Command {
        self.version += 1;
        let version = CatalogVersion(self.version);
        let name = format!("q{at}");
        let row = match self.rows.get(&at) {
            Some(row) => QueueRow {
                settings,
                version,
                ..row.clone()
            },
            None => QueueRow {
                id: QueueId(self.version),
                name,
                settings,
                version,
                listed: true,
                created: WallTime(self.version),
            },
        };
        self.rows.insert(at, row.clone());
        self.old_rows.push(row.clone());
        self.change(Command::PutQueue(PutQueue { row, version }))
    }

    fn delete_queue(&mut self, queue: Pick) -> Option<Command> {
        let id = self.queue_id(queue)?;
        self.version += 1;
        self.rows.retain(|_, row| row.id != id);
        Some(self.change(Command::DeleteQueue(DeleteQueue {
            queue: id,
            version: CatalogVersion(self.version),
        })))
    }

    fn register(
        &mut self,
        queue: Pick,
        group: &str,
        start: GroupStart,
        starts: Vec<(LaneId, Offset)>,
    ) -> Command {
        let at = usize::from(queue) % QUEUES;
        if !self.rows.contains_key(&at) {
            return self.put(at, QueueSettings::implicit("q"));
        }
        self.version += 1;
        let version = CatalogVersion(self.version);
        let group = GroupRow {
            name: group.to_owned(),
            start,
            registered: WallTime(self.version),
            version,
        };
        let queue = self.rows[&at].clone();
        self.change(Command::RegisterGroup(RegisterGroup { queue, group, starts }))
    }

    fn change(&mut self, command: Command) -> Command {
        self.catalog_changes.push(command.clone());
        command
    }

    /// Mostly a live queue; now and then any incarnation that ever was, or one that never was.
    fn queue_id(&self, at: Pick) -> Option<QueueId> {
        match at {
            0..=150 => self.rows.get(&0).map(|row| row.id),
            151..=235 => self.rows.get(&1).map(|row| row.id),
            236..=253 => pick(&self.old_rows, at).map(|row| row.id),
            254..=255 => Some(QueueId(1_000_000)),
        }
    }

    /// One of the last few leases.
    fn recent_lease(&self, at: Pick) -> Option<(LeaseId, Vec<LaneId>)> {
        let from = self.leases.len().saturating_sub(4);
        pick(&self.leases[from..], at)
    }

    fn lanes_at(&self, lanes: &[(Pick, u8)]) -> Vec<(LaneId, Offset)> {
        let lane =
            |(at, offset): &(Pick, u8)| Some((pick(&self.lanes_seen, *at)?, Offset(u64::from(*offset))));
        lanes.iter().filter_map(lane).collect()
    }
}

fn ack_item(at: usize, signal: &Signal, cursor: u64) -> AckItem {
    let candidates = signal
        .candidates
        .iter()
        .filter_map(|by| cursor.checked_add_signed(i64::from(*by)));
    let mut candidates: Vec<Offset> = candidates.map(Offset).collect();
    candidates.sort();
    candidates.dedup();
    AckItem {
        status: signal.status,
        candidates,
        transaction_id: signal.error.then(|| format!("t{at}")),
        error: signal.error.then(|| format!("e{at}")),
    }
}

fn start_of(start: Start, dump: &StateDump) -> GroupStart {
    match start {
        Start::Beginning => GroupStart::Beginning,
        Start::Registration => GroupStart::Registration,
        Start::At(seconds) => {
            let by = i64::from(seconds) * 1_000_000;
            GroupStart::At(WallTime(dump.stamps.wall.0.saturating_add_signed(by)))
        }
    }
}

fn settings_of(settings: Settings) -> QueueSettings {
    QueueSettings {
        lease_seconds: u64::from(settings.lease_seconds),
        retry_limit: u32::from(settings.retry_limit),
        dead_letter_queue: settings.dead_letter_queue,
        dlq_after_max_retries: settings.dlq_after_max_retries,
        delayed_processing_seconds: u64::from(settings.delay),
        window_buffer_seconds: u64::from(settings.window),
        dedup_window_seconds: if settings.dedup { 3600 } else { 0 },
        ..QueueSettings::configured()
    }
}
