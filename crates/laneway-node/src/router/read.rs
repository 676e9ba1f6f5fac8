//! What people and tools look at: queues, lanes, one message.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::try_join_all;
use laneway_core::ids::{LaneId, Offset, PartitionId, QueueId};
use laneway_core::partition::{LaneCounts, QueueCounts};
use laneway_core::settings::QueueRow;
use laneway_core::time::{LeaseTime, Stamps, WallTime};

use serde::{Deserialize, Serialize};

use super::dead_letters::read_one;
use crate::api::{
    Counts, LaneInfo, MessageGroup, MessageInfo, MessageStatus, QUEUE_MODE_GROUP, QueueInfo, QueueMetrics,
    RequestError,
};
use crate::leader::{AtLeader, Verb};
use crate::node::Node;
use crate::partition::{PartitionHandle, Running, Stores};

/// Lanes of one queue that are shown one by one.
const LANES_SHOWN_MAX: usize = 10_000;

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sum {
    counts: QueueCounts,
    consumed: u64,
    retained_bytes: u64,
}

impl Node {
    /// All queues, with counters that are exact sums over the partitions.
    pub async fn queues(&self) -> Result<Vec<QueueInfo>, RequestError> {
        self.catalog_up_to_date().await?;
        let rows: Vec<QueueRow> = self
            .inner
            .catalog
            .machine()
            .queues()
            .filter(|row| row.listed)
            .cloned()
            .collect();
        let sums = self.sums(true).await?;
        let info = |row: QueueRow| {
            let sum = sums.get(&row.id).copied().unwrap_or_default();
            queue_info(row, sum, Vec::new())
        };
        Ok(rows.into_iter().map(info).collect())
    }

    async fn sums(&self, with_bytes: bool) -> Result<BTreeMap<QueueId, Sum>, RequestError> {
        let mut sums: BTreeMap<QueueId, Sum> = BTreeMap::new();
        let partitions = self.inner.partitions.iter();
        let parts = partitions.map(|partition| self.at_leader(partition.id, Sums { with_bytes }));
        for (queue, part) in try_join_all(parts).await?.into_iter().flatten() {
            add(sums.entry(queue).or_default(), part);
        }
        Ok(sums)
    }

    /// Gauges of every queue, for metrics.
    pub(crate) async fn queue_gauges(&self) -> Result<Vec<QueueMetrics>, RequestError> {
        let rows: Vec<QueueRow> = self
            .inner
            .catalog
            .machine()
            .queues()
            .filter(|row| row.listed)
            .cloned()
            .collect();
        let sums = self.sums(false).await?;
        let gauge = |row: QueueRow| {
            let counts = sums.get(&row.id).copied().unwrap_or_default().counts;
            QueueMetrics {
                queue: row.name,
                ready: counts.ready_messages,
                leased: counts.processing,
                dead: counts.dead_letters,
                lanes: counts.lanes,
            }
        };
        Ok(rows.into_iter().map(gauge).collect())
    }

    /// One queue with its lanes; `None` when there is no such queue.
    pub async fn queue(&self, name: &str) -> Result<Option<QueueInfo>, RequestError> {
        self.catalog_up_to_date().await?;
        let Some(row) = self.known_queue(name) else {
            return Ok(None);
        };
        let mut sum = Sum::default();
        let mut lanes = Vec::new();
        let partitions = self.inner.partitions.iter();
        let parts = partitions.map(|partition| self.at_leader(partition.id, DescribeQueue(row.id)));
        for (part, found) in try_join_all(parts).await? {
            add(&mut sum, part);
            lanes.extend(found);
        }
        lanes.sort_by_key(|lane| lane.lane);
        Ok(Some(queue_info(row, sum, lanes)))
    }

    /// One message with all that is known of it; `None` when there is none with this transaction id on the lane.
    pub async fn message(
        &self,
        lane: LaneId,
        transaction_id: &str,
    ) -> Result<Option<MessageInfo>, RequestError> {
        let partition = self.partition_of_lane(lane).id;
        let transaction_id = transaction_id.into();
        self.at_leader(partition, FindMessage { lane, transaction_id })
            .await
    }
}

async fn with_stamps(
    partition: &Arc<PartitionHandle>,
    lanes: Vec<(LaneInfo, Offset, Offset)>,
) -> Result<Vec<LaneInfo>, RequestError> {
    let stores = partition.stores()?;
    let fill = move || {
        let mut infos = Vec::with_capacity(lanes.len());
        for (mut info, head, tail) in lanes {
            info.oldest = stamp_of(&stores, info.lane, head, tail);
            info.newest = stamp_of(&stores, info.lane, Offset(tail.0.saturating_sub(1)), tail);
            infos.push(info);
        }
        infos
    };
    tokio::task::spawn_blocking(fill)
        .await
        .map_err(|error| super::pop::unreadable(&error))
}

/// Sums over the lanes of each queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sums {
    with_bytes: bool,
}

impl AtLeader for Sums {
    const VERB: Verb = Verb::Sums;
    const WRITES: bool = false;
    type Answer = Vec<(QueueId, Sum)>;

    async fn run(self, node: Node, group: PartitionId) -> Result<Self::Answer, RequestError> {
        let sums = move |running: &Running| {
            let queues = running.machine.queue_ids();
            queues
                .map(|queue| (queue, sum_of(running, queue, self.with_bytes)))
                .collect()
        };
        node.own_partition(group)?.look_linear(sums).await
    }
}

/// One queue's sums and lanes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DescribeQueue(QueueId);

impl AtLeader for DescribeQueue {
    const VERB: Verb = Verb::DescribeQueue;
    const WRITES: bool = false;
    type Answer = (Sum, Vec<LaneInfo>);

    async fn run(self, node: Node, group: PartitionId) -> Result<Self::Answer, RequestError> {
        let (partition, queue) = (node.own_partition(group)?, self.0);
        let (sum, lanes) = partition
            .look_linear(move |running| (sum_of(running, queue, true), lanes_of(running, queue)))
            .await?;
        Ok((sum, with_stamps(partition, lanes).await?))
    }
}

/// All that is known of one message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FindMessage {
    lane: LaneId,
    transaction_id: Arc<str>,
}

impl AtLeader for FindMessage {
    const VERB: Verb = Verb::FindMessage;
    const WRITES: bool = false;
    type Answer = Option<MessageInfo>;

    async fn run(self, node: Node, group: PartitionId) -> Result<Option<MessageInfo>, RequestError> {
        let partition = node.own_partition(group)?;
        partition.read_index().await?;
        let (lane, id) = (self.lane, self.transaction_id);
        let wanted = Arc::clone(&id);
        let dead = partition.look(move |running| {
            let mut rows = running.machine.dead_letters_of_lane(lane);
            rows.by_ref()
                .filter(|row| row.transaction_id == *wanted)
                .last()
                .cloned()
        });
        let dead = dead.await?;
        let offset = match &dead {
            Some(row) => Some(row.offset),
            None => {
                let any_group: Arc<str> = QUEUE_MODE_GROUP.into();
                let found = node.resolve(partition, lane, &any_group, None, &[id]).await?;
                found.into_iter().flatten().next_back()
            }
        };
        let Some(offset) = offset else { return Ok(None) };
        let Some(message) = read_one(partition, lane, offset).await? else {
            return Ok(None);
        };
        let standing = partition
            .look(move |running| standing(running, lane, offset))
            .await?;
        let Some((queue, lane_name, groups, retries_used, leased)) = standing else {
            return Ok(None);
        };
        let status = if dead.is_some() {
            MessageStatus::DeadLetter
        } else {
            status_of(&groups, leased)
        };
        let retries_used = dead.as_ref().map_or(retries_used, |row| row.retries_used);
        Ok(Some(MessageInfo {
            message,
            queue,
            lane,
            lane_name,
            status,
            dead_letter: dead,
            retries_used,
            groups,
        }))
    }
}

/// Stamp of the first message in `[from, to)`; a message that cannot be read shows none.
fn stamp_of(stores: &Stores, lane: LaneId, from: Offset, to: Offset) -> Option<WallTime> {
    let headers = stores.payloads.headers(lane, from, to, 1).ok()?;
    headers.first().map(|header| header.wall)
}

fn queue_info(row: QueueRow, sum: Sum, lanes: Vec<LaneInfo>) -> QueueInfo {
    let counts = Counts {
        total: sum.counts.total,
        pending: sum.counts.pending,
        processing: sum.counts.processing,
        completed: sum.counts.completed,
        dead_letter: sum.counts.dead_letters,
        consumed: sum.consumed,
    };
    QueueInfo {
        row,
        lanes,
        lane_count: sum.counts.lanes,
        counts,
        retained_bytes: sum.retained_bytes,
    }
}

fn sum_of(running: &Running, queue: QueueId, with_bytes: bool) -> Sum {
    let counts = running.machine.queue_counts(queue);
    let mut retained_bytes = 0;
    if with_bytes {
        for (lane, _) in running.machine.lanes_of(queue) {
            retained_bytes += running.payloads().retained_bytes(lane);
        }
    }
    Sum {
        counts,
        consumed: 0,
        retained_bytes,
    }
}

fn add(sum: &mut Sum, part: Sum) {
    let (to, from) = (&mut sum.counts, part.counts);
    to.lanes += from.lanes;
    to.total += from.total;
    to.pending += from.pending;
    to.processing += from.processing;
    to.completed += from.completed;
    to.dead_letters += from.dead_letters;
    to.ready_messages += from.ready_messages;
    sum.consumed += part.consumed;
    sum.retained_bytes += part.retained_bytes;
}

fn lanes_of(running: &Running, queue: QueueId) -> Vec<(LaneInfo, Offset, Offset)> {
    let mut lanes = Vec::new();
    for (lane, view) in running.machine.lanes_of(queue).take(LANES_SHOWN_MAX) {
        let counts = lane_counts(running.machine.lane_counts(lane));
        let info = LaneInfo {
            lane,
            name: view.name.to_owned(),
            counts,
            oldest: None,
            newest: None,
        };
        lanes.push((info, view.head, view.tail));
    }
    lanes
}

fn lane_counts(counts: LaneCounts) -> Counts {
    Counts {
        total: counts.total,
        pending: counts.pending,
        processing: counts.processing,
        completed: counts.completed,
        dead_letter: counts.dead_letters,
        consumed: counts.consumed,
    }
}

type Standing = (QueueRow, String, Vec<MessageGroup>, u32, bool);

/// How the groups stand to one message: (queue, lane name, groups, largest retry counter at it, leased by any).
fn standing(running: &Running, lane: LaneId, offset: Offset) -> Option<Standing> {
    let view = running.machine.lane(lane)?;
    let queue = running.machine.queue(view.queue)?.clone();
    let now = running.now();
    let (mut groups, mut retries_used, mut leased) = (Vec::new(), 0, false);
    for row in running.machine.groups_of(view.queue) {
        let name = row.name.as_str();
        let Some(group) = running.machine.group(lane, name) else {
            continue;
        };
        let live = group.lease.filter(|lease| now.lease < lease.deadline);
        if let Some(lease) = &live {
            leased |= group.cursor <= offset && offset < lease.batch_end;
        }
        if group.cursor == offset {
            retries_used = retries_used.max(group.retries_used);
        }
        groups.push(MessageGroup {
            name: name.to_owned(),
            cursor: group.cursor,
            consumed: offset < group.cursor,
            lease_expires: live.map(|lease| as_wall(now, lease.deadline)),
        });
    }
    Some((queue, view.name.to_owned(), groups, retries_used, leased))
}

/// A deadline as a time of day.
fn as_wall(now: Stamps, deadline: LeaseTime) -> WallTime {
    WallTime(now.wall.0.saturating_add(deadline.0.saturating_sub(now.lease.0)))
}

/// Spec 2.9: completed when every named group passed it (with no named group: queue mode).
fn status_of(groups: &[MessageGroup], leased: bool) -> MessageStatus {
    let named = groups.iter().any(|group| group.name != QUEUE_MODE_GROUP);
    let mut counting = groups
        .iter()
        .filter(|group| !named || group.name != QUEUE_MODE_GROUP)
        .peekable();
    if counting.peek().is_some() && counting.all(|group| group.consumed) {
        MessageStatus::Completed
    } else if leased {
        MessageStatus::Processing
    } else {
        MessageStatus::Pending
    }
}
