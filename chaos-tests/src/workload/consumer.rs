//! Consumers: they complete, fail, give back, stall past the lease, extend, walk away, and repeat their acks.

use std::time::Duration;

use laneway_sim::oracle::history::{AckItem, AckStatus};
use rand::Rng;

use super::client::{Attempt, Client};
use super::plan::{GroupPlan, LEASE_SECONDS_MAX, QUEUE_LEASE_SECONDS, QueuePlan, lane_name};
use super::verbs::{AckTarget, Claim, ClaimedLane};
use crate::api::PopQuery;

/// Most messages acked one by one before the rest is acked at once.
const SINGLE_ACKS_MAX: usize = 6;

/// Consumes until the load is over.
pub(crate) async fn consume(mut client: Client, plan: &'static QueuePlan, group: &'static GroupPlan) {
    while client.may_work().await {
        let auto_ack = client.chance(group.auto_ack_percent);
        let lease_seconds = client
            .chance(70)
            .then(|| client.rng.random_range(1..=LEASE_SECONDS_MAX));
        let lane = client
            .chance(15)
            .then(|| lane_name(client.rng.random_range(0..plan.lanes)));
        let query = PopQuery {
            queue: plan.name,
            lane: lane.as_deref(),
            group: group.parameter(),
            mode: Some(if group.late { "new" } else { "all" }),
            batch: client.rng.random_range(1..=20),
            lanes_max: client.rng.random_range(1..=4),
            wait_ms: client.chance(75).then(|| client.rng.random_range(100..900)),
            lease_seconds,
            auto_ack,
        };
        let lease_ms = lease_seconds.unwrap_or(QUEUE_LEASE_SECONDS) * 1000;
        if let Attempt::Done(claim) = client.pop(&query).await
            && !claim.lease_id.is_empty()
        {
            Handling {
                client: &mut client,
                plan,
                group,
                claim,
                lease_ms,
            }
            .run()
            .await;
        }
        client.pause(0, 6).await;
    }
}

/// One claim in one consumer's hands.
struct Handling<'a> {
    client: &'a mut Client,
    plan: &'static QueuePlan,
    group: &'static GroupPlan,
    claim: Claim,
    lease_ms: u64,
}

impl Handling<'_> {
    async fn run(mut self) {
        let lanes = std::mem::take(&mut self.claim.lanes);
        let poisoned = lanes
            .iter()
            .any(|lane| lane.messages.iter().any(|message| message.poison));
        let choice = match self.group.fails && poisoned && self.client.chance(85) {
            true => 0,
            false => self.client.rng.random_range(0..100),
        };
        match choice {
            0..45 => {
                let targets: Vec<_> = lanes.iter().map(|lane| self.verdict(lane)).collect();
                self.ack(&targets).await;
            }
            45..58 => self.one_by_one(&lanes).await,
            58..68 => {
                for lane in &lanes {
                    let last = self.target(lane, lane.messages.len() - 1.., AckStatus::Completed);
                    self.ack(&[last]).await;
                }
            }
            68..76 => self.extend_then_complete(&lanes).await,
            76..83 => self.stall_then_complete(&lanes).await,
            83..86 => {} // walks away; the lease runs out
            86..88 if self.group.bare_acks => {
                let mut bare = self.target(&lanes[0], .., AckStatus::Completed);
                bare.lease_id = None;
                self.ack(&[bare]).await;
            }
            _ => {
                for lane in &lanes {
                    let target = self.signal(lane);
                    self.ack(&[target]).await;
                }
            }
        }
    }

    /// What a handler would say of a lane: all completed, but a poisoned message fails and stops it there.
    fn verdict(&mut self, lane: &ClaimedLane) -> AckTarget {
        let poisoned = lane.messages.iter().position(|message| message.poison);
        match poisoned {
            Some(at) if self.group.fails && self.client.chance(90) => {
                let mut target = self.target(lane, ..=at, AckStatus::Completed);
                let item = target
                    .items
                    .last_mut()
                    .expect("the range holds the poisoned message");
                item.status = AckStatus::Failed;
                item.error = Some("poisoned".to_owned());
                target
            }
            _ => self.target(lane, .., AckStatus::Completed),
        }
    }

    /// A prefix completed, then a signal; now and then messages above it completed too.
    fn signal(&mut self, lane: &ClaimedLane) -> AckTarget {
        let at = self.client.rng.random_range(0..lane.messages.len());
        let status = match (self.group.fails, self.client.rng.random_range(0..10)) {
            (true, 0) => AckStatus::Dlq,
            (true, 1..7) => AckStatus::Failed,
            _ => AckStatus::Retry,
        };
        let whole = self.client.chance(30);
        let end = if whole { lane.messages.len() } else { at + 1 };
        let mut target = self.target(lane, ..end, AckStatus::Completed);
        target.items[at].status = status;
        if status != AckStatus::Retry && self.client.chance(70) {
            target.items[at].error = Some(format!("said no to {}", lane.messages[at].transaction_id));
        }
        target
    }

    async fn one_by_one(&mut self, lanes: &[ClaimedLane]) {
        for lane in lanes {
            for at in 0..lane.messages.len().min(SINGLE_ACKS_MAX) {
                let target = self.target(lane, at..=at, AckStatus::Completed);
                if !self.ack(&[target]).await {
                    break;
                }
            }
            if lane.messages.len() > SINGLE_ACKS_MAX {
                let rest = self.target(lane, SINGLE_ACKS_MAX.., AckStatus::Completed);
                self.ack(&[rest]).await;
            }
        }
    }

    /// Extends before the deadline, works on beyond the first deadline, completes under the second.
    async fn extend_then_complete(&mut self, lanes: &[ClaimedLane]) {
        tokio::time::sleep(Duration::from_millis(self.lease_ms / 2)).await;
        let seconds = self.client.rng.random_range(2..=LEASE_SECONDS_MAX);
        let request_id = self.client.chance(50).then(|| self.client.request_id());
        let mut attempts = 0;
        let lease_id = self.claim.lease_id.clone();
        while self.client.may_work().await {
            match self
                .client
                .extend(&lease_id, seconds, request_id.as_deref())
                .await
            {
                Attempt::Done(_) | Attempt::Refused => break,
                Attempt::NotSent => continue,
                Attempt::Unknown => attempts += 1,
            }
            if !self.client.again(attempts).await {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(self.lease_ms / 2 + 300)).await;
        for lane in lanes {
            let target = self.target(lane, .., AckStatus::Completed);
            self.ack(&[target]).await;
        }
    }

    /// Works longer than the lease; its ack comes late and must change nothing.
    async fn stall_then_complete(&mut self, lanes: &[ClaimedLane]) {
        let beyond_ms = self.client.rng.random_range(0..600);
        tokio::time::sleep(Duration::from_millis(self.lease_ms + beyond_ms)).await;
        for lane in lanes {
            let target = self.target(lane, .., AckStatus::Completed);
            self.ack(&[target]).await;
        }
    }

    fn target(
        &self,
        lane: &ClaimedLane,
        range: impl std::slice::SliceIndex<
            [super::verbs::ClaimedMessage],
            Output = [super::verbs::ClaimedMessage],
        >,
        status: AckStatus,
    ) -> AckTarget {
        let items = lane.messages[range].iter().map(|message| AckItem {
            transaction_id: message.transaction_id.clone(),
            status,
            error: None,
        });
        AckTarget {
            lane: lane.lane.clone(),
            lane_id: lane.lane_id.clone(),
            lease_id: Some(self.claim.lease_id.clone()),
            items: items.collect(),
        }
    }

    /// Acks until the outcome is known or the client gives up; true when every item was accepted. A known ack is now and
    /// then sent again: the repeat must change nothing.
    async fn ack(&mut self, targets: &[AckTarget]) -> bool {
        let (plan, group) = (self.plan, self.group);
        let request_id = self.client.chance(60).then(|| self.client.request_id());
        let mut attempts = 0;
        while self.client.may_work().await {
            match self
                .client
                .ack(plan.name, group.parameter(), targets, request_id.as_deref())
                .await
            {
                Attempt::Done(items) => {
                    if self.client.chance(4) {
                        let again = request_id.as_deref().filter(|_| self.client.rng.random_bool(0.5));
                        self.client
                            .ack(plan.name, group.parameter(), targets, again)
                            .await;
                    }
                    return items.iter().all(|item| item.success);
                }
                Attempt::NotSent => continue,
                Attempt::Refused | Attempt::Unknown => attempts += 1,
            }
            if !self.client.again(attempts).await {
                return false;
            }
        }
        false
    }
}
