//! Messages that one client claims and leaves alone, and another one waits for.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};

use crate::api::PopQuery;
use crate::cluster::probe::probe_message;
use crate::workload::client::{Attempt, Client};
use crate::workload::plan::{GroupPlan, QueuePlan};
use crate::workload::verbs::Claim;

/// A lease that has not ended by then never does.
pub(crate) const END_MAX: Duration = Duration::from_secs(60);

/// Between two pops of one who waits for the end of another's lease.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// Attempts to push and to claim what is to be held.
const HOLD_ATTEMPTS_MAX: u32 = 100;

/// The queue of the held lanes: its first group holds, its last one finds out where the lanes are.
pub(crate) const HELD: QueuePlan = QueuePlan {
    name: "held",
    lanes: 64,
    groups: &[
        GroupPlan {
            name: "holders",
            ..GroupPlan::BASE
        },
        GroupPlan {
            name: "finders",
            ..GroupPlan::BASE
        },
    ],
    ..QueuePlan::BASE
};

/// A message claimed by a client.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) lane: String,
    pub(crate) claim: Claim,
    /// Just before its push was first sent, and just after it was answered with success, in ms since 1970.
    pub(crate) pushed_ms: (u64, u64),
    /// Just before the pop that claimed it was sent.
    pub(crate) asked: Instant,
    /// Just after that pop was answered.
    pub(crate) got: Instant,
}

/// Pushes a message to the lane and claims it, for whole seconds.
pub(crate) async fn hold(client: &mut Client, lane: &str, lease: Duration) -> anyhow::Result<Held> {
    let message = [probe_message(client, lane)];
    let before_ms = now_ms()?;
    for attempt in 0.. {
        match client.push(HELD.name, &message, None).await {
            Attempt::Done(()) => break,
            other if attempt == HOLD_ATTEMPTS_MAX => bail!("push: {other:?}"),
            // Leadership is still being spread. The transaction id makes the repeat safe.
            _ => client.pause(5, 50).await,
        }
    }
    let pushed_ms = (before_ms, now_ms()?);
    for _ in 0..HOLD_ATTEMPTS_MAX {
        let asked = Instant::now();
        match client.pop(&query(lane, lease)).await {
            Attempt::Done(claim) if !claim.lanes.is_empty() => {
                return Ok(Held {
                    lane: lane.to_owned(),
                    claim,
                    pushed_ms,
                    asked,
                    got: Instant::now(),
                });
            }
            // A pop that was never answered may have claimed it.
            Attempt::Unknown => bail!("nobody knows whether {lane} was claimed"),
            _ => client.pause(5, 50).await,
        }
    }
    bail!("{lane} was not claimed in {HOLD_ATTEMPTS_MAX} attempts")
}

/// Asks for the held lane until it is given; gives when that was.
pub(crate) async fn wait_for_end(
    mut next: Client,
    lane: String,
    lease: Duration,
) -> Option<(Instant, Client, Claim)> {
    let started = Instant::now();
    while started.elapsed() < END_MAX {
        if let Attempt::Done(claim) = next.pop(&query(&lane, lease)).await
            && !claim.lanes.is_empty()
        {
            return Some((Instant::now(), next, claim));
        }
        tokio::time::sleep(POLL).await;
    }
    None
}

/// A pop of one lane for the group that holds.
pub(crate) fn query(lane: &str, lease: Duration) -> PopQuery<'_> {
    PopQuery {
        queue: HELD.name,
        lane: Some(lane),
        group: HELD.groups[0].parameter(),
        mode: Some("all"),
        batch: 10,
        lanes_max: 1,
        wait_ms: None,
        lease_seconds: Some(lease.as_secs()),
        auto_ack: false,
    }
}

/// Milliseconds since 1970 by this process's own clock.
pub(crate) fn now_ms() -> anyhow::Result<u64> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("the clock shows a time before 1970")?;
    Ok(u64::try_from(since.as_millis())?)
}
