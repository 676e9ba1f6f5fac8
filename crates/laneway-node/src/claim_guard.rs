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

    pub(crate) fn partition(&self) -> &Arc<PartitionHandle> {
        &self.partition
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

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        if !self.lanes.is_empty() {
            self.partition
                .release(self.lease_id, std::mem::take(&mut self.lanes));
        }
    }
}
