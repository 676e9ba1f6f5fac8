//! Requests of peers' gateways, carried out here.

use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use laneway_core::ids::PartitionId;
use laneway_raft::PeerService;

use super::{AtLeader, wire};
use crate::cluster::{ChangeMember, DescribeGroup, Pong};
use crate::node::{Inner, Node};
use crate::router::requests as r;

/// What a call asks for: its first byte. Part of the protocol between nodes, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Verb {
    Push = 1,
    Claim = 2,
    Ack = 3,
    Command = 4,
    Replay = 5,
    DeleteDeadLetters = 6,
    DeadLetters = 7,
    ReadMessage = 8,
    Sums = 9,
    DescribeQueue = 10,
    FindMessage = 11,
    Confirm = 12,
    Catalog = 13,
    CatalogVersion = 14,
    /// Not to a leader: the cluster's id follows.
    Founded = 15,
    DescribeGroup = 16,
    ChangeMember = 17,
    /// What a gateway's parked pops wait for.
    Interests = 18,
    /// Something for a pop parked at the gateway.
    Ready = 19,
    Claimable = 20,
    /// Whether this process runs at all.
    Ping = 21,
    /// Data that lacks what it had confirmed: its raft node id and the reason follow.
    Condemn = 22,
}

impl Verb {
    const ALL: [Self; 22] = [
        Self::Push,
        Self::Claim,
        Self::Ack,
        Self::Command,
        Self::Replay,
        Self::DeleteDeadLetters,
        Self::DeadLetters,
        Self::ReadMessage,
        Self::Sums,
        Self::DescribeQueue,
        Self::FindMessage,
        Self::Confirm,
        Self::Catalog,
        Self::CatalogVersion,
        Self::Founded,
        Self::DescribeGroup,
        Self::ChangeMember,
        Self::Interests,
        Self::Ready,
        Self::Claimable,
        Self::Ping,
        Self::Condemn,
    ];

    pub(super) fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| *verb as u8 == byte)
    }
}

/// Answers peers' calls once there is a node.
#[derive(Debug, Default)]
pub(crate) struct NodeService {
    node: OnceLock<Weak<Inner>>,
}

impl NodeService {
    /// From now on calls are carried out.
    pub(crate) fn serve(&self, node: &Arc<Inner>) {
        // A second one would be another node, which cannot have this service.
        let _ = self.node.set(Arc::downgrade(node));
    }
}

impl PeerService for NodeService {
    fn call(&self, from: u16, body: Bytes) -> BoxFuture<'_, Result<Vec<Bytes>, String>> {
        Box::pin(async move {
            let node = self.node.get().and_then(Weak::upgrade);
            let Some(inner) = node else {
                return Err("this node starts or stops".to_owned());
            };
            carry_out(Node { inner }, from, body).await
        })
    }

    fn reverted(&self, raft_id: u64, reason: String) {
        if let Some(inner) = self.node.get().and_then(Weak::upgrade) {
            tokio::spawn(Node { inner }.condemn_peer(raft_id, reason));
        }
    }
}

async fn carry_out(node: Node, from: u16, body: Bytes) -> Result<Vec<Bytes>, String> {
    let verb = body.first().and_then(|byte| Verb::of(*byte));
    match verb {
        Some(Verb::Founded) => return node.founded(&body[1..]).await,
        Some(Verb::Interests) => return node.interests_of(from, &body[1..]).await,
        Some(Verb::Ready) => return node.ready_hint(&body[1..]),
        Some(Verb::Condemn) => return node.condemned_by(from, &body[1..]).await,
        Some(Verb::Ping) => return Ok(vec![Pong::of(&node).encode()]),
        _ => {}
    }
    let (verb, group, body) = wire::open_request(body).map_err(|error| error.to_string())?;
    match verb {
        Verb::Push => run::<r::Push>(node, group, body).await,
        Verb::Claim => run::<r::Claim>(node, group, body).await,
        Verb::Ack => run::<r::Ack>(node, group, body).await,
        Verb::Command => run::<r::PlainCommand>(node, group, body).await,
        Verb::Replay => run::<r::Replay>(node, group, body).await,
        Verb::DeleteDeadLetters => run::<r::DeleteDeadLetters>(node, group, body).await,
        Verb::DeadLetters => run::<r::DeadLetters>(node, group, body).await,
        Verb::ReadMessage => run::<r::ReadMessage>(node, group, body).await,
        Verb::Sums => run::<r::Sums>(node, group, body).await,
        Verb::DescribeQueue => run::<r::DescribeQueue>(node, group, body).await,
        Verb::FindMessage => run::<r::FindMessage>(node, group, body).await,
        Verb::Claimable => run::<r::Claimable>(node, group, body).await,
        Verb::Confirm => run::<r::Confirm>(node, group, body).await,
        Verb::Catalog => run::<r::Catalog>(node, group, body).await,
        Verb::CatalogVersion => run::<r::CatalogVersion>(node, group, body).await,
        Verb::DescribeGroup => run::<DescribeGroup>(node, group, body).await,
        Verb::ChangeMember => run::<ChangeMember>(node, group, body).await,
        Verb::Founded | Verb::Interests | Verb::Ready | Verb::Ping | Verb::Condemn => {
            unreachable!("answered above")
        }
    }
}

/// One hop and no more: who does not lead refuses, and the gateway looks for the leader again.
async fn run<R: AtLeader>(node: Node, group: PartitionId, body: Bytes) -> Result<Vec<Bytes>, String> {
    let request: R = wire::decode_request(body).map_err(|error| error.to_string())?;
    if !node.leads(group) {
        return Err(format!("this node does not lead partition {group}"));
    }
    let answer = request.run(node, group).await;
    Ok(wire::encode_answer::<R>(answer))
}
