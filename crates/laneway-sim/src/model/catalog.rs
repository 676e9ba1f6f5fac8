//! Changes that the catalog brings: queue rows, deletions, groups; and the sweep of what is dead.

use laneway_core::command::{DeleteQueue, PutQueue, RegisterGroup};
use laneway_core::ids::{CatalogVersion, Offset, QueueId};
use laneway_core::reply::{Effect, Reply, StoreChange};
use laneway_core::settings::{GroupStart, QueueRow};

use super::{Group, Model, Queue};

impl Model {
    /// Takes a queue's row unless the queue is dead or the row is not newer.
    pub(super) fn take_row(&mut self, row: QueueRow) {
        if self.tombstones.contains(&row.id) {
            return;
        }
        let id = row.id;
        let Some(at) = self.queues.iter().position(|queue| queue.row.id == id) else {
            self.queues.push(Queue {
                row,
                groups: Vec::new(),
            });
            return;
        };
        if self.queues[at].row.version >= row.version {
            return;
        }
        let holds = |row: &QueueRow| {
            (
                row.settings.delayed_processing_seconds,
                row.settings.window_buffer_seconds,
            )
        };
        let (old, new) = (holds(&self.queues[at].row), holds(&row));
        self.queues[at].row = row;
        if old != new {
            self.keep_ripe(id, old.0.min(new.0));
            self.update_ready_lanes(id);
        }
    }

    /// What is ripe by the old delay, or by the new one, stays ripe whatever the delay becomes: by the shorter one.
    fn keep_ripe(&mut self, queue: QueueId, delay: u64) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.queue == queue) {
            for message in &mut lane.messages {
                message.delayed &= message.wall.plus_seconds(delay) > self.stamps.wall;
            }
        }
    }

    /// Whether a catalog change is new here.
    fn take_version(&mut self, version: CatalogVersion) -> bool {
        let is_new = version > self.catalog_version;
        self.catalog_version = self.catalog_version.max(version);
        is_new
    }

    pub(super) fn put_queue(&mut self, put: PutQueue) -> Reply {
        if self.take_version(put.version) {
            self.take_row(put.row);
        }
        Reply::CatalogTaken
    }

    pub(super) fn delete_queue(&mut self, delete: DeleteQueue) -> Reply {
        if self.take_version(delete.version) {
            self.tombstones.push(delete.queue);
            self.queues.retain(|queue| queue.row.id != delete.queue);
            self.effects.push(Effect::QueueGone { queue: delete.queue });
        }
        Reply::CatalogTaken
    }

    pub(super) fn register_group(&mut self, register: RegisterGroup) -> Reply {
        let RegisterGroup {
            queue: row,
            group,
            starts,
        } = register;
        let queue = row.id;
        if !self.take_version(group.version) || self.tombstones.contains(&queue) {
            return Reply::CatalogTaken;
        }
        self.take_row(row);
        let at = self
            .queues
            .iter()
            .position(|at| at.row.id == queue)
            .expect("just put");
        if self.queues[at]
            .groups
            .iter()
            .any(|known| known.name == group.name)
        {
            return Reply::CatalogTaken;
        }
        self.queues[at].groups.push(group.clone());
        self.queues[at].groups.sort_by(|a, b| a.name.cmp(&b.name));
        for lane_at in 0..self.lanes.len() {
            let lane = &mut self.lanes[lane_at];
            if lane.queue != queue {
                continue;
            }
            let cursor = match group.start {
                GroupStart::Beginning => Offset(0),
                GroupStart::Registration => lane.tail(),
                GroupStart::At(_) => {
                    let start = starts
                        .iter()
                        .find(|(id, _)| *id == lane.id)
                        .map_or(Offset(0), |(_, at)| *at);
                    start.min(lane.tail())
                }
            };
            lane.groups.push(Group::new(&group.name, cursor));
            lane.groups.sort_by(|a, b| a.name.cmp(&b.name));
            let group_at = lane
                .groups
                .iter()
                .position(|at| at.name == group.name)
                .expect("just made");
            self.update_ready(lane_at, group_at);
        }
        Reply::CatalogTaken
    }

    /// Drops rows of dead queues: by queue and lane, the dead letters of a lane before the lane.
    pub(super) fn sweep(&mut self, rows_max: usize) -> Reply {
        for _ in 0..rows_max {
            let dead = self.lanes.iter().filter(|lane| !self.is_live(lane.queue));
            let Some((_, lane)) = dead.map(|lane| (lane.queue, lane.id)).min() else {
                break;
            };
            let letters = self.dead_letters.iter().filter(|row| row.lane == lane);
            match letters.map(|row| (row.offset, row.id)).min() {
                Some((_, id)) => self.dead_letters.retain(|row| row.id != id),
                None => {
                    self.lanes.retain(|at| at.id != lane);
                    self.changes.push(StoreChange::LaneDropped { lane });
                }
            }
        }
        Reply::Swept {
            more: self.lanes.iter().any(|lane| !self.is_live(lane.queue)),
        }
    }
}
