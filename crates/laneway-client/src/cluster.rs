//! The cluster as one node sees it, and changes of it. Answered on loopback only.

use laneway_wire::{ClusterChangeRequest, ClusterChangeResponse, ClusterResponse, Int, Text};

use crate::{Client, ClientError};

/// A change of the cluster. Each is idempotent: a repeat finds nothing left to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterChange {
    /// The node gets a replica of every group and becomes a voter of each. It must be in the cluster file, and run.
    AddNode(u16),
    /// The node is taken out of every group.
    RemoveNode(u16),
    /// The node becomes the leader of a group, named as in [`laneway_wire::ClusterGroup::partition`]; of all when `None`.
    TransferLeader(Option<String>, u16),
}

impl Client {
    /// Nodes, groups and replicas.
    pub async fn cluster(&self) -> Result<ClusterResponse, ClientError> {
        self.get("/admin/v1/cluster").await
    }

    /// Carries out a change. It may take as long as copying the data does: see [`Client::with_answer_wait`].
    pub async fn change_cluster(&self, change: &ClusterChange) -> Result<ClusterChangeResponse, ClientError> {
        let (change, node, partition) = match change {
            ClusterChange::AddNode(node) => ("add_node", node, None),
            ClusterChange::RemoveNode(node) => ("remove_node", node, None),
            ClusterChange::TransferLeader(partition, node) => ("transfer_leader", node, partition.as_deref()),
        };
        let body = ClusterChangeRequest {
            change: Text::from(change),
            node: Int((*node).into()),
            partition: partition.map(Text::from),
        };
        self.post("/admin/v1/cluster/changes", &body).await
    }
}
