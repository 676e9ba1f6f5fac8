//! `GET /health`, `/readyz`, `/admin/v1/status`, `/admin/v1/digest`

use serde::{Deserialize, Serialize};

/// Answer of `/health` and `/livez`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthResponse {
    /// `healthy`, or `settling` while the node cannot serve.
    pub status: String,
    /// Always `laneway`.
    pub engine: String,
    /// Of the program.
    pub version: String,
}

/// Answer of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyResponse {
    /// The node serves all partitions.
    pub ready: bool,
    /// What it lacks.
    pub reasons: Vec<String>,
}

/// Answer of `/admin/v1/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusResponse {
    /// Of the program.
    pub version: String,
    /// Configured name of the cluster.
    pub cluster: String,
    /// Cluster id of the data directory.
    pub cluster_id: String,
    /// This node's number.
    pub node: u16,
    /// Since its start.
    pub uptime_seconds: f64,
    /// The node serves all partitions.
    pub ready: bool,
    /// What it lacks.
    pub reasons: Vec<String>,
    /// Data directory.
    pub data_dir: String,
    /// Free bytes of its file system.
    pub disk_free_bytes: u64,
    /// Pushes are refused because the disk is low.
    pub disk_low: bool,
    /// Pops that wait.
    pub parked_pops: u64,
    /// The catalog, then the partitions.
    pub groups: Vec<GroupStatus>,
    /// Storage figures.
    pub storage: StorageStatus,
    /// Gateway figures.
    pub http: HttpStatus,
}

/// One Raft group as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its number, or `catalog`.
    pub partition: String,
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
    /// Why it was stopped, if it was.
    pub stopped: Option<String>,
}

/// Bytes by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageStatus {
    /// WAL segments in use.
    pub wal_bytes: u64,
    /// Backlog files.
    pub backlog_bytes: u64,
    /// Live bytes in them.
    pub backlog_live_bytes: u64,
    /// Dedup rows.
    pub dedup_bytes: u64,
    /// Checkpoint files.
    pub checkpoint_bytes: u64,
    /// Syncs of the WAL since the start.
    pub wal_syncs: u64,
}

/// The gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpStatus {
    /// Open connections.
    pub connections: u64,
    /// Requests answered since the start.
    pub requests: u64,
    /// Bytes of request bodies held.
    pub body_bytes: u64,
}

/// Answer of `/admin/v1/digest`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestResponse {
    /// The catalog, then the partitions.
    pub groups: Vec<GroupDigest>,
}

/// State digest of one group at one applied index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupDigest {
    /// Its number, or `catalog`.
    pub partition: String,
    /// At this index.
    pub applied_index: u64,
    /// 16 hex digits.
    pub digest: String,
}
