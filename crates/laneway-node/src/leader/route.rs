//! Finding the leader, and trying again as long as nothing can have been done.

use std::time::Duration;

use laneway_core::ids::PartitionId;
use laneway_raft::{Leadership, PeerCallError, node_number};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{AtLeader, wire};
use crate::api::{ErrorClass, RequestError};
use crate::caller::{WhoseOutcome, outcome_unknown};
use crate::node::Node;

/// Pause before the leader is asked again when no change of leadership is seen.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// How long an answer may still come after another leader was seen: the old one may have committed and answered.
const OLD_LEADER_GRACE: Duration = Duration::from_millis(200);

/// A group as one who asks its leader sees it.
struct Place<'a> {
    leadership: watch::Receiver<Leadership>,
    group: &'a dyn WhoseOutcome,
    stopped: Option<String>,
}

impl Node {
    fn place(&self, group: PartitionId) -> Option<Place<'_>> {
        if group == PartitionId::CATALOG {
            let catalog = &self.inner.catalog;
            return Some(Place {
                leadership: catalog.leadership.subscribe(),
                group: &**catalog,
                stopped: catalog.stopped(),
            });
        }
        let partition = self.partition(group)?;
        Some(Place {
            leadership: partition.leadership.subscribe(),
            group: &**partition,
            stopped: partition.stopped(),
        })
    }

    /// Whether this node leads the group, as far as it knows.
    pub(crate) fn leads(&self, group: PartitionId) -> bool {
        self.place(group)
            .is_some_and(|place| place.leadership.borrow().is_self)
    }

    /// Has the leader of `group` carry out `request`. Definite refusals for want of a leader are tried again for
    /// `leader_wait_ms`, which is longer than an election.
    ///
    /// Errors: those of the request; `Unavailable` with `no_leader` when no leader took it up: nothing was done.
    /// `OutcomeUnknown` when the leader's node took it and was not heard of again. Cancel safety: dropping the future
    /// withdraws nothing.
    pub(crate) async fn at_leader<R: AtLeader>(
        &self,
        group: PartitionId,
        request: R,
    ) -> Result<R::Answer, RequestError> {
        let Some(mut place) = self.place(group) else {
            return Err(RequestError::new(
                ErrorClass::Internal,
                "internal",
                format!("there is no partition {group}, a fault of the broker"),
            ));
        };
        let deadline = Instant::now() + Duration::from_millis(self.inner.limits.leader_wait_ms);
        loop {
            let seen = *place.leadership.borrow_and_update();
            let outcome = match seen.leader {
                Some(_) if seen.is_self => request.clone().run(self.clone(), group).await,
                Some(leader) => {
                    self.at_peer(node_number(leader), group, &request, &mut place)
                        .await
                }
                None => Err(place.group.not_taken_up()),
            };
            match outcome {
                Err(error) if error.is_no_leader() => {
                    if Instant::now() >= deadline || place.stopped.is_some() {
                        return Err(error);
                    }
                }
                outcome => return outcome,
            }
            // Whichever comes first: the leader may be right but not yet know it.
            let _ = tokio::time::timeout(RETRY_PAUSE, place.leadership.changed()).await;
        }
    }

    async fn at_peer<R: AtLeader>(
        &self,
        node: u16,
        group: PartitionId,
        request: &R,
        place: &mut Place<'_>,
    ) -> Result<R::Answer, RequestError> {
        let Some(peers) = &self.inner.peers else {
            return Err(place.group.not_taken_up());
        };
        let limits = &self.inner.limits;
        let within = Duration::from_millis(limits.leader_wait_ms + limits.outcome_wait_ms);
        let call = peers.call(node, within, wire::encode_request(group, request.clone()));
        let leader = place.leadership.borrow().leader;
        let another_leads = async {
            // The sender outlives this node.
            let _ = place
                .leadership
                .wait_for(|seen| seen.leader.is_some() && seen.leader != leader)
                .await;
            tokio::time::sleep(OLD_LEADER_GRACE).await;
        };
        let unheard = |why: String| {
            if R::WRITES {
                outcome_unknown(
                    &format!("the request was sent to the leader, but {why}"),
                    place.group,
                )
            } else {
                place.group.not_taken_up()
            }
        };
        let answered = tokio::select! {
            biased;
            answered = call => answered,
            () = another_leads => {
                return Err(unheard("another node leads by now and no answer came".to_owned()));
            }
        };
        match answered {
            Ok(answer) => wire::decode_answer::<R>(answer).unwrap_or_else(|error| {
                tracing::error!(node, %error, "a peer's answer is not understood");
                Err(unheard(format!("its answer is not understood ({error})")))
            }),
            Err(PeerCallError::NotConnected { .. } | PeerCallError::Refused { .. }) => {
                Err(place.group.not_taken_up())
            }
            Err(error @ PeerCallError::NoAnswer { .. }) => Err(unheard(error.to_string())),
        }
    }
}
