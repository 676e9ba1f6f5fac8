//! The machine of one partition: lanes, leases, cursors, retry budgets and dead letters.
//!
//! An entry of the log is applied as [`PartitionMachine::begin_entry`] with its stamps, then
//! [`PartitionMachine::apply`] for each command.
//!
//! **Invariants.** `head <= tail` and `cursor <= tail`; at most one lease per (lane, group); a lane stands in the ready
//! order of a group exactly if it has no lease and something deliverable at the last stamps, but for what one entry's
//! share of expiry and ripening ([`Limits::expire_max`]) has left over; neither stamp ever goes back.

mod ack;
mod cataloging;
mod checkpoint;
mod claim;
mod counts;
mod dead_letter;
mod expiry;
mod holds;
mod index;
mod kept;
mod lease;
mod push;
mod query;
mod sweep;
mod tables;
#[cfg(test)]
mod tests;
mod trim;

pub use checkpoint::LoadError;
pub use counts::{LaneCounts, QueueCounts, Totals};
pub use query::{GroupView, LaneView};

use crate::command::Command;
use crate::ids::{LaneId, Offset, PartitionId, QueueId};
use crate::reply::{Effect, Outcome, Reply};
use crate::rows::{LaneRow, MetaRow, Row, RowKey, Standing};
use crate::time::{LeaseTime, Stamps, WallTime};
use crate::tracker::Tracker;
use holds::Holds;
use index::{GroupNumber, Index};
use tables::Tables;

/// Bounds of a partition. They shape replies, so every replica must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Lanes, those of deleted queues that await their sweep included.
    pub lanes_max: u32,
    /// Kept answers of request ids, and as many of settled leases.
    pub kept_answers_max: u32,
    /// How long answers are kept, in lease time.
    pub kept_answer_ms: u64,
    /// Leases that lapse, and lanes that ripen, per entry.
    pub expire_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lanes_max: 1_000_000,
            kept_answers_max: 131_072,
            kept_answer_ms: 60_000,
            expire_max: 1024,
        }
    }
}

/// The pure machine of one partition.
#[derive(Debug)]
pub struct PartitionMachine {
    partition: PartitionId,
    limits: Limits,
    tables: Tables,
    index: Index,
    tracker: Tracker<RowKey, Row>,
    /// Rows are coming in.
    loading: bool,
    /// First row that did not fit its key while loading.
    misfit: Option<RowKey>,
}

impl PartitionMachine {
    /// A machine without history.
    pub fn new(partition: PartitionId, limits: Limits) -> Self {
        let meta = MetaRow {
            partition,
            stamps: Stamps::default(),
            catalog_version: crate::ids::CatalogVersion(0),
            ready_next: 1,
            dead_letter_next: 0,
            kept_next: 0,
            pushed: 0,
            delivered: 0,
            settled: 0,
            dead_lettered: 0,
            leases_expired: 0,
        };
        Self {
            partition,
            limits,
            tables: Tables::new(meta),
            index: Index::default(),
            tracker: Tracker::default(),
            loading: false,
            misfit: None,
        }
    }

    /// Head of an entry: takes its stamps, then lets leases lapse, held-back lanes ripen and old kept answers go.
    ///
    /// Lease time becomes max(last, given), wall time max(last + 1 µs, given). At most [`Limits::expire_max`] leases
    /// lapse and as many (lane, group) ripen; the rest waits for the next entry, though a lapsed lease is dead for
    /// every decision. Returns hints for the leader.
    pub fn begin_entry(&mut self, stamps: Stamps) -> Vec<Effect> {
        let meta = self.meta_mut();
        meta.stamps = Stamps {
            lease: meta.stamps.lease.max(stamps.lease),
            wall: WallTime(meta.stamps.wall.0.saturating_add(1)).max(stamps.wall),
        };
        let mut effects = Vec::new();
        self.expire(&mut effects);
        self.ripen(&mut effects);
        self.drop_old_answers();
        self.count_lanes();
        effects
    }

    /// Applies one command of the entry, at the stamps of [`Self::begin_entry`].
    pub fn apply(&mut self, command: Command) -> Outcome {
        let outcome = self.apply_uncounted(command);
        self.count_lanes();
        outcome
    }

    fn apply_uncounted(&mut self, command: Command) -> Outcome {
        match command {
            Command::Push(push) => self.push(&push),
            Command::Claim(claim) => self.claim(&claim),
            Command::Ack(ack) => self.ack(&ack),
            Command::Extend(extend) => self.extend(&extend),
            Command::ReleaseClaim(release) => self.release_claim(&release),
            Command::ReplayDeadLetter(replay) => self.replay_dead_letter(&replay),
            Command::DeleteDeadLetter(delete) => self.delete_dead_letter(&delete),
            Command::PutQueue(put) => self.put_queue(&put),
            Command::DeleteQueue(delete) => self.delete_queue(&delete),
            Command::RegisterGroup(register) => self.register_group(&register),
            Command::Tick => Outcome::reply(Reply::Ticked),
            Command::Sweep(sweep) => self.sweep(sweep),
            Command::Trim(trim) => self.trim(&trim),
        }
    }

    /// Stamps of the last entry.
    pub fn stamps(&self) -> Stamps {
        self.tables.meta.stamps
    }

    fn now(&self) -> LeaseTime {
        self.tables.meta.stamps.lease
    }

    fn wall(&self) -> WallTime {
        self.tables.meta.stamps.wall
    }

    /// Must come before every change of a row.
    fn touch(&mut self, key: RowKey) {
        let tables = &self.tables;
        self.tracker
            .touch(key, || tables.contains(key), || tables.row(key));
    }

    fn remove_row(&mut self, key: RowKey) {
        self.touch(key);
        self.tables.remove(key);
        self.tracker.removed(key);
    }

    fn meta_mut(&mut self) -> &mut MetaRow {
        self.touch(RowKey::Meta);
        &mut self.tables.meta
    }

    /// The lane, unless its queue is gone.
    fn live_lane(&self, id: LaneId) -> Option<&LaneRow> {
        self.tables
            .lanes
            .get(&id)
            .filter(|lane| self.index.queues.contains_key(&lane.queue))
    }

    /// A lane that is there; marks its row as changed.
    fn lane_mut(&mut self, id: LaneId) -> &mut LaneRow {
        self.touch(RowKey::Lane(id));
        self.uncount_lane(id);
        self.tables
            .lanes
            .get_mut(&id)
            .expect("the caller has seen the lane")
    }

    fn holds(&self, queue: QueueId) -> Holds {
        self.tables
            .queues
            .get(&queue)
            .map(|row| Holds::of(&row.settings))
            .unwrap_or_default()
    }

    /// What a claim at `stamps` could take of a lane: `[from, end)`, `None` when that is nothing.
    fn deliverable(&self, lane: &LaneRow, group: GroupNumber, stamps: Stamps) -> Option<(Offset, Offset)> {
        let state = &lane.groups[group.at()];
        if state.live_lease(stamps.lease).is_some() {
            return None;
        }
        let from = state.cursor.max(lane.head);
        let end = self.holds(lane.queue).ripe_end(lane, stamps.wall);
        (from < end).then_some((from, end))
    }

    /// Sets the standing of a group on a live lane right after anything that it depends on has changed.
    ///
    /// A lane that stays claimable keeps its place; one that becomes so goes to the end.
    fn refresh(&mut self, lane_id: LaneId, group: GroupNumber, effects: &mut Vec<Effect>) {
        let lane = &self.tables.lanes[&lane_id];
        let queue = lane.queue;
        let state = &lane.groups[group.at()];
        let from = state.cursor.max(lane.head);
        let idle = state.lease.is_some() || from >= lane.tail;
        let ripe_at = if idle {
            WallTime(0)
        } else {
            self.holds(queue).ripe_at(lane, from)
        };
        let wanted = if idle {
            Standing::Idle
        } else if ripe_at > self.wall() {
            Standing::Held(ripe_at)
        } else if let Standing::Ready(sequence) = state.standing {
            Standing::Ready(sequence)
        } else {
            effects.push(Effect::LaneReady {
                queue,
                group: self.index.queues[&queue].groups[group.at()].name.clone(),
                lane: lane_id,
            });
            Standing::Ready(self.next_ready())
        };
        self.set_standing(lane_id, group, wanted);
    }

    /// [`Self::refresh`] for all groups of a lane, in name order.
    fn refresh_all(&mut self, lane: LaneId, queue: QueueId, effects: &mut Vec<Effect>) {
        for group in self.index.queues[&queue].order.clone().iter() {
            self.refresh(lane, *group, effects);
        }
    }

    fn next_ready(&mut self) -> u64 {
        let meta = self.meta_mut();
        let sequence = meta.ready_next;
        meta.ready_next += 1;
        sequence
    }

    fn set_standing(&mut self, lane_id: LaneId, group: GroupNumber, standing: Standing) {
        let lane = &self.tables.lanes[&lane_id];
        let (queue, old) = (lane.queue, lane.groups[group.at()].standing);
        if old == standing {
            return;
        }
        self.index.remove_standing(queue, lane_id, group, old);
        self.index.insert_standing(queue, lane_id, group, standing);
        self.lane_mut(lane_id).groups[group.at()].standing = standing;
    }
}
