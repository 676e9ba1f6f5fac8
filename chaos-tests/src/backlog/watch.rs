//! Samples the disk beside what is live, and judges each sample.

use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::disk::DiskUse;
use crate::stats::float;

/// Payload of each message.
pub(super) const PAYLOAD_BYTES: u64 = 256;

/// Transaction id of each message: the text of a UUID.
pub(super) const ID_BYTES: u64 = 36;

/// One dedup row: a 16-byte key, an 8-byte offset, an 8-byte stamp. Rows outlive their message until the window ends,
/// which is later than any run.
const DEDUP_ROW_BYTES: u64 = 32;

/// Data counts as live so long after it was settled: a second of retention, then a pass of the maintenance.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// Between two samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);

/// What the generator has pushed and settled so far.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    sent: AtomicU64,
    settled: AtomicU64,
}

impl Ledger {
    /// Messages about to be pushed.
    pub(super) fn sent(&self, count: u64) {
        self.sent.fetch_add(count, Ordering::SeqCst);
    }

    /// Messages whose ack was answered.
    pub(super) fn settled(&self, count: u64) {
        self.settled.fetch_add(count, Ordering::SeqCst);
    }

    fn live_bytes(&self) -> u64 {
        let settled = self.settled.load(Ordering::SeqCst);
        let sent = self.sent.load(Ordering::SeqCst);
        (sent - settled) * (PAYLOAD_BYTES + ID_BYTES) + sent * DEDUP_ROW_BYTES
    }
}

/// Disk use at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    disk: DiskUse,
    live_bytes: u64,
    pool_bytes: u64,
    /// Disk use is at most twice the live data and the WAL pool.
    pub(super) within: bool,
}

impl Sample {
    fn new(disk: DiskUse, live_bytes: u64, pool_bytes: u64) -> Self {
        let within = disk.total() <= 2 * live_bytes + pool_bytes;
        Self {
            disk,
            live_bytes,
            pool_bytes,
            within,
        }
    }

    /// Bytes beyond the pool for each live byte.
    fn ratio(&self) -> f64 {
        float(self.disk.total().saturating_sub(self.pool_bytes)) / float(self.live_bytes.max(1))
    }

    /// How much of what is allowed is used.
    fn share(&self) -> f64 {
        float(self.disk.total()) / float(2 * self.live_bytes + self.pool_bytes)
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        write!(
            f,
            "{} MiB of at most 2 x {} + {} MiB ({:.0} %; {:.2} x live beyond the pool;",
            mib(self.disk.total()),
            mib(self.live_bytes),
            mib(self.pool_bytes),
            self.share() * 100.0,
            self.ratio()
        )?;
        for (kind, bytes) in &self.disk.by_kind {
            write!(f, " {kind} {}", mib(*bytes))?;
        }
        write!(f, ")")
    }
}

/// Samples a data directory until dropped.
#[derive(Debug)]
pub(super) struct DiskWatch {
    state: Arc<Mutex<State>>,
    data: PathBuf,
    ledger: Arc<Ledger>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    recent: VecDeque<(Instant, u64)>,
    worst: Option<Sample>,
    pool_bytes: u64,
}

impl DiskWatch {
    pub(super) fn start(data: PathBuf, ledger: Arc<Ledger>, pool_bytes: u64) -> Self {
        let state = Arc::new(Mutex::new(State {
            recent: VecDeque::new(),
            worst: None,
            pool_bytes,
        }));
        let task = tokio::spawn(sample_for_ever(
            data.clone(),
            Arc::clone(&ledger),
            Arc::clone(&state),
        ));
        Self {
            state,
            data,
            ledger,
            task,
        }
    }

    /// The worst sample since the last call of this kind.
    pub(super) async fn worst_since_last(&self) -> Option<Sample> {
        self.sample_now().await;
        lock(&self.state).worst.take()
    }

    /// A sample of this moment, which counts among the others.
    pub(super) async fn sample_now(&self) -> Sample {
        sample(&self.data, &self.ledger, &self.state).await
    }
}

impl Drop for DiskWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn sample_for_ever(data: PathBuf, ledger: Arc<Ledger>, state: Arc<Mutex<State>>) {
    loop {
        sample(&data, &ledger, &state).await;
        tokio::time::sleep(SAMPLE_EVERY).await;
    }
}

async fn sample(data: &Path, ledger: &Ledger, state: &Mutex<State>) -> Sample {
    let before = ledger.live_bytes();
    let data = data.to_owned();
    let disk = tokio::task::spawn_blocking(move || DiskUse::of(&data)).await;
    let disk = disk.ok().and_then(Result::ok).unwrap_or_default();
    let live_bytes = before.max(ledger.live_bytes());
    lock(state).judge(disk, live_bytes, Instant::now())
}

impl State {
    fn judge(&mut self, disk: DiskUse, live_bytes: u64, now: Instant) -> Sample {
        self.recent.push_back((now, live_bytes));
        while self
            .recent
            .front()
            .is_some_and(|(at, _)| now.duration_since(*at) > GRACE)
        {
            self.recent.pop_front();
        }
        let most = self
            .recent
            .iter()
            .map(|(_, live)| *live)
            .max()
            .unwrap_or(live_bytes);
        let sample = Sample::new(disk, most, self.pool_bytes);
        if self
            .worst
            .as_ref()
            .is_none_or(|worst| worst.share() < sample.share())
        {
            self.worst = Some(sample.clone());
        }
        sample
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(bytes: u64) -> DiskUse {
        DiskUse {
            by_kind: [("wal".to_owned(), bytes)].into(),
        }
    }

    #[test]
    fn ledger_counts_messages_and_rows() {
        let ledger = Ledger::default();
        ledger.sent(10);
        ledger.settled(4);
        assert_eq!(ledger.live_bytes(), 6 * 292 + 10 * 32);
    }

    #[test]
    fn bound_is_twice_the_live_data_of_the_last_seconds_and_the_pool() {
        let mut state = State {
            recent: VecDeque::new(),
            worst: None,
            pool_bytes: 100,
        };
        let start = Instant::now();
        assert!(state.judge(disk(300), 100, start).within);
        // Settled a moment ago: it still counts.
        assert!(state.judge(disk(300), 10, start + GRACE / 2).within);
        let late = state.judge(disk(300), 10, start + GRACE * 2);
        assert!(!late.within);
        assert!(!state.worst.as_ref().unwrap().within);
        assert_eq!(
            late.to_string(),
            "0 MiB of at most 2 x 0 + 0 MiB (250 %; 20.00 x live beyond the pool; wal 0)"
        );
    }
}
