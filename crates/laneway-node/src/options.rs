//! Options of a node. Every limit has a documented default; the binary's configuration reference is made from these.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Largest number of partitions of a cluster.
pub const PARTITIONS_MAX: u16 = 1024;

/// Default number of partitions; it is set when the data directory is made.
pub const PARTITIONS_DEFAULT: u16 = 4;

/// Largest part of a lease id, lane name, queue name or group name bound: see [`NodeLimits::names_bytes_max`].
pub const NAMES_BYTES_MAX: usize = 447 - 36;

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Where all of the node's files live. Made when missing.
    pub data_dir: PathBuf,
    /// This node's number in the cluster, from 1.
    pub node: u16,
    /// Name of the cluster; a data directory of another cluster is refused.
    pub cluster: String,
    /// Number of partitions when the data directory is made; later it must be the same (0 = whatever it was made with).
    pub partitions: u16,
    /// Bounds.
    pub limits: NodeLimits,
    /// Durable storage.
    pub storage: StorageOptions,
    /// Raft timing.
    pub raft: RaftOptions,
    /// The way to the other nodes; without it the node is a cluster of its own.
    pub peers: Option<PeerNetOptions>,
}

/// The cluster's nodes and how they reach each other.
#[derive(Clone, Debug)]
pub struct PeerNetOptions {
    /// `host:port` at which each node, this one included, takes its peers' connections.
    pub addresses: BTreeMap<u16, String>,
    /// `host:port` on which this node listens for them.
    pub listen: String,
    /// Hash of what must be the same on all nodes; a node with another one is refused.
    pub fingerprint: u64,
    /// How long nothing may have been heard of a node's old data before the same node with new, empty data takes its
    /// place, in ms.
    pub takeover_ms: u64,
}

impl NodeOptions {
    /// Defaults for a one-node cluster with its data in `data_dir`.
    pub fn new(data_dir: PathBuf) -> Self {
        Self {
            data_dir,
            node: 1,
            cluster: "dev".to_owned(),
            partitions: 0,
            limits: NodeLimits::default(),
            storage: StorageOptions::default(),
            raft: RaftOptions::default(),
            peers: None,
        }
    }
}

/// Bounds of a node. All are per node unless they say otherwise.
#[derive(Clone, Debug)]
pub struct NodeLimits {
    /// Commands waiting for or in the log, per partition; beyond it requests are refused with 429.
    pub commands_max: u32,
    /// Payload bytes waiting for or in the log, per partition; beyond it pushes are refused with 429.
    pub in_flight_bytes_max: u32,
    /// Bytes at which an entry takes no further command (one larger command still goes alone).
    pub entry_bytes_max: u32,
    /// Pops that wait; beyond it a waiting pop is refused with 429.
    pub parked_pops_max: u32,
    /// Lanes per partition; beyond it a push to a new lane is refused with 429.
    pub lanes_max: u32,
    /// Queues; beyond it a new name is refused with 429.
    pub queues_max: u32,
    /// Consumer groups per queue; beyond it a new one is refused with 429.
    pub groups_max: u32,
    /// Answers kept for repeats, per partition.
    pub kept_answers_max: u32,
    /// Time for which an answer is kept for repeats, in ms of lease time.
    pub kept_answer_ms: u64,
    /// Bytes of messages in one pop's answer; what has no room is given back uncharged.
    pub pop_bytes_max: u64,
    /// Messages in one pop's answer.
    pub pop_messages_max: u32,
    /// Acknowledgments of one request; a longer one is refused with 400.
    pub ack_items_max: u32,
    /// Message headers read to find a transaction id that no cache or dedup row knows.
    pub resolve_scan_max: u32,
    /// Transaction ids of leased messages held in memory, per partition.
    pub span_cache_messages_max: u32,
    /// Bytes of dedup rows on disk, per partition; beyond it pushes are refused with 429.
    pub dedup_bytes_max: u64,
    /// Pushes are refused with 507 while the file system has less free than this.
    pub disk_free_bytes_min: u64,
    /// Longest wait of a request for a leader, in ms, before 503.
    pub leader_wait_ms: u64,
    /// Longest wait for the outcome of a proposed command, in ms, before 503 `outcome_unknown`.
    pub outcome_wait_ms: u64,
    /// Bytes of queue name and the longer of lane and group name together.
    pub names_bytes_max: usize,
    /// Bytes of one transaction id.
    pub transaction_id_bytes_max: usize,
}

impl Default for NodeLimits {
    fn default() -> Self {
        Self {
            commands_max: 16_384,
            in_flight_bytes_max: 256 * 1024 * 1024,
            entry_bytes_max: 1024 * 1024,
            parked_pops_max: 100_000,
            lanes_max: 4_000_000,
            queues_max: 100_000,
            groups_max: 1_000,
            kept_answers_max: 100_000,
            kept_answer_ms: 60_000,
            pop_bytes_max: 32 * 1024 * 1024,
            pop_messages_max: 10_000,
            ack_items_max: 20_000,
            resolve_scan_max: 10_000,
            span_cache_messages_max: 1_000_000,
            dedup_bytes_max: 4 * 1024 * 1024 * 1024,
            disk_free_bytes_min: 512 * 1024 * 1024,
            leader_wait_ms: 3_000,
            outcome_wait_ms: 30_000,
            names_bytes_max: NAMES_BYTES_MAX,
            transaction_id_bytes_max: 65_535,
        }
    }
}

/// Durable storage of a node.
#[derive(Clone, Debug)]
pub struct StorageOptions {
    /// Bytes of one WAL segment.
    pub wal_segment_bytes: u64,
    /// WAL segments kept before live payloads of the oldest are moved to backlog files.
    pub wal_segments_max: u32,
    /// Newest entries of each partition held in memory, in bytes.
    pub tail_cache_bytes: u64,
    /// Longest time between two checkpoints of a partition that has changed, in ms.
    pub checkpoint_ms_max: u64,
    /// Payload locations held in memory per partition; beyond it they go to the row store.
    pub runs_in_memory_max: usize,
    /// Dedup rows held in memory per partition; beyond it pushes are refused with 429 until a checkpoint has written them out,
    /// which is begun at a quarter of it.
    pub dedup_rows_in_memory_max: u64,
}

impl Default for StorageOptions {
    fn default() -> Self {
        Self {
            wal_segment_bytes: 64 * 1024 * 1024,
            wal_segments_max: 8,
            tail_cache_bytes: 32 * 1024 * 1024,
            checkpoint_ms_max: 5_000,
            runs_in_memory_max: 1_000_000,
            dedup_rows_in_memory_max: 2_000_000,
        }
    }
}

/// Election time-outs after which a leader without a quorum does not count as one.
const QUORUM_LOST_ELECTIONS: u64 = 4;

/// Raft timing.
#[derive(Clone, Debug)]
pub struct RaftOptions {
    /// Between heartbeats, in ms.
    pub heartbeat_ms: u64,
    /// Shortest election time-out, in ms.
    pub election_ms_min: u64,
    /// Longest election time-out, in ms.
    pub election_ms_max: u64,
}

impl RaftOptions {
    /// A leader that no quorum has acknowledged for so long does not count as one.
    pub(crate) fn quorum_lost_after(&self) -> Duration {
        Duration::from_millis(self.election_ms_max * QUORUM_LOST_ELECTIONS)
    }
}

impl Default for RaftOptions {
    fn default() -> Self {
        Self {
            heartbeat_ms: 50,
            election_ms_min: 150,
            election_ms_max: 300,
        }
    }
}
