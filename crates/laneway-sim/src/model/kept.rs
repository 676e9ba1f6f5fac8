//! Answers kept for repeats: of client requests, and of acks that ended a lease.

use laneway_core::command::RequestKey;
use laneway_core::ids::{LaneId, LeaseId};
use laneway_core::reply::{Acked, Refusal, Reply};
use laneway_core::time::LeaseTime;

use super::Model;

#[derive(Clone, Debug)]
pub(super) struct KeptRequest {
    key: RequestKey,
    reply: Reply,
    since: LeaseTime,
}

#[derive(Clone, Debug)]
pub(super) struct KeptSettled {
    lease: LeaseId,
    lane: LaneId,
    items_hash: u128,
    acked: Acked,
    since: LeaseTime,
}

impl Model {
    pub(super) fn forget_old_answers(&mut self) {
        let (now, keep_ms) = (self.stamps.lease, self.limits.kept_answer_ms);
        self.requests.retain(|kept| now < kept.since.plus_ms(keep_ms));
        self.settled.retain(|kept| now < kept.since.plus_ms(keep_ms));
    }

    pub(super) fn answer_kept_for(&self, request: Option<&RequestKey>) -> Option<Reply> {
        let request = request?;
        let same_id = |key: &RequestKey| key.id == request.id && key.part == request.part;
        let kept = self.requests.iter().find(|kept| same_id(&kept.key))?;
        if kept.key.content == request.content {
            Some(kept.reply.clone())
        } else {
            Some(Reply::Refused(Refusal::RequestIdReused))
        }
    }

    pub(super) fn keep_answer(&mut self, request: Option<RequestKey>, reply: &Reply) {
        let Some(key) = request else { return };
        if matches!(reply, Reply::Refused(_)) {
            return;
        }
        self.requests.push(KeptRequest {
            key,
            reply: reply.clone(),
            since: self.stamps.lease,
        });
        if self.requests.len() > self.limits.kept_answers_max {
            self.requests.remove(0);
        }
    }

    pub(super) fn settled_answer(&self, lease: LeaseId, lane: LaneId, items_hash: u128) -> Option<Acked> {
        let same =
            |kept: &&KeptSettled| (kept.lease, kept.lane, kept.items_hash) == (lease, lane, items_hash);
        self.settled.iter().find(same).map(|kept| kept.acked.clone())
    }

    pub(super) fn keep_settled(&mut self, lease: LeaseId, lane: LaneId, items_hash: u128, acked: &Acked) {
        let since = self.stamps.lease;
        self.settled.push(KeptSettled {
            lease,
            lane,
            items_hash,
            acked: acked.clone(),
            since,
        });
        if self.settled.len() > self.limits.kept_answers_max {
            self.settled.remove(0);
        }
    }
}
