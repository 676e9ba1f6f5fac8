//! Dead letters: filing, replay, deletion.

use super::PartitionMachine;
use crate::command::{DeleteDeadLetter, ReplayDeadLetter};
use crate::ids::{DeadLetterId, LaneId, Offset};
use crate::reply::{DeadLetter, Outcome, Refusal, Replayed, Reply, StoreChange};
use crate::rows::RowKey;

/// What an ack knows of the message that it files.
pub(super) struct Filing {
    pub(super) lane: LaneId,
    pub(super) offset: Offset,
    pub(super) group: String,
    pub(super) transaction_id: String,
    pub(super) reason: String,
    pub(super) retries_used: u32,
}

impl PartitionMachine {
    /// Adds a row; the caller moves the cursor.
    pub(super) fn file(&mut self, filing: Filing) -> StoreChange {
        let (lane, offset) = (filing.lane, filing.offset);
        let meta = self.meta_mut();
        let id = DeadLetterId::new(meta.partition, meta.dead_letter_next);
        meta.dead_letter_next += 1;
        meta.dead_lettered += 1;
        let queue = self.tables.lanes[&lane].queue;
        let row = DeadLetter {
            id,
            queue,
            lane,
            offset,
            group: filing.group,
            transaction_id: filing.transaction_id,
            reason: filing.reason,
            retries_used: filing.retries_used,
            filed: self.wall(),
        };
        self.touch(RowKey::DeadLetter(id));
        self.tables.dead_letters.insert(id, row);
        self.index.pins.insert((lane, offset, id));
        let queue = self
            .index
            .queues
            .get_mut(&queue)
            .expect("only lanes of live queues are acked");
        queue.dead_letters.insert(id);
        StoreChange::Pinned { lane, offset }
    }

    pub(super) fn replay_dead_letter(&mut self, replay: &ReplayDeadLetter) -> Outcome {
        self.answered(replay.request.as_ref(), |machine| {
            let Some(row) = machine.dead_letter(replay.id).cloned() else {
                return Outcome::refused(Refusal::DeadLetterGone);
            };
            let (queue, lane, block) = (row.queue, row.lane, replay.block);
            let mut effects = Vec::new();
            let offset = machine.append(lane, 1, &mut effects);
            let stored = StoreChange::Stored {
                queue,
                lane,
                offset_first: offset,
                count: 1,
                block,
                dedup: false,
            };
            let mut changes = vec![stored];
            changes.extend(machine.remove_dead_letter(&row));
            let reply = Reply::Replayed(Replayed {
                lane,
                offset,
                wall: machine.wall(),
                dead_letter: row,
            });
            Outcome {
                reply,
                changes,
                effects,
            }
        })
    }

    pub(super) fn delete_dead_letter(&mut self, delete: &DeleteDeadLetter) -> Outcome {
        self.answered(delete.request.as_ref(), |machine| {
            let Some(row) = machine.dead_letter(delete.id).cloned() else {
                return Outcome::refused(Refusal::DeadLetterGone);
            };
            let mut outcome = Outcome::reply(Reply::DeadLetterDeleted);
            outcome.changes.extend(machine.remove_dead_letter(&row));
            outcome
        })
    }

    /// Removes a row; tells the stores when it was the last one of its message.
    pub(super) fn remove_dead_letter(&mut self, row: &DeadLetter) -> Option<StoreChange> {
        let (lane, offset) = (row.lane, row.offset);
        self.remove_row(RowKey::DeadLetter(row.id));
        self.index.pins.remove(&(lane, offset, row.id));
        let queues = &mut self.index.queues;
        let queue = queues
            .get_mut(&row.queue)
            .or_else(|| self.index.dead.get_mut(&row.queue));
        queue.map(|queue| queue.dead_letters.remove(&row.id));
        let mut others = self
            .index
            .pins
            .range((lane, offset, DeadLetterId(0))..=(lane, offset, DeadLetterId(u64::MAX)));
        others
            .next()
            .is_none()
            .then_some(StoreChange::Unpinned { lane, offset })
    }
}
