//! Auto-ack: what was claimed and read is settled, then answered. Nothing is settled that cannot be answered.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use laneway_core::command::{Ack, AckItem, AckStatus};
use laneway_core::ids::{LaneId, Offset};
use laneway_core::reply::{Acked, AckedItem, Reply};

use super::super::plain::PlainCommand;
use super::super::{refused, unexpected};
use crate::api::{ErrorClass, PopReply, RequestError};
use crate::claim_guard::ClaimGuard;
use crate::node::Node;

/// What became of one lane of the answer.
struct Settled {
    lane: LaneId,
    outcome: Result<Acked, RequestError>,
}

impl Node {
    /// Settles every lane of `reply` up to its last message and leaves out the lanes that it could not settle: theirs
    /// is given back, or was never this claim's any more.
    ///
    /// Errors: when no lane is left, the worst that any met; `OutcomeUnknown` then means that the messages may be settled
    /// without having been delivered. Cancel safety: dropping the future may settle, and gives back what it does not.
    pub(super) async fn settle(&self, group: &str, mut reply: PopReply) -> Result<PopReply, RequestError> {
        let ends: BTreeMap<LaneId, Offset> = reply
            .lanes
            .iter()
            .filter_map(|lane| Some((lane.lane, lane.messages.last()?.offset)))
            .collect();
        let acks = reply.guards.iter().flat_map(|guard| {
            let ends = &ends;
            guard.lanes().iter().filter_map(move |lane| {
                let last = *ends.get(lane)?;
                Some(self.settle_lane(guard, *lane, group, last))
            })
        });
        let mut worst: Option<RequestError> = None;
        for settled in join_all(acks).await {
            let lane = settled.lane;
            match settled.outcome {
                Ok(acked) => {
                    if acked.lease_released {
                        for guard in &mut reply.guards {
                            guard.keep_lane(lane);
                        }
                    }
                }
                Err(error) => {
                    reply.lanes.retain(|popped| popped.lane != lane);
                    if worst
                        .as_ref()
                        .is_none_or(|worst| worst.class != ErrorClass::OutcomeUnknown)
                    {
                        worst = Some(error);
                    }
                }
            }
        }
        // What is not settled by now is given back.
        reply.guards.clear();
        reply.lease_id = None;
        match worst {
            Some(error) if reply.lanes.is_empty() => Err(error),
            Some(error) => {
                tracing::warn!(%error, "some claimed lanes could not be settled at delivery and are left out");
                Ok(reply)
            }
            None => Ok(reply),
        }
    }

    async fn settle_lane(&self, guard: &ClaimGuard, lane: LaneId, group: &str, last: Offset) -> Settled {
        let item = AckItem {
            status: AckStatus::Completed,
            candidates: vec![last],
            transaction_id: None,
            error: None,
        };
        let ack = Ack {
            request: None,
            lane,
            group: group.to_owned(),
            lease_id: Some(guard.lease_id()),
            items_hash: u128::from(last.0),
            items: vec![item],
        };
        let settled = self.at_leader(guard.partition(), PlainCommand::Ack(ack)).await;
        Settled {
            lane,
            outcome: settled.and_then(accepted),
        }
    }
}

fn accepted(reply: Reply) -> Result<Acked, RequestError> {
    match reply {
        Reply::Acked(acked) => match acked.items.first() {
            // Settled before by an ack that names no lease, or deleted by retention after it was read.
            Some(AckedItem::Done | AckedItem::Noop) => Ok(acked),
            _ => Err(RequestError::new(
                ErrorClass::Unavailable,
                "retry",
                "the claimed messages were given to others, or deleted, before they could be settled; retry",
            )),
        },
        Reply::Refused(refusal) => Err(refused(refusal)),
        reply => Err(unexpected(&reply)),
    }
}
