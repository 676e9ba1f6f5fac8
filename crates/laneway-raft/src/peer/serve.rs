//! Incoming connections: calls and streams of peers, carried out by the groups here.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use laneway_core::ids::PartitionId;
use openraft::raft::AppendEntriesRequest;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::frame::{Frame, FrameError, Kind, Received, read_frame};
use super::handshake::{Class, HandshakeError, NodeIntroduction, hear, refuse, welcome};
use super::message::{self, MessageError, Verb};
use super::transport::PeerStream;
use super::wire::write_frames;
use super::{Inner, Member};
use crate::group::Raft;
use crate::types::Types;

/// Longest wait for the first frame of who connects.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);

/// Calls of one connection carried out at a time; further ones wait in the connection.
const CALLS_MAX: usize = 1024;

/// Requests of one stream that wait for the group. A peer keeps fewer unanswered.
const STREAM_REQUESTS_MAX: usize = 64;

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
    #[error("it sent a frame that only a server sends")]
    WrongSide,
}

/// Serves one connection until it ends.
pub(super) async fn serve(inner: Arc<Inner>, mut stream: PeerStream, address: String) {
    let shaken = match timeout(HANDSHAKE_MAX, shake(&inner, &mut stream)).await {
        Ok(shaken) => shaken,
        Err(_) => Err(ServeError::Silent),
    };
    let (class, from) = match shaken {
        Ok(shaken) => shaken,
        Err(error) => {
            inner.log_stranger(&address, &error.to_string());
            return;
        }
    };
    let node = from.node();
    let _connected = inner.connected(&from);
    inner.poke(node);
    let (answers, to_write) = mpsc::unbounded_channel();
    let max = class.body_bytes_max();
    let connection = Connection {
        inner: Arc::clone(&inner),
        node,
        answers,
        calls: Arc::new(Semaphore::new(CALLS_MAX)),
        streams: HashMap::new(),
    };
    let error = tokio::select! {
        error = connection.read(&mut stream.input, max) => error,
        written = write_frames(to_write, &mut stream.output, max) => match written {
            Ok(()) => return,
            Err(error) => error.into(),
        },
        () = inner.stopping.cancelled() => return,
    };
    match error {
        ServeError::Frame(FrameError::Ended | FrameError::Io(_)) => {
            tracing::debug!(node, ?class, %error, "connection from peer ended");
        }
        error => {
            tracing::warn!(node, ?class, %address, %error, "connection from peer closed: it broke the protocol")
        }
    }
}

async fn shake(inner: &Inner, stream: &mut PeerStream) -> Result<(Class, NodeIntroduction), ServeError> {
    let refusal = match hear(stream).await {
        Ok((class, to, from)) => match inner.check_caller(to, &from) {
            Ok(()) => {
                welcome(stream, inner.introduction()).await?;
                return Ok((class, from));
            }
            Err(refusal) => refusal,
        },
        Err(HandshakeError::RefusedHere(refusal)) => refusal,
        Err(error) => return Err(error.into()),
    };
    refuse(stream, refusal.clone()).await?;
    Err(HandshakeError::RefusedHere(refusal).into())
}

struct Connection {
    inner: Arc<Inner>,
    node: u16,
    answers: mpsc::UnboundedSender<Frame>,
    calls: Arc<Semaphore>,
    streams: HashMap<u64, mpsc::Sender<AppendEntriesRequest<Types>>>,
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
            Kind::Item => self.item(frame),
            Kind::End => {
                self.streams.remove(&frame.number);
                Ok(())
            }
            Kind::Hello | Kind::Answer | Kind::Failure | Kind::ItemAnswer => Err(ServeError::WrongSide),
        }
    }

    async fn call(&mut self, mut frame: Received) -> Result<(), ServeError> {
        let verb = Verb::take(&mut frame.body)?;
        let permit = Arc::clone(&self.calls)
            .acquire_owned()
            .await
            .expect("this semaphore is never closed");
        let (inner, answers, node) = (Arc::clone(&self.inner), self.answers.clone(), self.node);
        tokio::spawn(async move {
            let _permit = permit;
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
            // The connection may have ended meanwhile.
            let _ = answers.send(Frame {
                kind,
                partition,
                number,
                body,
            });
        });
        Ok(())
    }

    fn item(&mut self, frame: Received) -> Result<(), ServeError> {
        let Received {
            partition,
            number,
            body,
            ..
        } = frame;
        let request = message::decode_append(body)?;
        let streams = &mut self.streams;
        let stream = match streams.get(&number) {
            Some(stream) => stream,
            None => {
                let Some(Member { raft, .. }) = self.inner.group(partition) else {
                    let reason = Bytes::from(not_here(partition));
                    let _ = self
                        .answers
                        .send(Frame::new(Kind::Failure, partition, number, reason));
                    return Ok(());
                };
                let (sender, requests) = mpsc::channel(STREAM_REQUESTS_MAX);
                tokio::spawn(append(raft, partition, number, requests, self.answers.clone()));
                streams.entry(number).or_insert(sender)
            }
        };
        match stream.try_send(request) {
            // A stream that ended has told the peer so; what it sent before it heard is void.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => Err(ServeError::Flood),
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
    requests: mpsc::Receiver<AppendEntriesRequest<Types>>,
    answers: mpsc::UnboundedSender<Frame>,
) {
    let requests = futures_util::stream::unfold(requests, |mut requests| async {
        requests.recv().await.map(|request| (request, requests))
    });
    let mut results = pin!(raft.stream_append(requests));
    while let Some(result) = results.next().await {
        let (kind, body) = match result {
            Ok(appended) => (Kind::ItemAnswer, message::encode_appended(&appended)),
            Err(fatal) => (Kind::Failure, Bytes::from(fatal.to_string())),
        };
        if answers.send(Frame::new(kind, partition, number, body)).is_err() {
            return;
        }
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
    let malformed = |error: MessageError| error.to_string();
    if let Verb::SnapshotOffer | Verb::SnapshotState | Verb::SnapshotChunk = verb {
        return snapshot(&member, node, verb, body).await;
    }
    let raft = member.raft;
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
