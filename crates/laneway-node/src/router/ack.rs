//! Ack and extend: one command per (lane, group, lease), answers in request order.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use laneway_core::command::{Ack, AckItem as CoreItem, AckStatus, Command, Extend, RequestKey};
use laneway_core::ids::{LaneId, LeaseId, PartitionId};
use laneway_core::reply::{Acked, AckedItem, Reply};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::names::check_request_id;
use super::plain::PlainCommand;
use super::whole::whole_refusal;
use super::{content_hash, refused, unexpected};
use crate::api::{
    AckItem, AckOutcome, AckReply, AckRequest, ErrorClass, ExtendReply, RequestError, RequestId,
};
use crate::leader::{AtLeader, Verb};
use crate::node::Node;
use crate::partition::Ask;

/// Stands for a text that is no lease id: never live, so the machine refuses it like any lease that has ended.
const NO_SUCH_LEASE: LeaseId = LeaseId(u128::MAX);

/// Targets of one request that are worked on at one time: enough to fill a log entry, and none of its memory goes by the
/// length of the request.
const TARGETS_AT_ONCE_MAX: usize = 4_096;

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
    /// Durability: what is answered as applied is on stable storage of a quorum; a verdict against an item is an answer, not
    /// an error. Errors: when the partition of at least one (lane, group, lease) has answered, the items of the others are
    /// answered `Refused`, each with its reason; the whole call fails only when none is known to be done, or with `Invalid`
    /// for more than `ack_items_max` items, before anything is. `OutcomeUnknown`, of an item or the call, means that it may
    /// be done. A pure repeat gets the same answers. Cancel safety: dropping the future withdraws nothing.
    pub async fn ack(&self, request: AckRequest) -> Result<Vec<AckReply>, RequestError> {
        check_request_id(request.request_id.as_ref())?;
        self.check_ack_items(request.items.len())?;
        let targets = split(&request.items);
        let mut waiting = (0u32..).zip(&targets);
        let mut running = FuturesOrdered::new();
        let mut outcomes = Vec::with_capacity(targets.len());
        loop {
            while running.len() < TARGETS_AT_ONCE_MAX
                && let Some((part, target)) = waiting.next()
            {
                running.push_back(self.ack_target(target, part, &request));
            }
            let Some(outcome) = running.next().await else {
                break;
            };
            outcomes.push(outcome);
        }
        put_together(request.items.len(), &targets, outcomes)
    }

    fn check_ack_items(&self, items: usize) -> Result<(), RequestError> {
        let items_max = self.inner.limits.ack_items_max;
        if u32::try_from(items).is_ok_and(|items| items <= items_max) {
            return Ok(());
        }
        let message = format!(
            "{items} acknowledgments are more than ack_items_max allows in one request, {items_max}; nothing was done: split them into several requests"
        );
        Err(RequestError::new(ErrorClass::Invalid, "bad_request", message))
    }

    async fn ack_target(
        &self,
        target: &Target,
        part: u32,
        request: &AckRequest,
    ) -> Result<Acked, RequestError> {
        let items: Vec<&AckItem> = target.places.iter().map(|place| &request.items[*place]).collect();
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
        let items = items.iter().map(|item| AckPart {
            transaction_id: Arc::clone(&item.transaction_id),
            status: item.status,
            error: item.error.clone(),
        });
        let ack = AckTarget {
            request: key,
            lane: target.lane,
            group: Arc::clone(&target.group),
            lease: target.lease,
            items_hash,
            items: items.collect(),
        };
        let partition = self.partition_of_lane(target.lane).id;
        match self.at_leader(partition, ack).await? {
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
            let extend = PlainCommand::Extend(extend.clone());
            match self.at_leader(partition.id, extend).await? {
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

/// The acknowledgments of one (lane, group, lease).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AckTarget {
    request: Option<RequestKey>,
    lane: LaneId,
    group: Arc<str>,
    lease: Option<LeaseId>,
    items_hash: u128,
    items: Vec<AckPart>,
}

/// One of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct AckPart {
    transaction_id: Arc<str>,
    status: AckStatus,
    error: Option<Arc<str>>,
}

impl AtLeader for AckTarget {
    const VERB: Verb = Verb::Ack;
    const WRITES: bool = true;
    type Answer = Reply;

    /// Finds the messages by their transaction ids, then proposes.
    async fn run(self, node: Node, group: PartitionId) -> Result<Reply, RequestError> {
        let partition = node.own_partition(group)?;
        // Before, it may not know messages that an earlier leader has handed out.
        partition.until_serving().await?;
        let ids: Vec<Arc<str>> = self
            .items
            .iter()
            .map(|item| Arc::clone(&item.transaction_id))
            .collect();
        let candidates = node
            .resolve(partition, self.lane, &self.group, self.lease, &ids)
            .await?;
        let items = self
            .items
            .iter()
            .zip(candidates)
            .map(|(item, candidates)| CoreItem {
                status: item.status,
                candidates,
                transaction_id: matches!(item.status, AckStatus::Failed | AckStatus::DeadLetter)
                    .then(|| item.transaction_id.to_string()),
                error: item.error.as_deref().map(str::to_owned),
            });
        let ack = Ack {
            request: self.request,
            lane: self.lane,
            group: self.group.to_string(),
            lease_id: self.lease,
            items_hash: self.items_hash,
            items: items.collect(),
        };
        partition
            .ask(Ask::Command(Command::Ack(ack), Bytes::new()), 0)
            .await
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

fn put_together(
    count: usize,
    targets: &[Target],
    outcomes: Vec<Result<Acked, RequestError>>,
) -> Result<Vec<AckReply>, RequestError> {
    if let Some(error) = whole_refusal(&outcomes).filter(|_| !targets.is_empty()) {
        return Err(error.clone());
    }
    let not_a_lane_id = AckReply {
        outcome: AckOutcome::NotALaneId,
        lease_released: false,
    };
    let mut replies = vec![not_a_lane_id; count];
    for (target, outcome) in targets.iter().zip(outcomes) {
        match outcome {
            Ok(acked) => {
                for (place, item) in target.places.iter().zip(acked.items) {
                    replies[*place] = AckReply {
                        outcome: AckOutcome::Applied(item),
                        lease_released: acked.lease_released,
                    };
                }
            }
            Err(error) => {
                let error = with_ack_remedy(error);
                for place in &target.places {
                    replies[*place].outcome = AckOutcome::Refused(error.clone());
                }
            }
        }
    }
    Ok(replies)
}

/// What to do about one item of a call that was done in part.
fn with_ack_remedy(mut error: RequestError) -> RequestError {
    error.message.push_str(match error.class {
        ErrorClass::OutcomeUnknown => ", or repeat the ack: it may have been done",
        ErrorClass::Conflict => "; this ack was not done: repeat it with a new request id",
        ErrorClass::Internal => "; the ack may have been done, and may be repeated",
        ErrorClass::Invalid
        | ErrorClass::NotFound
        | ErrorClass::TooLarge
        | ErrorClass::StorageFull
        | ErrorClass::Overloaded
        | ErrorClass::Unavailable => "; this ack was not done: repeat it",
    });
    error
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

#[cfg(test)]
mod tests {
    use super::*;

    fn target(places: &[usize]) -> Target {
        Target {
            lane: LaneId(1),
            group: Arc::from("g"),
            lease: None,
            places: places.to_vec(),
        }
    }

    fn refusal(class: ErrorClass) -> RequestError {
        RequestError::new(class, "retry", "why")
    }

    #[test]
    fn items_of_refused_targets_say_what_to_do_when_others_are_done() {
        let targets = [target(&[0, 2]), target(&[3]), target(&[4]), target(&[5])];
        let done = Acked {
            items: vec![AckedItem::Done, AckedItem::Noop],
            lease_released: true,
        };
        let outcomes = vec![
            Ok(done),
            Err(refusal(ErrorClass::Overloaded)),
            Err(refusal(ErrorClass::OutcomeUnknown)),
            Err(refusal(ErrorClass::Conflict)),
        ];
        let replies = put_together(6, &targets, outcomes).unwrap();
        let applied = |item| AckReply {
            outcome: AckOutcome::Applied(item),
            lease_released: true,
        };
        assert_eq!(replies[0], applied(AckedItem::Done));
        assert_eq!(replies[1].outcome, AckOutcome::NotALaneId);
        assert_eq!(replies[2], applied(AckedItem::Noop));
        let message = |at: usize| match &replies[at].outcome {
            AckOutcome::Refused(error) => error.message.as_str(),
            outcome => panic!("{outcome:?}"),
        };
        assert_eq!(message(3), "why; this ack was not done: repeat it");
        assert!(message(4).contains("may have been done"), "{}", message(4));
        assert!(message(5).contains("new request id"), "{}", message(5));
        assert!(replies.iter().skip(3).all(|reply| !reply.lease_released));
    }

    #[test]
    fn call_is_refused_when_no_target_is_done() {
        let targets = [target(&[0]), target(&[2])];
        let outcomes = vec![
            Err(refusal(ErrorClass::Overloaded)),
            Err(refusal(ErrorClass::OutcomeUnknown)),
        ];
        let error = put_together(3, &targets, outcomes).unwrap_err();
        assert_eq!(error, refusal(ErrorClass::OutcomeUnknown));
        let replies = put_together(1, &[], Vec::new()).unwrap();
        assert_eq!(replies[0].outcome, AckOutcome::NotALaneId);
    }
}
