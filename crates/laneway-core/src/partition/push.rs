//! Storing messages, and the birth of lanes.

use super::PartitionMachine;
use super::index::{GroupNumber, name_hash};
use crate::command::{Push, PushItem};
use crate::ids::{LANE_SEQUENCE_MAX, LaneId, Offset, QueueId, Slot};
use crate::reply::{Effect, Outcome, Pushed, PushedItem, Refusal, Reply, StoreChange};
use crate::rows::{GroupState, LaneRow, RowKey, SlotRow};
use crate::settings::GroupStart;
use crate::time::WallTime;

impl PartitionMachine {
    pub(super) fn push(&mut self, push: &Push) -> Outcome {
        self.answered(push.request.as_ref(), |machine| {
            let mut effects = Vec::new();
            if let Some(rider) = &push.rider {
                machine.take_row(rider, machine.catalog_version(), &mut effects);
            }
            let mut changes = Vec::new();
            let reply = match machine.push_checked(push, &mut changes, &mut effects) {
                Ok(pushed) => Reply::Pushed(pushed),
                Err(refusal) => Reply::Refused(refusal),
            };
            Outcome {
                reply,
                changes,
                effects,
            }
        })
    }

    /// Changes nothing when it refuses.
    fn push_checked(
        &mut self,
        push: &Push,
        changes: &mut Vec<StoreChange>,
        effects: &mut Vec<Effect>,
    ) -> Result<Pushed, Refusal> {
        if !self.index.queues.contains_key(&push.queue) {
            return Err(Refusal::QueueGone);
        }
        let lane = self.lane_id(push.queue, &push.lane);
        let tail = lane.map(|lane| self.tables.lanes[&lane].tail);
        let items = plan(&push.items, tail, self.wall()).ok_or(Refusal::PlanOutdated)?;
        let stored = items.iter().filter(|item| !item.duplicate).count();
        let lane = match lane {
            Some(lane) => lane,
            None => self.bear_lane(push.queue, &push.lane)?,
        };
        if stored > 0 {
            let count = u32::try_from(stored).expect("an entry holds fewer than 2^32 items");
            let offset_first = self.append(lane, count, effects);
            self.meta_mut().pushed += u64::from(count);
            let dedup = self.tables.queues[&push.queue].settings.dedup_window_seconds > 0;
            let (queue, block) = (push.queue, push.block);
            changes.push(StoreChange::Stored {
                queue,
                lane,
                offset_first,
                count,
                block,
                dedup,
            });
        }
        Ok(Pushed { lane, items })
    }

    fn bear_lane(&mut self, queue: QueueId, name: &str) -> Result<LaneId, Refusal> {
        let lanes_max = usize::try_from(self.limits.lanes_max).unwrap_or(usize::MAX);
        let slot = Slot::of(queue, name);
        let sequence = self.tables.slots.get(&slot).map_or(0, |row| row.lane_next);
        if self.tables.lanes.len() >= lanes_max || sequence > LANE_SEQUENCE_MAX {
            return Err(Refusal::LanesFull);
        }
        self.touch(RowKey::Slot(slot));
        self.tables.slots.insert(
            slot,
            SlotRow {
                lane_next: sequence + 1,
            },
        );
        let id = LaneId::new(slot, sequence);
        self.touch(RowKey::Lane(id));
        let index = self
            .index
            .queues
            .get_mut(&queue)
            .expect("lanes are born in live queues");
        index.lanes.insert(id);
        self.index.names.insert((name_hash(queue, name), id));
        let lane = LaneRow {
            queue,
            name: name.into(),
            head: Offset(0),
            tail: Offset(0),
            newest: WallTime(0),
            unripe: None,
            groups: vec![GroupState::at(Offset(0)); index.groups.len()].into(),
        };
        self.tables.lanes.insert(id, lane);
        self.index.uncounted.insert(id);
        Ok(id)
    }

    /// Adds messages at the tail of a live lane, stamped with the entry's wall time; returns the first offset.
    pub(super) fn append(&mut self, id: LaneId, count: u32, effects: &mut Vec<Effect>) -> Offset {
        let wall = self.wall();
        let holds = self.holds(self.tables.lanes[&id].queue);
        let lane = self.lane_mut(id);
        let (queue, first) = (lane.queue, lane.tail);
        holds.note(lane, wall);
        lane.tail = first.plus(u64::from(count));
        holds.prune(lane, wall);
        for group in self.index.queues[&queue].order.clone().iter() {
            self.pass_early(id, *group, first);
            self.refresh(id, *group, effects);
        }
        first
    }

    /// A group that starts at a time still to come, and has nothing before the new messages, passes over them.
    fn pass_early(&mut self, id: LaneId, group: GroupNumber, first: Offset) {
        let lane = &self.tables.lanes[&id];
        let start = self.index.queues[&lane.queue].groups[group.at()].start;
        let early = matches!(start, GroupStart::At(at) if at > self.wall());
        if early && lane.groups[group.at()].cursor == first {
            let lane = self.lane_mut(id);
            lane.groups[group.at()].cursor = lane.tail;
        }
    }
}

/// Where each item is stored, or was. `None` when an item names a message that is not there.
fn plan(items: &[PushItem], tail: Option<Offset>, wall: WallTime) -> Option<Vec<PushedItem>> {
    let mut planned: Vec<PushedItem> = Vec::with_capacity(items.len());
    let mut next = tail.unwrap_or_default();
    for item in items {
        planned.push(match *item {
            PushItem::Store => {
                let offset = next;
                next = next.plus(1);
                PushedItem {
                    offset,
                    wall,
                    duplicate: false,
                }
            }
            PushItem::DuplicateOf { offset, wall } => {
                if tail.is_none_or(|tail| offset >= tail) {
                    return None;
                }
                PushedItem {
                    offset,
                    wall,
                    duplicate: true,
                }
            }
            PushItem::DuplicateOfItem(earlier) => {
                let earlier = planned.get(usize::try_from(earlier).ok()?)?;
                PushedItem {
                    duplicate: true,
                    ..*earlier
                }
            }
        });
    }
    (!planned.is_empty()).then_some(planned)
}
