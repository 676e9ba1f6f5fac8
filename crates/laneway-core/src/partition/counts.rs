//! Counts of lanes, queues and the partition.
//!
//! Each queue keeps sums over its lanes. A lane about to change is taken out of them, and put back when the command (or
//! the head of the entry) is through.

use serde::{Deserialize, Serialize};

use super::PartitionMachine;
use super::index::{GroupNumber, QueueIndex};
use crate::ids::{LaneId, Offset, QueueId};
use crate::rows::{GroupState, LaneRow, Lease, Standing};

/// Counts of a lane as the wire contract derives them (§2.8), at the last stamps.
///
/// The reference cursor is the lowest one of the named groups; without any, that of queue mode; without that, 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneCounts {
    /// Retained messages.
    pub total: u64,
    /// Those from the reference cursor on, less `processing`.
    pub pending: u64,
    /// Messages in batches of live leases, over all groups.
    pub processing: u64,
    /// `total` less `pending` less `processing`.
    pub completed: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Messages settled in all, over all groups.
    pub consumed: u64,
}

/// Sums of [`LaneCounts`] over a queue's lanes in this partition; leases count until they are swept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueCounts {
    /// Lanes.
    pub lanes: u64,
    /// Retained messages.
    pub total: u64,
    /// See [`LaneCounts::pending`].
    pub pending: u64,
    /// See [`LaneCounts::processing`].
    pub processing: u64,
    /// See [`LaneCounts::completed`].
    pub completed: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Per lane the most that any one group has neither settled nor leased, of the named groups; without any, of queue
    /// mode; without that, all retained messages.
    pub ready_messages: u64,
    /// Lanes that at least one group can claim.
    pub ready_lanes: u64,
    /// Lanes that at least one group has a live lease on.
    pub leased_lanes: u64,
    /// Messages in batches of live leases, over all groups; the same as `processing`.
    pub leased_messages: u64,
}

/// Figures of the whole partition. The first five only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages stored by pushes.
    pub pushed: u64,
    /// Messages handed out by claims, repeats included.
    pub delivered: u64,
    /// Positions passed by cursors, over all groups.
    pub settled: u64,
    /// Dead letters filed.
    pub dead_lettered: u64,
    /// Leases that lapsed.
    pub expired_leases: u64,
    /// Lanes, those that await a sweep included.
    pub lanes: u64,
    /// Leases, lapsed ones that were not swept yet included.
    pub leases: u64,
    /// Dead letters, those that await a sweep included.
    pub dead_letters: u64,
    /// Kept answers of both kinds.
    pub kept_answers: u64,
}

impl QueueCounts {
    fn add(&mut self, lane: &QueueCounts) {
        self.lanes += lane.lanes;
        self.total += lane.total;
        self.pending += lane.pending;
        self.processing += lane.processing;
        self.completed += lane.completed;
        self.ready_messages += lane.ready_messages;
        self.ready_lanes += lane.ready_lanes;
        self.leased_lanes += lane.leased_lanes;
        self.leased_messages += lane.leased_messages;
    }

    fn subtract(&mut self, lane: &QueueCounts) {
        self.lanes -= lane.lanes;
        self.total -= lane.total;
        self.pending -= lane.pending;
        self.processing -= lane.processing;
        self.completed -= lane.completed;
        self.ready_messages -= lane.ready_messages;
        self.ready_lanes -= lane.ready_lanes;
        self.leased_lanes -= lane.leased_lanes;
        self.leased_messages -= lane.leased_messages;
    }
}

impl PartitionMachine {
    /// Counts of a queue; zeros when it is not there.
    pub fn queue_counts(&self, queue: QueueId) -> QueueCounts {
        let Some(index) = self.index.queues.get(&queue) else {
            return QueueCounts::default();
        };
        QueueCounts {
            dead_letters: index.dead_letters.len() as u64,
            ..index.sums
        }
    }

    /// Counts of a lane; zeros when it is not there.
    pub fn lane_counts(&self, lane: LaneId) -> LaneCounts {
        let Some(row) = self.live_lane(lane) else {
            return LaneCounts::default();
        };
        let now = self.now();
        let counts = count(row, &self.index.queues[&row.queue], |state| state.live_lease(now));
        LaneCounts {
            dead_letters: self.dead_letters_of_lane(lane).count() as u64,
            ..counts
        }
    }

    /// Figures of the whole partition.
    pub fn totals(&self) -> Totals {
        let meta = &self.tables.meta;
        Totals {
            pushed: meta.pushed,
            delivered: meta.delivered,
            settled: meta.settled,
            dead_lettered: meta.dead_lettered,
            expired_leases: meta.leases_expired,
            lanes: self.tables.lanes.len() as u64,
            leases: self.index.deadlines.len() as u64,
            dead_letters: self.tables.dead_letters.len() as u64,
            kept_answers: (self.tables.requests.len() + self.tables.settled.len()) as u64,
        }
    }

    /// Takes a lane out of the sums of its queue before it changes.
    pub(super) fn uncount_lane(&mut self, id: LaneId) {
        if self.index.uncounted.insert(id) {
            let lane = &self.tables.lanes[&id];
            if let Some(queue) = self.index.queues.get_mut(&lane.queue) {
                let share = share(lane, queue);
                queue.sums.subtract(&share);
            }
        }
    }

    /// Puts the lanes that changed back into the sums.
    pub(super) fn count_lanes(&mut self) {
        while let Some(id) = self.index.uncounted.pop_first() {
            let Some(lane) = self.tables.lanes.get(&id) else {
                continue;
            };
            if let Some(queue) = self.index.queues.get_mut(&lane.queue) {
                let share = share(lane, queue);
                queue.sums.add(&share);
            }
        }
    }
}

/// What a lane adds to the sums of its queue.
pub(super) fn share(lane: &LaneRow, queue: &QueueIndex) -> QueueCounts {
    let counts = count(lane, queue, |state| state.lease.as_deref().copied());
    QueueCounts {
        lanes: 1,
        total: counts.total,
        pending: counts.pending,
        processing: counts.processing,
        completed: counts.completed,
        dead_letters: 0,
        ready_messages: ready_messages(lane, queue),
        ready_lanes: lane
            .groups
            .iter()
            .any(|state| matches!(state.standing, Standing::Ready(_)))
            .into(),
        leased_lanes: lane.groups.iter().any(|state| state.lease.is_some()).into(),
        leased_messages: counts.processing,
    }
}

/// See [`QueueCounts::ready_messages`].
fn ready_messages(lane: &LaneRow, queue: &QueueIndex) -> u64 {
    let of_group = |state: &GroupState| {
        let from = state.cursor.max(lane.head);
        let leased_to = state
            .lease
            .as_ref()
            .map_or(from, |lease| lease.batch_end.max(from));
        lane.tail.0.saturating_sub(leased_to.0)
    };
    let mut most = None;
    for (number, state) in (0..).map(GroupNumber).zip(&lane.groups) {
        if Some(number) != queue.queue_mode {
            most = most.max(Some(of_group(state)));
        }
    }
    let queue_mode = queue.queue_mode.and_then(|number| lane.groups.get(number.at()));
    most.or_else(|| queue_mode.map(of_group))
        .unwrap_or(lane.tail.0 - lane.head.0)
}

fn count(lane: &LaneRow, queue: &QueueIndex, lease: impl Fn(&GroupState) -> Option<Lease>) -> LaneCounts {
    let mut lowest_named: Option<Offset> = None;
    let mut counts = LaneCounts {
        total: lane.tail.0 - lane.head.0,
        ..LaneCounts::default()
    };
    for (number, state) in (0..).map(GroupNumber).zip(&lane.groups) {
        let from = state.cursor.max(lane.head);
        counts.processing += lease(state).map_or(0, |lease| lease.batch_end.0.saturating_sub(from.0));
        counts.consumed += state.consumed;
        if Some(number) != queue.queue_mode {
            lowest_named = Some(lowest_named.map_or(state.cursor, |lowest| lowest.min(state.cursor)));
        }
    }
    let queue_mode = queue.queue_mode.and_then(|number| lane.groups.get(number.at()));
    let reference = lowest_named
        .or_else(|| queue_mode.map(|state| state.cursor))
        .unwrap_or_default()
        .max(lane.head);
    counts.pending = (lane.tail.0 - reference.0).saturating_sub(counts.processing);
    counts.completed = counts
        .total
        .saturating_sub(counts.pending)
        .saturating_sub(counts.processing);
    counts
}
