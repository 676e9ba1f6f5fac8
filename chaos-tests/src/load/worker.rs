//! Producers and consumers of a load run.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::sync::Semaphore;

use crate::api::{PopQuery, PushBody};
use crate::payload::{read_sized_payload, sized_payload};
use crate::peer::Peer;
use crate::stats::Latencies;

/// Bytes of a message.
const PAYLOAD_BYTES: usize = 256;

/// Lanes of one pop.
const POP_LANES: u32 = 4;

/// The group that consumes.
const GROUP: &str = "workers";

/// Longest park of a pop: a consumer must see the end of the run soon.
const POP_WAIT_MS: u64 = 500;

/// Permits for messages between push and ack.
#[derive(Debug)]
pub(super) struct Room(Semaphore);

impl Room {
    pub(super) fn new(open_max: u32) -> Self {
        Self(Semaphore::new(usize::try_from(open_max).unwrap_or(usize::MAX)))
    }
}

/// What a run is aimed at.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The nodes; the workers are spread over them.
    pub(crate) authorities: Vec<Arc<str>>,
    pub(crate) queue: String,
    pub(crate) lanes: u32,
    pub(crate) transaction_ids: bool,
    /// Times of a run count from here.
    pub(crate) epoch: Instant,
    /// Since `epoch`: what ends in here counts, and work stops at its end.
    pub(crate) measured: Range<Duration>,
}

impl Target {
    /// A run that is measured from its begin.
    pub(crate) fn of(authorities: Vec<Arc<str>>, queue: &str, length: Duration) -> Self {
        Self {
            authorities,
            queue: queue.to_owned(),
            lanes: 16,
            transaction_ids: false,
            epoch: Instant::now(),
            measured: Duration::ZERO..length,
        }
    }

    /// Makes the queue and registers the group.
    pub(crate) async fn prepare(&self, peer: &mut Peer) -> anyhow::Result<()> {
        peer.configure(&self.queue, serde_json::json!({"leaseTime": 30, "retryLimit": 4}))
            .await?;
        peer.pop(&self.query(1, None)).await?;
        Ok(())
    }

    fn query(&self, batch: u32, wait_ms: Option<u64>) -> PopQuery<'_> {
        PopQuery {
            queue: &self.queue,
            lane: None,
            group: Some(GROUP),
            mode: Some("all"),
            batch,
            lanes_max: POP_LANES,
            wait_ms,
            lease_seconds: None,
            auto_ack: false,
        }
    }
}

/// What one worker did in the measured window.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) pushed: u64,
    pub(crate) acked: u64,
    pub(crate) latencies: Latencies,
}

impl Tally {
    pub(crate) fn merge(&mut self, other: Self) {
        self.pushed += other.pushed;
        self.acked += other.acked;
        self.latencies.merge(other.latencies);
    }
}

/// One connection that produces or consumes.
#[derive(Debug)]
pub(super) struct Worker {
    number: u32,
    target: Arc<Target>,
    room: Option<Arc<Room>>,
    peer: Peer,
    tally: Tally,
}

impl Worker {
    pub(super) fn new(number: u32, target: &Arc<Target>, room: Option<Arc<Room>>) -> Self {
        let at = usize::try_from(number).unwrap_or(0) % target.authorities.len();
        let peer = Peer::new(&target.authorities[at]);
        Self {
            number,
            target: Arc::clone(target),
            room,
            peer,
            tally: Tally::default(),
        }
    }

    /// Pushes `batch` messages at a time, each push into the next lane. `timed`: the latency is that of the call.
    pub(super) async fn produce(mut self, batch: u32, timed: bool) -> anyhow::Result<Tally> {
        let lanes: Vec<String> = (0..self.target.lanes).map(|lane| format!("{lane}")).collect();
        let mut sent = 0_u64;
        while self.target.epoch.elapsed() < self.target.measured.end {
            if let Some(room) = &self.room {
                let open = tokio::time::timeout(self.left(), room.0.acquire_many(batch)).await;
                let Ok(open) = open else { break };
                open?.forget();
            }
            let started = self.target.epoch.elapsed();
            let turn = u64::from(self.number) + sent;
            let lane = &lanes[usize::try_from(turn % lanes.len() as u64)?];
            self.peer.push(self.body(lane, batch, sent, started)).await?;
            sent += 1;
            let ended = self.target.epoch.elapsed();
            if self.target.measured.contains(&ended) {
                self.tally.pushed += u64::from(batch);
                if timed {
                    self.tally.latencies.add(ended.saturating_sub(started));
                }
            }
        }
        Ok(self.tally)
    }

    fn body(&self, lane: &str, batch: u32, sent: u64, started: Duration) -> PushBody {
        let mut body = PushBody::default();
        let micros = u64::try_from(started.as_micros()).unwrap_or(u64::MAX);
        for place in 0..u64::from(batch) {
            let number = u64::from(self.number) << 40 | (sent * u64::from(batch) + place);
            // As long as the text of a UUID.
            let id = self
                .target
                .transaction_ids
                .then(|| format!("{number:016x}-{number:019x}"));
            body.item(
                &self.target.queue,
                lane,
                id.as_deref(),
                &sized_payload(number, micros, PAYLOAD_BYTES),
            );
        }
        body
    }

    /// Pops and completes; the latency is from the push call to the receipt.
    pub(super) async fn consume(mut self, batch: u32) -> anyhow::Result<Tally> {
        while self.target.epoch.elapsed() < self.target.measured.end {
            let popped = self
                .peer
                .pop(&self.target.query(batch, Some(POP_WAIT_MS)))
                .await?;
            if popped.messages.is_empty() {
                continue;
            }
            let received = self.target.epoch.elapsed();
            if self.target.measured.contains(&received) {
                for message in &popped.messages {
                    let (_, micros) = read_sized_payload(message.data.get()).context("payload of nobody")?;
                    self.tally
                        .latencies
                        .add(received.saturating_sub(Duration::from_micros(micros)));
                }
            }
            self.peer.complete(&popped, Some(GROUP)).await?;
            if let Some(room) = &self.room {
                room.0.add_permits(popped.messages.len());
            }
            if self.target.measured.contains(&self.target.epoch.elapsed()) {
                self.tally.acked += popped.messages.len() as u64;
            }
        }
        Ok(self.tally)
    }

    fn left(&self) -> Duration {
        self.target
            .measured
            .end
            .saturating_sub(self.target.epoch.elapsed())
    }
}
