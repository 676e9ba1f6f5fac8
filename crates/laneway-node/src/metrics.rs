//! Counters of this process; what must survive a restart is counted by the machines.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::api::Histogram;

/// Upper bounds of the latency buckets, in µs.
const BOUNDS_US: [u64; 16] = [
    100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000, 5_000_000, 10_000_000,
];

/// A histogram that is written without a lock.
#[derive(Debug, Default)]
pub(crate) struct LatencyHistogram {
    counts: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

impl LatencyHistogram {
    pub(crate) fn observe(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Histogram {
        Histogram {
            bounds: BOUNDS_US.iter().map(|us| seconds(*us)).collect(),
            counts: self
                .counts
                .iter()
                .map(|count| count.load(Ordering::Relaxed))
                .collect(),
            sum: seconds(self.sum_us.load(Ordering::Relaxed)),
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a display value; 2^53 µs are 285 years"
)]
fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// Counted since the process started.
#[derive(Debug, Default)]
pub(crate) struct NodeCounters {
    pub(crate) commit_seconds: LatencyHistogram,
    pub(crate) duplicates: AtomicU64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_bounds_are_inclusive() {
        let histogram = LatencyHistogram::default();
        histogram.observe(Duration::from_micros(100));
        histogram.observe(Duration::from_micros(101));
        histogram.observe(Duration::from_secs(60));
        let read = histogram.read();
        assert_eq!(read.counts[..2], [1, 1]);
        assert_eq!(read.counts[BOUNDS_US.len()], 1);
        assert_eq!(read.counts.len(), read.bounds.len() + 1);
    }
}
