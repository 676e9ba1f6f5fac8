//! Leases: taking them away, extending them, giving claims back.

use super::PartitionMachine;
use super::expiry::GROUPS;
use super::index::GroupNumber;
use crate::command::{Extend, ReleaseClaim};
use crate::ids::{LaneId, LeaseId, Offset};
use crate::reply::{Effect, Extended, Outcome, Reply};
use crate::rows::Lease;
use crate::time::WallTime;

impl PartitionMachine {
    /// Ends a lease, if there is one. The caller refreshes the standing.
    pub(super) fn end_lease(&mut self, lane: LaneId, group: GroupNumber) {
        let Some(lease) = self.lane_mut(lane).groups[group.at()].lease.take() else {
            return;
        };
        self.index.remove_lease(lane, group, *lease);
    }

    /// Ends a lease that has lapsed, if there is one.
    pub(super) fn end_lapsed_lease(&mut self, lane: LaneId, group: GroupNumber) {
        if self.tables.lanes[&lane].groups[group.at()].lease.is_some() {
            self.meta_mut().leases_expired += 1;
            self.end_lease(lane, group);
        }
    }

    /// Puts a lease in place of the one that is there, if any.
    pub(super) fn set_lease(&mut self, lane: LaneId, group: GroupNumber, lease: Lease) {
        let old = self.lane_mut(lane).groups[group.at()]
            .lease
            .replace(Box::new(lease));
        if let Some(old) = old {
            self.index.remove_lease(lane, group, *old);
        }
        self.index.insert_lease(lane, group, lease);
    }

    /// Live leases with an id, on `lane` or on all lanes.
    fn live_leases(&self, id: LeaseId, lane: Option<LaneId>) -> Vec<(LaneId, GroupNumber, Lease)> {
        let lanes = lane.map_or((LaneId(0), LaneId(u64::MAX)), |lane| (lane, lane));
        let range = (id, lanes.0, *GROUPS.start())..=(id, lanes.1, *GROUPS.end());
        let live = self.index.leases.range(range).filter_map(|&(_, lane, group)| {
            let lease = self.live_lane(lane)?.groups[group.at()].live_lease(self.now())?;
            Some((lane, group, lease))
        });
        live.collect()
    }

    pub(super) fn extend(&mut self, extend: &Extend) -> Outcome {
        self.answered(extend.request.as_ref(), |machine| machine.extend_all(extend))
    }

    fn extend_all(&mut self, extend: &Extend) -> Outcome {
        let leases = self.live_leases(extend.lease_id, None);
        let renewed = u32::try_from(leases.len()).expect("a partition has fewer than 2^32 lanes");
        let mut earliest = None;
        for (lane, group, lease) in leases {
            let deadline = lease.deadline.max(self.now().plus_ms(extend.lease_ms));
            earliest = Some(earliest.map_or(deadline, |earliest| deadline.min(earliest)));
            if deadline != lease.deadline {
                self.set_lease(lane, group, Lease { deadline, ..lease });
            }
        }
        Outcome::reply(Reply::Extended(earliest.map(|earliest| {
            let left = earliest.0.saturating_sub(self.now().0);
            Extended {
                renewed,
                expires: WallTime(self.wall().0.saturating_add(left)),
            }
        })))
    }

    pub(super) fn release_claim(&mut self, release: &ReleaseClaim) -> Outcome {
        let mut effects = Vec::new();
        let mut released = 0;
        for &(lane, end) in &release.lanes {
            for (lane, group, lease) in self.live_leases(release.lease_id, Some(lane)) {
                let done = match end {
                    None => self.give_back(lane, group, &mut effects),
                    Some(end) => self.shorten(lane, group, lease, end),
                };
                released += u32::from(done);
            }
        }
        Outcome {
            reply: Reply::Released(released),
            changes: Vec::new(),
            effects,
        }
    }

    /// Gives a batch back as if it had not been delivered.
    fn give_back(&mut self, lane: LaneId, group: GroupNumber, effects: &mut Vec<Effect>) -> bool {
        self.end_lease(lane, group);
        let state = &mut self.lane_mut(lane).groups[group.at()];
        state.attempt = state.attempt.saturating_sub(1);
        self.refresh(lane, group, effects);
        true
    }

    /// Ends a batch earlier; false when `end` is not inside it.
    fn shorten(&mut self, lane_id: LaneId, group: GroupNumber, lease: Lease, end: Offset) -> bool {
        let lane = &self.tables.lanes[&lane_id];
        let from = lane.groups[group.at()].cursor.max(lane.head);
        let inside = from < end && end < lease.batch_end;
        if inside {
            self.set_lease(
                lane_id,
                group,
                Lease {
                    batch_end: end,
                    ..lease
                },
            );
        }
        inside
    }
}
