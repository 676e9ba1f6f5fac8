//! Producers: small and large messages, one lane or several at once, repeats of what may have been lost and of what was not.

use super::client::{Attempt, Client};
use super::plan::{QueuePlan, lane_name};
use super::verbs::{Draft, LaneDrafts};
use crate::payload::json_payload;

/// Most lanes of one push.
const LANES_MAX: u32 = 3;

/// Most messages for one lane in one push.
const MESSAGES_MAX: u32 = 5;

/// Share of messages that failing groups fail again and again, in percent.
const POISON_PERCENT: u32 = 2;

/// Pushes until the load is over.
pub(crate) async fn produce(mut client: Client, plan: &'static QueuePlan) {
    let mut number = 0;
    let mut stored: Option<Vec<LaneDrafts>> = None;
    while client.may_work().await {
        let repeated = if plan.transaction_ids && client.chance(3) {
            stored.take()
        } else {
            None
        };
        let lanes = repeated.unwrap_or_else(|| drafts(&mut client, plan, &mut number));
        if push_until_known(&mut client, plan, &lanes).await {
            stored = Some(lanes);
        }
        client.pause(2, 16).await;
    }
}

/// Repeats an attempt of unknown outcome, by the request id or by the transaction ids; true when it surely was stored.
async fn push_until_known(client: &mut Client, plan: &QueuePlan, lanes: &[LaneDrafts]) -> bool {
    let named = !plan.transaction_ids || client.chance(50);
    let mut request_id = named.then(|| client.request_id());
    let mut attempts = 0;
    while client.may_work().await {
        match client.push(plan.name, lanes, request_id.as_deref()).await {
            Attempt::Done(()) => return true,
            Attempt::Refused => return false,
            Attempt::NotSent => continue,
            Attempt::Unknown => attempts += 1,
        }
        if !client.again(attempts).await {
            return false;
        }
        if plan.transaction_ids && client.chance(30) {
            request_id = None;
        }
    }
    false
}

fn drafts(client: &mut Client, plan: &QueuePlan, number: &mut u64) -> Vec<LaneDrafts> {
    use rand::Rng;
    let lanes = if client.chance(80) {
        1
    } else {
        client.rng.random_range(1..=LANES_MAX.min(plan.lanes))
    };
    let first = client.rng.random_range(0..plan.lanes);
    let mut made = Vec::new();
    for turn in 0..lanes {
        let count = client.rng.random_range(1..=MESSAGES_MAX);
        let drafts = (0..count).map(|_| draft(client, plan, number)).collect();
        made.push(LaneDrafts {
            lane: lane_name((first + turn) % plan.lanes),
            drafts,
        });
    }
    made
}

fn draft(client: &mut Client, plan: &QueuePlan, number: &mut u64) -> Draft {
    use rand::Rng;
    *number += 1;
    let poison = client.chance(POISON_PERCENT);
    let bytes = match client.rng.random_range(0..2000) {
        0 => 1_200_000, // more than one log entry holds
        1..=10 => client.rng.random_range(60_000..200_000),
        _ => client.rng.random_range(60..600),
    };
    Draft {
        transaction_id: plan
            .transaction_ids
            .then(|| format!("c{}-{number}", client.number())),
        payload: json_payload(client.number(), *number, poison, bytes),
    }
}
