//! What is deliverable, and the order in which (lane, group)s became claimable.

use laneway_core::ids::{Offset, QueueId};
use laneway_core::reply::Effect;
use laneway_core::settings::QueueSettings;
use laneway_core::time::{LeaseTime, WallTime};

use super::{Group, Lane, Model};

impl Lane {
    /// The deliverable messages of a group at `now`, leases aside: `[start, end)`.
    pub(super) fn deliverable(
        &self,
        group: &Group,
        settings: &QueueSettings,
        now: WallTime,
    ) -> (Offset, Offset) {
        let start = group.cursor.max(self.head);
        let nothing = (start, start);
        if self.quiet_at(settings).is_some_and(|at| now < at) {
            return nothing;
        }
        let mut end = start;
        while end < self.tail() && self.ripe_at(end, settings).is_none_or(|at| at <= now) {
            end = end.plus(1);
        }
        (start, end)
    }

    /// When the window buffer lets go of the lane, as long as nothing is pushed.
    fn quiet_at(&self, settings: &QueueSettings) -> Option<WallTime> {
        let newest = self.messages.last()?;
        (settings.window_buffer_seconds > 0).then(|| newest.wall.plus_seconds(settings.window_buffer_seconds))
    }

    /// When the delay lets go of a message; `None` for one that it does not hold.
    fn ripe_at(&self, offset: Offset, settings: &QueueSettings) -> Option<WallTime> {
        let message = self.message(offset);
        message
            .delayed
            .then(|| message.wall.plus_seconds(settings.delayed_processing_seconds))
    }

    pub(super) fn message(&self, offset: Offset) -> super::Message {
        self.messages[usize::try_from(offset.0).expect("offsets of a model fit memory")]
    }

    /// When the first message that the group has not settled becomes deliverable, if there is one.
    pub(super) fn due(&self, group: &Group, settings: &QueueSettings) -> Option<WallTime> {
        let start = group.cursor.max(self.head);
        if start >= self.tail() {
            return None;
        }
        let ripe = self.ripe_at(start, settings).unwrap_or_default();
        Some(ripe.max(self.quiet_at(settings).unwrap_or_default()))
    }
}

impl Model {
    /// Puts a (lane, group) among the ready ones, or takes it out, as its state now demands.
    pub(super) fn update_ready(&mut self, lane_at: usize, group_at: usize) {
        let lane = &self.lanes[lane_at];
        let group = &lane.groups[group_at];
        let queue = self
            .queue(lane.queue)
            .expect("only lanes of live queues are updated");
        let (start, end) = lane.deliverable(group, &queue.row.settings, self.stamps.wall);
        let claimable = group.lease.is_none() && start < end;
        let (queue, lane, name, was_ready) = (lane.queue, lane.id, group.name.clone(), group.ready.is_some());
        if !claimable {
            self.lanes[lane_at].groups[group_at].ready = None;
        } else if !was_ready {
            self.lanes[lane_at].groups[group_at].ready = Some(self.ready_numbers);
            self.ready_numbers += 1;
            self.effects.push(Effect::LaneReady {
                queue,
                group: name,
                lane,
            });
        }
    }

    pub(super) fn update_ready_groups(&mut self, lane_at: usize) {
        for group_at in 0..self.lanes[lane_at].groups.len() {
            self.update_ready(lane_at, group_at);
        }
    }

    pub(super) fn update_ready_lanes(&mut self, queue: QueueId) {
        for lane_at in 0..self.lanes.len() {
            if self.lanes[lane_at].queue == queue {
                self.update_ready_groups(lane_at);
            }
        }
    }

    /// All (lane, group) positions of live queues, in (lane id, group name) order.
    fn positions(&self) -> Vec<(usize, usize)> {
        let live = (0..self.lanes.len()).filter(|&at| self.is_live(self.lanes[at].queue));
        live.flat_map(|at| (0..self.lanes[at].groups.len()).map(move |group_at| (at, group_at)))
            .collect()
    }

    pub(super) fn expire(&mut self) {
        let now = self.stamps.lease;
        let mut lapsed: Vec<(LeaseTime, usize, usize)> = Vec::new();
        for (lane_at, group_at) in self.positions() {
            if let Some(lease) = self.lanes[lane_at].groups[group_at].lease
                && lease.deadline <= now
            {
                lapsed.push((lease.deadline, lane_at, group_at));
            }
        }
        lapsed.sort();
        for (_, lane_at, group_at) in lapsed.into_iter().take(self.limits.expire_max) {
            self.lanes[lane_at].groups[group_at].lease = None;
            self.update_ready(lane_at, group_at);
        }
    }

    pub(super) fn ripen(&mut self) {
        let mut due: Vec<(WallTime, usize, usize)> = Vec::new();
        for (lane_at, group_at) in self.positions() {
            let lane = &self.lanes[lane_at];
            let group = &lane.groups[group_at];
            let settings = &self
                .queue(lane.queue)
                .expect("only live lanes have positions")
                .row
                .settings;
            if group.lease.is_none()
                && group.ready.is_none()
                && let Some(at) = lane.due(group, settings)
                && at <= self.stamps.wall
            {
                due.push((at, lane_at, group_at));
            }
        }
        due.sort();
        for (_, lane_at, group_at) in due.into_iter().take(self.limits.expire_max) {
            self.update_ready(lane_at, group_at);
        }
    }
}
