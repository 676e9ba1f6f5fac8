//! The first frame of either side: who it is, and whether they belong together.

use std::fmt;

use bytes::{Buf, Bytes};
use laneway_core::ids::PartitionId;
use laneway_storage::codec;
use serde::{Deserialize, Serialize};

use super::frame::{Frame, FrameError, Kind, Received, SMALL_BODY_BYTES_MAX, read_frame, write_pieces};
use super::transport::PeerStream;
use crate::node_id::node_number;

/// Version of what is said after the handshake.
pub(crate) const PROTOCOL_VERSION: u16 = 2;

/// First bytes of a handshake's body, so that a stray client of another protocol is told from a node.
const MAGIC: [u8; 8] = *b"laneway\0";

/// What a connection is for. Each pair of nodes has one of each in each direction, so that bulk does not delay a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum Class {
    /// Votes, heartbeats, transfers of leadership: small and urgent.
    Control,
    /// Entries.
    Entries,
    /// Requests that hop to a leader, files.
    Bulk,
}

impl Class {
    pub(crate) const ALL: [Self; 3] = [Self::Control, Self::Entries, Self::Bulk];

    pub(crate) fn body_bytes_max(self) -> usize {
        match self {
            Self::Control => SMALL_BODY_BYTES_MAX,
            Self::Entries | Self::Bulk => super::frame::BODY_BYTES_MAX,
        }
    }

    /// Largest body that comes back.
    pub(crate) fn answer_bytes_max(self) -> usize {
        match self {
            Self::Control | Self::Entries => SMALL_BODY_BYTES_MAX,
            Self::Bulk => super::frame::BODY_BYTES_MAX,
        }
    }
}

/// Who a node is, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIntroduction {
    /// Name of its cluster, as configured.
    pub cluster: String,
    /// Id of its cluster; 0 while it belongs to none yet.
    pub cluster_id: u64,
    /// Hash of what must be configured alike on all nodes.
    pub fingerprint: u64,
    /// Its raft node id: number and data generation.
    pub raft_id: u64,
    /// Drawn anew at each start: tells two processes on copies of one data directory apart.
    pub process: u64,
    /// Whether its data directory holds the state of any group.
    pub founded: bool,
}

impl NodeIntroduction {
    /// Its number in the configuration.
    #[must_use]
    pub fn node(&self) -> u16 {
        node_number(self.raft_id)
    }
}

#[derive(Serialize, Deserialize)]
struct HelloRow {
    class: Class,
    to: u16,
    from: NodeIntroduction,
}

#[derive(Serialize, Deserialize)]
enum WelcomeRow {
    Taken(NodeIntroduction),
    Refused(Refused),
}

/// Why a node does not talk to another. Shown on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refused {
    Version {
        ours: u16,
        theirs: u16,
    },
    OtherCluster {
        ours: String,
        theirs: String,
    },
    OtherClusterId {
        ours: u64,
        theirs: u64,
    },
    OtherFingerprint {
        ours: u64,
        theirs: u64,
    },
    NotMe {
        ours: u16,
        wanted: u16,
    },
    NotAPeer {
        node: u16,
    },
    Twin {
        node: u16,
        ours: u64,
        theirs: u64,
    },
    /// Its number ran with other data a moment ago, and may again.
    EarlierData {
        node: u16,
        ours: u64,
        takeover_ms: u64,
    },
}

impl Refused {
    /// For the log: reasons of one kind share lines.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Version { .. } => "version",
            Self::OtherCluster { .. } => "other cluster",
            Self::OtherClusterId { .. } => "other cluster id",
            Self::OtherFingerprint { .. } => "other fingerprint",
            Self::NotMe { .. } => "not me",
            Self::NotAPeer { .. } => "not a peer",
            Self::Twin { .. } => "twin",
            Self::EarlierData { .. } => "earlier data",
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { ours, theirs } => write!(
                f,
                "peer protocol version {theirs} is not {ours}: run the same release on all nodes"
            ),
            Self::OtherCluster { ours, theirs } => write!(
                f,
                "it belongs to cluster {theirs:?}, this is {ours:?}: correct the peer addresses"
            ),
            Self::OtherClusterId { ours, theirs } => write!(
                f,
                "its data belongs to cluster id {theirs:016x}, this is {ours:016x}: it has the data directory of another cluster; correct its peer addresses, or start it with an empty directory"
            ),
            Self::OtherFingerprint { ours, theirs } => write!(
                f,
                "its cluster configuration differs (fingerprint {theirs:016x}, here {ours:016x}): give all nodes the same cluster file"
            ),
            Self::NotMe { ours, wanted } => write!(
                f,
                "it looks for node {wanted}, this is node {ours}: correct the peer addresses"
            ),
            Self::NotAPeer { node } => write!(
                f,
                "node {node} is not in the cluster file of this node: give all nodes the same cluster file"
            ),
            Self::Twin { node, ours, theirs } => write!(
                f,
                "another process serves as node {node} with data generation {:012x}, this one has {:012x}: stop one of the two; if the other is gone for good, this one is let in once nothing was heard of it for generation_takeover_ms",
                ours & crate::GENERATION_MAX,
                theirs & crate::GENERATION_MAX
            ),
            Self::EarlierData {
                node,
                ours,
                takeover_ms,
            } => write!(
                f,
                "node {node} ran with earlier data (generation {:012x}) just now: new data takes its place once nothing was heard of that for generation_takeover_ms, {takeover_ms} ms; wait, unless a process with the earlier data still runs somewhere",
                ours & crate::GENERATION_MAX
            ),
        }
    }
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("writing failed: {0}")]
    Write(#[source] std::io::Error),
    #[error("what came is no handshake of a Laneway node")]
    Stranger,
    /// The other side refused; its words.
    #[error("refused by the other side: {0}")]
    RefusedThere(Refused),
    /// This side refused.
    #[error("{0}")]
    RefusedHere(Refused),
}

/// Introduces this node to `to` and hears who answers. The caller checks that.
pub(crate) async fn introduce(
    stream: &mut PeerStream,
    class: Class,
    to: u16,
    from: NodeIntroduction,
) -> Result<NodeIntroduction, HandshakeError> {
    send(stream, &codec::encode(&HelloRow { class, to, from })).await?;
    match codec::decode(&receive(stream).await?.1).map_err(|_| HandshakeError::Stranger)? {
        WelcomeRow::Taken(welcome) => Ok(welcome),
        WelcomeRow::Refused(refused) => Err(HandshakeError::RefusedThere(refused)),
    }
}

/// Hears who connects and what for.
pub(crate) async fn hear(stream: &mut PeerStream) -> Result<(Class, u16, NodeIntroduction), HandshakeError> {
    let (version, body) = receive(stream).await?;
    if version != PROTOCOL_VERSION {
        return Err(HandshakeError::RefusedHere(Refused::Version {
            ours: PROTOCOL_VERSION,
            theirs: version,
        }));
    }
    let hello: HelloRow = codec::decode(&body).map_err(|_| HandshakeError::Stranger)?;
    Ok((hello.class, hello.to, hello.from))
}

/// Takes the connection.
pub(crate) async fn welcome(stream: &mut PeerStream, us: NodeIntroduction) -> Result<(), HandshakeError> {
    send(stream, &codec::encode(&WelcomeRow::Taken(us))).await
}

/// Says why not.
pub(crate) async fn refuse(stream: &mut PeerStream, why: Refused) -> Result<(), HandshakeError> {
    send(stream, &codec::encode(&WelcomeRow::Refused(why))).await
}

async fn send(stream: &mut PeerStream, row: &[u8]) -> Result<(), HandshakeError> {
    let body = [&MAGIC[..], &PROTOCOL_VERSION.to_le_bytes(), row].concat();
    let frame = Frame::new(Kind::Hello, PartitionId::CATALOG, 0, body.into());
    let mut pieces = frame.pieces(SMALL_BODY_BYTES_MAX)?;
    write_pieces(&mut stream.output, &mut pieces)
        .await
        .map_err(HandshakeError::Write)
}

async fn receive(stream: &mut PeerStream) -> Result<(u16, Bytes), HandshakeError> {
    let Received { kind, body, .. } = read_frame(&mut stream.input, SMALL_BODY_BYTES_MAX).await?;
    if kind != Kind::Hello {
        return Err(HandshakeError::Stranger);
    }
    open(body).ok_or(HandshakeError::Stranger)
}

/// Version and row of a handshake's body.
fn open(mut body: Bytes) -> Option<(u16, Bytes)> {
    if body.len() < MAGIC.len() + 2 || body[..MAGIC.len()] != MAGIC {
        return None;
    }
    body.advance(MAGIC.len());
    let version = body.get_u16_le();
    Some((version, body))
}

/// For the fuzzer.
pub(super) fn describe(body: Bytes) -> String {
    let Some((version, row)) = open(body) else {
        return "no handshake".to_owned();
    };
    let hello = codec::decode::<HelloRow>(&row).map(|hello| (hello.class, hello.to, hello.from));
    let welcome = codec::decode::<WelcomeRow>(&row).map(|welcome| match welcome {
        WelcomeRow::Taken(us) => us.cluster,
        WelcomeRow::Refused(why) => why.to_string(),
    });
    format!("{version} {hello:?} {welcome:?}")
}
