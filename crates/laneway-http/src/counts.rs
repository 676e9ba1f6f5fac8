//! Counters of the gateway.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Seconds over which the request rate is taken.
const RATE_SECONDS: u64 = 10;

/// Slots of the ring of seconds; more than [`RATE_SECONDS`], so that the running second never lands on a counted one.
const RING_SLOTS: usize = 16;

const _: () = assert!(RING_SLOTS as u64 > RATE_SECONDS + 1);

/// What a request asks for; label of counters and log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    Push,
    Pop,
    Ack,
    Extend,
    Configure,
    DeleteQueue,
    Queues,
    Message,
    DeadLetters,
    Replay,
    Status,
    Cluster,
    Health,
    Metrics,
    Other,
}

impl Verb {
    pub(crate) const ALL: [Self; 15] = [
        Self::Push,
        Self::Pop,
        Self::Ack,
        Self::Extend,
        Self::Configure,
        Self::DeleteQueue,
        Self::Queues,
        Self::Message,
        Self::DeadLetters,
        Self::Replay,
        Self::Status,
        Self::Cluster,
        Self::Health,
        Self::Metrics,
        Self::Other,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pop => "pop",
            Self::Ack => "ack",
            Self::Extend => "extend",
            Self::Configure => "configure",
            Self::DeleteQueue => "delete_queue",
            Self::Queues => "queues",
            Self::Message => "message",
            Self::DeadLetters => "dead_letters",
            Self::Replay => "replay",
            Self::Status => "status",
            Self::Cluster => "cluster",
            Self::Health => "health",
            Self::Metrics => "metrics",
            Self::Other => "other",
        }
    }
}

/// Status classes that are counted: 2xx to 5xx.
pub(crate) const STATUS_CLASSES: [&str; 4] = ["2xx", "3xx", "4xx", "5xx"];

/// Counters of the gateway since its start.
#[derive(Debug)]
pub(crate) struct Counts {
    started: Instant,
    requests: [[AtomicU64; STATUS_CLASSES.len()]; Verb::ALL.len()],
    /// Per second: its number in the upper half, its count in the lower.
    ring: [AtomicU64; RING_SLOTS],
    pub(crate) connections: AtomicU64,
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            requests: Default::default(),
            ring: Default::default(),
            connections: AtomicU64::new(0),
        }
    }

    /// Counts one answered request.
    pub(crate) fn answered(&self, verb: Verb, status: u16) {
        let class = usize::from(status / 100)
            .saturating_sub(2)
            .min(STATUS_CLASSES.len() - 1);
        self.requests[verb as usize][class].fetch_add(1, Ordering::Relaxed);
        self.tick(self.started.elapsed().as_secs());
    }

    /// Requests of one verb and status class.
    pub(crate) fn requests(&self, verb: Verb, class: usize) -> u64 {
        self.requests[verb as usize][class].load(Ordering::Relaxed)
    }

    /// All requests.
    pub(crate) fn total(&self) -> u64 {
        self.requests
            .iter()
            .flatten()
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }

    /// Requests per second over the last [`RATE_SECONDS`] full seconds, or since the start if that is shorter.
    pub(crate) fn rate(&self) -> f64 {
        self.rate_at(self.started.elapsed().as_secs())
    }

    fn tick(&self, second: u64) {
        let slot = &self.ring[usize::try_from(second).unwrap_or(0) % RING_SLOTS];
        let next = |packed: u64| {
            let count = if packed >> 32 == second & 0xffff_ffff {
                packed & 0xffff_ffff
            } else {
                0
            };
            (second & 0xffff_ffff) << 32 | (count + 1).min(0xffff_ffff)
        };
        let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |packed| Some(next(packed)));
    }

    fn rate_at(&self, second: u64) -> f64 {
        let seconds = second.min(RATE_SECONDS);
        if seconds == 0 {
            return 0.0;
        }
        let counted = |packed: u64| {
            let age = second.saturating_sub(packed >> 32);
            if (1..=seconds).contains(&age) {
                packed & 0xffff_ffff
            } else {
                0
            }
        };
        let sum: u64 = self
            .ring
            .iter()
            .map(|slot| counted(slot.load(Ordering::Relaxed)))
            .sum();
        let (sum, seconds) = (
            u32::try_from(sum).unwrap_or(u32::MAX),
            u32::try_from(seconds).unwrap_or(u32::MAX),
        );
        f64::from(sum) / f64::from(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_covers_the_last_ten_full_seconds() {
        let counts = Counts::new();
        assert!(counts.rate_at(0).abs() < 1e-9);
        for second in 0..40 {
            for _ in 0..=second {
                counts.tick(second);
            }
        }
        let expected = f64::from((30..40).sum::<u32>()) / 10.0;
        assert!(
            (counts.rate_at(39) - expected).abs() < 1e-9,
            "{}",
            counts.rate_at(39)
        );
        assert!(counts.rate_at(60).abs() < 1e-9);
    }

    #[test]
    fn requests_are_counted_by_verb_and_class() {
        let counts = Counts::new();
        for status in [200, 204, 404, 503, 100] {
            counts.answered(Verb::Pop, status);
        }
        assert_eq!(
            (0..4)
                .map(|class| counts.requests(Verb::Pop, class))
                .collect::<Vec<_>>(),
            [3, 0, 1, 1]
        );
        assert_eq!(counts.total(), 5);
        assert_eq!(counts.requests(Verb::Push, 0), 0);
        for (at, verb) in Verb::ALL.into_iter().enumerate() {
            assert_eq!(verb as usize, at);
        }
    }
}
