//! What people and tools look at: queues and messages with their counters, the node and its groups, figures for monitoring.

use std::time::Duration;

use laneway_core::ids::{LaneId, Offset, PartitionId};
use laneway_core::reply::DeadLetter;
use laneway_core::settings::QueueRow;
use laneway_core::time::WallTime;

use serde::{Deserialize, Serialize};

use super::PoppedMessage;

/// A queue with its counters, exact sums over partitions.
#[derive(Clone, Debug)]
pub struct QueueInfo {
    /// Its row.
    pub row: QueueRow,
    /// Its lanes (ids ascending); filled only when one queue was asked for.
    pub lanes: Vec<LaneInfo>,
    /// Number of lanes.
    pub lane_count: u64,
    /// Sums over its lanes.
    pub counts: Counts,
    /// Bytes of retained messages.
    pub retained_bytes: u64,
}

/// Counters as the wire contract §2.8 derives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Retained messages.
    pub total: u64,
    /// Above the reference cursor, not leased.
    pub pending: u64,
    /// Under live leases.
    pub processing: u64,
    /// The rest.
    pub completed: u64,
    /// Dead-letter rows.
    pub dead_letter: u64,
    /// Messages settled in all.
    pub consumed: u64,
}

/// A lane with its counters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LaneInfo {
    /// The lane.
    pub lane: LaneId,
    /// Its name.
    pub name: String,
    /// Its counters.
    pub counts: Counts,
    /// Stamp of its oldest retained message.
    pub oldest: Option<WallTime>,
    /// Stamp of its newest message.
    pub newest: Option<WallTime>,
}

/// One message with all that is known of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MessageInfo {
    /// The message.
    pub message: PoppedMessage,
    /// Its queue.
    pub queue: QueueRow,
    /// Its lane.
    pub lane: LaneId,
    /// Its lane's name.
    pub lane_name: String,
    /// `pending`, `processing`, `completed` or `dead_letter`.
    pub status: MessageStatus,
    /// Its newest dead-letter row.
    pub dead_letter: Option<DeadLetter>,
    /// Charged failures: of the dead letter, else the largest counter among groups whose head it is.
    pub retries_used: u32,
    /// Groups with a cursor on its lane.
    pub groups: Vec<MessageGroup>,
}

/// Where a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MessageStatus {
    /// Not yet delivered, or given back.
    Pending,
    /// Under a live lease.
    Processing,
    /// Every group passed it.
    Completed,
    /// A dead-letter row exists.
    DeadLetter,
}

/// A group's stand on a message's lane.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MessageGroup {
    /// The group.
    pub name: String,
    /// Its cursor: first offset it has not settled.
    pub cursor: Offset,
    /// It has settled this message.
    pub consumed: bool,
    /// Expiry of its live lease on the lane, as a time of day.
    pub lease_expires: Option<WallTime>,
}

/// What the node can do now.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// It serves all partitions.
    pub ready: bool,
    /// What it lacks, one line each. Damaged files are told here, too, while it serves all partitions.
    pub reasons: Vec<String>,
}

/// The node for people and tools.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// Version of the program.
    pub version: &'static str,
    /// Configured name of the cluster.
    pub cluster: String,
    /// Cluster id of the data directory.
    pub cluster_id: String,
    /// This node.
    pub node: u16,
    /// Since the start.
    pub uptime: Duration,
    /// Data directory.
    pub data_dir: String,
    /// Free bytes of its file system.
    pub disk_free_bytes: u64,
    /// Pushes are refused because the disk is low.
    pub disk_low: bool,
    /// The catalog, then the partitions.
    pub groups: Vec<GroupStatus>,
    /// Storage figures.
    pub storage: StorageStatus,
    /// Pops that wait.
    pub parked_pops: u64,
}

/// One Raft group as this node sees it.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// Which.
    pub partition: PartitionId,
    /// Raft term.
    pub term: u64,
    /// Node that leads.
    pub leader: Option<u16>,
    /// This node leads and serves.
    pub leads: bool,
    /// Last index in the log.
    pub last_index: u64,
    /// Committed index.
    pub commit_index: u64,
    /// Applied index.
    pub applied_index: u64,
    /// Index of the newest checkpoint.
    pub checkpoint_index: u64,
    /// Stopped after repeated panics, and why.
    pub stopped: Option<String>,
}

/// Bytes by kind and the sync rate.
#[derive(Clone, Debug, Default)]
pub struct StorageStatus {
    /// WAL segments in use.
    pub wal_bytes: u64,
    /// Backlog files.
    pub backlog_bytes: u64,
    /// Live bytes in them.
    pub backlog_live_bytes: u64,
    /// Dedup files and rows.
    pub dedup_bytes: u64,
    /// Checkpoint files.
    pub checkpoint_bytes: u64,
    /// fdatasyncs of the WAL since the start.
    pub wal_syncs: u64,
    /// Files found damaged that are still needed.
    pub damaged_files: u64,
}

/// State digest of one group at one applied index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupDigest {
    /// Which.
    pub partition: PartitionId,
    /// At this index.
    pub applied_index: u64,
    /// Hash over all rows.
    pub digest: u64,
}

/// A histogram with fixed upper bounds; the last count is of what is above them all.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Upper bounds in seconds.
    pub bounds: Vec<f64>,
    /// Observations per bucket, not cumulative; one more than bounds.
    pub counts: Vec<u64>,
    /// Sum of all observations in seconds.
    pub sum: f64,
}

/// Everything that `/metrics` shows beyond [`NodeStatus`].
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Messages pushed since the start.
    pub pushed: u64,
    /// Pushed items answered as duplicates.
    pub duplicates: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Messages settled by acks.
    pub settled: u64,
    /// Messages filed as dead letters.
    pub dead_lettered: u64,
    /// Leases that ran out.
    pub expired_leases: u64,
    /// Time of one WAL sync.
    pub sync_seconds: Histogram,
    /// From proposing an entry to having applied it.
    pub commit_seconds: Histogram,
    /// Per queue.
    pub queues: Vec<QueueMetrics>,
    /// Resident memory of the process.
    pub memory_bytes: u64,
    /// User and system CPU seconds of the process.
    pub cpu_seconds: (f64, f64),
}

/// Gauges of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueMetrics {
    /// Its name.
    pub queue: String,
    /// Per lane the most that any one group has neither settled nor leased, summed over the lanes.
    pub ready: u64,
    /// Messages under live leases.
    pub leased: u64,
    /// Dead letters.
    pub dead: u64,
    /// Lanes.
    pub lanes: u64,
}
