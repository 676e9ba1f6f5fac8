//! The task that hands proposals to openraft, in order.

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};

use super::Raft;
use crate::fsm::{FsmMsg, Leadership};
use crate::responder::ProposalResponder;
use crate::types::{EntryBody, LeaderId};

/// One body for the log of one term.
pub(super) struct Proposal {
    pub(super) term: u64,
    pub(super) proposal: u64,
    pub(super) body: Bytes,
}

/// What the proposer is told.
pub(super) enum Proposed {
    Proposal(Proposal),
    /// No proposals are taken until a [`Proposed::Resume`] for this has come. Answered when all earlier ones are with openraft.
    Hold(oneshot::Sender<()>),
    Resume,
}

/// While it lives, proposals to its group are definitely refused.
pub(super) struct Hold {
    proposals: mpsc::UnboundedSender<Proposed>,
}

/// The group ended.
#[derive(Debug)]
pub(super) struct Ended;

impl Hold {
    /// Returns once what was proposed before is with openraft. Cancel safety: proposals are taken again.
    pub(super) async fn new(proposals: &mpsc::UnboundedSender<Proposed>) -> Result<Self, Ended> {
        let (reply, holding) = oneshot::channel();
        proposals.send(Proposed::Hold(reply)).map_err(|_| Ended)?;
        let hold = Self {
            proposals: proposals.clone(),
        };
        holding.await.map_err(|_| Ended)?;
        Ok(hold)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Without a proposer there is nothing to resume.
        let _ = self.proposals.send(Proposed::Resume);
    }
}

pub(super) struct Proposer {
    raft: Raft,
    node_id: u64,
    fsm: mpsc::UnboundedSender<FsmMsg>,
    leadership: watch::Receiver<Leadership>,
}

impl Proposer {
    pub(super) fn new(
        raft: Raft,
        node_id: u64,
        fsm: mpsc::UnboundedSender<FsmMsg>,
        leadership: watch::Receiver<Leadership>,
    ) -> Self {
        Self {
            raft,
            node_id,
            fsm,
            leadership,
        }
    }

    /// Runs until the last handle of the group is dropped.
    pub(super) async fn run(self, mut proposed: mpsc::UnboundedReceiver<Proposed>) {
        let mut holds: usize = 0;
        while let Some(next) = proposed.recv().await {
            match next {
                Proposed::Proposal(proposal) if holds > 0 => self.refuse(proposal.proposal),
                Proposed::Proposal(proposal) => self.propose(proposal).await,
                Proposed::Hold(reply) => {
                    holds += 1;
                    // Who asked may have gone, and resumes.
                    let _ = reply.send(());
                }
                Proposed::Resume => holds -= 1,
            }
        }
    }

    fn refuse(&self, proposal: u64) {
        let _ = self.fsm.send(FsmMsg::ProposalFailed {
            proposal,
            definite: true,
        });
    }

    async fn propose(&self, Proposal { term, proposal, body }: Proposal) {
        let leadership = *self.leadership.borrow();
        if !leadership.is_self || leadership.term != term {
            // Also what comes after the group ended: then nobody leads.
            return self.refuse(proposal);
        }
        // The lead may be lost between here and the core; it compares once more.
        let leader = LeaderId {
            term,
            node_id: self.node_id,
        };
        let responder = ProposalResponder::new(proposal, self.fsm.clone());
        let write = self
            .raft
            .write(EntryBody(body))
            .with_leader(leader)
            .responder(responder);
        if let Err(fatal) = write.await {
            // The responder was dropped with the write and has reported an unknown outcome.
            tracing::debug!(%fatal, proposal, "proposal met a raft group that ended");
        }
    }
}
