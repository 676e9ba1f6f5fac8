//! Catalog changes as each partition takes them, in the catalog's order.

use std::collections::BTreeMap;

use super::PartitionMachine;
use super::holds::Holds;
use super::index::QueueIndex;
use crate::command::{DeleteQueue, PutQueue, RegisterGroup};
use crate::ids::{CatalogVersion, LaneId, Offset, QueueId};
use crate::reply::{Effect, Outcome, Reply};
use crate::rows::{GroupState, RowKey, TombstoneRow};
use crate::settings::{GroupStart, QueueRow};

impl PartitionMachine {
    pub(super) fn put_queue(&mut self, put: &PutQueue) -> Outcome {
        let mut outcome = Outcome::reply(Reply::CatalogTaken);
        if self.advance(put.version) {
            self.take_row(&put.row, &mut outcome.effects);
        }
        outcome
    }

    /// Takes a queue's row if it is newer than the one here and the queue is not deleted.
    pub(super) fn take_row(&mut self, row: &QueueRow, effects: &mut Vec<Effect>) {
        let id = row.id;
        let old = self.tables.queues.get(&id);
        if self.tables.tombstones.contains_key(&id) || old.is_some_and(|old| old.version >= row.version) {
            return;
        }
        let old_holds = old.map(|old| Holds::of(&old.settings));
        self.touch(RowKey::Queue(id));
        self.tables.queues.insert(id, row.clone());
        self.index.queues.entry(id).or_default();
        let holds = Holds::of(&row.settings);
        if let Some(old_holds) = old_holds.filter(|old| *old != holds) {
            self.hold_anew(id, old_holds, holds, effects);
        }
    }

    /// Evaluates all lanes of a queue after a change of what it holds back. What was ripe by the old delay stays ripe.
    fn hold_anew(&mut self, queue: QueueId, old: Holds, new: Holds, effects: &mut Vec<Effect>) {
        let wall = self.wall();
        let lanes: Vec<LaneId> = self.index.queues[&queue].lanes.iter().copied().collect();
        for id in lanes {
            if self.tables.lanes[&id].unripe.is_some() {
                let lane = self.lane_mut(id);
                old.prune(lane, wall);
                new.prune(lane, wall);
            }
            self.refresh_all(id, queue, effects);
        }
    }

    pub(super) fn delete_queue(&mut self, delete: &DeleteQueue) -> Outcome {
        let mut outcome = Outcome::reply(Reply::CatalogTaken);
        if !self.advance(delete.version) {
            return outcome;
        }
        let id = delete.queue;
        if !self.tables.tombstones.contains_key(&id) {
            self.touch(RowKey::Tombstone(id));
            self.tables.tombstones.insert(
                id,
                TombstoneRow {
                    version: delete.version,
                },
            );
        }
        if let Some(index) = self.index.queues.remove(&id) {
            self.remove_row(RowKey::Queue(id));
            for number in index.order.iter() {
                self.remove_row(RowKey::Group(id, number.0));
            }
            if !index.is_swept() {
                self.index.dead.insert(id, index);
            }
        }
        outcome.effects.push(Effect::QueueGone { queue: id });
        outcome
    }

    pub(super) fn register_group(&mut self, register: &RegisterGroup) -> Outcome {
        let mut outcome = Outcome::reply(Reply::CatalogTaken);
        if !self.advance(register.group.version) {
            return outcome;
        }
        self.take_row(&register.queue, &mut outcome.effects);
        let id = register.queue.id;
        let Some(index) = self.index.queues.get_mut(&id) else {
            return outcome;
        };
        if index.by_name.contains_key(&register.group.name) {
            return outcome;
        }
        let number = index.add_group(&register.group);
        let lanes: Vec<LaneId> = index.lanes.iter().copied().collect();
        self.touch(RowKey::Group(id, number.0));
        self.tables.groups.insert((id, number.0), register.group.clone());
        let starts: BTreeMap<LaneId, Offset> = register.starts.iter().copied().collect();
        for lane_id in lanes {
            let lane = self.lane_mut(lane_id);
            let cursor = match register.group.start {
                GroupStart::Beginning => Offset(0),
                GroupStart::Registration => lane.tail,
                GroupStart::At(_) => starts.get(&lane_id).copied().unwrap_or_default().min(lane.tail),
            };
            let mut groups = std::mem::take(&mut lane.groups).into_vec();
            groups.push(GroupState::at(cursor));
            lane.groups = groups.into();
            self.refresh(lane_id, number, &mut outcome.effects);
        }
        outcome
    }

    /// Notes a catalog change; false when it was taken before.
    fn advance(&mut self, version: CatalogVersion) -> bool {
        let is_new = version > self.tables.meta.catalog_version;
        if is_new {
            self.meta_mut().catalog_version = version;
        }
        is_new
    }

    /// An empty index for a deleted queue whose rows are still there.
    pub(super) fn dead_index(&mut self, queue: QueueId) -> &mut QueueIndex {
        self.index.dead.entry(queue).or_default()
    }
}
