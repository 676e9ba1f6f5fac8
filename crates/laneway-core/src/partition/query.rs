//! What planners and the gateway may ask. Lanes and dead letters of deleted queues do not show.

use super::PartitionMachine;
use super::index::{GroupNumber, name_hash};
use crate::dump::{GroupDump, LaneDump, LeaseDump, QueueDump, StateDump};
use crate::ids::{CatalogVersion, DeadLetterId, LaneId, Offset, QueueId};
use crate::reply::DeadLetter;
use crate::rows::{LaneRow, Lease};
use crate::settings::{GroupRow, QueueRow};
use crate::time::{LeaseTime, Stamps, WallTime};

/// A lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneView<'a> {
    /// Its queue.
    pub queue: QueueId,
    /// Its name.
    pub name: &'a str,
    /// First retained offset.
    pub head: Offset,
    /// Next offset to be written.
    pub tail: Offset,
    /// Wall stamp of the newest message.
    pub newest: WallTime,
}

/// A group on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// First offset that it has not settled.
    pub cursor: Offset,
    /// Its lease, if that lives at the last stamps.
    pub lease: Option<Lease>,
    /// Charged failures since the last completed batch or dead letter.
    pub retries_used: u32,
    /// Deliveries of the batch that starts at `attempt_at`.
    pub attempt: u32,
    /// Start of the last delivered batch.
    pub attempt_at: Offset,
    /// Messages settled in all.
    pub consumed: u64,
}

impl PartitionMachine {
    /// All catalog changes up to this one were taken.
    pub fn catalog_version(&self) -> CatalogVersion {
        self.tables.meta.catalog_version
    }

    /// A live queue.
    pub fn queue(&self, id: QueueId) -> Option<&QueueRow> {
        self.tables.queues.get(&id)
    }

    /// Live queues, ascending.
    pub fn queue_ids(&self) -> impl Iterator<Item = QueueId> + '_ {
        self.tables.queues.keys().copied()
    }

    /// Whether the group is registered on a live queue here.
    pub fn has_group(&self, queue: QueueId, group: &str) -> bool {
        self.group_number(queue, group).is_some()
    }

    /// Groups of a live queue, by name.
    pub fn groups_of(&self, queue: QueueId) -> impl Iterator<Item = &GroupRow> + '_ {
        let index = self.index.queues.get(&queue);
        index.into_iter().flat_map(move |index| {
            index
                .order
                .iter()
                .filter_map(move |number| self.tables.groups.get(&(queue, number.0)))
        })
    }

    /// The lane of a live queue with that name.
    pub fn lane_id(&self, queue: QueueId, name: &str) -> Option<LaneId> {
        if !self.index.queues.contains_key(&queue) {
            return None;
        }
        let hash = name_hash(queue, name);
        let same_hash = self
            .index
            .names
            .range((hash, LaneId(0))..)
            .take_while(|entry| entry.0 == hash);
        let mut ids = same_hash.map(|(_, id)| *id);
        ids.find(|id| {
            let lane = &self.tables.lanes[id];
            lane.queue == queue && *lane.name == *name
        })
    }

    /// A lane of a live queue.
    pub fn lane(&self, id: LaneId) -> Option<LaneView<'_>> {
        self.live_lane(id).map(view)
    }

    /// The lanes of a live queue, ascending.
    pub fn lanes_of(&self, queue: QueueId) -> impl Iterator<Item = (LaneId, LaneView<'_>)> + '_ {
        let index = self.index.queues.get(&queue);
        index
            .into_iter()
            .flat_map(|index| index.lanes.iter().map(|id| (*id, view(&self.tables.lanes[id]))))
    }

    /// A registered group on a lane.
    pub fn group(&self, lane: LaneId, group: &str) -> Option<GroupView> {
        let lane = self.live_lane(lane)?;
        let number = self.group_number(lane.queue, group)?;
        let state = &lane.groups[number.at()];
        Some(GroupView {
            cursor: state.cursor,
            lease: state.live_lease(self.now()),
            retries_used: state.retries_used,
            attempt: state.attempt,
            attempt_at: state.attempt_at,
            consumed: state.consumed,
        })
    }

    /// Whether a claim in an entry stamped `now` would find something.
    ///
    /// Costs up to [`super::Limits::expire_max`] steps when leases have lapsed or lanes have ripened since the last entry.
    pub fn claimable(&self, queue: QueueId, group: &str, lane: Option<LaneId>, now: Stamps) -> bool {
        let Some(number) = self.group_number(queue, group) else {
            return false;
        };
        let last = self.stamps();
        let now = Stamps {
            lease: now.lease.max(last.lease),
            wall: now.wall.max(WallTime(last.wall.0.saturating_add(1))),
        };
        let finds = |lane: LaneId| {
            let row = self.live_lane(lane).filter(|row| row.queue == queue);
            row.is_some_and(|row| self.deliverable(row, number, now).is_some())
        };
        if let Some(lane) = lane {
            return finds(lane);
        }
        let sweep_max = usize::try_from(self.limits.expire_max).unwrap_or(usize::MAX);
        let lapsed = self
            .index
            .deadlines
            .iter()
            .take_while(|entry| entry.0 <= now.lease)
            .take(sweep_max);
        let ripe = self
            .index
            .ripenings
            .iter()
            .take_while(|entry| entry.0 <= now.wall)
            .take(sweep_max);
        !self.index.queues[&queue].groups[number.at()].ready.is_empty()
            || lapsed
                .filter(|entry| entry.2 == number)
                .any(|entry| finds(entry.1))
            || ripe.filter(|entry| entry.2 == number).any(|entry| finds(entry.1))
    }

    /// How many messages a claim by `group` could take of a lane at the last stamps.
    pub fn deliverable_messages(&self, lane: LaneId, group: &str) -> u64 {
        let Some(row) = self.live_lane(lane) else { return 0 };
        let Some(number) = self.group_number(row.queue, group) else {
            return 0;
        };
        self.deliverable(row, number, self.stamps())
            .map_or(0, |(from, end)| end.0 - from.0)
    }

    /// The earliest deadline of a lease, lapsed or not: while there is one, entries must keep coming.
    pub fn next_lease_deadline(&self) -> Option<LeaseTime> {
        self.index
            .deadlines
            .iter()
            .find(|entry| self.live_lane(entry.1).is_some())
            .map(|entry| entry.0)
    }

    /// When the next lane that is held back ripens; may have passed already.
    pub fn next_ripening(&self) -> Option<WallTime> {
        self.index
            .ripenings
            .iter()
            .find(|entry| self.live_lane(entry.1).is_some())
            .map(|entry| entry.0)
    }

    /// A dead letter of a live queue.
    pub fn dead_letter(&self, id: DeadLetterId) -> Option<&DeadLetter> {
        self.tables
            .dead_letters
            .get(&id)
            .filter(|row| self.index.queues.contains_key(&row.queue))
    }

    /// Dead letters, of one live queue or of all, by id, which is the order of their filing.
    pub fn dead_letters(&self, queue: Option<QueueId>) -> impl DoubleEndedIterator<Item = &DeadLetter> + '_ {
        let all = queue.is_none().then(|| self.tables.dead_letters.values());
        let all = all
            .into_iter()
            .flatten()
            .filter(|row| self.index.queues.contains_key(&row.queue));
        let index = queue.and_then(|queue| self.index.queues.get(&queue));
        let of_queue = index.into_iter().flat_map(|index| &index.dead_letters);
        all.chain(of_queue.map(|id| &self.tables.dead_letters[id]))
    }

    /// Dead letters of a lane of a live queue, by offset, then id.
    pub fn dead_letters_of_lane(&self, lane: LaneId) -> impl Iterator<Item = &DeadLetter> + '_ {
        let live = self.live_lane(lane).map(|_| {
            let first = (lane, Offset(0), DeadLetterId(0));
            self.index
                .pins
                .range(first..=(lane, Offset(u64::MAX), DeadLetterId(u64::MAX)))
        });
        live.into_iter()
            .flatten()
            .map(|pin| &self.tables.dead_letters[&pin.2])
    }

    /// Offsets of live lanes that dead letters hold, ascending; one that several hold comes several times.
    pub fn pins(&self) -> impl Iterator<Item = (LaneId, Offset)> + '_ {
        self.index.pins.iter().map(|pin| (pin.0, pin.1))
    }

    /// Every lane with its head, ascending, those that await a sweep included: what stores must still know of.
    pub fn heads(&self) -> impl Iterator<Item = (LaneId, Offset)> + '_ {
        self.tables.lanes.iter().map(|(id, lane)| (*id, lane.head))
    }

    /// Everything that a client can observe.
    pub fn dump(&self) -> StateDump {
        let queues = self.tables.queues.values().map(|row| QueueDump {
            row: row.clone(),
            groups: self.groups_of(row.id).cloned().collect(),
        });
        let live = self
            .tables
            .lanes
            .iter()
            .filter(|(_, lane)| self.index.queues.contains_key(&lane.queue));
        StateDump {
            stamps: self.stamps(),
            catalog_version: self.catalog_version(),
            queues: queues.collect(),
            lanes: live.map(|(id, lane)| self.dump_lane(*id, lane)).collect(),
            dead_letters: self.dead_letters(None).cloned().collect(),
        }
    }

    fn dump_lane(&self, id: LaneId, lane: &LaneRow) -> LaneDump {
        let groups = self.index.queues[&lane.queue]
            .by_name
            .iter()
            .map(|(name, number)| {
                let state = &lane.groups[number.at()];
                GroupDump {
                    name: name.clone(),
                    cursor: state.cursor,
                    lease: state.live_lease(self.now()).map(|lease| LeaseDump {
                        id: lease.id,
                        batch_end: lease.batch_end,
                        deadline: lease.deadline,
                    }),
                    retries_used: state.retries_used,
                    attempt: state.attempt,
                    attempt_at: state.attempt_at,
                    consumed: state.consumed,
                }
            });
        LaneDump {
            id,
            queue: lane.queue,
            name: lane.name.to_string(),
            head: lane.head,
            tail: lane.tail,
            groups: groups.collect(),
        }
    }

    fn group_number(&self, queue: QueueId, group: &str) -> Option<GroupNumber> {
        self.index.queues.get(&queue)?.by_name.get(group).copied()
    }
}

fn view(lane: &LaneRow) -> LaneView<'_> {
    LaneView {
        queue: lane.queue,
        name: &lane.name,
        head: lane.head,
        tail: lane.tail,
        newest: lane.newest,
    }
}
