//! Failover gaps: from a fault to the next acked push to a lane of each partition that it hit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use laneway_sim::oracle::history::{AckItem, AckStatus};
use tokio::task::JoinSet;

use crate::api::PopQuery;
use crate::payload::json_payload;
use crate::server::PARTITIONS;
use crate::workload::client::{Attempt, Client};
use crate::workload::plan::{GroupPlan, QueuePlan, lane_name};
use crate::workload::setup::Fleet;
use crate::workload::verbs::{AckTarget, Claim, ClaimedLane, Draft, LaneDrafts};

/// A probe waits so long for one push, then tries the next.
const PROBE_DEADLINE: Duration = Duration::from_millis(100);

/// In a long gap it waits for one part in so many of it: a machine whose disk takes longer than [`PROBE_DEADLINE`] for a sync
/// would never ack in time.
const PROBE_PARTS: u32 = 10;

/// Between two pushes of a probe.
const PROBE_PAUSE: Duration = Duration::from_millis(3);

/// A gap is not followed beyond this.
pub(crate) const GAP_MAX: Duration = Duration::from_secs(30);

/// Attempts to find lanes in each partition.
const TRIES: usize = 40;

/// Lanes of one push while they are looked for.
const LANES_PUSHED_AT_ONCE: usize = 40;

/// Bits of a lane id below its slot.
const SEQUENCE_BITS: u32 = 24;

/// The queue that probes push to.
pub(crate) const PROBE: QueuePlan = QueuePlan {
    name: "probe",
    lanes: 64,
    groups: &[GroupPlan {
        name: "probed",
        consumers: 1,
        ..GroupPlan::BASE
    }],
    ..QueuePlan::BASE
};

/// Lanes of a queue by the partition that owns them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes {
    of_partition: BTreeMap<u16, Vec<String>>,
}

impl Lanes {
    /// Pushes a message to each lane; the last of the queue's groups settles it: a pop tells a lane's id, and that its partition.
    /// Nothing else may use the group meanwhile.
    pub(crate) async fn find(client: &mut Client, plan: &QueuePlan) -> anyhow::Result<Self> {
        let group = plan.groups.last().expect("every queue of the load has a group");
        let names: Vec<String> = (0..plan.lanes).map(lane_name).collect();
        for names in names.chunks(LANES_PUSHED_AT_ONCE) {
            let messages: Vec<_> = names.iter().map(|name| probe_message(client, name)).collect();
            let pushed = client.push(plan.name, &messages, None).await;
            ensure!(
                matches!(pushed, Attempt::Done(())),
                "push to {}: {pushed:?}",
                plan.name
            );
        }
        let mut lanes = Self::default();
        let mut found = 0;
        for _ in 0..TRIES {
            let claim = match client.pop(&query_all(plan, group)).await {
                Attempt::Done(claim) => claim,
                other => bail!("pop of {}: {other:?}", plan.name),
            };
            for lane in &claim.lanes {
                lanes.add(&lane.lane, &lane.lane_id)?;
                found += 1;
            }
            let targets: Vec<AckTarget> = claim.lanes.iter().map(|lane| whole(&claim, lane)).collect();
            if !targets.is_empty() {
                let acked = client.ack(plan.name, group.parameter(), &targets, None).await;
                ensure!(
                    matches!(acked, Attempt::Done(_)),
                    "ack of {}: {acked:?}",
                    plan.name
                );
            }
            if found >= plan.lanes {
                ensure!(
                    lanes.of_partition.len() == usize::from(PARTITIONS),
                    "lanes in {} partitions only",
                    lanes.of_partition.len()
                );
                return Ok(lanes);
            }
        }
        bail!("only {found} lanes of {} were delivered", plan.name)
    }

    /// Adds a lane, whose id tells its partition.
    pub(crate) fn add(&mut self, lane: &str, id: &str) -> anyhow::Result<()> {
        let id: u64 = id.parse()?;
        let partition = u16::try_from((id >> SEQUENCE_BITS) % u64::from(PARTITIONS))?;
        self.of_partition
            .entry(partition)
            .or_default()
            .push(lane.to_owned());
        Ok(())
    }

    /// The `turn`-th lane of a partition, around and around.
    pub(crate) fn of(&self, partition: u16, turn: usize) -> &str {
        let lanes = &self.of_partition[&partition];
        &lanes[turn % lanes.len()]
    }
}

fn query_all<'a>(plan: &'a QueuePlan, group: &'a GroupPlan) -> PopQuery<'a> {
    PopQuery {
        queue: plan.name,
        lane: None,
        group: group.parameter(),
        mode: Some("all"),
        batch: 1000,
        lanes_max: 64,
        wait_ms: Some(200),
        lease_seconds: Some(30),
        auto_ack: false,
    }
}

/// All messages of a claimed lane, completed.
pub(crate) fn whole(claim: &Claim, lane: &ClaimedLane) -> AckTarget {
    let items = lane.messages.iter().map(|message| AckItem {
        transaction_id: message.transaction_id.clone(),
        status: AckStatus::Completed,
        error: None,
    });
    AckTarget {
        lane: lane.lane.clone(),
        lane_id: lane.lane_id.clone(),
        lease_id: Some(claim.lease_id.clone()),
        items: items.collect(),
    }
}

/// One new message.
pub(crate) fn probe_message(client: &mut Client, lane: &str) -> LaneDrafts {
    let id = client.request_id();
    let number = client.requests();
    LaneDrafts {
        lane: lane.to_owned(),
        drafts: vec![Draft {
            transaction_id: Some(id),
            payload: json_payload(client.number(), number, false, 80),
        }],
    }
}

/// Probes with open connections, waiting for the fault.
#[derive(Debug)]
pub(crate) struct Armed {
    probes: Vec<(u16, String, Client)>,
}

impl Armed {
    /// One probe for each of these partitions and nodes; each has pushed once.
    pub(crate) async fn new(fleet: &mut Fleet, lanes: &Lanes, partitions: &[u16], nodes: &[u16]) -> Self {
        let mut probes = Vec::new();
        for partition in partitions {
            for node in nodes {
                let mut client = fleet.client().at_node(*node).within(PROBE_DEADLINE);
                let lane = lanes.of(*partition, 0).to_owned();
                let message = probe_message(&mut client, &lane);
                client.push(PROBE.name, &[message], None).await;
                probes.push((*partition, lane, client));
            }
        }
        Self { probes }
    }

    /// Pushes until each partition has acked one; gives the time since the fault, `None` where that took too long.
    pub(crate) async fn gaps(self, fault: Instant) -> BTreeMap<u16, Option<Duration>> {
        let mut gaps: BTreeMap<u16, Option<Duration>> = BTreeMap::new();
        let mut acked: BTreeMap<u16, Arc<AtomicBool>> = BTreeMap::new();
        let mut running = JoinSet::new();
        for (partition, lane, client) in self.probes {
            gaps.insert(partition, None);
            let acked = Arc::clone(acked.entry(partition).or_default());
            running.spawn(async move { (partition, probe(client, lane, fault, &acked).await) });
        }
        while let Some(done) = running.join_next().await {
            if let Ok((partition, Some(took))) = done {
                let gap = gaps.entry(partition).or_default();
                *gap = Some(gap.map_or(took, |gap| gap.min(took)));
            }
        }
        gaps
    }
}

async fn probe(mut client: Client, lane: String, fault: Instant, acked: &AtomicBool) -> Option<Duration> {
    while !acked.load(Ordering::Relaxed) && fault.elapsed() < GAP_MAX {
        client.wait_at_most(PROBE_DEADLINE.max(fault.elapsed() / PROBE_PARTS));
        let message = probe_message(&mut client, &lane);
        if let Attempt::Done(()) = client.push(PROBE.name, &[message], None).await {
            acked.store(true, Ordering::Relaxed);
            return Some(fault.elapsed());
        }
        tokio::time::sleep(PROBE_PAUSE).await;
    }
    None
}
