//! Requests that are proposed as they are, or that only ask whether there is a quorum.

use std::sync::Arc;

use bytes::Bytes;
use laneway_core::command::{Ack, Command, Extend, ReleaseClaim};
use laneway_core::ids::{LaneId, LeaseId, PartitionId, QueueId};
use laneway_core::reply::Reply;
use serde::{Deserialize, Serialize};

use crate::api::RequestError;
use crate::leader::{AtLeader, Verb};
use crate::node::Node;
use crate::partition::{Ask, Running};

/// A command that needs nothing of the leader's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum PlainCommand {
    Ack(Ack),
    Extend(Extend),
    Release(ReleaseClaim),
}

impl AtLeader for PlainCommand {
    const VERB: Verb = Verb::Command;
    const WRITES: bool = true;
    type Answer = Reply;

    async fn run(self, node: Node, group: PartitionId) -> Result<Reply, RequestError> {
        let command = match self {
            Self::Ack(ack) => Command::Ack(ack),
            Self::Extend(extend) => Command::Extend(extend),
            Self::Release(release) => Command::ReleaseClaim(release),
        };
        let partition = node.own_partition(group)?;
        partition.ask(Ask::Command(command, Bytes::new()), 0).await
    }
}

impl Node {
    /// Gives a claim back, uncharged, if the leader can be reached; else it runs to its deadline.
    pub(crate) fn release(&self, partition: PartitionId, lease_id: LeaseId, lanes: Vec<LaneId>) {
        if self.leads(partition)
            && let Some(partition) = self.partition(partition)
        {
            partition.release(lease_id, lanes);
            return;
        }
        // Without a runtime the process ends.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let lanes = lanes.into_iter().map(|lane| (lane, None)).collect();
            let node = self.clone();
            runtime.spawn(async move {
                let release = PlainCommand::Release(ReleaseClaim { lease_id, lanes });
                if let Err(error) = node.at_leader(partition, release).await {
                    tracing::debug!(%partition, %error, "a claim that nobody received runs to its deadline");
                }
            });
        }
    }
}

/// Whether any lane of these queues (or the one lane) can be claimed, on the word of a quorum given after it was asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Claimable {
    pub(super) queues: Vec<QueueId>,
    pub(super) group: Arc<str>,
    pub(super) lane: Option<Arc<str>>,
}

impl AtLeader for Claimable {
    const VERB: Verb = Verb::Claimable;
    const WRITES: bool = false;
    type Answer = bool;

    async fn run(self, node: Node, group: PartitionId) -> Result<bool, RequestError> {
        let look = move |running: &Running| {
            let machine = &running.machine;
            self.queues.iter().any(|queue| {
                let lane = match &self.lane {
                    None => None,
                    Some(name) => match machine.lane_id(*queue, name) {
                        Some(lane) => Some(lane),
                        None => return false,
                    },
                };
                machine.claimable(*queue, &self.group, lane, running.now())
            })
        };
        node.own_partition(group)?.look_linear(look).await
    }
}

/// Whether a leader has a quorum behind it, and up to where the log is committed and applied there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Confirm;

impl AtLeader for Confirm {
    const VERB: Verb = Verb::Confirm;
    const WRITES: bool = false;
    type Answer = u64;

    async fn run(self, node: Node, group: PartitionId) -> Result<u64, RequestError> {
        node.own_partition(group)?.read_index().await
    }
}
