//! One live connection to a peer, as seen by those who ask something of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use laneway_core::ids::PartitionId;
use tokio::io::AsyncWrite;
use tokio::sync::{mpsc, oneshot};

use super::frame::{Frame, FrameError, Kind, Received, write_pieces};

/// Frames taken for one write.
const FRAMES_PER_WRITE_MAX: usize = 64;

/// Answers of one stream that wait to be looked at. There are never as many requests unanswered.
const STREAM_ANSWERS_MAX: usize = 64;

/// Bytes that are kept of why a peer refused.
const REASON_BYTES_MAX: usize = 4 << 10;

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerCallError {
    /// It was not sent: the other side knows nothing of it.
    #[error("node {node} is not connected: {reason}")]
    NotConnected {
        /// Which node.
        node: u16,
        /// What the last attempt said.
        reason: String,
    },
    /// The connection ended, or the time was up, before an answer came. The other side may have done what was asked.
    #[error("node {node} did not answer: {reason}")]
    NoAnswer {
        /// Which node.
        node: u16,
        /// What happened.
        reason: String,
    },
    /// The other side took the call and says why it did nothing.
    #[error("node {node} refused: {reason}")]
    Refused {
        /// Which node.
        node: u16,
        /// Its words.
        reason: String,
    },
}

type Answer = Result<Bytes, PeerCallError>;

/// A connection. Those who hold it may find it closed at any time.
#[derive(Debug)]
pub(super) struct Wire {
    /// Raft node id of the process at the other end.
    pub(super) raft_id: u64,
    node: u16,
    frames: mpsc::UnboundedSender<(Frame, ())>,
    next: AtomicU64,
    pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    calls: HashMap<u64, oneshot::Sender<Answer>>,
    streams: HashMap<u64, mpsc::Sender<Answer>>,
    closed: Option<String>,
}

/// An ordered stream of requests with their answers. Dropping it tells the other side.
#[derive(Debug)]
pub(crate) struct WireStream {
    wire: Arc<Wire>,
    partition: PartitionId,
    number: u64,
}

impl Wire {
    /// The wire and the frames that a writer must send.
    pub(super) fn new(raft_id: u64, node: u16) -> (Arc<Self>, mpsc::UnboundedReceiver<(Frame, ())>) {
        let (frames, to_write) = mpsc::unbounded_channel();
        let wire = Self {
            raft_id,
            node,
            frames,
            next: AtomicU64::new(1),
            pending: Mutex::default(),
        };
        (Arc::new(wire), to_write)
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a call and waits for the answer. Cancel safety: a dropped call may be carried out all the same.
    pub(super) async fn call(&self, partition: PartitionId, body: Vec<Bytes>) -> Answer {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        let _forget = {
            let mut pending = self.pending();
            if let Some(reason) = &pending.closed {
                return Err(self.not_connected(reason.clone()));
            }
            pending.calls.insert(number, sender);
            ForgetCall { wire: self, number }
        };
        self.send(Kind::Call, partition, number, body);
        answer
            .await
            .unwrap_or_else(|_| Err(self.no_answer("it ended".into())))
    }

    /// Opens a stream. Its answers come in the order of its requests; after an error comes nothing more.
    pub(super) fn open(
        self: &Arc<Self>,
        partition: PartitionId,
    ) -> Result<(WireStream, mpsc::Receiver<Answer>), PeerCallError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answers) = mpsc::channel(STREAM_ANSWERS_MAX);
        let mut pending = self.pending();
        if let Some(reason) = &pending.closed {
            return Err(self.not_connected(reason.clone()));
        }
        pending.streams.insert(number, sender);
        let stream = WireStream {
            wire: Arc::clone(self),
            partition,
            number,
        };
        Ok((stream, answers))
    }

    fn send(&self, kind: Kind, partition: PartitionId, number: u64, body: Vec<Bytes>) {
        // A writer that is gone has closed the wire, or will: whoever waits hears of it there.
        let frame = Frame {
            kind,
            partition,
            number,
            body,
        };
        let _ = self.frames.send((frame, ()));
    }

    /// Hands a received frame to who waits for it.
    pub(super) fn take(&self, frame: Received) {
        let answer = match frame.kind {
            Kind::Failure => Err(PeerCallError::Refused {
                node: self.node,
                reason: String::from_utf8_lossy(&frame.body[..frame.body.len().min(REASON_BYTES_MAX)])
                    .into_owned(),
            }),
            _ => Ok(frame.body),
        };
        let mut pending = self.pending();
        match frame.kind {
            Kind::Answer | Kind::Failure | Kind::ItemAnswer => {}
            Kind::Hello | Kind::Call | Kind::Item | Kind::End => return,
        }
        if frame.kind != Kind::ItemAnswer
            && let Some(call) = pending.calls.remove(&frame.number)
        {
            let _ = call.send(answer); // the caller may have gone
        } else if let Some(stream) = pending.streams.get(&frame.number)
            && stream.try_send(answer).is_err()
        {
            // Nobody reads it, or it has more answers than requests: it ends.
            pending.streams.remove(&frame.number);
        }
    }

    /// Fails all that wait, and all that come later.
    pub(super) fn close(&self, reason: &str) {
        let mut pending = self.pending();
        pending.closed = Some(reason.to_owned());
        for (_, call) in pending.calls.drain() {
            let _ = call.send(Err(self.no_answer(reason.to_owned())));
        }
        for (_, stream) in pending.streams.drain() {
            let _ = stream.try_send(Err(self.no_answer(reason.to_owned())));
        }
    }

    fn not_connected(&self, reason: String) -> PeerCallError {
        let node = self.node;
        PeerCallError::NotConnected { node, reason }
    }

    fn no_answer(&self, reason: String) -> PeerCallError {
        let node = self.node;
        PeerCallError::NoAnswer { node, reason }
    }
}

impl WireStream {
    /// Sends the next request.
    pub(crate) fn send(&self, body: Vec<Bytes>) {
        self.wire.send(Kind::Item, self.partition, self.number, body);
    }
}

impl Drop for WireStream {
    fn drop(&mut self) {
        self.wire.pending().streams.remove(&self.number);
        self.wire.send(Kind::End, self.partition, self.number, Vec::new());
    }
}

struct ForgetCall<'a> {
    wire: &'a Wire,
    number: u64,
}

impl Drop for ForgetCall<'_> {
    fn drop(&mut self) {
        self.wire.pending().calls.remove(&self.number);
    }
}

/// Writes frames until there are no more senders or the connection fails. What comes with a frame is dropped once it is written.
pub(super) async fn write_frames<W: AsyncWrite + Unpin, H>(
    mut frames: mpsc::UnboundedReceiver<(Frame, H)>,
    output: &mut W,
    body_bytes_max: usize,
) -> Result<(), FrameError> {
    let (mut batch, mut held) = (Vec::new(), Vec::new());
    while frames.recv_many(&mut batch, FRAMES_PER_WRITE_MAX).await > 0 {
        let mut pieces = Vec::new();
        for (frame, with_it) in batch.drain(..) {
            pieces.extend(frame.pieces(body_bytes_max)?);
            held.push(with_it);
        }
        write_pieces(output, &mut pieces).await?;
        held.clear();
    }
    Ok(())
}
