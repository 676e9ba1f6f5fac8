//! Retention.

use laneway_core::command::Trim;
use laneway_core::reply::{Reply, StoreChange};

use super::Model;

impl Model {
    pub(super) fn trim(&mut self, trim: Trim) -> Reply {
        for (id, wanted) in trim.lanes {
            let Some(lane_at) = self.lane_at(id).filter(|&at| self.lanes[at].queue == trim.queue) else {
                continue;
            };
            let lane = &mut self.lanes[lane_at];
            let mut head = wanted.min(lane.tail());
            if trim.completed_only {
                let Some(lowest) = lane.groups.iter().map(|group| group.cursor).min() else {
                    continue;
                };
                head = head.min(lowest);
            }
            if head > lane.head {
                lane.head = head;
                self.changes.push(StoreChange::HeadMoved { lane: id, head });
                self.update_ready_groups(lane_at);
            }
        }
        Reply::Trimmed
    }
}
