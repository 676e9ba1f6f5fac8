//! Replay and deletion of dead letters.

use laneway_core::command::{DeleteDeadLetter, ReplayDeadLetter};
use laneway_core::ids::{DeadLetterId, LaneId, Offset};
use laneway_core::reply::{DeadLetter, Refusal, Replayed, Reply, StoreChange};

use super::{Answer, Model};

impl Model {
    pub(super) fn replay(&mut self, replay: &ReplayDeadLetter) -> Answer {
        let row = self.dead_letter(replay.id).ok_or(Refusal::DeadLetterGone)?;
        let offset = self.append(row.lane, 1, replay.block, false);
        self.remove_dead_letter(row.id);
        self.unpin(row.lane, row.offset);
        let wall = self.stamps.wall;
        Ok(Reply::Replayed(Replayed {
            lane: row.lane,
            offset,
            wall,
            dead_letter: row,
        }))
    }

    pub(super) fn delete_dead_letter(&mut self, delete: &DeleteDeadLetter) -> Answer {
        let row = self.dead_letter(delete.id).ok_or(Refusal::DeadLetterGone)?;
        self.remove_dead_letter(row.id);
        self.unpin(row.lane, row.offset);
        Ok(Reply::DeadLetterDeleted)
    }

    fn dead_letter(&self, id: DeadLetterId) -> Option<DeadLetter> {
        self.dead_letters
            .iter()
            .find(|row| row.id == id && self.is_live(row.queue))
            .cloned()
    }

    fn remove_dead_letter(&mut self, id: DeadLetterId) {
        self.dead_letters.retain(|row| row.id != id);
    }

    fn unpin(&mut self, lane: LaneId, offset: Offset) {
        if !self
            .dead_letters
            .iter()
            .any(|row| (row.lane, row.offset) == (lane, offset))
        {
            self.changes.push(StoreChange::Unpinned { lane, offset });
        }
    }
}
