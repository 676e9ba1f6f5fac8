//! Much data at once, for a node that is to fall behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::task::JoinSet;

use crate::payload::json_payload;
use crate::workload::client::{Attempt, Client};
use crate::workload::plan::{GroupPlan, QueuePlan, lane_name};
use crate::workload::setup::Fleet;
use crate::workload::verbs::{Draft, LaneDrafts};

/// Bytes of one message.
const MESSAGE_BYTES: usize = 64 << 10;

/// Messages of one push.
const MESSAGES: u64 = 8;

/// Clients that push.
const PUSHERS: u32 = 3;

/// Bulk that is not stored by then fails the run.
const BULK_MAX: Duration = Duration::from_secs(600);

/// Stays unread until the drain.
pub(super) const BULK: QueuePlan = QueuePlan {
    name: "bulk",
    lanes: 8,
    groups: &[GroupPlan {
        name: "bulk-readers",
        ..GroupPlan::BASE
    }],
    ..QueuePlan::BASE
};

/// Pushes `mib` MiB through any node; every message is stored when it returns.
pub(super) async fn push(fleet: &mut Fleet, mib: u32) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let bytes_each = MESSAGES * u64::try_from(MESSAGE_BYTES)?;
    let pushes = (u64::from(mib) << 20).div_ceil(bytes_each);
    let left = Arc::new(AtomicU64::new(pushes));
    let mut pushers = JoinSet::new();
    for _ in 0..PUSHERS {
        pushers.spawn(push_some(fleet.client(), Arc::clone(&left), started));
    }
    while let Some(done) = pushers.join_next().await {
        done??;
    }
    Ok(started.elapsed())
}

async fn push_some(mut client: Client, left: Arc<AtomicU64>, started: Instant) -> anyhow::Result<()> {
    let take = |left: u64| left.checked_sub(1);
    let mut number = 0;
    while let Ok(turn) = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
        let drafts = (0..MESSAGES).map(|_| {
            number += 1;
            Draft {
                transaction_id: Some(format!("b{}-{number}", client.number())),
                payload: json_payload(client.number(), number, false, MESSAGE_BYTES),
            }
        });
        let lane = lane_name(u32::try_from(turn % u64::from(BULK.lanes))?);
        let drafts = drafts.collect();
        let push = [LaneDrafts { lane, drafts }];
        while !matches!(client.push(BULK.name, &push, None).await, Attempt::Done(())) {
            ensure!(
                started.elapsed() < BULK_MAX,
                "the bulk was not stored within {BULK_MAX:?}"
            );
            client.pause(20, 100).await;
        }
    }
    Ok(())
}
