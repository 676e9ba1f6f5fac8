//! Claims: leases on batches, or consumption without one.

use super::PartitionMachine;
use super::index::GroupNumber;
use crate::command::Claim;
use crate::ids::{LaneId, LeaseId};
use crate::reply::{Claimed, ClaimedLane, Effect, Outcome, Refusal, Reply};
use crate::rows::{Lease, Standing};
use crate::time::LeaseTime;

/// How a claim takes its lanes.
struct Terms {
    lease_id: LeaseId,
    deadline: LeaseTime,
    auto_ack: bool,
}

impl PartitionMachine {
    pub(super) fn claim(&mut self, claim: &Claim) -> Outcome {
        let Some(queue) = self.index.queues.get(&claim.queue) else {
            return Outcome::refused(Refusal::QueueGone);
        };
        let Some(&group) = queue.by_name.get(&claim.group) else {
            return Outcome::refused(Refusal::GroupUnknown);
        };
        let lanes_max = usize::from(claim.lanes_max);
        let lanes: Vec<LaneId> = match claim.lane {
            None => queue.groups[group.at()]
                .ready
                .iter()
                .take(lanes_max)
                .map(|(_, lane)| *lane)
                .collect(),
            Some(lane) => Some(lane)
                .into_iter()
                .take(lanes_max)
                .filter(|_| queue.lanes.contains(&lane))
                .collect(),
        };
        let lease_seconds = self.tables.queues[&claim.queue].settings.lease_seconds;
        let lease_ms = claim
            .lease_ms
            .unwrap_or_else(|| lease_seconds.saturating_mul(1000));
        let terms = Terms {
            lease_id: claim.lease_id,
            deadline: self.now().plus_ms(lease_ms),
            auto_ack: claim.auto_ack,
        };
        let mut left = u64::from(claim.messages_max);
        let mut effects = Vec::new();
        let mut claimed = Vec::with_capacity(lanes.len());
        for lane in lanes {
            if let Some(batch) = self.claim_lane(lane, group, &terms, left, &mut effects) {
                left -= batch.batch_end.0 - batch.offset_first.0;
                claimed.push(batch);
            }
        }
        let reply = Reply::Claimed(Claimed {
            lease_id: claim.lease_id,
            lanes: claimed,
        });
        Outcome {
            reply,
            changes: Vec::new(),
            effects,
        }
    }

    /// Takes at most `messages_max` of a lane; changes nothing when it can take none.
    fn claim_lane(
        &mut self,
        id: LaneId,
        group: GroupNumber,
        terms: &Terms,
        messages_max: u64,
        effects: &mut Vec<Effect>,
    ) -> Option<ClaimedLane> {
        let (from, end) = self.deliverable(&self.tables.lanes[&id], group, self.stamps())?;
        let batch_end = end.min(from.plus(messages_max));
        if from >= batch_end {
            return None;
        }
        self.end_lapsed_lease(id, group);
        self.set_standing(id, group, Standing::Idle);
        let lane = self.lane_mut(id);
        let name = lane.name.to_string();
        let state = &mut lane.groups[group.at()];
        let again = state.attempt > 0 && state.attempt_at == from;
        let attempt = if again { state.attempt.saturating_add(1) } else { 1 };
        state.cursor = from;
        state.attempt = attempt;
        state.attempt_at = from;
        let count = batch_end.0 - from.0;
        if terms.auto_ack {
            state.cursor = batch_end;
            state.consumed += count;
            state.retries_used = 0;
            state.attempt = 0;
            self.meta_mut().settled += count;
            self.refresh(id, group, effects);
        } else {
            let lease = Lease {
                id: terms.lease_id,
                batch_end,
                deadline: terms.deadline,
            };
            self.set_lease(id, group, lease);
        }
        self.meta_mut().delivered += count;
        Some(ClaimedLane {
            lane: id,
            name,
            offset_first: from,
            batch_end,
            attempt,
        })
    }
}
