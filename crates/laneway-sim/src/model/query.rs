//! What planners and the gateway ask, derived anew on every question.

use laneway_core::ids::{LaneId, Offset, QueueId};
use laneway_core::time::{LeaseTime, WallTime};

use super::{Lane, Model};

/// Group of queue mode: never counted as a named group.
const QUEUE_MODE: &str = "__QUEUE_MODE__";

/// Counts of a lane by the wire contract §2.8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Retained messages.
    pub total: u64,
    /// Messages above the reference cursor, less `processing`.
    pub pending: u64,
    /// Leased spans of live leases.
    pub processing: u64,
    /// The rest.
    pub completed: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Positions retired, over all groups.
    pub consumed: u64,
}

impl Model {
    /// Whether a claim at the last stamps finds something.
    pub fn would_find(&self, queue: QueueId, group: &str, lane: Option<LaneId>) -> bool {
        self.queue(queue).is_some() && !self.candidates(queue, group, lane).is_empty()
    }

    /// The earliest deadline of a lease that was not swept.
    pub fn next_lease_deadline(&self) -> Option<LeaseTime> {
        let groups = self
            .lanes
            .iter()
            .filter(|lane| self.is_live(lane.queue))
            .flat_map(|lane| &lane.groups);
        groups
            .filter_map(|group| group.lease.map(|lease| lease.deadline))
            .min()
    }

    /// When the next (lane, group) that is held back becomes claimable.
    pub fn next_ripening(&self) -> Option<WallTime> {
        let held = |lane: &Lane| -> Vec<WallTime> {
            let Some(queue) = self.queue(lane.queue) else {
                return Vec::new();
            };
            let waiting = lane
                .groups
                .iter()
                .filter(|group| group.lease.is_none() && group.ready.is_none());
            waiting
                .filter_map(|group| lane.due(group, &queue.row.settings))
                .collect()
        };
        self.lanes.iter().flat_map(held).min()
    }

    /// Counts of a lane; zeros when it is not there.
    pub fn counts(&self, lane: LaneId) -> Counts {
        let Some(lane) = self.lane_at(lane).map(|at| &self.lanes[at]) else {
            return Counts::default();
        };
        let now = self.stamps.lease;
        let span = |cursor: Offset, end: Offset| end.0.saturating_sub(cursor.max(lane.head).0);
        let leases = lane
            .groups
            .iter()
            .filter_map(|group| Some((group.cursor, group.live_lease(now)?)));
        let processing = leases.map(|(cursor, lease)| span(cursor, lease.batch_end)).sum();
        let cursor_of = |named: bool| {
            let groups = lane
                .groups
                .iter()
                .filter(|group| (group.name != QUEUE_MODE) == named);
            groups.map(|group| group.cursor).min()
        };
        let reference = cursor_of(true).or_else(|| cursor_of(false)).unwrap_or_default();
        let total = lane.tail().0 - lane.head.0;
        let pending = span(reference, lane.tail()).saturating_sub(processing);
        Counts {
            total,
            pending,
            processing,
            completed: total.saturating_sub(pending).saturating_sub(processing),
            dead_letters: self.dead_letters.iter().filter(|row| row.lane == lane.id).count() as u64,
            consumed: lane.groups.iter().map(|group| group.consumed).sum(),
        }
    }
}
