//! What people and tools ask about the cluster itself.

use laneway_core::ids::PartitionId;
use serde::{Deserialize, Serialize};

/// The cluster as one node sees it.
#[derive(Clone, Debug)]
pub struct ClusterStatus {
    /// Name of the cluster.
    pub cluster: String,
    /// Its id in hex; all zeros before it is founded.
    pub cluster_id: String,
    /// The node that answers.
    pub node: u16,
    /// All nodes of the cluster file and all members of groups, by number.
    pub nodes: Vec<ClusterNode>,
    /// All groups: the partitions, then the catalog.
    pub groups: Vec<ClusterGroup>,
}

/// One node of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterNode {
    /// Its number.
    pub node: u16,
    /// `host:port` of its peer listener; `None` when this node's cluster file does not have it.
    pub address: Option<String>,
    /// It answers the answering node and is let in by it (or is it).
    pub connected: bool,
    /// Data generation of the process there, in hex, while there is a connection.
    pub generation: Option<String>,
    /// Why it does not count as connected.
    pub trouble: Option<String>,
}

/// One replicated group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterGroup {
    /// Which one.
    pub partition: PartitionId,
    /// The newest term that the answering node has seen.
    pub term: u64,
    /// The node that leads it, if the answering node knows.
    pub leader: Option<u16>,
    /// Its members, voters first, by number.
    pub members: Vec<ClusterMember>,
}

/// One replica of a group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterMember {
    /// On which node.
    pub node: u16,
    /// Data generation, in hex.
    pub generation: String,
    /// It votes.
    pub voter: bool,
    /// Index of the last entry that it is known to have; only the group's leader knows, and only while the node answers.
    pub matched: Option<u64>,
}

/// A change of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterChange {
    /// Makes the node a voter of every group. It must be in the cluster file and run.
    AddNode(u16),
    /// Takes the node out of every group.
    RemoveNode(u16),
    /// Lets the node lead the group (every group, when `None`).
    TransferLeader(Option<PartitionId>, u16),
}

impl ClusterChange {
    /// The node that it is about.
    #[must_use]
    pub fn node(self) -> u16 {
        match self {
            Self::AddNode(node) | Self::RemoveNode(node) | Self::TransferLeader(_, node) => node,
        }
    }
}

/// What a change did.
#[derive(Clone, Debug)]
pub struct ClusterChanged {
    /// Groups that were changed; the others were so already.
    pub changed: Vec<PartitionId>,
}
