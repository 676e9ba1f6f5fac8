//! `GET /metrics` as JSON

use serde::{Deserialize, Serialize};

use crate::status::{GroupStatus, StorageStatus};

/// Answer of `/metrics` to whoever does not prefer text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricsResponse {
    /// Seconds since the start.
    pub uptime: f64,
    /// Of the gateway.
    pub requests: RequestMetrics,
    /// Of the node.
    pub messages: MessageMetrics,
    /// Of the process.
    pub memory: MemoryMetrics,
    /// Of the process.
    pub cpu: CpuMetrics,
    /// Pops that wait.
    pub parked_pops: u64,
    /// Open connections.
    pub connections: u64,
    /// Free bytes of the data directory's file system.
    pub disk_free_bytes: u64,
    /// Per queue.
    pub queues: Vec<QueueMetrics>,
    /// The catalog, then the partitions.
    pub partitions: Vec<GroupStatus>,
    /// Bytes by kind.
    pub storage: StorageStatus,
    /// Time of one WAL sync.
    pub sync_seconds: HistogramMetrics,
    /// From proposing an entry to having applied it.
    pub commit_seconds: HistogramMetrics,
}

/// Requests of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestMetrics {
    /// Since the start.
    pub total: u64,
    /// Per second, over the last ten seconds.
    pub rate: f64,
}

/// Messages: totals since the start, and how many are in which state now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageMetrics {
    /// Pushed since the start.
    pub pushed: u64,
    /// Pushed items answered as duplicates since the start.
    pub duplicates: u64,
    /// Delivered since the start.
    pub delivered: u64,
    /// Settled since the start.
    pub settled: u64,
    /// Filed as dead letters since the start.
    pub dead_lettered: u64,
    /// Leases that ran out since the start.
    pub expired_leases: u64,
    /// Ready now.
    pub ready: u64,
    /// Leased now.
    pub leased: u64,
    /// Dead letters now.
    pub dead: u64,
}

/// Memory of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryMetrics {
    /// Resident bytes.
    pub rss: u64,
}

/// CPU time of the process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuMetrics {
    /// Seconds in user mode.
    pub user: f64,
    /// Seconds in system mode.
    pub system: f64,
}

/// Gauges of one queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueMetrics {
    /// Its name.
    pub queue: String,
    /// Messages that a pop could get now or once their lane is free.
    pub ready: u64,
    /// Messages under live leases.
    pub leased: u64,
    /// Dead letters.
    pub dead: u64,
    /// Lanes.
    pub lanes: u64,
}

/// A histogram; counts are not cumulative, the last one is of what is above all bounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistogramMetrics {
    /// Upper bounds in seconds.
    pub bounds: Vec<f64>,
    /// One more than bounds.
    pub counts: Vec<u64>,
    /// Of all observations, in seconds.
    pub sum: f64,
}
