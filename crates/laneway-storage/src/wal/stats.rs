//! Figures of the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the latency buckets, in microseconds; one more bucket holds what is slower.
pub(crate) const LATENCY_BOUNDS_US: [u64; 14] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
];

/// Counts of `fdatasync` calls by how long they took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyHistogram {
    /// (Upper bound in µs, inclusive; `u64::MAX` for the last; calls in this bucket alone.)
    pub buckets: Vec<(u64, u64)>,
    /// Sum of all, in µs.
    pub sum_us: u64,
}

/// Figures since the log was opened, and of what there is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalStats {
    /// Drains written.
    pub drains: u64,
    /// `fdatasync` calls of the writer: one per drain, one per new segment.
    pub fsyncs: u64,
    /// Bytes written to segments.
    pub bytes_written: u64,
    /// Entries written.
    pub entries_written: u64,
    /// How long the `fdatasync` calls took.
    pub fsync_latency: LatencyHistogram,
    /// Segments in the log.
    pub segments: u64,
    /// Free segment files.
    pub segments_free: u64,
    /// Bytes of all segment files, free ones included.
    pub file_bytes: u64,
    /// Unpurged entries.
    pub entries: u64,
    /// Bytes of cached bodies, with their overhead.
    pub cached_bytes: u64,
    /// Whether the log failed for good.
    pub failed: bool,
}

/// Counters that the writer keeps.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) drains: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) entries_written: AtomicU64,
    fsyncs: AtomicU64,
    sum_us: AtomicU64,
    buckets: [AtomicU64; LATENCY_BOUNDS_US.len() + 1],
}

impl Counters {
    pub(crate) fn synced(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BOUNDS_US.partition_point(|&bound| bound < us);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
        self.fsyncs.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters' part of the figures.
    pub(crate) fn stats(&self) -> WalStats {
        let bounds = LATENCY_BOUNDS_US.iter().copied().chain([u64::MAX]);
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        WalStats {
            drains: self.drains.load(Ordering::Relaxed),
            fsyncs: self.fsyncs.load(Ordering::Relaxed),
            bytes_written: self.bytes_written.load(Ordering::Relaxed),
            entries_written: self.entries_written.load(Ordering::Relaxed),
            fsync_latency: LatencyHistogram {
                buckets: bounds.zip(counts).collect(),
                sum_us: self.sum_us.load(Ordering::Relaxed),
            },
            ..WalStats::default()
        }
    }
}
