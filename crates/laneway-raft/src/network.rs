//! Where a group's calls to its peers leave this crate.
//!
//! openraft asks [`PeerNetwork`] for one [`PeerLink`] per peer and use, and makes every call through it. The node has no
//! connections to peers yet, so a link answers each call with `Unreachable`, which openraft counts neither as a vote nor as a
//! copy: a group with a peer elects and commits nothing, a group of one voter makes no calls at all. The peer transport will
//! be a field of both types; nothing outside this module knows whether there is one.

use laneway_core::ids::PartitionId;
use openraft::RaftNetworkFactory;
use openraft::RaftNetworkV2;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};

use crate::fsm::CheckpointName;
use crate::types::{LeaderId, Types, Vote};

/// Makes links to the peers of one group.
#[derive(Debug)]
pub(crate) struct PeerNetwork {
    partition: PartitionId,
}

impl PeerNetwork {
    pub(crate) fn new(partition: PartitionId) -> Self {
        Self { partition }
    }
}

impl RaftNetworkFactory<Types> for PeerNetwork {
    type Network = PeerLink;

    async fn new_client(&mut self, peer: u64, _node: &()) -> PeerLink {
        PeerLink {
            partition: self.partition,
            peer,
        }
    }
}

/// One group's way to one peer.
#[derive(Debug)]
pub(crate) struct PeerLink {
    partition: PartitionId,
    peer: u64,
}

/// Why a call went nowhere.
#[derive(Debug, thiserror::Error)]
#[error("group {partition} cannot reach peer {peer:#018x}: this node has no peer transport")]
struct NoTransport {
    partition: PartitionId,
    peer: u64,
}

impl PeerLink {
    fn unreachable(&self) -> Unreachable<Types> {
        Unreachable::new(&NoTransport {
            partition: self.partition,
            peer: self.peer,
        })
    }
}

impl RaftNetworkV2<Types> for PeerLink {
    type SnapshotData = CheckpointName;

    async fn append_entries(
        &mut self,
        _rpc: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    async fn vote(
        &mut self,
        _rpc: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    // Not left to the default, which grants.
    async fn pre_vote(
        &mut self,
        _rpc: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(self.unreachable().into())
    }

    async fn full_snapshot(
        &mut self,
        _vote: Vote,
        _snapshot: openraft::Snapshot<LeaderId, u64, (), CheckpointName>,
        _cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(self.unreachable().into())
    }
}
