//! Pushes numbered messages into lanes and takes them out again, each exactly once and in order.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rand::Rng;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::watch::{Ledger, PAYLOAD_BYTES};
use crate::api::{PopAnswer, PopQuery, PushBody};
use crate::payload::{read_sized_payload, sized_payload};
use crate::peer::Peer;

/// Messages of one push.
const PUSH_BATCH: u64 = 500;

/// Messages of one pop.
const POP_BATCH: u32 = 1000;

/// Lanes of one pop.
const POP_LANES: u32 = 4;

/// Producers, and consumers, at most.
const WORKERS: u64 = 4;

/// The group that reads.
const GROUP: &str = "readers";

/// A drain that gets nothing for so long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(90);

/// Where messages go.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    pub(super) authority: Arc<str>,
    pub(super) queue: &'static str,
    pub(super) lane_prefix: &'static str,
    /// Message `n` goes to lane `n mod lanes`.
    pub(super) lanes: u64,
    /// Pops name lane 0 instead of taking any.
    pub(super) pinned: bool,
}

impl Traffic {
    fn lane(&self, number: u64) -> String {
        format!("{}-{}", self.lane_prefix, number % self.lanes)
    }

    pub(super) fn query<'a>(&'a self, batch: u32, lane: Option<&'a str>) -> PopQuery<'a> {
        PopQuery {
            queue: self.queue,
            lane,
            group: Some(GROUP),
            mode: Some("all"),
            batch,
            lanes_max: POP_LANES,
            wait_ms: Some(200),
            lease_seconds: None,
            auto_ack: false,
        }
    }
}

/// Messages of one kind on their way in and out.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    traffic: Traffic,
    ledger: Arc<Ledger>,
    /// Messages taken out.
    taken: AtomicU64,
    /// Per lane: how many came out; the next one has this place in its lane.
    next: Mutex<Vec<u64>>,
}

impl Flow {
    pub(super) fn new(traffic: Traffic, ledger: Arc<Ledger>) -> Self {
        let lanes = usize::try_from(traffic.lanes).expect("lanes fit in memory");
        let next = Mutex::new(vec![0; lanes]);
        Self {
            shared: Arc::new(Shared {
                traffic,
                ledger,
                taken: AtomicU64::new(0),
                next,
            }),
        }
    }

    /// Pushes messages 0 to `count`, several producers at once; the lanes of two producers are disjoint.
    pub(super) async fn push_all(&self, count: u64) -> anyhow::Result<()> {
        let mut workers = JoinSet::new();
        let producers = WORKERS.min(self.shared.traffic.lanes);
        for worker in 0..producers {
            let shared = Arc::clone(&self.shared);
            workers.spawn(async move { shared.push_share(count, worker, producers).await });
        }
        join(workers).await
    }

    /// Takes `count` messages out and completes them.
    pub(super) async fn drain(&self, count: u64) -> anyhow::Result<()> {
        let mut workers = JoinSet::new();
        for _ in 0..if self.shared.traffic.pinned { 1 } else { WORKERS } {
            let shared = Arc::clone(&self.shared);
            workers.spawn(async move { shared.take(count, None).await });
        }
        join(workers).await
    }

    /// Pushes and takes out at once, at most `open_max` messages between the two.
    pub(super) async fn pass_through(&self, count: u64, open_max: u64) -> anyhow::Result<()> {
        let room = Arc::new(Semaphore::new(usize::try_from(open_max)?));
        let mut workers = JoinSet::new();
        let (shared, producer_room) = (Arc::clone(&self.shared), Arc::clone(&room));
        workers.spawn(async move {
            let mut peer = Peer::new(&shared.traffic.authority);
            let mut number = 0;
            while number < count {
                let batch = PUSH_BATCH.min(count - number);
                producer_room.acquire_many(u32::try_from(batch)?).await?.forget();
                shared.push(&mut peer, number..number + batch).await?;
                number += batch;
            }
            Ok(())
        });
        let shared = Arc::clone(&self.shared);
        workers.spawn(async move { shared.take(count, Some(&room)).await });
        join(workers).await
    }
}

impl Shared {
    async fn push_share(&self, count: u64, worker: u64, workers: u64) -> anyhow::Result<()> {
        let mut peer = Peer::new(&self.traffic.authority);
        let lanes = self.traffic.lanes;
        let mut numbers = (0..count)
            .filter(|number| number % lanes % workers == worker)
            .peekable();
        while numbers.peek().is_some() {
            let batch: Vec<u64> = numbers.by_ref().take(usize::try_from(PUSH_BATCH)?).collect();
            self.push(&mut peer, batch).await?;
        }
        Ok(())
    }

    async fn push(&self, peer: &mut Peer, numbers: impl IntoIterator<Item = u64>) -> anyhow::Result<()> {
        let mut body = PushBody::default();
        let bytes = usize::try_from(PAYLOAD_BYTES)?;
        for number in numbers {
            let id = random_uuid();
            body.item(
                self.traffic.queue,
                &self.traffic.lane(number),
                Some(&id),
                &sized_payload(number, 0, bytes),
            );
        }
        self.ledger.sent(body.items() as u64);
        peer.push(body).await
    }

    async fn take(&self, count: u64, room: Option<&Semaphore>) -> anyhow::Result<()> {
        let mut peer = Peer::new(&self.traffic.authority);
        let pinned = self.traffic.pinned.then(|| self.traffic.lane(0));
        let mut heard = Instant::now();
        while self.taken.load(Ordering::SeqCst) < count {
            let popped = peer
                .pop(&self.traffic.query(POP_BATCH, pinned.as_deref()))
                .await?;
            if popped.messages.is_empty() {
                let taken = self.taken.load(Ordering::SeqCst);
                ensure!(
                    heard.elapsed() < SILENCE_MAX,
                    "{taken} of {count} came, then nothing for {SILENCE_MAX:?}"
                );
                continue;
            }
            heard = Instant::now();
            self.check(&popped)?;
            peer.complete(&popped, Some(GROUP)).await?;
            let taken = popped.messages.len();
            self.ledger.settled(taken as u64);
            self.taken.fetch_add(taken as u64, Ordering::SeqCst);
            if let Some(room) = room {
                room.add_permits(taken);
            }
        }
        Ok(())
    }

    /// Every message must be the next one of its lane.
    fn check(&self, popped: &PopAnswer) -> anyhow::Result<()> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        for message in &popped.messages {
            let (number, _) = read_sized_payload(message.data.get()).context("payload of nobody")?;
            let lane = usize::try_from(number % self.traffic.lanes)?;
            let expected = next[lane] * self.traffic.lanes + lane as u64;
            if number != expected || message.partition != self.traffic.lane(number) {
                bail!(
                    "message {number} came from {} where {expected} was due",
                    message.partition
                );
            }
            next[lane] += 1;
        }
        Ok(())
    }
}

async fn join(mut workers: JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
    while let Some(done) = workers.join_next().await {
        done??; // the others end with the set
    }
    Ok(())
}

/// A random version-4 UUID: what published clients send, and the worst there is for compression.
fn random_uuid() -> String {
    let bits: u128 = rand::rng().random();
    let hex = format!("{bits:032x}");
    format!(
        "{}-{}-4{}-a{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[13..16],
        &hex[17..20],
        &hex[20..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_ids_have_the_length_that_is_counted() {
        assert_eq!(random_uuid().len() as u64, super::super::watch::ID_BYTES);
        assert_ne!(random_uuid(), random_uuid());
    }

    #[test]
    fn repeated_or_missing_message_is_noticed() {
        let traffic = Traffic {
            authority: "127.0.0.1:1".into(),
            queue: "q",
            lane_prefix: "l",
            lanes: 2,
            pinned: false,
        };
        let flow = Flow::new(traffic, Arc::default());
        let popped = |numbers: &[u64]| {
            let message = |number: &u64| {
                serde_json::json!({"id": "i", "transactionId": "t", "data": format!("{number:016x}{:016x}", 0),
                    "partitionId": "7", "partition": format!("l-{}", number % 2), "offset": number / 2,
                    "createdAt": "2026-07-30T12:34:56.789Z", "deliveryAttempt": 1})
            };
            let messages: Vec<_> = numbers.iter().map(message).collect();
            let answer = serde_json::json!({"leaseId": "x", "messages": messages});
            serde_json::from_str::<PopAnswer>(&answer.to_string()).unwrap()
        };
        flow.shared.check(&popped(&[0, 2, 1])).unwrap();
        assert!(flow.shared.check(&popped(&[2])).is_err(), "repeated");
        assert!(flow.shared.check(&popped(&[6])).is_err(), "4 is missing");
        flow.shared.check(&popped(&[4, 3, 5])).unwrap();
    }
}
