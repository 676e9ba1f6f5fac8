//! Catalog changes as each partition takes them, in the catalog's order.
//!
//! A row may also ride on a push, and come late: after its queue was deleted. It is known for what it is without a memory
//! of deleted queues. A partition at catalog version V has the row of every live queue that has not changed since V, so an
//! unknown queue whose row has a version up to V is deleted, or that row is outdated; and the row of a deleted queue is
//! older than its deletion. So a tombstone stands only while rows await their sweep. (The version of the *row* counts, not
//! the queue's id: of an old queue that changed lately a partition may learn late.)

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
        let seen = self.catalog_version();
        if self.advance(put.version) {
            self.take_row(&put.row, seen, &mut outcome.effects);
        }
        outcome
    }

    /// Takes a queue's row if it is newer than the one here, or, of an unknown queue, than the catalog changes `seen`.
    pub(super) fn take_row(&mut self, row: &QueueRow, seen: CatalogVersion, effects: &mut Vec<Effect>) {
        let id = row.id;
        let old = self.tables.queues.get(&id);
        let newest_here = old.map_or(seen, |old| old.version);
        if self.tables.tombstones.contains_key(&id) || newest_here >= row.version {
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
        if let Some(index) = self.index.queues.remove(&id) {
            self.remove_row(RowKey::Queue(id));
            for number in index.order.iter() {
                self.remove_row(RowKey::Group(id, number.0));
            }
            if !index.is_swept() {
                let version = delete.version;
                self.touch(RowKey::Tombstone(id));
                self.tables.tombstones.insert(id, TombstoneRow { version });
                self.index.dead.insert(id, index);
            }
        }
        outcome.effects.push(Effect::QueueGone { queue: id });
        outcome
    }

    pub(super) fn register_group(&mut self, register: &RegisterGroup) -> Outcome {
        let mut outcome = Outcome::reply(Reply::CatalogTaken);
        let seen = self.catalog_version();
        if !self.advance(register.group.version) {
            return outcome;
        }
        self.take_row(&register.queue, seen, &mut outcome.effects);
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
