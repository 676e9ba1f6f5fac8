//! Push: one atomic append to one lane.

use laneway_core::command::{Block, Push, PushItem};
use laneway_core::ids::{LANE_SEQUENCE_MAX, LaneId, Offset, QueueId, Slot};
use laneway_core::reply::{Pushed, PushedItem, Refusal, Reply, StoreChange};
use laneway_core::settings::GroupStart;

use super::{Answer, Group, Lane, Message, Model};

impl Model {
    pub(super) fn push(&mut self, push: Push) -> Answer {
        if let Some(row) = push.rider {
            self.take_row(row);
        }
        if !self.is_live(push.queue) {
            return Err(Refusal::QueueGone);
        }
        let existing = self
            .lanes
            .iter()
            .position(|lane| lane.queue == push.queue && lane.name == push.lane);
        let tail = existing.map(|at| self.lanes[at].tail());
        let stores = push.items.iter().filter(|item| **item == PushItem::Store).count();
        if push.items.is_empty() || !plan_holds(&push.items, tail) {
            return Err(Refusal::PlanOutdated);
        }
        let lane_at = match existing {
            Some(at) => at,
            None if stores == 0 => return Err(Refusal::PlanOutdated),
            None => self.new_lane(push.queue, &push.lane)?,
        };
        let lane = self.lanes[lane_at].id;
        let items = self.answers(&push.items, self.lanes[lane_at].tail());
        let dedup = self
            .queue(push.queue)
            .is_some_and(|queue| queue.row.settings.dedup_window_seconds > 0);
        self.append(lane, stores, push.block, dedup);
        Ok(Reply::Pushed(Pushed { lane, items }))
    }

    fn answers(&self, items: &[PushItem], tail: Offset) -> Vec<PushedItem> {
        let mut answers: Vec<PushedItem> = Vec::new();
        let mut stored = 0;
        for item in items {
            answers.push(match item {
                PushItem::Store => {
                    stored += 1;
                    PushedItem {
                        offset: tail.plus(stored - 1),
                        wall: self.stamps.wall,
                        duplicate: false,
                    }
                }
                PushItem::DuplicateOf { offset, wall } => PushedItem {
                    offset: *offset,
                    wall: *wall,
                    duplicate: true,
                },
                PushItem::DuplicateOfItem(item) => PushedItem {
                    duplicate: true,
                    ..answers[*item as usize]
                },
            });
        }
        answers
    }

    fn new_lane(&mut self, queue: QueueId, name: &str) -> Result<usize, Refusal> {
        let slot = Slot::of(queue, name);
        let sequence = self
            .sequences
            .iter()
            .find(|(at, _)| *at == slot)
            .map_or(0, |(_, sequence)| *sequence);
        if self.lanes.len() >= self.limits.lanes_max || sequence > LANE_SEQUENCE_MAX {
            return Err(Refusal::LanesFull);
        }
        self.sequences.retain(|(at, _)| *at != slot);
        self.sequences.push((slot, sequence + 1));
        let id = LaneId::new(slot, sequence);
        let groups = &self.queue(queue).expect("checked by the caller").groups;
        let groups = groups
            .iter()
            .map(|group| Group::new(&group.name, Offset(0)))
            .collect();
        self.lanes.push(Lane {
            id,
            queue,
            name: name.to_owned(),
            head: Offset(0),
            messages: Vec::new(),
            groups,
        });
        self.lanes.sort_by_key(|lane| lane.id);
        Ok(self.lane_at(id).expect("just made"))
    }

    /// Appends `count` messages to a lane of a live queue; returns the first one's offset.
    pub(super) fn append(&mut self, lane: LaneId, count: usize, block: Block, dedup: bool) -> Offset {
        let wall = self.stamps.wall;
        let lane_at = self.lane_at(lane).expect("checked by the caller");
        let queue = self
            .queue(self.lanes[lane_at].queue)
            .expect("checked by the caller")
            .clone();
        let lane = &mut self.lanes[lane_at];
        let tail = lane.tail();
        if count == 0 {
            return tail;
        }
        let delayed = queue.row.settings.delayed_processing_seconds > 0;
        lane.messages
            .extend(std::iter::repeat_n(Message { wall, delayed }, count));
        let new_tail = lane.tail();
        for group in &mut lane.groups {
            let row = queue
                .groups
                .iter()
                .find(|row| row.name == group.name)
                .expect("states are of registered groups");
            let later = matches!(row.start, GroupStart::At(start) if start > wall);
            if later && group.cursor == tail {
                group.cursor = new_tail;
            }
        }
        self.changes.push(StoreChange::Stored {
            queue: queue.row.id,
            lane: lane.id,
            offset_first: tail,
            count: u32::try_from(count).expect("a command holds fewer items"),
            block,
            dedup,
        });
        self.update_ready_groups(lane_at);
        tail
    }
}

/// Whether the leader's dedup decisions name messages that are there.
fn plan_holds(items: &[PushItem], tail: Option<Offset>) -> bool {
    items.iter().enumerate().all(|(at, item)| match item {
        PushItem::Store => true,
        PushItem::DuplicateOf { offset, .. } => tail.is_some_and(|tail| *offset < tail),
        PushItem::DuplicateOfItem(item) => (*item as usize) < at,
    })
}
