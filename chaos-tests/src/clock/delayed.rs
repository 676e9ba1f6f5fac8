//! Messages of a queue with a delay, and how long theirs took.
//!
//! What is done here is not part of the history: the oracle knows no delays, and would miss what a pop does not yet find.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::Times;
use crate::api::{PopAnswer, PopQuery, PushBody, PushedItem};
use crate::cluster::probe::Lanes;
use crate::held::{POLL, now_ms};
use crate::http::Call;
use crate::workload::client::Client;
use crate::workload::plan::lane_name;

/// A message is deliverable so long after its push.
pub(super) const DELAY: Duration = Duration::from_secs(2);

/// The queue.
const QUEUE: &str = "delayed";

/// Its group.
const GROUP: &str = "sleepers";

/// Its lanes.
const LANES: u32 = 64;

/// Longest wait for an answer, beyond a pop's own parking.
const DEADLINE: Duration = Duration::from_secs(3);

/// Longest wait for a message, and for the queue to be ready.
const END_MAX: Duration = Duration::from_secs(60);

/// Makes the queue; gives the places of its lanes.
pub(super) async fn prepare(client: &mut Client) -> anyhow::Result<Lanes> {
    let options = serde_json::json!({"delayedProcessing": DELAY.as_secs(), "leaseTime": 3, "retryLimit": 3});
    let body = serde_json::json!({"queue": QUEUE, "options": options}).to_string();
    let answer = client
        .raw(Call::post("/api/v1/configure", body, DEADLINE))
        .await?;
    ensure!(answer.status == 200, "configure of {QUEUE}: {}", answer.brief());
    let mut body = PushBody::default();
    for lane in (0..LANES).map(lane_name) {
        body.item(QUEUE, &lane, Some(&client.request_id()), "null");
    }
    push(client, body.finish()).await?;
    let (mut lanes, started) = (Lanes::default(), Instant::now());
    let mut left = LANES;
    while left > 0 {
        ensure!(
            started.elapsed() < END_MAX,
            "{left} lanes of {QUEUE} were not delivered within {END_MAX:?}"
        );
        for message in pop(client, None).await?.messages {
            lanes.add(&message.partition, &message.partition_id)?;
            left -= 1;
        }
    }
    Ok(lanes)
}

/// Pushes a message to the lane and waits for it.
pub(super) async fn take(mut client: Client, lane: String) -> anyhow::Result<Times> {
    let mut body = PushBody::default();
    body.item(QUEUE, &lane, Some(&client.request_id()), "null");
    let (before_ms, asked) = (now_ms()?, Instant::now());
    push(&mut client, body.finish()).await?;
    let (after_ms, answered) = (now_ms()?, Instant::now());
    while answered.elapsed() < END_MAX {
        let popped = pop(&mut client, Some(&lane)).await?;
        let got = Instant::now();
        if let Some(message) = popped.messages.first() {
            ensure!(
                popped.messages.len() == 1,
                "{lane} of {QUEUE} delivered {} messages where one was pushed",
                popped.messages.len()
            );
            return Ok(Times {
                // It was stamped at some moment of the push.
                longest: got - asked,
                shortest: got - answered,
                pushed_ms: (before_ms, after_ms),
                created_at_ms: message.created_at_ms,
            });
        }
        tokio::time::sleep(POLL).await;
    }
    bail!("a message of {QUEUE}, lane {lane}, was not delivered within {END_MAX:?}")
}

/// Pushes until it is stored: the transaction ids make the repeat safe.
async fn push(client: &mut Client, body: String) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut last = String::new();
    while started.elapsed() < END_MAX {
        match client
            .raw(Call::post("/api/v1/push", body.clone(), DEADLINE))
            .await
        {
            Ok(answer) if answer.status == 201 => {
                let items: Vec<PushedItem> = serde_json::from_slice(&answer.body).context("push")?;
                if items.iter().all(|item| item.offset.is_some()) {
                    return Ok(());
                }
                last = answer.brief();
            }
            Ok(answer) => last = answer.brief(),
            Err(error) => last = error.to_string(),
        }
        tokio::time::sleep(POLL).await;
    }
    bail!("a push to {QUEUE} was not stored within {END_MAX:?}: {last}")
}

/// Takes and settles what the lane, or any lane, has; nothing when that was refused or not answered.
async fn pop(client: &mut Client, lane: Option<&str>) -> anyhow::Result<PopAnswer> {
    let query = PopQuery {
        queue: QUEUE,
        lane,
        group: Some(GROUP),
        mode: Some("all"),
        batch: 1000,
        lanes_max: 64,
        wait_ms: None,
        lease_seconds: None,
        auto_ack: true,
    };
    match client.raw(Call::get(&query.path(), DEADLINE)).await {
        Ok(answer) if answer.status == 200 => serde_json::from_slice(&answer.body).context("pop"),
        _ => Ok(PopAnswer::default()),
    }
}
