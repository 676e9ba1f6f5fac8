//! Dropping the rows of deleted queues, a bounded number at a time.

use super::PartitionMachine;
use super::index::{GroupNumber, name_hash};
use crate::command::Sweep;
use crate::ids::{DeadLetterId, LaneId, Offset, QueueId};
use crate::reply::{Outcome, Reply, StoreChange};
use crate::rows::RowKey;

impl PartitionMachine {
    /// Whether rows of deleted queues are left.
    pub fn sweepable(&self) -> bool {
        !self.index.dead.is_empty()
    }

    /// Per lane its dead letters, then the lane itself.
    pub(super) fn sweep(&mut self, sweep: Sweep) -> Outcome {
        let mut changes = Vec::new();
        let mut left = sweep.rows_max;
        while left > 0 {
            let Some((queue, lane)) = self
                .index
                .dead
                .iter()
                .next()
                .map(|(id, dead)| (*id, dead.lanes.first()))
            else {
                break;
            };
            let Some(&lane) = lane else {
                self.bury(queue);
                continue;
            };
            left -= 1;
            let mut pins = self.index.pins.range((lane, Offset(0), DeadLetterId(0))..);
            let pin = pins.next().filter(|pin| pin.0 == lane).map(|pin| pin.2);
            if let Some(id) = pin {
                let row = self.tables.dead_letters[&id].clone();
                self.remove_dead_letter(&row);
            } else {
                self.drop_lane(lane);
                changes.push(StoreChange::LaneDropped { lane });
            }
            if self.index.dead[&queue].is_swept() {
                self.bury(queue);
            }
        }
        let reply = Reply::Swept {
            more: self.sweepable(),
        };
        Outcome {
            reply,
            changes,
            effects: Vec::new(),
        }
    }

    /// Forgets a deleted queue that has no rows left.
    fn bury(&mut self, queue: QueueId) {
        self.index.dead.remove(&queue);
        self.remove_row(RowKey::Tombstone(queue));
    }

    fn drop_lane(&mut self, id: LaneId) {
        let lane = self.tables.lanes[&id].clone();
        for (at, state) in (0..).zip(&lane.groups) {
            let group = GroupNumber(at);
            self.index.remove_standing(lane.queue, id, group, state.standing);
            if let Some(lease) = state.lease.as_deref() {
                self.index.remove_lease(id, group, *lease);
            }
        }
        self.index.names.remove(&(name_hash(lane.queue, &lane.name), id));
        self.dead_index(lane.queue).lanes.remove(&id);
        self.remove_row(RowKey::Lane(id));
    }
}
