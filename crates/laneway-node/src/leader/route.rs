//! Finding the leader, and trying again as long as nothing can have been done.

use std::sync::atomic::Ordering;
use std::time::Duration;

use laneway_core::ids::PartitionId;
use laneway_raft::{Group, Leadership, PeerCallError, node_number};
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

/// Between two looks at whether the quorum is still there, while a request waits for it.
const QUORUM_LOOK: Duration = Duration::from_millis(200);

/// A group as one who asks its leader sees it.
struct Place<'a> {
    leadership: watch::Receiver<Leadership>,
    serving: bool,
    whose: &'a dyn WhoseOutcome,
    group: Option<Group>,
    stopped: Option<String>,
    quorum_lost_after: Duration,
}

impl Place<'_> {
    /// Leads in name only: what it would propose could wait for ever. A lone voter is its own quorum.
    fn quorum_is_lost(&self) -> bool {
        self.group.as_ref().is_some_and(|group| {
            let lost = |since: Duration| since > self.quorum_lost_after;
            group.metrics().since_quorum.is_some_and(lost) && group.members().voters.len() > 1
        })
    }
}

impl Node {
    fn place(&self, group: PartitionId) -> Option<Place<'_>> {
        if group == PartitionId::CATALOG {
            let catalog = &self.inner.catalog;
            return Some(Place {
                leadership: catalog.leadership.subscribe(),
                serving: catalog.serving.load(Ordering::Acquire),
                whose: &**catalog,
                group: catalog.group(),
                quorum_lost_after: self.inner.quorum_lost_after,
                stopped: catalog.stopped(),
            });
        }
        let partition = self.partition(group)?;
        Some(Place {
            leadership: partition.leadership.subscribe(),
            serving: partition.serving.load(Ordering::Acquire),
            whose: &**partition,
            group: partition.group(),
            quorum_lost_after: self.inner.quorum_lost_after,
            stopped: partition.stopped(),
        })
    }

    /// Whether this node leads the group, as far as it knows.
    pub(crate) fn leads(&self, group: PartitionId) -> bool {
        let leadership = if group == PartitionId::CATALOG {
            Some(&self.inner.catalog.leadership)
        } else {
            self.partition(group).map(|partition| &partition.leadership)
        };
        leadership.is_some_and(|leadership| leadership.borrow().is_self)
    }

    /// Whether anybody leads the group, as far as this node knows.
    pub(crate) fn hears_of_leader(&self, group: PartitionId) -> bool {
        let place = self.place(group);
        place.is_some_and(|place| place.leadership.borrow().leader.is_some())
    }

    /// The answer of `peer` if it leads the group, else nothing; for questions only.
    pub(crate) async fn ask_peer<R: AtLeader>(
        &self,
        peer: u16,
        group: PartitionId,
        question: R,
        within: Duration,
    ) -> Option<R::Answer> {
        const { assert!(!R::WRITES, "its outcome would be lost") };
        let peers = self.inner.peers.as_ref()?;
        let answer = peers
            .call(peer, within, wire::encode_request(group, question))
            .await;
        wire::decode_answer::<R>(answer.ok()?).ok()?.ok()
    }

    /// What keeps requests from being served by the group now, for people.
    pub(crate) fn lack_of(&self, group: PartitionId) -> Option<String> {
        let place = self.place(group)?;
        let name = if group == PartitionId::CATALOG {
            "catalog".to_owned()
        } else {
            format!("partition {group}")
        };
        if let Some(why) = &place.stopped {
            return Some(format!("{name} is stopped: {why}"));
        }
        let seen = *place.leadership.borrow();
        let Some(leader) = seen.leader else {
            if let Some(why) = self.apart() {
                return Some(format!("{name} is not served here: {why}"));
            }
            let us = self.inner.standing.identity();
            let is_member = place.group.as_ref().is_some_and(|group| {
                let members = group.members();
                members.voters.contains(&us.raft_id()) || members.learners.contains(&us.raft_id())
            });
            return Some(if is_member {
                let refused = self.refusals().map(|refused| format!("; {refused}"));
                format!("{name} has no leader{}", refused.unwrap_or_default())
            } else {
                format!(
                    "{name} has no member here yet: the others add this node by themselves when it was one of them, else laneway ctl cluster add-node {} does",
                    us.node
                )
            });
        };
        if seen.is_self {
            return if !place.serving {
                Some(format!("{name} has a new leader that is not ready yet"))
            } else if place.quorum_is_lost() {
                Some(format!(
                    "{name} has no quorum: too few of its nodes can be reached"
                ))
            } else {
                None
            };
        }
        let leader = node_number(leader);
        if self.raft_id_of(leader).is_none() {
            return Some(format!("{name} is led by node {leader}, which cannot be reached"));
        }
        (!self.inner.pulses.answers(leader))
            .then(|| format!("{name} is led by node {leader}, which does not answer"))
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
        let leader_by = Instant::now() + Duration::from_millis(self.inner.limits.leader_wait_ms);
        self.at_leader_by(leader_by, group, request).await
    }

    /// The same, for a request of several steps that share one wait: a leader is looked for until `leader_by`. It is asked
    /// once even after that.
    pub(crate) async fn at_leader_by<R: AtLeader>(
        &self,
        leader_by: Instant,
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
        loop {
            let seen = *place.leadership.borrow_and_update();
            if seen.leader.is_none()
                && let Some(refusal) = self.outsider_refusal()
            {
                return Err(refusal);
            }
            let outcome = match seen.leader {
                Some(_) if seen.is_self && place.quorum_is_lost() => Err(place.whose.not_taken_up()),
                Some(_) if seen.is_self => self.here(group, &request, &place).await,
                Some(leader) => {
                    self.at_peer(node_number(leader), group, &request, &mut place)
                        .await
                }
                None => Err(place.whose.not_taken_up()),
            };
            match outcome {
                Err(error) if error.is_no_leader() => {
                    if Instant::now() >= leader_by || place.stopped.is_some() {
                        return Err(error);
                    }
                }
                outcome => return outcome,
            }
            // Whichever comes first: the leader may be right but not yet know it.
            let _ = tokio::time::timeout(RETRY_PAUSE, place.leadership.changed()).await;
        }
    }

    /// Carries it out, but does not wait for a quorum that is gone.
    async fn here<R: AtLeader>(
        &self,
        group: PartitionId,
        request: &R,
        place: &Place<'_>,
    ) -> Result<R::Answer, RequestError> {
        let running = request.clone().run(self.clone(), group);
        let quorum_is_lost = async {
            loop {
                tokio::time::sleep(QUORUM_LOOK).await;
                if place.quorum_is_lost() {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            answer = running => answer,
            () = quorum_is_lost => {
                Err(unheard::<R>("too few nodes can be reached to commit it", place.whose))
            }
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
            return Err(place.whose.not_taken_up());
        };
        let limits = &self.inner.limits;
        let outcome_wait_ms = if R::WRITES { limits.outcome_wait_ms } else { 0 };
        let within = Duration::from_millis(limits.leader_wait_ms + outcome_wait_ms);
        let call = peers.call(node, within, wire::encode_request(group, request.clone()));
        let leader = place.leadership.borrow().leader;
        let waiting = Instant::now();
        let another_leads = async {
            // The sender outlives this node.
            let _ = place
                .leadership
                .wait_for(|seen| seen.leader.is_some() && seen.leader != leader)
                .await;
            tokio::time::sleep(OLD_LEADER_GRACE).await;
        };
        let silent = async {
            // It may just have come: the first answer takes a moment.
            loop {
                tokio::time::sleep(QUORUM_LOOK).await;
                if waiting.elapsed() > QUORUM_LOOK * 5 && !self.inner.pulses.answers(node) {
                    return;
                }
            }
        };
        let answered = tokio::select! {
            biased;
            answered = call => answered,
            () = silent => {
                let why = "it was sent to the leader, whose node has stopped answering";
                return Err(unheard::<R>(why, place.whose));
            }
            () = another_leads => {
                let why = "it was sent to the leader; another node leads by now and no answer came";
                return Err(unheard::<R>(why, place.whose));
            }
        };
        match answered {
            Ok(answer) => wire::decode_answer::<R>(answer).unwrap_or_else(|error| {
                tracing::error!(node, %error, "a peer's answer is not understood");
                Err(unheard::<R>("the leader's answer is not understood", place.whose))
            }),
            Err(PeerCallError::NotConnected { .. } | PeerCallError::Refused { .. }) => {
                Err(place.whose.not_taken_up())
            }
            Err(error @ PeerCallError::NoAnswer { .. }) => {
                let why = format!("it was sent to the leader, but {error}");
                Err(unheard::<R>(&why, place.whose))
            }
        }
    }
}

/// What may have been done is told so; a question is simply asked again.
fn unheard<R: AtLeader>(why: &str, whose: &dyn WhoseOutcome) -> RequestError {
    if R::WRITES {
        outcome_unknown(why, whose)
    } else {
        whose.not_taken_up()
    }
}
