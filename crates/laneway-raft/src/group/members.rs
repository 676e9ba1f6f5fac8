//! Who belongs to a group, and how that changes.

use std::collections::{BTreeMap, BTreeSet};

use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{ChangeMembers, RaftMetrics};

use super::Group;
use super::error::ChangeError;
use crate::types::Types;

type Failed = RaftError<Types, ClientWriteError<Types>>;

/// The members of a group, by raft node id, as one replica knows them: the newest membership in its log, committed or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Those who vote and count towards the quorum; in a joint membership, those of either set.
    pub voters: BTreeSet<u64>,
    /// Those who only receive.
    pub learners: BTreeSet<u64>,
    /// On its way from one set of voters to another: quorums of both are needed. It stays so when a change was interrupted, until
    /// [`Group::finish_change`], or the next [`Group::set_voters`].
    pub joint: bool,
}

impl Group {
    /// The newest membership that this replica knows. Does not wait; empty before the group was initialized, or joined.
    #[must_use]
    pub fn members(&self) -> Members {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        Members {
            voters: membership.voter_ids().collect(),
            learners: membership.learner_ids().collect(),
            joint: membership.get_joint_config().len() > 1,
        }
    }

    /// For each member, the index of the last entry that it is known to hold (`None`: none yet). Only the leader knows: empty
    /// elsewhere. May lag behind by an event.
    #[must_use]
    pub fn matched(&self) -> BTreeMap<u64, Option<u64>> {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        matched(&metrics)
    }

    /// Adds a member that receives and does not vote. On one that is a member already it changes nothing, at the cost of an entry.
    ///
    /// Returns once the change is committed and applied here; the learner need not have caught up, see [`Group::matched`].
    /// Durability: after `Ok` a quorum has it. Errors: [`ChangeError`] says for each kind whether it is definite. Cancel safety:
    /// the change may come about all the same.
    pub async fn add_learner(&self, raft_id: u64) -> Result<(), ChangeError> {
        self.change(ChangeMembers::AddNodes(BTreeMap::from([(raft_id, ())])))
            .await
    }

    /// Removes a member that does not vote. On one that is no member it changes nothing, at the cost of an entry; a voter is
    /// refused with [`ChangeError::UnknownMember`]. Otherwise as [`Group::add_learner`].
    pub async fn remove_learner(&self, raft_id: u64) -> Result<(), ChangeError> {
        self.change(ChangeMembers::RemoveNodes(BTreeSet::from([raft_id])))
            .await
    }

    /// Makes `voters` the set of voters, through a joint membership (two entries) unless it is that already.
    ///
    /// Each of them must be a member. Voters that are not in the new set leave the group altogether. Learners that are not in
    /// the new set stay learners: openraft removes only what voted before; see [`Group::remove_learner`]. A leader that removes itself
    /// leads until that is committed and then hands over.
    ///
    /// Returns once the last entry is committed and applied here. Errors: as in [`ChangeError`]; when the lead is lost between the
    /// two entries, the group stays joint ([`Members::joint`]) and needs another call, to whichever set. Cancel safety: the
    /// change may come about, also half of it.
    pub async fn set_voters(&self, voters: BTreeSet<u64>) -> Result<(), ChangeError> {
        self.change(ChangeMembers::ReplaceAllVoters(voters)).await
    }

    /// Finishes a change of the voters that was interrupted half-way ([`Members::joint`]): those it was on its way to become the
    /// voters. `Ok(false)` when there is none. On a change that is just being made here it does no harm. Otherwise as
    /// [`Group::set_voters`].
    pub async fn finish_change(&self) -> Result<bool, ChangeError> {
        let target = {
            let metrics = self.inner.raft.metrics();
            let metrics = metrics.borrow_watched();
            let sets = metrics.membership_config.membership().get_joint_config();
            sets.last().filter(|_| sets.len() > 1).cloned()
        };
        match target {
            None => Ok(false),
            Some(voters) => self.set_voters(voters).await.map(|()| true),
        }
    }

    async fn change(&self, change: ChangeMembers<u64, ()>) -> Result<(), ChangeError> {
        match Box::pin(self.inner.raft.change_membership(change, false)).await {
            Ok(_) => Ok(()),
            Err(error) => Err(change_error(error)),
        }
    }
}

/// For each member, the last entry that it is known to hold. Empty but on the leader.
pub(super) fn matched(metrics: &RaftMetrics<Types>) -> BTreeMap<u64, Option<u64>> {
    let known = metrics.replication.iter().flatten();
    known
        .map(|(id, at)| (*id, at.as_ref().map(|at| at.index)))
        .collect()
}

fn change_error(error: Failed) -> ChangeError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => {
            ChangeError::NotLeader { leader: to.leader_id }
        }
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => ChangeError::Unknown,
        RaftError::APIError(ClientWriteError::PreconditionFailed(_)) => ChangeError::InProgress,
        RaftError::APIError(ClientWriteError::ChangeMembershipError(refusal)) => match refusal {
            ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_) => {
                ChangeError::InProgress
            }
            ChangeMembershipError::EmptyMembership(_) => ChangeError::NoVoters,
            ChangeMembershipError::LearnerNotFound(unknown) => ChangeError::UnknownMember {
                raft_id: unknown.node_id,
            },
            refusal @ (ChangeMembershipError::UnsupportedMembershipTransition(_)
            | ChangeMembershipError::NodeMetadataChanged(_)) => ChangeError::Refused {
                reason: refusal.to_string(),
            },
        },
        RaftError::Fatal(_) => ChangeError::Stopped,
    }
}
