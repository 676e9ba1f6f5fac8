//! Where a group's calls to its peers leave for the peer transport.
//!
//! openraft asks [`PeerNetwork`] for one [`PeerLink`] per peer and use, and makes every call through it. Without peers (a
//! cluster of one node) a link answers each call with `Unreachable`, which openraft counts neither as a vote nor as a copy.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt};
use laneway_core::ids::PartitionId;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;

use crate::fsm::CheckpointName;
use crate::peer::{
    self, PeerCallError, Peers, Verb, WireStream, decode_append_response, decode_appended, decode_voted,
};
use crate::snapshot::SnapshotStore;
use crate::types::{LeaderId, Types, Vote};

/// Appends of one group to one peer that wait for their answer.
const UNANSWERED_MAX: usize = 8;

/// Longest wait for the answer to an append with entries: the peer may have a slow disk, but not a dead one.
const APPEND_MAX: Duration = Duration::from_secs(5);

/// Longest wait for a vote: by then the election it was for is over.
const VOTE_MAX: Duration = Duration::from_millis(500);

type Failure = RPCError<Types>;
type Appended = Result<StreamAppendResult<Types>, Failure>;

/// Makes links to the peers of one group.
pub(crate) struct PeerNetwork {
    partition: PartitionId,
    peers: Option<Peers>,
    snapshots: Option<Arc<dyn SnapshotStore>>,
}

impl PeerNetwork {
    pub(crate) fn new(
        partition: PartitionId,
        peers: Option<Peers>,
        snapshots: Option<Arc<dyn SnapshotStore>>,
    ) -> Self {
        Self {
            partition,
            peers,
            snapshots,
        }
    }
}

impl RaftNetworkFactory<Types> for PeerNetwork {
    type Network = PeerLink;

    async fn new_client(&mut self, peer: u64, _node: &()) -> PeerLink {
        PeerLink {
            partition: self.partition,
            peer,
            peers: self.peers.clone(),
            snapshots: self.snapshots.clone(),
        }
    }
}

/// One group's way to one peer.
#[derive(Clone)]
pub(crate) struct PeerLink {
    pub(crate) partition: PartitionId,
    pub(crate) peer: u64,
    peers: Option<Peers>,
    pub(crate) snapshots: Option<Arc<dyn SnapshotStore>>,
}

/// Why a call went nowhere.
#[derive(Debug, thiserror::Error)]
#[error("group {partition} cannot reach peer {peer:#018x}: this node has no peers")]
struct NoPeers {
    partition: PartitionId,
    peer: u64,
}

/// An answer that makes no sense.
#[derive(Debug, thiserror::Error)]
#[error("the answer of peer {peer:#018x} is malformed: {reason}")]
struct Malformed {
    peer: u64,
    reason: String,
}

fn failure(error: &PeerCallError) -> Failure {
    match error {
        PeerCallError::NotConnected { .. } | PeerCallError::Refused { .. } => Unreachable::new(error).into(),
        PeerCallError::NoAnswer { .. } => NetworkError::new(error).into(),
    }
}

impl PeerLink {
    fn peers(&self) -> Result<&Peers, Failure> {
        self.peers.as_ref().ok_or_else(|| {
            let error = NoPeers {
                partition: self.partition,
                peer: self.peer,
            };
            Unreachable::new(&error).into()
        })
    }

    async fn call(
        &self,
        within: Duration,
        verb: Verb,
        body: Vec<bytes::Bytes>,
    ) -> Result<bytes::Bytes, Failure> {
        self.peers()?
            .call_raft(self.peer, self.partition, within, verb, body)
            .await
            .map_err(|error| failure(&error))
    }

    /// A call about snapshots.
    pub(crate) async fn call_bulk(
        &self,
        within: Duration,
        verb: Verb,
        body: Vec<bytes::Bytes>,
    ) -> Result<bytes::Bytes, PeerCallError> {
        let peers = self.peers.as_ref().ok_or_else(|| PeerCallError::NotConnected {
            node: crate::node_number(self.peer),
            reason: "this node has no peers".to_owned(),
        })?;
        peers
            .call_bulk(self.peer, self.partition, within, verb, body)
            .await
    }

    fn malformed(&self, reason: &impl ToString) -> Failure {
        let error = Malformed {
            peer: self.peer,
            reason: reason.to_string(),
        };
        NetworkError::new(&error).into()
    }

    /// An append without entries: a heartbeat, or the first question of a replication stream.
    async fn append_nothing(
        &self,
        request: AppendEntriesRequest<Types>,
        within: Duration,
    ) -> Result<AppendEntriesResponse<Types>, Failure> {
        let (term, prev) = (request.vote.leader_id.term, request.prev_log_id);
        let answer = self
            .call(within, Verb::Append, peer::encode_append(request))
            .await?;
        let response = decode_append_response(&answer).map_err(|error| self.malformed(&error))?;
        self.note(term, &response.clone().into_stream_result(prev, prev));
        Ok(response)
    }

    /// Remembers what the peer holds, and notices when it no longer does.
    fn note(&self, term: u64, appended: &StreamAppendResult<Types>) {
        let Some(peers) = &self.peers else { return };
        match appended {
            Ok(Some(last)) => peers.matched(self.partition, self.peer, term, last.index),
            Err(StreamAppendError::Conflict(at)) => {
                peers.conflict(self.partition, self.peer, term, at.index);
            }
            Ok(None) | Err(StreamAppendError::HigherVote(_)) => {}
        }
    }

    /// Sends `first` and all that follows, up to [`UNANSWERED_MAX`] ahead of the answers.
    fn pipeline<S>(&self, first: AppendEntriesRequest<Types>, rest: S) -> Result<Pipeline, Failure>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        let (stream, answers) = self
            .peers()?
            .open(self.peer, self.partition)
            .map_err(|error| failure(&error))?;
        let (sent, expected) = mpsc::unbounded_channel();
        let term = first.vote.leader_id.term;
        let sending = tokio::spawn(send_all(stream, first, rest, sent));
        Ok(Pipeline {
            link: self.clone(),
            term,
            answers,
            expected,
            sending: sending.abort_handle(),
            ended: false,
        })
    }
}

/// Sends each request once there is room, and its permit to who reads the answers.
async fn send_all<S>(
    stream: WireStream,
    first: AppendEntriesRequest<Types>,
    rest: S,
    sent: mpsc::UnboundedSender<OwnedSemaphorePermit>,
) where
    S: Stream<Item = AppendEntriesRequest<Types>> + Unpin,
{
    let room = Arc::new(Semaphore::new(UNANSWERED_MAX));
    let mut requests = stream::iter([first]).chain(rest);
    loop {
        let permit = Arc::clone(&room)
            .acquire_owned()
            .await
            .expect("this semaphore is never closed");
        let Some(request) = requests.next().await else {
            break;
        };
        if sent.send(permit).is_err() {
            return;
        }
        stream.send(peer::encode_append(request));
    }
    drop(sent);
    // Ending the stream before its last answer would forget it.
    let all = u32::try_from(UNANSWERED_MAX).expect("a small number");
    let _ = room.acquire_many(all).await;
}

/// The answering side of a stream of appends.
struct Pipeline {
    link: PeerLink,
    term: u64,
    answers: mpsc::Receiver<Result<bytes::Bytes, PeerCallError>>,
    expected: mpsc::UnboundedReceiver<OwnedSemaphorePermit>,
    sending: AbortHandle,
    ended: bool,
}

impl Pipeline {
    async fn next(&mut self) -> Option<Appended> {
        if self.ended {
            return None;
        }
        let _room_for_the_next = self.expected.recv().await?;
        let answered = tokio::time::timeout(APPEND_MAX, self.answers.recv()).await;
        let appended = match answered {
            Ok(Some(Ok(answer))) => decode_appended(&answer).map_err(|error| self.link.malformed(&error)),
            Ok(Some(Err(error))) => Err(failure(&error)),
            Ok(None) | Err(_) => {
                let slow = io::Error::new(io::ErrorKind::TimedOut, "no answer to an append");
                Err(NetworkError::new(&slow).into())
            }
        };
        if let Ok(appended) = &appended {
            self.link.note(self.term, appended);
        }
        self.ended = !matches!(appended, Ok(Ok(_)));
        Some(appended)
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.sending.abort();
    }
}

/// What comes next out of [`PeerLink::stream_append`].
enum Appends<S> {
    /// The answer to a first request without entries; then the rest of the requests.
    First(Appended, S),
    Requests(S),
    Pipeline(Pipeline),
}

impl RaftNetworkV2<Types> for PeerLink {
    type SnapshotData = CheckpointName;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, Failure> {
        self.append_nothing(request, option.hard_ttl()).await
    }

    /// A first request without entries goes by itself over the connection for heartbeats; the others are pipelined over the one
    /// for entries, in order, because the first was answered before.
    fn stream_append<'s, S>(
        &'s mut self,
        mut input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Appended>, Failure>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let Some(first) = input.next().await else {
                return Ok(stream::empty().boxed());
            };
            let start = if first.entries.is_empty() {
                let prev = first.prev_log_id;
                let response = self.append_nothing(first, option.hard_ttl()).await?;
                Appends::First(Ok(response.into_stream_result(prev, prev)), input)
            } else {
                Appends::Pipeline(self.pipeline(first, input)?)
            };
            let link = &*self;
            let appends = stream::unfold(Some(start), move |state| async move {
                match state? {
                    Appends::First(Ok(Ok(matching)), input) => {
                        Some((Ok(Ok(matching)), Some(Appends::Requests(input))))
                    }
                    Appends::First(end, _) => Some((end, None)),
                    Appends::Requests(mut input) => {
                        let next = input.next().await?;
                        match link.pipeline(next, input) {
                            Ok(mut pipeline) => {
                                let appended = pipeline.next().await?;
                                Some((appended, Some(Appends::Pipeline(pipeline))))
                            }
                            Err(error) => Some((Err(error), None)),
                        }
                    }
                    Appends::Pipeline(mut pipeline) => {
                        let appended = pipeline.next().await?;
                        Some((appended, Some(Appends::Pipeline(pipeline))))
                    }
                }
            });
            Ok(appends.boxed())
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, Failure> {
        let answer = self
            .call(VOTE_MAX, Verb::Vote, vec![peer::encode_vote(&request)])
            .await?;
        decode_voted(&answer).map_err(|error| self.malformed(&error))
    }

    // Not left to the default, which grants.
    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types>, Failure> {
        let answer = self
            .call(VOTE_MAX, Verb::PreVote, vec![peer::encode_vote(&request)])
            .await?;
        decode_voted(&answer).map_err(|error| self.malformed(&error))
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        _option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, Failure> {
        self.call(
            VOTE_MAX,
            Verb::TransferLeader,
            vec![peer::encode_transfer(&request)],
        )
        .await
        .map(|_| Ok(()))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: openraft::Snapshot<LeaderId, u64, (), CheckpointName>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        self.send_snapshot(vote, snapshot.snapshot, cancel).await
    }
}
