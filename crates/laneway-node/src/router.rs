//! The way of a request: names to queue and lane, slot to partition, partition to leader.

mod ack;
mod catalog;
mod configure;
mod dead_letters;
mod names;
mod plain;
mod pop;
mod push;
mod read;
mod resolve;
mod whole;

/// Everything that a gateway asks of leaders.
pub(crate) mod requests {
    pub(crate) use super::ack::AckTarget as Ack;
    pub(crate) use super::catalog::{Catalog, CatalogVersion};
    pub(crate) use super::dead_letters::{DeadLetters, DeleteDeadLetters, ReadMessage, Replay};
    pub(crate) use super::plain::{Claimable, Confirm, PlainCommand};
    pub(crate) use super::pop::Claim;
    #[cfg(test)]
    pub(crate) use super::pop::Delivered;
    pub(crate) use super::read::{DescribeQueue, FindMessage, Sums};
    pub(crate) use crate::partition::PushAsk as Push;
}

use std::sync::Arc;
use std::time::Duration;

use laneway_core::catalog::{CatalogCommand, CatalogReply};
use laneway_core::ids::{LaneId, PartitionId, Slot};
use laneway_core::reply::Refusal;
use laneway_core::settings::{GroupRow, GroupStart, QueueRow};
use tokio::time::Instant;

use crate::api::{ErrorClass, RequestError};
use crate::caller::{WhoseOutcome, outcome_unknown};
use crate::node::Node;
use crate::partition::PartitionHandle;

/// How often a request is tried again after a refusal that a new look at the queue cures.
const STALE_RETRIES_MAX: u32 = 5;

impl Node {
    /// The partition that owns `slot`. Today's table: slot modulo partitions.
    pub(crate) fn partition_of_slot(&self, slot: Slot) -> &Arc<PartitionHandle> {
        let partitions = &self.inner.partitions;
        &partitions[usize::from(slot.0) % partitions.len()]
    }

    pub(crate) fn partition_of_lane(&self, lane: LaneId) -> &Arc<PartitionHandle> {
        self.partition_of_slot(lane.slot())
    }

    pub(crate) fn partition(&self, id: PartitionId) -> Option<&Arc<PartitionHandle>> {
        self.inner.partitions.get(usize::from(id.0))
    }

    /// The partition on this node, whose leader it is asked to be.
    pub(crate) fn own_partition(&self, id: PartitionId) -> Result<&Arc<PartitionHandle>, RequestError> {
        self.partition(id).ok_or_else(|| {
            let message = format!("there is no partition {id}, a fault of the broker that asked");
            RequestError::new(ErrorClass::Internal, "internal", message)
        })
    }

    /// The queue's row as known here, if it is listed.
    pub(crate) fn known_queue(&self, name: &str) -> Option<QueueRow> {
        self.inner
            .catalog
            .machine()
            .queue(name)
            .filter(|row| row.listed)
            .cloned()
    }

    /// The queue's row, created when there is none.
    pub(crate) async fn queue_for_push(&self, name: &str) -> Result<Arc<QueueRow>, RequestError> {
        if let Some(row) = self.known_queue(name) {
            return Ok(Arc::new(row));
        }
        let command = CatalogCommand::CreateQueue {
            name: name.to_owned(),
            listed: true,
        };
        match self.propose_to_catalog(command).await? {
            (CatalogReply::Queue { row, .. }, _) => Ok(Arc::new(row)),
            (reply, _) => Err(unexpected(&reply)),
        }
    }

    /// The queue and the group's registration on it, made when there is none and known to every partition. Leaders are looked
    /// for until `leader_by`.
    pub(crate) async fn group_for_pop(
        &self,
        queue: &str,
        group: &str,
        start: GroupStart,
        leader_by: Instant,
    ) -> Result<QueueRow, RequestError> {
        let known = {
            let catalog = self.inner.catalog.machine();
            catalog
                .queue(queue)
                .and_then(|row| Some((row.clone(), catalog.group(row.id, group)?.version)))
        };
        let is_new = known.is_none();
        let (row, version) = match known {
            Some(known) => known,
            None => {
                let command = CatalogCommand::RegisterGroup {
                    queue: queue.to_owned(),
                    group: group.to_owned(),
                    start,
                };
                match self.propose_to_catalog_by(leader_by, command).await? {
                    (
                        CatalogReply::Group {
                            queue,
                            group: GroupRow { version, .. },
                            ..
                        },
                        _,
                    ) => (queue, version),
                    (reply, _) => return Err(unexpected(&reply)),
                }
            }
        };
        match self.lacking(version.0, Some(leader_by)).await {
            None => Ok(row),
            Some(partition) if is_new => Err(not_taken_everywhere(partition)),
            Some(partition) => Err(partition.not_taken_up()),
        }
    }

    /// Waits until every partition has applied the catalog up to `version`.
    pub(crate) async fn taken_everywhere(&self, version: u64) -> Result<(), RequestError> {
        match self.lacking(version, None).await {
            None => Ok(()),
            Some(partition) => Err(not_taken_everywhere(partition)),
        }
    }

    /// The first partition that has not applied the catalog up to `version` within `outcome_wait_ms`; one without a leader is
    /// waited for no longer than until `leader_by`.
    async fn lacking(&self, version: u64, leader_by: Option<Instant>) -> Option<&Arc<PartitionHandle>> {
        let deadline = Instant::now() + Duration::from_millis(self.inner.limits.outcome_wait_ms);
        for partition in &self.inner.partitions {
            if *partition.catalog_version.borrow() >= version {
                continue;
            }
            let mut seen = partition.catalog_version.subscribe();
            let first = leader_by.map_or(deadline, |leader_by| leader_by.min(deadline));
            let mut taken = tokio::time::timeout_at(first, seen.wait_for(|seen| *seen >= version))
                .await
                .is_ok_and(|seen| seen.is_ok());
            if !taken && first < deadline && self.lack_of(partition.id).is_none() {
                taken = tokio::time::timeout_at(deadline, seen.wait_for(|seen| *seen >= version))
                    .await
                    .is_ok_and(|seen| seen.is_ok());
            }
            if !taken {
                return Some(partition);
            }
        }
        None
    }

    /// Refuses writes that need space while the disk is low.
    pub(crate) fn check_disk(&self) -> Result<(), RequestError> {
        if !self.inner.disk.is_low() {
            return Ok(());
        }
        let message = format!(
            "the disk is low: {} bytes are free and {} are kept in reserve; free space on it, or delete queues: pops, acks and deletions still work",
            self.inner.disk.free_bytes(),
            self.inner.limits.disk_free_bytes_min
        );
        Err(RequestError::new(
            ErrorClass::StorageFull,
            "storage_full",
            message,
        ))
    }
}

/// Hash of one request's content, so that a request id used for something else is told apart.
pub(crate) fn content_hash(parts: &[&[u8]]) -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.digest()
}

fn not_taken_everywhere(partition: &PartitionHandle) -> RequestError {
    outcome_unknown("the change is committed but not taken everywhere yet", partition)
}

fn unexpected(reply: &impl std::fmt::Debug) -> RequestError {
    tracing::error!(?reply, "a command got the answer of another kind");
    RequestError::new(
        ErrorClass::Internal,
        "internal",
        "the partition gave an answer of another kind, a fault of the broker; the node's log has it",
    )
}

/// A refusal that the caller can do something about.
fn refused(refusal: Refusal) -> RequestError {
    let (class, code, message) = match refusal {
        Refusal::QueueGone => (
            ErrorClass::NotFound,
            "queue_deleted",
            "the queue was deleted while the request was on its way; repeat it if it is meant for a new queue of that name",
        ),
        Refusal::LanesFull => (
            ErrorClass::Overloaded,
            "overloaded",
            "the partition has no room for another lane; delete queues that are not needed or raise lanes_max",
        ),
        Refusal::GroupUnknown => (
            ErrorClass::Unavailable,
            "retry",
            "the consumer group is not known in the partition yet; retry after a moment",
        ),
        Refusal::PlanOutdated => (
            ErrorClass::Unavailable,
            "retry",
            "an earlier request that this one rests on was refused; retry",
        ),
        Refusal::RequestIdReused => (
            ErrorClass::Conflict,
            "request_id_reused",
            "the request id was used for a different request; use a new one for each request",
        ),
        Refusal::DeadLetterGone => (
            ErrorClass::NotFound,
            "not_found",
            "there is no such dead letter: it was replayed or deleted before",
        ),
    };
    RequestError::new(class, code, message)
}
