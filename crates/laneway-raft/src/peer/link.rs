//! An outgoing connection that is made anew whenever it ends.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use laneway_core::ids::PartitionId;
use rand::Rng;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::frame::{FrameError, read_frame};
use super::handshake::{Class, HandshakeError, Refused, introduce};
use super::wire::{PeerCallError, Wire, WireStream, write_frames};
use super::{Answer, Inner};

/// Longest wait for a connection and for its handshake.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// Pause before the first new attempt after a connection ended. Doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// Longest pause between attempts.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Attempts in a row that are each worth a log line; later ones only when the reason changes.
const ATTEMPTS_LOGGED: u32 = 1;

/// A node's way to one peer for one class of traffic.
#[derive(Debug)]
pub(super) struct Link {
    node: u16,
    class: Class,
    address: String,
    state: Mutex<State>,
    /// Somebody has reason to believe that the peer is there.
    poked: Notify,
}

#[derive(Debug)]
enum State {
    Up(Arc<Wire>),
    Down(String),
}

impl Link {
    pub(super) fn new(node: u16, class: Class, address: String) -> Self {
        Self {
            node,
            class,
            address,
            state: Mutex::new(State::Down("no attempt has ended yet".to_owned())),
            poked: Notify::new(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, if it leads to the process with this raft node id (any, when `None`).
    fn wire(&self, raft_id: Option<u64>) -> Result<Arc<Wire>, PeerCallError> {
        let node = self.node;
        let reason = match &*self.state() {
            State::Up(wire) if raft_id.is_none_or(|wanted| wanted == wire.raft_id) => {
                return Ok(Arc::clone(wire));
            }
            State::Up(_) => "it runs on another data directory".to_owned(),
            State::Down(reason) => reason.clone(),
        };
        Err(PeerCallError::NotConnected { node, reason })
    }

    pub(super) async fn call(
        &self,
        raft_id: Option<u64>,
        partition: PartitionId,
        body: Vec<bytes::Bytes>,
    ) -> Answer {
        self.wire(raft_id)?.call(partition, body).await
    }

    pub(super) fn open(
        &self,
        raft_id: u64,
        partition: PartitionId,
    ) -> Result<(WireStream, tokio::sync::mpsc::Receiver<Answer>), PeerCallError> {
        self.wire(Some(raft_id))?.open(partition)
    }

    /// Tries again at once.
    pub(super) fn poke(&self) {
        self.poked.notify_one();
    }

    /// Keeps the connection up until the node stops.
    pub(super) async fn run(self: Arc<Self>, inner: Arc<Inner>) {
        let mut pause = PAUSE_MIN;
        let mut failures = 0;
        loop {
            let end = self.live(&inner).await;
            if matches!(end.reason, Reason::Stopping) {
                *self.state() = State::Down(end.reason.to_string());
                return;
            }
            let reason = end.reason.to_string();
            if end.was_up {
                (pause, failures) = (PAUSE_MIN, 0);
                self.log_end(&inner, &reason);
            } else {
                failures += 1;
                self.log_attempt(&inner, failures, &end.reason);
            }
            *self.state() = State::Down(reason);
            if self.class == Class::Control {
                inner.peer_down(self.node, end.reason.is_refused(), end.reason.words());
            }
            let jitter = rand::rng().random_range(0.5..1.0);
            tokio::select! {
                () = tokio::time::sleep(pause.mul_f64(jitter)) => {}
                () = inner.stopping.cancelled() => return,
                () = self.poked.notified() => pause = PAUSE_MIN,
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn log_end(&self, inner: &Inner, reason: &str) {
        // The three connections to a peer share their fate: one line is enough.
        if self.class != Class::Control {
            tracing::debug!(node = self.node, class = ?self.class, reason, "connection to peer ended");
        } else if let Some(left_out) = inner.log_limit.due(&format!("node {}", self.node), "ended") {
            tracing::info!(node = self.node, reason, left_out, "connection to peer ended");
        }
    }

    fn log_attempt(&self, inner: &Inner, failures: u32, why: &Reason) {
        let reason = why.to_string();
        let same = matches!(&*self.state(), State::Down(last) if *last == reason);
        let address = &self.address;
        if self.class != Class::Control || (failures > ATTEMPTS_LOGGED && same) {
            tracing::debug!(node = self.node, class = ?self.class, address, reason, "cannot connect to peer");
        } else if let Some(left_out) = inner.log_limit.due(&format!("node {}", self.node), why.kind()) {
            tracing::warn!(
                node = self.node,
                address,
                reason,
                left_out,
                "cannot connect to peer"
            );
        }
    }

    /// Connects and serves the connection until it ends.
    async fn live(&self, inner: &Arc<Inner>) -> End {
        let end = |reason| End {
            was_up: false,
            reason,
        };
        let connecting = async {
            let mut stream = inner
                .transport
                .connect(&self.address)
                .await
                .map_err(Reason::Connect)?;
            let us = inner.introduction();
            let welcome = introduce(&mut stream, self.class, self.node, us).await?;
            inner.check_peer(self.node, &welcome)?;
            Ok::<_, Reason>((stream, welcome))
        };
        let connected = tokio::select! {
            connected = timeout(CONNECT_MAX, connecting) => connected,
            () = inner.stopping.cancelled() => return end(Reason::Stopping),
        };
        let (mut stream, welcome) = match connected {
            Ok(Ok(connected)) => connected,
            Ok(Err(reason)) => return end(reason),
            Err(_) => return end(Reason::Slow),
        };
        let (wire, frames) = Wire::new(welcome.raft_id, self.node);
        *self.state() = State::Up(Arc::clone(&wire));
        if self.class == Class::Control {
            inner.peer_up(self.node, &welcome);
        }
        tracing::debug!(node = self.node, class = ?self.class, "connected to peer");
        let answers_max = self.class.answer_bytes_max();
        let reading = async {
            loop {
                match read_frame(&mut stream.input, answers_max).await {
                    Ok(frame) => wire.take(frame),
                    Err(error) => return error,
                }
            }
        };
        let writing = write_frames(frames, &mut stream.output, self.class.body_bytes_max());
        let reason = tokio::select! {
            error = reading => Reason::Frame(error),
            written = writing => written.err().map_or(Reason::Stopping, Reason::Frame),
            () = inner.stopping.cancelled() => Reason::Stopping,
        };
        wire.close(&reason.to_string());
        End { was_up: true, reason }
    }
}

struct End {
    was_up: bool,
    reason: Reason,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Reason {
    #[error("{0}")]
    Connect(#[source] io::Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("{0}")]
    Refused(Refused),
    #[error("connecting took longer than {} s", CONNECT_MAX.as_secs())]
    Slow,
    #[error(transparent)]
    Frame(FrameError),
    #[error("this node stops")]
    Stopping,
}

impl Reason {
    /// For the log: reasons of one kind share lines.
    fn kind(&self) -> &'static str {
        match self {
            Self::Connect(_) if self.is_refused() => "gone",
            Self::Connect(_) => "connect",
            Self::Handshake(HandshakeError::RefusedThere(refused)) => refused.kind(),
            Self::Handshake(_) => "handshake",
            Self::Refused(refused) => refused.kind(),
            Self::Slow => "slow",
            Self::Frame(_) => "frame",
            Self::Stopping => "stopping",
        }
    }

    /// Why the peer does not let this node in, in its words.
    fn words(&self) -> Option<String> {
        match self {
            Self::Handshake(HandshakeError::RefusedThere(refused)) => Some(refused.to_string()),
            _ => None,
        }
    }

    /// No process listens at the address.
    fn is_refused(&self) -> bool {
        matches!(self, Self::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

impl From<Refused> for Reason {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}
