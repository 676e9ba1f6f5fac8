//! The end of a run: every group settles everything, then the dead letters are listed.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use laneway_sim::oracle::history::{AckItem, AckStatus};

use super::client::{Attempt, Client};
use super::plan::{GroupPlan, LEASE_SECONDS_MAX, QueuePlan};
use super::verbs::{AckTarget, Claim};
use crate::api::{PopQuery, path_segment};
use crate::http::Call;

/// A killed broker's own leases, of auto-ack pops between claim and settlement, run for so long.
const AUTO_ACK_LEASE_SECONDS: u64 = 5;

/// No message for so long means that no lease of a client or gateway that is gone can still hold one.
const QUIET: Duration = Duration::from_secs(max(LEASE_SECONDS_MAX, AUTO_ACK_LEASE_SECONDS) + 2);

const fn max(a: u64, b: u64) -> u64 {
    if a > b { a } else { b }
}

/// A drain that takes longer has failed.
const DRAIN_MAX: Duration = Duration::from_secs(180);

/// After a failure.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);

/// Settles all that a group has left; gives the failures met. More than `patience` of them end it.
pub(crate) async fn drain(
    client: &mut Client,
    plan: &QueuePlan,
    group: &GroupPlan,
    patience: u32,
) -> anyhow::Result<u32> {
    let (started, mut quiet_since) = (Instant::now(), Instant::now());
    let mut failures = Failures::new(plan, group, patience);
    while quiet_since.elapsed() < QUIET {
        if started.elapsed() > DRAIN_MAX {
            bail!(
                "{} / {} was not drained within {DRAIN_MAX:?}",
                plan.name,
                group.name
            );
        }
        let query = PopQuery {
            queue: plan.name,
            lane: None,
            group: group.parameter(),
            mode: Some(if group.late { "new" } else { "all" }),
            batch: 200,
            lanes_max: 64,
            wait_ms: Some(500),
            lease_seconds: Some(LEASE_SECONDS_MAX),
            auto_ack: false,
        };
        match client.pop(&query).await {
            Attempt::Done(claim) if claim.lanes.is_empty() => {}
            Attempt::Done(claim) => {
                complete(client, claim, &mut failures).await?;
                quiet_since = Instant::now();
            }
            other => {
                failures.meet("pop", &other).await?;
                // It may have got a lease all the same.
                quiet_since = Instant::now();
            }
        }
    }
    client.record_drained(plan.name, group.name, !group.late);
    Ok(failures.met)
}

/// What went wrong while nothing should.
struct Failures<'a> {
    plan: &'a QueuePlan,
    group: &'a GroupPlan,
    patience: u32,
    met: u32,
}

impl<'a> Failures<'a> {
    fn new(plan: &'a QueuePlan, group: &'a GroupPlan, patience: u32) -> Self {
        Self {
            plan,
            group,
            patience,
            met: 0,
        }
    }

    async fn meet<T: Debug>(&mut self, what: &str, attempt: &Attempt<T>) -> anyhow::Result<()> {
        let (plan, group) = (self.plan.name, self.group.name);
        self.met += 1;
        ensure!(
            self.met <= self.patience,
            "{what} of {plan} / {group} failed with no fault going on: {attempt:?}"
        );
        tokio::time::sleep(FAILURE_PAUSE).await;
        Ok(())
    }
}

async fn complete(client: &mut Client, claim: Claim, failures: &mut Failures<'_>) -> anyhow::Result<()> {
    let targets: Vec<AckTarget> = claim
        .lanes
        .into_iter()
        .map(|lane| {
            let items = lane.messages.into_iter().map(|message| AckItem {
                transaction_id: message.transaction_id,
                status: AckStatus::Completed,
                error: None,
            });
            AckTarget {
                lane: lane.lane,
                lane_id: lane.lane_id,
                lease_id: Some(claim.lease_id.clone()),
                items: items.collect(),
            }
        })
        .collect();
    let (plan, group) = (failures.plan, failures.group);
    loop {
        match client.ack(plan.name, group.parameter(), &targets, None).await {
            Attempt::Done(_) => return Ok(()),
            other => failures.meet("an ack", &other).await?,
        }
    }
}

/// Lists the dead letters of a drained queue, for the oracle.
pub(crate) async fn list_dead_letters(
    client: &mut Client,
    plan: &QueuePlan,
    patience: u32,
) -> anyhow::Result<()> {
    for _ in 0..=patience {
        if let Attempt::Done(_) = client.list_dead_letters(plan.name, true).await {
            return Ok(());
        }
        tokio::time::sleep(FAILURE_PAUSE).await;
    }
    bail!("cannot list the dead letters of {}", plan.name)
}

/// After the drain nothing of the queue is leased.
pub(crate) async fn check_no_lease_left(client: &mut Client, plan: &QueuePlan) -> anyhow::Result<()> {
    let path = format!("/api/v1/resources/queues/{}", path_segment(plan.name));
    let answer = client.raw(Call::get(&path, Duration::from_secs(10))).await?;
    ensure!(answer.status == 200, "{path}: {}", answer.brief());
    let queue: serde_json::Value = serde_json::from_slice(&answer.body)?;
    let processing = queue["totals"]["processing"].as_u64();
    ensure!(
        processing == Some(0),
        "{} still has leased messages after the drain: {processing:?}",
        plan.name
    );
    Ok(())
}
