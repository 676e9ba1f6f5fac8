//! What a frozen leader is asked as it thaws: things that have changed while it slept, one lane of each partition that it led.
//!
//! Every question and answer is part of the history; the oracle knows what is stale.

use laneway_sim::oracle::history::{AckItem, AckStatus};

use super::probe::{probe_message, whole};
use crate::api::PopQuery;
use crate::payload::json_payload;
use crate::workload::client::{Attempt, Client};
use crate::workload::plan::{GroupPlan, QueuePlan};
use crate::workload::setup::Fleet;
use crate::workload::verbs::{AckTarget, Claim, Draft, LaneDrafts};

/// Lease of the claim that is settled while the leader sleeps.
const LEASE_SECONDS: u64 = 60;

/// Attempts at each preparation.
const ATTEMPTS_MAX: u32 = 100;

/// A queue that nobody else touches, so that its state is known.
pub(super) const STALE: QueuePlan = QueuePlan {
    name: "stale",
    lanes: 200,
    groups: &[
        GroupPlan {
            name: "readers",
            fails: true,
            ..GroupPlan::BASE
        },
        GroupPlan {
            name: "finders",
            ..GroupPlan::BASE
        },
    ],
    ..QueuePlan::BASE
};

/// One lane, whose first message was claimed before the freeze.
pub(super) struct Thawed {
    victim: u16,
    lane: String,
    client: Client,
    claim: Claim,
    second: Option<LaneDrafts>,
}

impl Thawed {
    /// Pushes a message and claims it; `None` when that did not succeed.
    pub(super) async fn before(fleet: &mut Fleet, victim: u16, lane: String) -> Option<Self> {
        let mut client = fleet.client().not_at_node(victim);
        push_surely(&mut client, &lane).await?;
        let claim = match client.pop(&query(&lane)).await {
            Attempt::Done(claim) if !claim.lanes.is_empty() => claim,
            _ => return None,
        };
        Some(Self {
            victim,
            lane,
            client,
            claim,
            second: None,
        })
    }

    /// Over the other nodes the claimed message becomes a dead letter, and a new one comes.
    pub(super) async fn meanwhile(&mut self) {
        let target = self.signal(AckStatus::Dlq);
        for _ in 0..ATTEMPTS_MAX {
            let group = STALE.groups[0].parameter();
            let targets = [target.clone()];
            if let Attempt::Done(_) = self.client.ack(STALE.name, group, &targets, None).await {
                self.second = push_surely(&mut self.client, &self.lane).await;
                return;
            }
            self.client.pause(5, 20).await;
        }
    }

    fn signal(&self, status: AckStatus) -> AckTarget {
        let mut target = whole(&self.claim, &self.claim.lanes[0]);
        target.items.truncate(1);
        target.items[0] = AckItem {
            status,
            error: Some("asked for it".to_owned()),
            ..target.items[0].clone()
        };
        target
    }

    /// Asks the thawing node four things at once. Gives the numbers of successes, refusals and unknown outcomes.
    pub(super) fn ask(mut self, fleet: &mut Fleet) -> impl Future<Output = [u32; 3]> + Send + use<> {
        let [mut popper, mut acker, mut pusher, mut lister] =
            [(); 4].map(|()| fleet.client().at_node(self.victim));
        async move {
            let Some(second) = self.second.take() else {
                return [0; 3];
            };
            let group = STALE.groups[0].parameter();
            // The lease is settled: this must change nothing.
            let late = [self.signal(AckStatus::Failed)];
            // The transaction id is taken: the answer must name the message that has it.
            let again = [LaneDrafts {
                lane: self.lane.clone(),
                drafts: vec![Draft {
                    transaction_id: second.drafts[0].transaction_id.clone(),
                    payload: json_payload(pusher.number(), 0, false, 80),
                }],
            }];
            let query = query(&self.lane);
            let (popped, acked, pushed, listed) = tokio::join!(
                popper.pop(&query),
                acker.ack(STALE.name, group, &late, None),
                pusher.push(STALE.name, &again, None),
                lister.list_dead_letters(STALE.name, false),
            );
            let outcomes = [kind(&popped), kind(&acked), kind(&pushed), kind(&listed)];
            if let Attempt::Done(claim) = popped
                && !claim.lanes.is_empty()
            {
                let targets: Vec<_> = claim.lanes.iter().map(|lane| whole(&claim, lane)).collect();
                self.client.ack(STALE.name, group, &targets, None).await;
            }
            let mut counts = [0; 3];
            for at in outcomes.into_iter().flatten() {
                counts[at] += 1;
            }
            counts
        }
    }
}

/// Place of an outcome in the counts.
fn kind<T>(attempt: &Attempt<T>) -> Option<usize> {
    match attempt {
        Attempt::Done(_) => Some(0),
        Attempt::Refused => Some(1),
        Attempt::Unknown => Some(2),
        Attempt::NotSent => None,
    }
}

fn query(lane: &str) -> PopQuery<'_> {
    PopQuery {
        queue: STALE.name,
        lane: Some(lane),
        group: STALE.groups[0].parameter(),
        mode: Some("all"),
        batch: 10,
        lanes_max: 1,
        wait_ms: None,
        lease_seconds: Some(LEASE_SECONDS),
        auto_ack: false,
    }
}

async fn push_surely(client: &mut Client, lane: &str) -> Option<LaneDrafts> {
    let message = probe_message(client, lane);
    for _ in 0..ATTEMPTS_MAX {
        let pushed = client
            .push(STALE.name, std::slice::from_ref(&message), None)
            .await;
        if let Attempt::Done(()) = pushed {
            return Some(message);
        }
        client.pause(5, 20).await;
    }
    None
}
