//! The end of a run: every group settles everything, then the dead letters are listed.

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

/// Settles all that a group has left.
pub(super) async fn drain(client: &mut Client, plan: &QueuePlan, group: &GroupPlan) -> anyhow::Result<()> {
    let (started, mut quiet_since) = (Instant::now(), Instant::now());
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
        let claim = match client.pop(&query).await {
            Attempt::Done(claim) => claim,
            other => bail!(
                "a pop of {} / {} failed with no fault going on: {other:?}",
                plan.name,
                group.name
            ),
        };
        if claim.lanes.is_empty() {
            continue;
        }
        quiet_since = Instant::now();
        complete(client, plan, group, claim).await?;
    }
    client.record_drained(plan.name, group.name, !group.late);
    Ok(())
}

async fn complete(
    client: &mut Client,
    plan: &QueuePlan,
    group: &GroupPlan,
    claim: Claim,
) -> anyhow::Result<()> {
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
    match client.ack(plan.name, group.parameter(), &targets, None).await {
        Attempt::Done(_) => Ok(()),
        other => bail!(
            "an ack of {} / {} failed with no fault going on: {other:?}",
            plan.name,
            group.name
        ),
    }
}

/// After the drain nothing of the queue is leased.
pub(super) async fn check_no_lease_left(client: &mut Client, plan: &QueuePlan) -> anyhow::Result<()> {
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
