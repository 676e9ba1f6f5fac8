//! How the outcome of a write reaches the machine that proposed it.

use std::fmt;

use openraft::errors::ClientWriteError;
use openraft::raft::ClientWriteResult;
use openraft::raft::responder::Responder;
use tokio::sync::mpsc;

use crate::fsm::FsmMsg;
use crate::types::Types;

/// What openraft says of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// Applied: the machine has seen the entry.
    Applied,
    /// Refused before it was appended.
    Refused,
    /// Anything else.
    Unknown,
}

/// Turns the outcome of one write into [`FsmMsg::ProposalFailed`]; success is silent, since the machine saw the entry.
///
/// One that is dropped unanswered (the core ended with the write inside it) reports an unknown outcome.
pub(crate) struct ProposalResponder<T> {
    proposal: u64,
    fsm: mpsc::UnboundedSender<FsmMsg>,
    outcome_of: fn(&T) -> WriteOutcome, // openraft wants one type for all T
    answered: bool,
}

impl ProposalResponder<ClientWriteResult<Types>> {
    pub(crate) fn new(proposal: u64, fsm: mpsc::UnboundedSender<FsmMsg>) -> Self {
        Self {
            proposal,
            fsm,
            outcome_of: write_outcome,
            answered: false,
        }
    }
}

impl<T> ProposalResponder<T> {
    fn fail(&mut self, definite: bool) {
        self.answered = true;
        // The receiver is gone only when the machine is: nobody is left to be told.
        let _ = self.fsm.send(FsmMsg::ProposalFailed {
            proposal: self.proposal,
            definite,
        });
    }
}

impl<T: Send + 'static> Responder<Types, T> for ProposalResponder<T> {
    fn on_complete(mut self, result: T) {
        match (self.outcome_of)(&result) {
            WriteOutcome::Applied => self.answered = true,
            WriteOutcome::Refused => self.fail(true),
            WriteOutcome::Unknown => self.fail(false),
        }
    }
}

impl<T> Drop for ProposalResponder<T> {
    fn drop(&mut self) {
        if !self.answered {
            self.fail(false);
        }
    }
}

impl<T> fmt::Debug for ProposalResponder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProposalResponder")
            .field("proposal", &self.proposal)
            .finish_non_exhaustive()
    }
}

/// `ForwardToLeader` is given only to a write that was not appended; a write that was appended and then lost its place comes
/// back as `LogEntryDiscarded` and may be committed by another leader.
fn write_outcome(result: &ClientWriteResult<Types>) -> WriteOutcome {
    match result {
        Ok(_) => WriteOutcome::Applied,
        Err(ClientWriteError::ForwardToLeader(_)) => WriteOutcome::Refused,
        Err(_) => WriteOutcome::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use openraft::errors::ForwardToLeader;

    use super::*;

    fn answer(result: Option<ClientWriteResult<Types>>) -> Option<bool> {
        let (fsm, mut received) = mpsc::unbounded_channel();
        let responder = ProposalResponder::new(9, fsm);
        match result {
            Some(result) => responder.on_complete(result),
            None => drop(responder),
        }
        match received.try_recv() {
            Ok(FsmMsg::ProposalFailed {
                proposal: 9,
                definite,
            }) => Some(definite),
            Ok(other) => panic!("unexpected {other:?}"),
            Err(_) => None,
        }
    }

    #[test]
    fn refused_write_is_a_definite_failure() {
        assert_eq!(answer(Some(Err(ForwardToLeader::empty().into()))), Some(true));
    }

    #[test]
    fn discarded_entry_is_an_unknown_outcome() {
        let discarded = ClientWriteError::LogEntryDiscarded(ForwardToLeader::empty());
        assert_eq!(answer(Some(Err(discarded))), Some(false));
    }

    #[test]
    fn dropped_responder_is_an_unknown_outcome() {
        assert_eq!(answer(None), Some(false));
    }
}
