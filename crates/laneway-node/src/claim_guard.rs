//! Gives a claim back, uncharged, unless its answer is on the way to the client.

use laneway_core::ids::{LaneId, LeaseId, PartitionId};
use laneway_core::reply::Claimed;

use crate::node::Node;

/// Held by a pop's answer. Only the gateway that minted the claim may give it back, and only if it wrote no byte; the leader
/// that reads the messages holds one until the gateway can.
pub(crate) struct ClaimGuard {
    node: Node,
    partition: PartitionId,
    lease_id: LeaseId,
    lanes: Vec<LaneId>,
}

impl ClaimGuard {
    pub(crate) fn new(node: &Node, partition: PartitionId, lease_id: LeaseId, lanes: Vec<LaneId>) -> Self {
        Self {
            node: node.clone(),
            partition,
            lease_id,
            lanes,
        }
    }

    /// Of all that was claimed.
    pub(crate) fn of(node: &Node, partition: PartitionId, claimed: &Claimed) -> Self {
        let lanes = claimed.lanes.iter().map(|lane| lane.lane).collect();
        Self::new(node, partition, claimed.lease_id, lanes)
    }

    pub(crate) fn partition(&self) -> PartitionId {
        self.partition
    }

    pub(crate) fn lease_id(&self) -> LeaseId {
        self.lease_id
    }

    /// The lanes that would be given back.
    pub(crate) fn lanes(&self) -> &[LaneId] {
        &self.lanes
    }

    /// The lane is settled or given back.
    pub(crate) fn keep_lane(&mut self, lane: LaneId) {
        self.lanes.retain(|held| *held != lane);
    }

    /// The answer is on the way: the claim runs to its deadline.
    pub(crate) fn keep(mut self) {
        self.lanes.clear();
    }
}

impl std::fmt::Debug for ClaimGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClaimGuard")
            .field("partition", &self.partition)
            .field("lease_id", &self.lease_id)
            .field("lanes", &self.lanes)
            .finish_non_exhaustive()
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        if !self.lanes.is_empty() {
            self.node
                .release(self.partition, self.lease_id, std::mem::take(&mut self.lanes));
        }
    }
}
