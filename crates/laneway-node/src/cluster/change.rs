//! One change of one group's members, by its leader.

use std::collections::BTreeSet;
use std::time::Duration;

use laneway_core::ids::PartitionId;
use laneway_raft::{ChangeError, Group, Members, TransferError, node_number};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::api::{ErrorClass, RequestError};
use crate::caller::outcome_unknown;
use crate::leader::{AtLeader, Verb};
use crate::node::Node;

/// A learner that lacks no more entries than this becomes a voter: it has the rest in a moment.
const CAUGHT_UP_LAG_MAX: u64 = 1_000;

/// How long a change waits for a new member to catch up; it goes on catching up after that.
const CATCH_UP_WAIT: Duration = Duration::from_secs(20);

/// Between two looks at a new member.
const CATCH_UP_LOOK: Duration = Duration::from_millis(50);

/// How long a change that meets another one, or too new a leader, is tried again before that is told.
const IN_THE_WAY_WAIT: Duration = Duration::from_secs(3);

/// Between two such attempts.
const IN_THE_WAY_LOOK: Duration = Duration::from_millis(50);

/// What is to become of a node in a group.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum ChangeMember {
    /// It votes.
    Add(u16),
    /// It is no member.
    Remove(u16),
    /// It could be removed; nothing is changed.
    MayRemove(u16),
    /// It leads.
    Lead(u16),
}

impl AtLeader for ChangeMember {
    const VERB: Verb = Verb::ChangeMember;
    const WRITES: bool = true;
    /// Whether it was not so already.
    type Answer = bool;

    async fn run(self, node: Node, group: PartitionId) -> Result<bool, RequestError> {
        let Some(open) = node.group(group) else {
            return Err(no_leader(&format!("partition {group} is not open here")));
        };
        let change = Change {
            node: &node,
            id: group,
            group: &open,
        };
        let deadline = Instant::now() + IN_THE_WAY_WAIT;
        let mut repeated = false;
        loop {
            let outcome = match self {
                Self::Add(member) => change.add(member).await,
                Self::Remove(member) => change.remove(member).await,
                Self::MayRemove(member) => change.may_remove(member),
                Self::Lead(member) => change.lead(member).await,
            };
            match outcome {
                // A leader that was elected just now takes no change before its first entry is committed.
                Err(error) if error.code == "retry" && Instant::now() < deadline => repeated = true,
                // What the attempts before left to others to finish was not so before, either.
                outcome => return outcome.map(|changed| changed || repeated),
            }
            tokio::time::sleep(IN_THE_WAY_LOOK).await;
        }
    }
}

/// A change under way on the group's leader.
pub(super) struct Change<'a> {
    pub(super) node: &'a Node,
    pub(super) id: PartitionId,
    pub(super) group: &'a Group,
}

impl Change<'_> {
    async fn add(&self, member: u16) -> Result<bool, RequestError> {
        let Some(raft_id) = self.node.raft_id_of(member) else {
            return Err(conflict(&format!(
                "node {member} is not connected to the leader of partition {}: start it, then repeat",
                self.id
            )));
        };
        let members = self.group.members();
        if members.voters.contains(&raft_id) && !members.joint {
            return Ok(false);
        }
        if !members.voters.contains(&raft_id) {
            self.catch_up(&members, raft_id).await?;
        }
        self.make_voter(raft_id).await?;
        Ok(true)
    }

    /// Lets a new member receive until it lacks next to nothing.
    async fn catch_up(&self, members: &Members, raft_id: u64) -> Result<(), RequestError> {
        if !members.learners.contains(&raft_id) {
            let added = self.group.add_learner(raft_id).await;
            added.map_err(|error| self.change_failed(&error))?;
        }
        let deadline = Instant::now() + CATCH_UP_WAIT;
        while !self.is_caught_up(raft_id) {
            if Instant::now() >= deadline {
                let member = node_number(raft_id);
                let message = format!(
                    "node {member} receives partition {} and does not have all of it yet; repeat the change after a while",
                    self.id
                );
                return Err(RequestError::new(ErrorClass::Unavailable, "retry", message));
            }
            tokio::time::sleep(CATCH_UP_LOOK).await;
        }
        Ok(())
    }

    /// Whether a member has nearly all of the log.
    pub(super) fn is_caught_up(&self, raft_id: u64) -> bool {
        let held = self.group.matched().get(&raft_id).copied().flatten();
        let last = self.group.metrics().last_index;
        held.is_some_and(|held| last.is_some_and(|last| held + CAUGHT_UP_LAG_MAX >= last))
    }

    /// Makes a learner a voter, in the place of other data of the same node if there was any.
    pub(super) async fn make_voter(&self, raft_id: u64) -> Result<(), RequestError> {
        let same_node = |other: u64| node_number(other) == node_number(raft_id);
        let members = self.group.members();
        let others = members.voters.into_iter().filter(|other| !same_node(*other));
        let voters: BTreeSet<u64> = others.chain([raft_id]).collect();
        let set = self.group.set_voters(voters).await;
        set.map_err(|error| self.change_failed(&error))
    }

    async fn remove(&self, member: u16) -> Result<bool, RequestError> {
        let of_member = |id: &u64| node_number(*id) == member;
        let members = self.group.members();
        let mut changed = false;
        for learner in members.learners.into_iter().filter(of_member) {
            let removed = self.group.remove_learner(learner).await;
            removed.map_err(|error| self.change_failed(&error))?;
            changed = true;
        }
        if !members.voters.iter().any(of_member) {
            return Ok(changed);
        }
        let left: BTreeSet<u64> = members.voters.into_iter().filter(|id| !of_member(id)).collect();
        self.check_quorum(member, &left)?;
        if self.node.is_node(member) {
            // Whoever leads next carries the change out.
            self.hand_over(&left).await.map_err(to_be_repeated)?;
            return Err(no_leader("the node that is to leave has handed the lead over"));
        }
        let set = self.group.set_voters(left).await;
        set.map_err(|error| self.change_failed(&error))?;
        Ok(true)
    }

    fn may_remove(&self, member: u16) -> Result<bool, RequestError> {
        let voters = self.group.members().voters;
        let (leaving, left): (BTreeSet<u64>, BTreeSet<u64>) =
            voters.into_iter().partition(|id| node_number(*id) == member);
        if !leaving.is_empty() {
            self.check_quorum(member, &left)?;
        }
        Ok(!leaving.is_empty())
    }

    /// The voters that stay must have a quorum among those that are there.
    fn check_quorum(&self, member: u16, left: &BTreeSet<u64>) -> Result<(), RequestError> {
        let there = left
            .iter()
            .filter(|id| self.node.raft_id_of(node_number(**id)) == Some(**id))
            .count();
        if !left.is_empty() && there > left.len() / 2 {
            return Ok(());
        }
        Err(conflict(&format!(
            "without node {member} partition {} would have {} voters, of which {there} can be reached: that is no quorum, and nothing could be written any more; start or add nodes first",
            self.id,
            left.len()
        )))
    }

    async fn lead(&self, member: u16) -> Result<bool, RequestError> {
        if self.node.is_node(member) {
            return Ok(false);
        }
        let voter = |id: &u64| node_number(*id) == member;
        let Some(to) = self.group.members().voters.into_iter().find(voter) else {
            return Err(conflict(&format!(
                "node {member} is no voter of partition {}: add it first, see laneway ctl cluster status",
                self.id
            )));
        };
        if self.node.raft_id_of(member) != Some(to) {
            return Err(conflict(&format!(
                "node {member} is not connected to the leader of partition {}: start it, then repeat",
                self.id
            )));
        }
        let passed = self.group.transfer_leader(to).await;
        passed.map_err(|error| to_be_repeated(self.transfer_failed(error)))?;
        Ok(true)
    }

    /// Hands the lead to whichever of `to` has most of the log and is there.
    pub(super) async fn hand_over(&self, to: &BTreeSet<u64>) -> Result<(), RequestError> {
        let matched = self.group.matched();
        let there = to.iter().filter(|id| {
            let node = node_number(**id);
            !self.node.is_node(node) && self.node.raft_id_of(node) == Some(**id)
        });
        let Some(best) = there.max_by_key(|id| matched.get(id).copied().flatten()) else {
            return Err(conflict(&format!(
                "no other node of partition {} can be reached to take the lead over",
                self.id
            )));
        };
        let passed = self.group.transfer_leader(*best).await;
        passed.map_err(|error| self.transfer_failed(error))
    }

    fn change_failed(&self, error: &ChangeError) -> RequestError {
        let message = format!("members of partition {}: {error}", self.id);
        match error {
            ChangeError::NotLeader { .. } => no_leader(&message),
            ChangeError::InProgress => RequestError::new(
                ErrorClass::Unavailable,
                "retry",
                format!("{message}; repeat the change after a moment"),
            ),
            ChangeError::Unknown | ChangeError::Stopped => outcome_unknown(&message, &"cluster"),
            ChangeError::UnknownMember { .. } | ChangeError::NoVoters | ChangeError::Refused { .. } => {
                conflict(&message)
            }
        }
    }

    fn transfer_failed(&self, error: TransferError) -> RequestError {
        let message = format!("lead of partition {}: {error}", self.id);
        match error {
            TransferError::NotLeader { .. } => no_leader(&message),
            TransferError::NotAVoter { .. } => conflict(&message),
            TransferError::Behind { .. } | TransferError::NotTaken | TransferError::Stopped => {
                RequestError::new(ErrorClass::Unavailable, "retry", message)
            }
        }
    }
}

impl Node {
    /// Whether this node is `member`.
    fn is_node(&self, member: u16) -> bool {
        self.inner.standing.identity().node == member
    }
}

/// Of a change that somebody asked for.
fn to_be_repeated(mut error: RequestError) -> RequestError {
    if error.code == "retry" {
        error.message.push_str("; repeat the change after a moment");
    }
    error
}

fn no_leader(message: &str) -> RequestError {
    RequestError::new(ErrorClass::Unavailable, "no_leader", message)
}

fn conflict(message: &str) -> RequestError {
    RequestError::new(ErrorClass::Conflict, "conflict", message)
}
