//! The files as written: every key with its effect, unit, default and since when.
//!
//! docs/configuration.md is made from these comments (`cargo xtask config-reference`); a test compares the defaults they
//! name with the real ones.

use std::time::Duration;

use laneway_core::settings::GroupStart;
use laneway_http::HttpOptions;
use laneway_node::{NodeLimits, PARTITIONS_DEFAULT, RaftOptions, StorageOptions};
use serde::{Deserialize, Serialize};

/// See [`RawCluster::generation_takeover_ms`].
const GENERATION_TAKEOVER_MS_DEFAULT: u64 = 10_000;

/// The cluster file: the same on every node.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawCluster {
    /// Name of the cluster. A data directory of another cluster is refused.
    ///
    /// Unit: text, 1 to 64 of `A-Z a-z 0-9 . _ -`. Default: `"laneway"`. Since v0.1.
    pub name: String,
    /// Number of partitions, set when the data directory is made. A directory made with another number is refused.
    ///
    /// Unit: partitions, from 1 to 1024. Default: `4`. Since v0.1.
    pub partitions: u16,
    /// Time without a connection to a node after which the same node with new, empty data may take its place. Until then the
    /// newcomer is refused, so that two living nodes with one number never stand in for each other.
    ///
    /// Unit: ms, from 100 to 3600000. Default: `10000`. Since v0.1.
    pub generation_takeover_ms: u64,
    #[serde(rename = "limits")]
    pub limits: RawClusterLimits,
    #[serde(rename = "raft")]
    pub raft: RawRaft,
    #[serde(rename = "nodes")]
    pub nodes: Vec<RawClusterNode>,
}

/// The cluster's nodes, one table for each, at most 16. Without any the cluster has one node and no peers. A list of one is a
/// cluster of one that others can join.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RawClusterNode {
    /// The node's number, as in its own file. Never used again for another machine while the cluster knows it.
    ///
    /// Unit: number, from 1 to 65535. Required. Since v0.1.
    pub node: u16,
    /// Where the other nodes reach it. There is no authentication and no encryption between nodes: keep these addresses on a
    /// private network.
    ///
    /// Unit: host name or IP address, and port. Required. Since v0.1.
    pub peer: String,
}

/// Bounds that must be equal on every node.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawClusterLimits {
    /// Lanes in one partition. A push to a new lane beyond it is refused with 429.
    ///
    /// Unit: lanes per partition, from 1 to 4294967295. Default: `4000000`. Since v0.1.
    pub lanes_max: u32,
    /// Queues. A new name beyond it is refused with 429.
    ///
    /// Unit: queues, from 1 to 4294967295. Default: `100000`. Since v0.1.
    pub queues_max: u32,
    /// Consumer groups of one queue. A new one beyond it is refused with 429.
    ///
    /// Unit: groups per queue, from 1 to 4294967295. Default: `1000`. Since v0.1.
    pub groups_max: u32,
    /// Answers kept so that a repeated request gets the same answer. The oldest go first.
    ///
    /// Unit: answers per partition, from 1 to 4294967295. Default: `100000`. Since v0.1.
    pub kept_answers_max: u32,
    /// Time for which such an answer is kept.
    ///
    /// Unit: ms of lease time (the time of running leaders), from 1. Default: `60000`. Since v0.1.
    pub kept_answer_ms: u64,
    /// Length of a queue name and the longer of lane and group name together. A longer one is refused with 413.
    ///
    /// Unit: bytes, from 1 to 411. Default: `411`. Since v0.1.
    pub names_bytes_max: usize,
    /// Length of one transaction id. A longer one is refused with 413.
    ///
    /// Unit: bytes, from 36 to 65535. Default: `65535`. Since v0.1.
    pub transaction_id_bytes_max: usize,
}

/// Raft timing.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawRaft {
    /// Between two heartbeats of a leader.
    ///
    /// Unit: ms, from 1 to 150000. Default: `50`. Since v0.1.
    pub heartbeat_ms: u64,
    /// Shortest time without a leader before a node stands for election.
    ///
    /// Unit: ms, at least twice `heartbeat_ms`, at most 300000. Default: `150`. Since v0.1.
    pub election_ms_min: u64,
    /// Longest such time. Each node draws its own from the range.
    ///
    /// Unit: ms, above `election_ms_min`, at most 600000. Default: `300`. Since v0.1.
    pub election_ms_max: u64,
}

/// A node's file: addresses, paths and budgets of one machine.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawNode {
    /// Path of the cluster file, from the folder of this file.
    ///
    /// Unit: path. Default: `"cluster.toml"`. Since v0.1.
    pub cluster_file: String,
    /// This node's number. A data directory of another node is refused.
    ///
    /// Unit: number, from 1 to 65535. Default: `1`. Since v0.1.
    pub node: u16,
    /// Where the node listens for HTTP. Port 0 takes a free port; the log says which. There is no authentication: whoever
    /// reaches the address may push, pop and delete.
    ///
    /// Unit: IP address and port. Default: `"127.0.0.1:6632"`. Since v0.1.
    pub listen: String,
    /// Where the node listens for the other nodes, if that is another address than theirs to reach it. Empty means the address
    /// of its own entry in `[[nodes]]`.
    ///
    /// Unit: IP address and port. Default: `""`. Since v0.1.
    pub peer_listen: String,
    /// Folder of all the node's files, from the folder of this file. It is made when missing.
    ///
    /// Unit: path. Default: `"laneway-data"`. Since v0.1.
    pub data_dir: String,
    #[serde(rename = "limits")]
    pub limits: RawNodeLimits,
    #[serde(rename = "storage")]
    pub storage: RawStorage,
    #[serde(rename = "http")]
    pub http: RawHttp,
}

/// Bounds of work in progress.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawNodeLimits {
    /// Commands that wait for the log or are in it. Beyond it requests are refused with 429.
    ///
    /// Unit: commands per partition, from 1 to 4294967295. Default: `16384`. Since v0.1.
    pub commands_max: u32,
    /// Payload that waits for the log or is in it. Beyond it pushes are refused with 429.
    ///
    /// Unit: bytes per partition, at least `entry_bytes_max`, at most 4294967295. Default: `268435456`. Since v0.1.
    pub in_flight_bytes_max: u32,
    /// Size at which a log entry takes no further command. One larger command still goes alone.
    ///
    /// Unit: bytes, from 1 to 4294967295. Default: `1048576`. Since v0.1.
    pub entry_bytes_max: u32,
    /// Pops that wait for messages. Beyond it a waiting pop is refused with 429.
    ///
    /// Unit: pops per node, from 0 to 4294967295. Default: `100000`. Since v0.1.
    pub parked_pops_max: u32,
    /// Messages of one pop's answer, as bytes. What has no room is given back uncharged; one larger message still goes alone.
    ///
    /// Unit: bytes, from 1. Default: `33554432`. Since v0.1.
    pub pop_bytes_max: u64,
    /// Messages of one pop's answer. A larger `batch` is cut to it.
    ///
    /// Unit: messages, from 1 to 4294967295. Default: `10000`. Since v0.1.
    pub pop_messages_max: u32,
    /// Acknowledgments of one request. A longer one is refused with 400, and nothing of it is done.
    ///
    /// Unit: acknowledgments, from 1 to 4294967295. Default: `20000`. Since v0.1.
    pub ack_items_max: u32,
    /// Message headers read to find an acknowledged transaction id that neither memory nor the dedup rows know.
    ///
    /// Unit: headers per acknowledgment, from 1 to 4294967295. Default: `10000`. Since v0.1.
    pub resolve_scan_max: u32,
    /// Transaction ids of leased messages held in memory. Beyond it they are read from disk.
    ///
    /// Unit: messages per partition, from 0 to 4294967295. Default: `1000000`. Since v0.1.
    pub span_cache_messages_max: u32,
    /// Dedup rows on disk. Beyond it pushes are refused with 429 until rows expire.
    ///
    /// Unit: bytes per partition, from 0. Default: `4294967296`. Since v0.1.
    pub dedup_bytes_max: u64,
    /// Free space of the file system below which pushes are refused with 507. Pops, acks and deletes still work.
    ///
    /// Unit: bytes, from 0. Default: `536870912`. Since v0.1.
    pub disk_free_bytes_min: u64,
    /// Wait of a request for a leader, before 503 `no_leader`.
    ///
    /// Unit: ms, from 1. Default: `3000`. Since v0.1.
    pub leader_wait_ms: u64,
    /// Wait for the outcome of a request that is in the log, before 503 `outcome_unknown`.
    ///
    /// Unit: ms, from 1. Default: `30000`. Since v0.1.
    pub outcome_wait_ms: u64,
}

/// Durable storage.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawStorage {
    /// Size of one segment of the write-ahead log.
    ///
    /// Unit: bytes, from 1048576 to 1073741824. Default: `67108864`. Since v0.1.
    pub wal_segment_bytes: u64,
    /// Segments kept before live payloads of the oldest are moved to backlog files.
    ///
    /// Unit: segments, from 2 to 4294967295. Default: `8`. Since v0.1.
    pub wal_segments_max: u32,
    /// Newest log entries held in memory.
    ///
    /// Unit: bytes per partition, from 0. Default: `33554432`. Since v0.1.
    pub tail_cache_bytes: u64,
    /// Time between two checkpoints of a partition that has changed. A longer one means less writing and a longer restart.
    ///
    /// Unit: ms, from 1. Default: `5000`. Since v0.1.
    pub checkpoint_ms_max: u64,
    /// Payload locations held in memory. Beyond it they go to the row store.
    ///
    /// Unit: locations per partition, from 1. Default: `1000000`. Since v0.1.
    pub runs_in_memory_max: usize,
    /// Dedup rows held in memory before they are written out.
    ///
    /// Unit: rows per partition, from 1. Default: `2000000`. Since v0.1.
    pub dedup_rows_in_memory_max: u64,
}

/// The HTTP gateway.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawHttp {
    /// Length of one request body. A longer one is refused with 413.
    ///
    /// Unit: bytes, from 1. Default: `67108864`. Since v0.1.
    pub body_bytes_max: usize,
    /// Request bodies held at one time. Beyond it requests are refused with 429.
    ///
    /// Unit: bytes, at least `body_bytes_max`. Default: `536870912`. Since v0.1.
    pub bodies_bytes_max: usize,
    /// Open connections. Further ones wait until one closes.
    ///
    /// Unit: connections, from 1. Default: `10000`. Since v0.1.
    pub connections_max: usize,
    /// Time without a complete request head after which a connection is closed, idle ones too. Longer than clients keep idle
    /// connections (the published ones: 90 s).
    ///
    /// Unit: ms, from 1. Default: `120000`. Since v0.1.
    pub head_read_timeout_ms: u64,
    /// Time without progress of a request's body after which the request is refused with 408.
    ///
    /// Unit: ms, from 1. Default: `30000`. Since v0.1.
    pub body_read_timeout_ms: u64,
    /// Time that running requests get at a stop. Waiting pops are answered at once.
    ///
    /// Unit: ms, from 0. Default: `10000`. Since v0.1.
    pub shutdown_timeout_ms: u64,
    /// Where a consumer group starts whose first pop does not say: `new` = with what is pushed from then on, `all` = with the
    /// oldest message kept. Queue mode always starts with the oldest.
    ///
    /// Unit: `new` or `all`. Default: `"new"`. Since v0.1.
    pub group_start_default: RawGroupStart,
}

/// Where a consumer group starts.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RawGroupStart {
    /// With what is pushed from then on.
    New,
    /// With the oldest message kept.
    All,
}

impl Default for RawCluster {
    fn default() -> Self {
        Self {
            name: "laneway".to_owned(),
            partitions: PARTITIONS_DEFAULT,
            generation_takeover_ms: GENERATION_TAKEOVER_MS_DEFAULT,
            limits: RawClusterLimits::default(),
            raft: RawRaft::default(),
            nodes: Vec::new(),
        }
    }
}

impl Default for RawClusterLimits {
    fn default() -> Self {
        let node = NodeLimits::default();
        Self {
            lanes_max: node.lanes_max,
            queues_max: node.queues_max,
            groups_max: node.groups_max,
            kept_answers_max: node.kept_answers_max,
            kept_answer_ms: node.kept_answer_ms,
            names_bytes_max: node.names_bytes_max,
            transaction_id_bytes_max: node.transaction_id_bytes_max,
        }
    }
}

impl Default for RawRaft {
    fn default() -> Self {
        let RaftOptions {
            heartbeat_ms,
            election_ms_min,
            election_ms_max,
        } = RaftOptions::default();
        Self {
            heartbeat_ms,
            election_ms_min,
            election_ms_max,
        }
    }
}

impl Default for RawNode {
    fn default() -> Self {
        Self {
            cluster_file: "cluster.toml".to_owned(),
            node: 1,
            listen: super::LISTEN_DEFAULT.to_owned(),
            peer_listen: String::new(),
            data_dir: super::DATA_DIR_DEFAULT.to_owned(),
            limits: RawNodeLimits::default(),
            storage: RawStorage::default(),
            http: RawHttp::default(),
        }
    }
}

impl Default for RawNodeLimits {
    fn default() -> Self {
        let node = NodeLimits::default();
        Self {
            commands_max: node.commands_max,
            in_flight_bytes_max: node.in_flight_bytes_max,
            entry_bytes_max: node.entry_bytes_max,
            parked_pops_max: node.parked_pops_max,
            pop_bytes_max: node.pop_bytes_max,
            pop_messages_max: node.pop_messages_max,
            ack_items_max: node.ack_items_max,
            resolve_scan_max: node.resolve_scan_max,
            span_cache_messages_max: node.span_cache_messages_max,
            dedup_bytes_max: node.dedup_bytes_max,
            disk_free_bytes_min: node.disk_free_bytes_min,
            leader_wait_ms: node.leader_wait_ms,
            outcome_wait_ms: node.outcome_wait_ms,
        }
    }
}

impl Default for RawStorage {
    fn default() -> Self {
        let storage = StorageOptions::default();
        Self {
            wal_segment_bytes: storage.wal_segment_bytes,
            wal_segments_max: storage.wal_segments_max,
            tail_cache_bytes: storage.tail_cache_bytes,
            checkpoint_ms_max: storage.checkpoint_ms_max,
            runs_in_memory_max: storage.runs_in_memory_max,
            dedup_rows_in_memory_max: storage.dedup_rows_in_memory_max,
        }
    }
}

impl Default for RawHttp {
    fn default() -> Self {
        let http = HttpOptions::default();
        let group_start_default = match http.group_start_default {
            GroupStart::Beginning => RawGroupStart::All,
            GroupStart::Registration | GroupStart::At(_) => RawGroupStart::New,
        };
        Self {
            body_bytes_max: http.body_bytes_max,
            bodies_bytes_max: http.bodies_bytes_max,
            connections_max: http.connections_max,
            head_read_timeout_ms: millis(http.head_read_timeout),
            body_read_timeout_ms: millis(http.body_read_timeout),
            shutdown_timeout_ms: millis(http.shutdown_timeout),
            group_start_default,
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
