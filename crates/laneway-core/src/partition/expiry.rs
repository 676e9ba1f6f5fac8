//! What time does at the head of an entry: leases lapse, lanes ripen.

use std::ops::RangeInclusive;

use super::PartitionMachine;
use super::index::GroupNumber;
use crate::ids::LaneId;
use crate::reply::Effect;

/// All groups, for ranges over an index that ends in a group.
pub(super) const GROUPS: RangeInclusive<GroupNumber> = GroupNumber(0)..=GroupNumber(u32::MAX);

impl PartitionMachine {
    /// By (deadline, lane, group name).
    pub(super) fn expire(&mut self, effects: &mut Vec<Effect>) {
        let now = self.now();
        let mut left = self.limits.expire_max;
        while left > 0 {
            let Some(&(deadline, lane, _)) = self.index.deadlines.first().filter(|first| first.0 <= now)
            else {
                return;
            };
            let range = (deadline, lane, *GROUPS.start())..=(deadline, lane, *GROUPS.end());
            let lapsed: Vec<GroupNumber> = self
                .index
                .deadlines
                .range(range)
                .map(|(_, _, group)| *group)
                .collect();
            if self.live_lane(lane).is_none() {
                for group in lapsed {
                    self.index.deadlines.remove(&(deadline, lane, group));
                }
                continue;
            }
            for group in self.in_name_order(lane, lapsed) {
                if left == 0 {
                    return;
                }
                left -= 1;
                self.end_lapsed_lease(lane, group);
                self.refresh(lane, group, effects);
            }
        }
    }

    /// By (time, lane, group name).
    pub(super) fn ripen(&mut self, effects: &mut Vec<Effect>) {
        let wall = self.wall();
        let mut left = self.limits.expire_max;
        while left > 0 {
            let Some(&(until, lane, _)) = self.index.ripenings.first().filter(|first| first.0 <= wall) else {
                return;
            };
            let range = (until, lane, *GROUPS.start())..=(until, lane, *GROUPS.end());
            let ripe: Vec<GroupNumber> = self
                .index
                .ripenings
                .range(range)
                .map(|(_, _, group)| *group)
                .collect();
            if self.live_lane(lane).is_none() {
                for group in ripe {
                    self.index.ripenings.remove(&(until, lane, group));
                }
                continue;
            }
            for group in self.in_name_order(lane, ripe) {
                if left == 0 {
                    return;
                }
                left -= 1;
                self.refresh(lane, group, effects);
            }
        }
    }

    fn in_name_order(&self, lane: LaneId, mut groups: Vec<GroupNumber>) -> Vec<GroupNumber> {
        if groups.len() > 1 {
            let queue = &self.index.queues[&self.tables.lanes[&lane].queue];
            groups.sort_by_key(|group| &queue.groups[group.at()].name);
        }
        groups
    }
}
