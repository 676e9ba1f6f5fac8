//! The task that hands proposals to openraft, in order.

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

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
    pub(super) async fn run(self, mut proposed: mpsc::UnboundedReceiver<Proposal>) {
        while let Some(proposal) = proposed.recv().await {
            self.propose(proposal).await;
        }
    }

    async fn propose(&self, Proposal { term, proposal, body }: Proposal) {
        let leadership = *self.leadership.borrow();
        if !leadership.is_self || leadership.term != term {
            // Also what comes after the group ended: then nobody leads.
            let _ = self.fsm.send(FsmMsg::ProposalFailed {
                proposal,
                definite: true,
            });
            return;
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
