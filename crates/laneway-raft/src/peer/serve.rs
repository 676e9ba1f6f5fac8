//! Incoming connections: calls and streams of peers, carried out by the groups here.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use laneway_core::ids::PartitionId;
use openraft::raft::AppendEntriesRequest;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::frame::{Frame, FrameError, Kind, Received, read_frame};
use super::handshake::{Class, HandshakeError, NodeIntroduction, hear, refuse, welcome};
use super::message::{self, MessageError, Verb};
use super::room::{ANSWER_BYTES_GUESS, Held, Room};
use super::transport::PeerStream;
use super::wire::write_frames;
use super::{Inner, Member};
use crate::group::Raft;
use crate::snapshot::SNAPSHOT_CHUNK_BYTES_MAX;
use crate::types::Types;

/// Longest wait for the first frame of who connects.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);

/// Requests of one stream that wait for the group. A peer keeps fewer unanswered.
const STREAM_REQUESTS_MAX: usize = 64;

/// Streams of one connection for one group. A peer has one, and for a moment the one before.
const STREAMS_PER_GROUP_MAX: usize = 8;

/// Longest wait for a group's answer to a call. The peer has given up by then; a group that hangs shall not keep the others from
/// being called.
const RAFT_CALL_MAX: Duration = Duration::from_secs(5);

/// Why an incoming connection ended.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("no handshake came in {} s", HANDSHAKE_MAX.as_secs())]
    Silent,
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error("it sent more unanswered requests than allowed")]
    Flood,
    #[error("it opened more than {STREAMS_PER_GROUP_MAX} streams for group {0}")]
    Streams(PartitionId),
    #[error("it does not read its answers")]
    Unread,
    #[error("it sent a frame that only a server sends")]
    WrongSide,
    #[error("its node has made a newer one")]
    Replaced,
}

impl ServeError {
    /// For the log: reasons of one kind share lines.
    fn kind(&self) -> &'static str {
        match self {
            Self::Handshake(HandshakeError::RefusedHere(refused)) => refused.kind(),
            Self::Handshake(_) => "no handshake",
            Self::Silent => "silent",
            Self::Frame(_) => "frame",
            Self::Message(_) => "message",
            Self::Flood => "flood",
            Self::Streams(_) => "streams",
            Self::Unread => "unread",
            Self::WrongSide => "wrong side",
            Self::Replaced => "replaced",
        }
    }
}

/// Serves one connection until it ends. `newcomer` is given back once it is known who is there.
pub(super) async fn serve(
    inner: Arc<Inner>,
    mut stream: PeerStream,
    address: String,
    newcomer: OwnedSemaphorePermit,
) {
    let shaken = match timeout(HANDSHAKE_MAX, shake(&inner, &mut stream)).await {
        Ok(shaken) => shaken,
        Err(_) => Err(ServeError::Silent),
    };
    drop(newcomer);
    let (class, from, room) = match shaken {
        Ok(shaken) => shaken,
        Err(error) => {
            inner.log_stranger(&address, error.kind(), &error.to_string());
            return;
        }
    };
    let node = from.node();
    let mut connected = inner.connected(&from, class);
    inner.poke(node);
    let error = tokio::select! {
        error = talk(Arc::clone(&inner), node, room, class.body_bytes_max(), stream) => error,
        () = connected.replaced() => ServeError::Replaced,
        () = inner.stopping.cancelled() => return,
    };
    match error {
        ServeError::Frame(FrameError::Ended | FrameError::Io(_)) | ServeError::Replaced => {
            tracing::debug!(node, ?class, %error, "connection from peer ended");
        }
        error => {
            if let Some(left_out) = inner.log_limit.due(&format!("node {node}"), error.kind()) {
                tracing::warn!(node, ?class, %address, %error, left_out, "connection from peer closed: it broke the protocol");
            }
        }
    }
}

/// Reads requests and writes answers until either fails.
async fn talk(inner: Arc<Inner>, node: u16, room: Arc<Room>, max: usize, stream: PeerStream) -> ServeError {
    let PeerStream {
        mut input,
        mut output,
    } = stream;
    let (frames, to_write) = mpsc::unbounded_channel();
    let unread = Arc::new(Notify::new());
    let connection = Connection {
        inner,
        node,
        room,
        answers: Answers {
            frames,
            unread: Arc::clone(&unread),
        },
        streams: BTreeMap::new(),
    };
    tokio::select! {
        error = connection.read(&mut input, max) => error,
        written = write_frames(to_write, &mut output, max) => {
            written.err().unwrap_or(FrameError::Ended).into()
        }
        () = unread.notified() => ServeError::Unread,
    }
}

async fn shake(
    inner: &Inner,
    stream: &mut PeerStream,
) -> Result<(Class, NodeIntroduction, Arc<Room>), ServeError> {
    let refusal = match hear(stream).await {
        Ok((class, to, from)) => match inner.check_caller(to, &from, class) {
            Ok(room) => {
                welcome(stream, inner.introduction()).await?;
                return Ok((class, from, room));
            }
            Err(refusal) => refusal,
        },
        Err(HandshakeError::RefusedHere(refusal)) => refusal,
        Err(error) => return Err(error.into()),
    };
    refuse(stream, refusal.clone()).await?;
    Err(HandshakeError::RefusedHere(refusal).into())
}

/// Where answers go. Each holds its room until it is written.
#[derive(Clone)]
struct Answers {
    frames: mpsc::UnboundedSender<(Frame, Option<Held>)>,
    /// The peer lets too many answers lie.
    unread: Arc<Notify>,
}

impl Answers {
    fn send(&self, frame: Frame, held: Option<Held>) {
        // The connection may have ended meanwhile.
        let _ = self.frames.send((frame, held));
    }

    /// The answer to a call.
    fn answer(&self, frame: Frame, mut held: Held) {
        match held.answered(frame.body_bytes()) {
            Ok(()) => self.send(frame, Some(held)),
            Err(_) => self.unread.notify_one(),
        }
    }
}

/// A stream of appends that the peer has opened. Dropping it ends its task: nobody waits for its answers any more.
struct Stream {
    requests: mpsc::Sender<(AppendEntriesRequest<Types>, Held)>,
    task: AbortHandle,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Connection {
    inner: Arc<Inner>,
    node: u16,
    room: Arc<Room>,
    answers: Answers,
    streams: BTreeMap<(PartitionId, u64), Stream>,
}

impl Connection {
    async fn read<R: tokio::io::AsyncRead + Unpin>(mut self, input: &mut R, max: usize) -> ServeError {
        loop {
            let taken = match read_frame(input, max).await {
                Ok(frame) => self.take(frame).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = taken {
                return error;
            }
        }
    }

    async fn take(&mut self, frame: Received) -> Result<(), ServeError> {
        match frame.kind {
            Kind::Call => self.call(frame).await,
            Kind::Item => self.item(frame).await,
            Kind::End => {
                self.streams.remove(&(frame.partition, frame.number));
                Ok(())
            }
            Kind::Hello | Kind::Answer | Kind::Failure | Kind::ItemAnswer => Err(ServeError::WrongSide),
        }
    }

    async fn call(&mut self, mut frame: Received) -> Result<(), ServeError> {
        let request_bytes = frame.body.len();
        let verb = Verb::take(&mut frame.body)?;
        let answer_bytes = match verb {
            Verb::SnapshotChunk => SNAPSHOT_CHUNK_BYTES_MAX as usize,
            _ => ANSWER_BYTES_GUESS,
        };
        let held = self.room.call(request_bytes, answer_bytes).await;
        let (inner, answers, node) = (Arc::clone(&self.inner), self.answers.clone(), self.node);
        tokio::spawn(async move {
            let Received {
                partition,
                number,
                body,
                ..
            } = frame;
            let (kind, body) = match carry_out(&inner, node, partition, verb, body).await {
                Ok(body) => (Kind::Answer, body),
                Err(reason) => (Kind::Failure, vec![reason.into()]),
            };
            let frame = Frame {
                kind,
                partition,
                number,
                body,
            };
            answers.answer(frame, held);
        });
        Ok(())
    }

    async fn item(&mut self, frame: Received) -> Result<(), ServeError> {
        let Received {
            partition,
            number,
            body,
            ..
        } = frame;
        let held = self.room.item(body.len()).await;
        let request = message::decode_append(body)?;
        let key = (partition, number);
        if !self.streams.contains_key(&key) {
            let Some(Member { raft, .. }) = self.inner.group(partition) else {
                let reason = Bytes::from(not_here(partition));
                let failure = Frame::new(Kind::Failure, partition, number, reason);
                self.answers.send(failure, Some(held));
                return Ok(());
            };
            let of_group = (partition, 0)..=(partition, u64::MAX);
            if self.streams.range(of_group).count() >= STREAMS_PER_GROUP_MAX {
                return Err(ServeError::Streams(partition));
            }
            self.streams.insert(key, self.open(raft, partition, number));
        }
        match self.streams[&key].requests.try_send((request, held)) {
            // A stream that ended has told the peer so; what it sent before it heard is void.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => Err(ServeError::Flood),
        }
    }

    fn open(&self, raft: Raft, partition: PartitionId, number: u64) -> Stream {
        let (sender, requests) = mpsc::channel(STREAM_REQUESTS_MAX);
        let task = tokio::spawn(append(raft, partition, number, requests, self.answers.clone()));
        Stream {
            requests: sender,
            task: task.abort_handle(),
        }
    }
}

fn not_here(partition: PartitionId) -> String {
    format!("group {partition} is not open here")
}

/// Feeds a group with a peer's appends; answers in their order.
async fn append(
    raft: Raft,
    partition: PartitionId,
    number: u64,
    requests: mpsc::Receiver<(AppendEntriesRequest<Types>, Held)>,
    answers: Answers,
) {
    // Each entry in it holds room.
    let (taken, mut in_progress) = mpsc::unbounded_channel();
    let requests = futures_util::stream::unfold((requests, taken), |(mut requests, taken)| async {
        let (request, held) = requests.recv().await?;
        // Who reads this may be about to end, and then so is this.
        let _ = taken.send(held);
        Some((request, (requests, taken)))
    });
    let mut results = pin!(raft.stream_append(requests));
    while let Some(result) = results.next().await {
        let (kind, body) = match result {
            Ok(appended) => (Kind::ItemAnswer, message::encode_appended(&appended)),
            Err(fatal) => (Kind::Failure, Bytes::from(fatal.to_string())),
        };
        let held = in_progress.try_recv().ok();
        answers.send(Frame::new(kind, partition, number, body), held);
    }
}

async fn carry_out(
    inner: &Inner,
    node: u16,
    partition: PartitionId,
    verb: Verb,
    body: Bytes,
) -> Result<Vec<Bytes>, String> {
    if verb == Verb::Node {
        return inner.service.call(node, body).await;
    }
    let member = inner.group(partition).ok_or_else(|| not_here(partition))?;
    if let Verb::SnapshotOffer | Verb::SnapshotState | Verb::SnapshotChunk = verb {
        return snapshot(&member, node, verb, body).await;
    }
    let answer = timeout(RAFT_CALL_MAX, raft_call(&member.raft, verb, body)).await;
    answer.unwrap_or_else(|_| {
        let seconds = RAFT_CALL_MAX.as_secs();
        Err(format!("group {partition} has not answered for {seconds} s"))
    })
}

/// A call about votes, heartbeats or the lead.
async fn raft_call(raft: &Raft, verb: Verb, body: Bytes) -> Result<Vec<Bytes>, String> {
    let malformed = |error: MessageError| error.to_string();
    let answer = match verb {
        Verb::Vote => {
            let request = message::decode_vote(&body).map_err(malformed)?;
            raft.vote(request)
                .await
                .map(|voted| message::encode_voted(&voted))
        }
        Verb::PreVote => {
            let request = message::decode_vote(&body).map_err(malformed)?;
            raft.pre_vote(request)
                .await
                .map(|voted| message::encode_voted(&voted))
        }
        Verb::Append => {
            let request = message::decode_append(body).map_err(malformed)?;
            raft.append_entries(request)
                .await
                .map(|response| message::encode_append_response(&response))
        }
        Verb::TransferLeader => {
            let request = message::decode_transfer(&body).map_err(malformed)?;
            let taken = raft.handle_transfer_leader(request).await;
            return match taken {
                Ok(Ok(())) => Ok(Vec::new()),
                Ok(Err(refusal)) => Err(refusal.to_string()),
                Err(fatal) => Err(fatal.to_string()),
            };
        }
        Verb::Node | Verb::SnapshotOffer | Verb::SnapshotState | Verb::SnapshotChunk => {
            unreachable!("answered above")
        }
    };
    answer.map(|body| vec![body]).map_err(|error| error.to_string())
}

/// A call about a snapshot.
async fn snapshot(member: &Member, node: u16, verb: Verb, body: Bytes) -> Result<Vec<Bytes>, String> {
    let malformed = |error: MessageError| error.to_string();
    let Some(receiver) = &member.receiver else {
        return Err("this replica takes and sends no snapshots".to_owned());
    };
    let answer = match verb {
        Verb::SnapshotChunk => {
            let part = message::decode_snapshot_part(&body).map_err(malformed)?;
            return receiver.read(part).await.map(|chunk| vec![chunk]);
        }
        Verb::SnapshotState => {
            let (vote, index, id) = message::decode_snapshot_question(&body).map_err(malformed)?;
            receiver.asked(&member.raft, &vote, index, id)
        }
        _ => {
            let (vote, offer) = message::decode_snapshot_offer(body).map_err(malformed)?;
            let leader = crate::node_number(vote.leader_id.node_id);
            if leader != node {
                return Err(format!(
                    "node {node} offers a snapshot in the name of node {leader}"
                ));
            }
            receiver.offered(&member.raft, vote, offer)
        }
    };
    Ok(vec![message::encode_snapshot_answer(&answer)])
}

#[cfg(test)]
mod tests;
