//! Gives a claim back, uncharged, unless its answer is on the way to the client.

use std::sync::Arc;

use laneway_core::ids::{LaneId, LeaseId};

use crate::partition::PartitionHandle;

/// Held by a pop's answer. Only the gateway that minted the claim may give it back, and only if it wrote no byte.
#[derive(Debug)]
pub(crate) struct ClaimGuard {
    partition: Arc<PartitionHandle>,
    lease_id: LeaseId,
    lanes: Vec<LaneId>,
}

impl ClaimGuard {
    pub(crate) fn new(partition: Arc<PartitionHandle>, lease_id: LeaseId, lanes: Vec<LaneId>) -> Self {
        Self {
            partition,
            lease_id,
            lanes,
        }
    }

    /// The answer is on the way: the claim runs to its deadline.
    pub(crate) fn keep(mut self) {
        self.lanes.clear();
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        if !self.lanes.is_empty() {
            self.partition
                .release(self.lease_id, std::mem::take(&mut self.lanes));
        }
    }
}
