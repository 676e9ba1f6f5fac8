//! Retention: deleting messages from the head.

use super::PartitionMachine;
use crate::command::Trim;
use crate::ids::{LaneId, Offset};
use crate::reply::{Outcome, Reply, StoreChange};

impl PartitionMachine {
    pub(super) fn trim(&mut self, trim: &Trim) -> Outcome {
        let mut outcome = Outcome::reply(Reply::Trimmed);
        for &(id, to) in &trim.lanes {
            let Some(head) = self.trim_to(trim, id, to) else {
                continue;
            };
            let holds = self.holds(trim.queue);
            let wall = self.wall();
            let lane = self.lane_mut(id);
            lane.head = head;
            holds.prune(lane, wall);
            outcome.changes.push(StoreChange::HeadMoved { lane: id, head });
            self.refresh_all(id, trim.queue, &mut outcome.effects);
        }
        outcome
    }

    /// The head that a trim leads to, if it moves.
    fn trim_to(&self, trim: &Trim, id: LaneId, to: Offset) -> Option<Offset> {
        let lane = self.live_lane(id).filter(|lane| lane.queue == trim.queue)?;
        let mut to = to.min(lane.tail);
        if trim.completed_only {
            to = to.min(lane.groups.iter().map(|state| state.cursor).min()?);
        }
        (to > lane.head).then_some(to)
    }
}
