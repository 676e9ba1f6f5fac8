//! `GET /admin/v1/cluster`, `POST /admin/v1/cluster/changes`

use serde::{Deserialize, Serialize};

use crate::value::{Int, Text};

/// Answer of `/admin/v1/cluster`: the cluster as the asked node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterResponse {
    /// Configured name.
    pub cluster: String,
    /// Minted when the cluster was founded.
    pub cluster_id: String,
    /// The node that answers.
    pub node: u16,
    /// By number.
    pub nodes: Vec<ClusterNode>,
    /// The catalog, then the partitions.
    pub groups: Vec<ClusterGroup>,
}

/// One node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterNode {
    /// Its number.
    pub node: u16,
    /// `host:port` for the other nodes; absent when the answering node's cluster file does not list it.
    pub address: Option<String>,
    /// It answers the answering node and is let in by it, or is it.
    pub connected: bool,
    /// Which life of its data is there, in hex; known while there is a connection.
    pub generation: Option<String>,
    /// Why it does not count as connected, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// One Raft group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterGroup {
    /// Its number, or `catalog`.
    pub partition: String,
    /// The newest term that the answering node has seen.
    pub term: u64,
    /// Node that leads, if the answering node knows.
    pub leader: Option<u16>,
    /// Its replicas, voters first.
    pub members: Vec<ClusterMember>,
}

/// One replica of a Raft group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMember {
    /// On which node.
    pub node: u16,
    /// Of which life of that node's data, in hex.
    pub generation: String,
    /// It votes; one that does not is catching up.
    pub voter: bool,
    /// Index of the last entry that it is known to have; only the group's leader knows, and only while the node answers.
    pub matched: Option<u64>,
}

/// Body of a change of the cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClusterChangeRequest<'a> {
    /// `add_node`, `remove_node` or `transfer_leader`.
    #[serde(borrow)]
    pub change: Text<'a>,
    /// Number of the node that it is about.
    pub node: Int,
    /// `transfer_leader` only: the group, as [`ClusterGroup::partition`] names it; absent means all.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Text<'a>>,
}

/// Answer of a change that is done, or was done before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterChangeResponse {
    /// Groups that were changed; the others were so already.
    pub changed: Vec<String>,
    /// When nothing was changed: what is so already, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
