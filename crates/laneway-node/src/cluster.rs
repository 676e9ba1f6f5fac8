//! The cluster itself: who belongs to which group, who leads, and changes of that.

mod change;
mod mend;
mod outside;
mod pulse;
mod tend;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use laneway_core::ids::PartitionId;
use laneway_raft::{GENERATION_MAX, Group, node_number};
use serde::{Deserialize, Serialize};

pub(crate) use change::ChangeMember;
pub(crate) use pulse::{Pong, Pulses, feel_pulses};
pub(crate) use tend::tend;

use crate::api::{
    ClusterChange, ClusterChanged, ClusterGroup, ClusterMember, ClusterNode, ClusterStatus, ErrorClass,
    RequestError,
};
use crate::leader::{AtLeader, Verb};
use crate::node::Node;

/// Longest wait for a leader's word on its group; else the replica here has to do.
const LEADER_WORD_WAIT: Duration = Duration::from_millis(500);

impl Node {
    /// The cluster as this node and the leaders that it reaches see it. Answers without a quorum, too.
    pub async fn cluster(&self) -> ClusterStatus {
        let described = self.group_ids().map(|group| self.describe(group));
        let groups = join_all(described).await;
        let identity = self.inner.standing.identity();
        let mut nodes: BTreeMap<u16, ClusterNode> = BTreeMap::new();
        for member in groups.iter().flat_map(|group| &group.members) {
            nodes
                .entry(member.node)
                .or_insert_with(|| self.describe_node(member.node));
        }
        let peers = self.inner.peers.iter().flat_map(|peers| peers.nodes());
        for node in peers.chain([identity.node]) {
            nodes.entry(node).or_insert_with(|| self.describe_node(node));
        }
        ClusterStatus {
            cluster: identity.cluster,
            cluster_id: format!("{:016x}", identity.cluster_id),
            node: identity.node,
            nodes: nodes.into_values().collect(),
            groups,
        }
    }

    /// Every group: the partitions, then the catalog.
    pub(crate) fn group_ids(&self) -> impl Iterator<Item = PartitionId> + '_ {
        let partitions = self.inner.partitions.iter().map(|partition| partition.id);
        partitions.chain([PartitionId::CATALOG])
    }

    fn describe_node(&self, node: u16) -> ClusterNode {
        let raft_id = self.raft_id_of(node);
        let trouble = self.trouble_with(node);
        ClusterNode {
            node,
            address: self.inner.addresses.get(&node).cloned(),
            connected: raft_id.is_some() && trouble.is_none(),
            generation: raft_id.map(generation),
            trouble,
        }
    }

    /// Whether the cluster file of this node lists `node`.
    #[must_use]
    pub fn knows_node(&self, node: u16) -> bool {
        self.inner.addresses.contains_key(&node) || node == self.inner.standing.identity().node
    }

    /// Raft id of the process that runs as `node` now, if it is this one or connected.
    pub(crate) fn raft_id_of(&self, node: u16) -> Option<u64> {
        let us = self.inner.standing.identity();
        if node == us.node {
            return Some(us.raft_id());
        }
        let view = self.inner.peers.as_ref()?.view(node)?;
        let seen = view.borrow();
        seen.peer.as_ref().map(|peer| peer.raft_id)
    }

    async fn describe(&self, group: PartitionId) -> ClusterGroup {
        let word = self.at_leader(group, DescribeGroup);
        match tokio::time::timeout(LEADER_WORD_WAIT, word).await {
            Ok(Ok(described)) => described,
            Ok(Err(_)) | Err(_) => self.describe_here(group),
        }
    }

    /// The group as the replica here sees it. How far a node is that no longer answers, nobody knows.
    fn describe_here(&self, partition: PartitionId) -> ClusterGroup {
        let Some(group) = self.group(partition) else {
            return ClusterGroup {
                partition,
                term: 0,
                leader: None,
                members: Vec::new(),
            };
        };
        let (members, mut matched) = (group.members(), group.matched());
        matched.retain(|raft_id, _| self.is_heard(*raft_id));
        let leadership = group.leadership();
        if leadership.is_self
            && let Some(us) = leadership.leader
        {
            matched.insert(us, group.metrics().last_index);
        }
        let member = |raft_id: u64, voter| ClusterMember {
            node: node_number(raft_id),
            generation: generation(raft_id),
            voter,
            matched: matched.get(&raft_id).copied().flatten(),
        };
        let voters = members.voters.iter().map(|id| member(*id, true));
        let learners = members.learners.iter().map(|id| member(*id, false));
        ClusterGroup {
            partition,
            term: leadership.term,
            leader: leadership.leader.map(node_number),
            members: voters.chain(learners).collect(),
        }
    }

    /// Whether the process with this data answers.
    fn is_heard(&self, raft_id: u64) -> bool {
        let node = node_number(raft_id);
        self.raft_id_of(node) == Some(raft_id) && self.inner.pulses.answers(node)
    }

    /// The group as it is open here.
    pub(crate) fn group(&self, group: PartitionId) -> Option<Group> {
        if group == PartitionId::CATALOG {
            self.inner.catalog.group()
        } else {
            self.partition(group)?.group()
        }
    }

    /// Adds or removes a node, or moves the lead. Idempotent: what is so already is left alone.
    ///
    /// Errors: `Conflict` says why the change is refused; after any error some groups may be changed and others not: repeat it.
    pub async fn change_cluster(&self, change: ClusterChange) -> Result<ClusterChanged, RequestError> {
        let changed = self.change_groups(change).await;
        changed.map_err(|error| error.advising("repeat the change: what is so already is left alone"))
    }

    async fn change_groups(&self, change: ClusterChange) -> Result<ClusterChanged, RequestError> {
        let only = match change {
            ClusterChange::AddNode(_) | ClusterChange::RemoveNode(_) => None,
            ClusterChange::TransferLeader(only, _) => only,
        };
        self.check_change(change, change.node())?;
        let member = match change {
            ClusterChange::AddNode(node) => ChangeMember::Add(node),
            ClusterChange::RemoveNode(node) => ChangeMember::Remove(node),
            ClusterChange::TransferLeader(_, node) => ChangeMember::Lead(node),
        };
        if let ClusterChange::RemoveNode(node) = change {
            // Refused by one group, it is to leave the others as they are.
            for group in self.group_ids() {
                self.have_changed(group, ChangeMember::MayRemove(node)).await?;
            }
        }
        let mut changed = Vec::new();
        // The catalog is last: what it knows of is everywhere before it counts on the node.
        for group in self.group_ids() {
            if only.is_none_or(|only| only == group) && self.have_changed(group, member).await? {
                changed.push(group);
            }
        }
        Ok(ClusterChanged { changed })
    }

    async fn have_changed(&self, group: PartitionId, change: ChangeMember) -> Result<bool, RequestError> {
        let changed = self.at_leader(group, change).await;
        changed.map_err(|error| match self.lack_of_quorum(group) {
            Some(why) if error.is_no_leader() => RequestError::new(ErrorClass::Unavailable, "no_leader", why),
            _ => error,
        })
    }

    /// How many voters of the group answer, when they are too few.
    fn lack_of_quorum(&self, group: PartitionId) -> Option<String> {
        let us = self.inner.standing.identity().raft_id();
        let voters = self.group(group)?.members().voters;
        let there = voters
            .iter()
            .filter(|id| **id == us || self.is_heard(**id))
            .count();
        (there <= voters.len() / 2).then(|| {
            format!(
                "partition {group} decides nothing now: {there} of its {} voters can be reached from here, which is not more than half; start nodes or mend the network, then repeat",
                voters.len()
            )
        })
    }

    fn check_change(&self, change: ClusterChange, node: u16) -> Result<(), RequestError> {
        let refused = |class, code, message| Err(RequestError::new(class, code, message));
        if let ClusterChange::TransferLeader(Some(group), _) = change
            && self.group(group).is_none()
        {
            let message = format!("there is no partition {group}: see laneway ctl cluster status");
            return refused(ErrorClass::NotFound, "not_found", message);
        }
        if matches!(change, ClusterChange::AddNode(_)) && !self.inner.addresses.contains_key(&node) {
            let message = format!(
                "node {node} is not in the cluster file of this node: add it under [[nodes]] there, restart the nodes one by one, then repeat"
            );
            return refused(ErrorClass::Conflict, "conflict", message);
        }
        Ok(())
    }
}

fn generation(raft_id: u64) -> String {
    format!("{:012x}", raft_id & GENERATION_MAX)
}

/// The group as its leader sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DescribeGroup;

impl AtLeader for DescribeGroup {
    const VERB: Verb = Verb::DescribeGroup;
    const WRITES: bool = false;
    type Answer = ClusterGroup;

    async fn run(self, node: Node, group: PartitionId) -> Result<ClusterGroup, RequestError> {
        Ok(node.describe_here(group))
    }
}
