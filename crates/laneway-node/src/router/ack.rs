//! Ack and extend: one command per (lane, group, lease), answers in request order.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use laneway_core::command::{Ack, AckItem as CoreItem, AckStatus, Command, Extend, RequestKey};
use laneway_core::ids::{LaneId, LeaseId, PartitionId};
use laneway_core::reply::{Acked, AckedItem, Reply};
use xxhash_rust::xxh3::Xxh3;

use super::names::check_request_id;
use super::{content_hash, refused, unexpected};
use crate::api::{
    AckItem, AckOutcome, AckReply, AckRequest, ErrorClass, ExtendReply, RequestError, RequestId,
};
use crate::node::Node;
use crate::partition::Ask;

/// Stands for a text that is no lease id: never live, so the machine refuses it like any lease that has ended.
const NO_SUCH_LEASE: LeaseId = LeaseId(u128::MAX);

/// Items of one request with the same lane, group and lease, in order.
struct Target {
    lane: LaneId,
    group: Arc<str>,
    lease: Option<LeaseId>,
    places: Vec<usize>,
}

impl Node {
    /// Settles or fails messages; each (lane, group, lease) atomically, none affecting another.
    ///
    /// Durability: what is answered is on stable storage of a quorum. A refusal is an answer, not an error. Errors: the
    /// whole call fails with the worst trouble that any target met; a pure repeat gets the same answers. Cancel safety:
    /// dropping the future withdraws nothing.
    pub async fn ack(&self, request: AckRequest) -> Result<Vec<AckReply>, RequestError> {
        check_request_id(request.request_id.as_ref())?;
        let mut replies: Vec<AckReply> = Vec::with_capacity(request.items.len());
        replies.resize(
            request.items.len(),
            AckReply {
                outcome: AckOutcome::NotALaneId,
                lease_released: false,
            },
        );
        let targets = split(&request.items);
        let acks = (0u32..)
            .zip(&targets)
            .map(|(part, target)| self.ack_target(target, part, &request));
        let mut worst: Option<RequestError> = None;
        for (target, outcome) in targets.iter().zip(join_all(acks).await) {
            match outcome {
                Ok(acked) => {
                    for (place, item) in target.places.iter().zip(acked.items) {
                        let outcome = AckOutcome::Applied(item);
                        replies[*place] = AckReply {
                            outcome,
                            lease_released: acked.lease_released,
                        };
                    }
                }
                Err(error)
                    if worst
                        .as_ref()
                        .is_none_or(|worst| worst.class != ErrorClass::OutcomeUnknown) =>
                {
                    worst = Some(error);
                }
                Err(_) => {}
            }
        }
        worst.map_or(Ok(replies), Err)
    }

    async fn ack_target(
        &self,
        target: &Target,
        part: u32,
        request: &AckRequest,
    ) -> Result<Acked, RequestError> {
        let partition = self.partition_of_lane(target.lane);
        let items: Vec<&AckItem> = target.places.iter().map(|place| &request.items[*place]).collect();
        let ids: Vec<Arc<str>> = items
            .iter()
            .map(|item| Arc::clone(&item.transaction_id))
            .collect();
        let candidates = self
            .resolve(partition, target.lane, &target.group, target.lease, &ids)
            .await?;
        let items_hash = hash_items(&target.group, &items);
        let key = request.request_id.as_ref().map(|id| RequestKey {
            id: id.0.to_string(),
            part,
            content: content_hash(&[
                &target.lane.0.to_le_bytes(),
                &target.lease.map_or(0, |lease| lease.0).to_le_bytes(),
                &items_hash.to_le_bytes(),
            ]),
        });
        let command_items = items.iter().zip(candidates).map(|(item, candidates)| CoreItem {
            status: item.status,
            candidates,
            transaction_id: matches!(item.status, AckStatus::Failed | AckStatus::DeadLetter)
                .then(|| item.transaction_id.to_string()),
            error: item.error.as_deref().map(str::to_owned),
        });
        let ack = Ack {
            request: key,
            lane: target.lane,
            group: target.group.to_string(),
            lease_id: target.lease,
            items_hash,
            items: command_items.collect(),
        };
        match partition
            .ask(Ask::Command(Command::Ack(ack), Bytes::new()), 0)
            .await?
        {
            Reply::Acked(acked) if acked.items.len() == target.places.len() => Ok(acked),
            Reply::Refused(refusal) => Err(refused(refusal)),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Lengthens every live lease with this id; never shortens one.
    ///
    /// Durability and cancel safety as [`Node::ack`].
    pub async fn extend(
        &self,
        request_id: Option<RequestId>,
        lease: LeaseId,
        lease_ms: u64,
    ) -> Result<ExtendReply, RequestError> {
        check_request_id(request_id.as_ref())?;
        let mut sum = ExtendReply {
            renewed: 0,
            expires: None,
        };
        // A lease over several partitions names none.
        let partitions = match self.partition(lease.partition()) {
            Some(partition) => std::slice::from_ref(partition),
            None if lease.partition() == PartitionId::CATALOG => &self.inner.partitions[..],
            None => return Ok(sum),
        };
        let request = request_id.map(|id| RequestKey {
            id: id.0.to_string(),
            part: 0,
            content: content_hash(&[&lease.0.to_le_bytes(), &lease_ms.to_le_bytes()]),
        });
        let extend = Extend {
            request,
            lease_id: lease,
            lease_ms,
        };
        for partition in partitions {
            let ask = Ask::Command(Command::Extend(extend.clone()), Bytes::new());
            match partition.ask(ask, 0).await? {
                Reply::Extended(Some(extended)) => {
                    sum.renewed += extended.renewed;
                    sum.expires = Some(
                        sum.expires
                            .map_or(extended.expires, |first| first.min(extended.expires)),
                    );
                }
                Reply::Extended(None) => {}
                Reply::Refused(refusal) => return Err(refused(refusal)),
                reply => return Err(unexpected(&reply)),
            }
        }
        Ok(sum)
    }
}

/// Groups items by (lane, group, lease), keeping their order; items without a lane stay out.
fn split(items: &[AckItem]) -> Vec<Target> {
    let mut targets: Vec<Target> = Vec::new();
    let mut known: HashMap<(LaneId, &str, Option<LeaseId>), usize> = HashMap::new();
    for (place, item) in items.iter().enumerate() {
        let Ok(lane) = item.lane else { continue };
        let lease = item.lease_id.map(|lease| lease.unwrap_or(NO_SUCH_LEASE));
        let at = *known.entry((lane, &item.group, lease)).or_insert_with(|| {
            targets.push(Target {
                lane,
                group: Arc::clone(&item.group),
                lease,
                places: Vec::new(),
            });
            targets.len() - 1
        });
        targets[at].places.push(place);
    }
    targets
}

/// Hash of the items as the client sent them: a repeat has the same one.
fn hash_items(group: &str, items: &[&AckItem]) -> u128 {
    let mut hash = Xxh3::new();
    let mut put = |text: &str| {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    put(group);
    for item in items {
        put(&item.transaction_id);
        put(match item.status {
            AckStatus::Completed => "completed",
            AckStatus::Retry => "retry",
            AckStatus::Failed => "failed",
            AckStatus::DeadLetter => "dlq",
        });
        put(item.error.as_deref().unwrap_or_default());
    }
    hash.digest128()
}

impl AckOutcome {
    /// True when the acknowledgment was accepted.
    pub fn is_success(&self) -> bool {
        matches!(
            self,
            Self::Applied(AckedItem::Done | AckedItem::DeadLettered | AckedItem::Noop)
        )
    }
}
