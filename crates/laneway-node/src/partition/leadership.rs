//! What Raft tells the actor: entries, failures, and who leads.

use laneway_raft::{FsmMsg, Group, Leadership};

use super::running::Running;
use crate::api::{ErrorClass, RequestError};
use crate::caller::REPEAT_ADVICE;
use crate::supervisor::SNAPSHOT_PLACED;

impl Running {
    pub(super) fn raft(&mut self, message: FsmMsg) {
        match message {
            FsmMsg::Apply { entries, done } => self.apply(entries, done),
            FsmMsg::ProposalFailed { proposal, definite } => self.proposal_failed(proposal, definite),
            FsmMsg::LeadershipChanged(leadership) => self.leadership_changed(&leadership),
            FsmMsg::Checkpoint { reply } => drop(reply.send(self.checkpoint.clone())),
            FsmMsg::SnapshotPlaced => self.snapshot_placed(),
            FsmMsg::Stopped { reason } => self.stopped(&reason),
        }
    }

    pub(super) fn opened(&mut self, group: Group) {
        self.handle.attach_group(group.clone());
        self.group = Some(group);
        self.want_flush();
        self.arm_timer();
    }

    fn leadership_changed(&mut self, leadership: &Leadership) {
        self.handle.leadership.send_replace(*leadership);
        if leadership.is_self {
            if self.leading == Some(leadership.term) {
                return;
            }
            self.leave_office();
            self.leading = Some(leadership.term);
            if let Some(applied) = self.applied {
                self.take_office_at(applied.term);
            }
        } else {
            self.leave_office();
            self.leading = None;
            if leadership.leader.is_some() {
                self.parking.another_leads();
            }
        }
    }

    /// A leader plans nothing until its term's first entry is applied.
    pub(super) fn take_office_at(&mut self, applied_term: u64) {
        let Some(term) = self.leading else { return };
        if self.office.is_some() || applied_term != term {
            return;
        }
        self.keeper.take_office(&*self.clock, self.machine.stamps());
        self.office = Some(term);
        self.set_serving(true);
        self.parking.partition_serves();
        tracing::info!(partition = %self.id, term, index = self.applied.map(|applied| applied.index), "partition serves");
        self.want_flush();
        self.arm_timer();
    }

    fn leave_office(&mut self) {
        self.keeper.leave_office();
        self.set_serving(false);
        if self.office.take().is_some() {
            tracing::info!(partition = %self.id, "partition no longer leads here");
        }
        self.fail_filed(&unknown("leadership changed while it was in the log"));
        self.refuse_queued();
    }

    fn proposal_failed(&mut self, proposal: u64, definite: bool) {
        let Some(filed) = self.filed.take_if(|filed| filed.proposal == proposal) else {
            return;
        };
        let error = if definite {
            leader_changed()
        } else {
            unknown("the entry was proposed, but its outcome is not known")
        };
        for caller in filed.callers.into_iter().flatten() {
            drop(caller.answer(Err(error.clone())));
        }
        self.overlay.clear();
        self.want_flush();
    }

    /// What is here is the past: the supervisor opens the replica anew on the snapshot.
    fn snapshot_placed(&mut self) {
        self.leave_office();
        self.leading = None;
        self.myself.stop(Some(SNAPSHOT_PLACED.to_owned()));
    }

    fn stopped(&mut self, reason: &str) {
        tracing::error!(partition = %self.id, error = reason, "raft group stopped");
        self.leave_office();
        self.leading = None;
        self.myself.stop(Some(format!("raft group stopped: {reason}")));
    }
}

/// Nothing was done.
pub(super) fn leader_changed() -> RequestError {
    let message = "the partition's leader changed before the request was taken; retry after a moment";
    RequestError::new(ErrorClass::Unavailable, "no_leader", message)
}

fn unknown(why: &str) -> RequestError {
    let message = format!("{why}; {REPEAT_ADVICE}");
    RequestError::new(ErrorClass::OutcomeUnknown, "outcome_unknown", message)
}
