//! Claim: batches under one lease id, longest-ready lane first.

use laneway_core::command::Claim;
use laneway_core::ids::{LaneId, Offset, QueueId};
use laneway_core::reply::{Claimed, ClaimedLane, Refusal, Reply};

use super::{Answer, Lease, Model};

impl Model {
    pub(super) fn claim(&mut self, claim: Claim) -> Answer {
        let queue = self.queue(claim.queue).ok_or(Refusal::QueueGone)?;
        if queue.groups.iter().all(|group| group.name != claim.group) {
            return Err(Refusal::GroupUnknown);
        }
        let mut lanes = Vec::new();
        let mut messages_left = u64::from(claim.messages_max);
        for (lane_at, group_at) in self.candidates(claim.queue, &claim.group, claim.lane) {
            if lanes.len() == usize::from(claim.lanes_max) || messages_left == 0 {
                break;
            }
            let claimed = self.claim_lane(&claim, lane_at, group_at, messages_left);
            messages_left -= claimed.batch_end.0 - claimed.offset_first.0;
            lanes.push(claimed);
        }
        Ok(Reply::Claimed(Claimed {
            lease_id: claim.lease_id,
            lanes,
        }))
    }

    /// Lanes that surely give at least one message, in the order to take them: of all lanes only those swept into the
    /// ready order; a pinned one also if its lease lapsed or it ripened since.
    pub(super) fn candidates(
        &self,
        queue: QueueId,
        group: &str,
        pinned: Option<LaneId>,
    ) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for (lane_at, lane) in self.lanes.iter().enumerate() {
            let Some(group_at) = lane.groups.iter().position(|at| at.name == group) else {
                continue;
            };
            if lane.queue != queue || pinned.is_some_and(|pinned| pinned != lane.id) {
                continue;
            }
            let ready = lane.groups[group_at].ready;
            if ready.is_some() || pinned.is_some() && self.gives(lane_at, group_at) {
                found.push((ready, lane_at, group_at));
            }
        }
        found.sort();
        found
            .into_iter()
            .map(|(_, lane_at, group_at)| (lane_at, group_at))
            .collect()
    }

    fn gives(&self, lane_at: usize, group_at: usize) -> bool {
        let lane = &self.lanes[lane_at];
        let group = &lane.groups[group_at];
        let settings = &self
            .queue(lane.queue)
            .expect("checked by the caller")
            .row
            .settings;
        let (start, end) = lane.deliverable(group, settings, self.stamps.wall);
        group.live_lease(self.stamps.lease).is_none() && start < end
    }

    fn claim_lane(
        &mut self,
        claim: &Claim,
        lane_at: usize,
        group_at: usize,
        messages_max: u64,
    ) -> ClaimedLane {
        let settings = self
            .queue(claim.queue)
            .expect("checked by the caller")
            .row
            .settings
            .clone();
        let stamps = self.stamps;
        let lane = &mut self.lanes[lane_at];
        let (start, ripe_end) = lane.deliverable(&lane.groups[group_at], &settings, stamps.wall);
        let end = Offset(ripe_end.0.min(start.0.saturating_add(messages_max)));
        let group = &mut lane.groups[group_at];
        let again = group.attempt > 0 && group.attempt_at == start;
        let attempt = if again { group.attempt.saturating_add(1) } else { 1 };
        group.attempt_at = start;
        group.ready = None;
        if claim.auto_ack {
            group.cursor = end;
            group.consumed += end.0 - start.0;
            group.lease = None;
            group.retries_used = 0;
            group.attempt = 0;
        } else {
            let lease_ms = claim
                .lease_ms
                .unwrap_or_else(|| settings.lease_seconds.saturating_mul(1000));
            let deadline = stamps.lease.plus_ms(lease_ms);
            group.cursor = start;
            group.attempt = attempt;
            group.lease = Some(Lease {
                id: claim.lease_id,
                batch_end: end,
                deadline,
            });
        }
        let claimed = ClaimedLane {
            lane: lane.id,
            name: lane.name.clone(),
            offset_first: start,
            batch_end: end,
            attempt,
        };
        self.update_ready(lane_at, group_at);
        claimed
    }
}
