//! Configuration: two TOML files, read once, checked once, passed as an argument.
//!
//! [`RawCluster`] and [`RawNode`] are the files as written; [`Config`] is what they mean, with every range proven.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use laneway_core::settings::GroupStart;
use laneway_http::HttpOptions;
use laneway_node::{NodeLimits, NodeOptions, RaftOptions, StorageOptions};

use check::{Checker, quoted};
pub use raw::{
    RawCluster, RawClusterLimits, RawClusterNode, RawGroupStart, RawHttp, RawNode, RawNodeLimits, RawRaft,
    RawStorage,
};

mod check;
mod peers;
mod raw;

/// Where a node listens unless told otherwise.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:6632";

/// Where a node keeps its data unless told otherwise.
pub const DATA_DIR_DEFAULT: &str = "laneway-data";

/// Largest configuration file read, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The node.
    pub node: NodeOptions,
    /// Its gateway.
    pub http: HttpOptions,
}

/// Why a configuration is refused. Each message is one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("{}: {reason}: {remedy}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not; part of the message, so no source of it.
        reason: io::Error,
        /// What to do.
        remedy: String,
    },
    /// A file is no configuration.
    #[error("{}:{line}: {message}: correct the line; docs/configuration.md lists every key", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What the parser says, behind the key if it is about a value.
        message: String,
    },
    /// A value is out of its range.
    #[error("{}: {key} = {value}: it must be {wanted}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Dotted key.
        key: &'static str,
        /// As given.
        value: String,
        /// The range.
        wanted: String,
    },
}

impl Config {
    /// Reads a node's file and the cluster file that it names.
    pub fn load(node_file: &Path) -> Result<Self, ConfigError> {
        let remedy = "give the path of a readable TOML file";
        let raw_node = parse_node(node_file, &read(node_file, remedy)?)?;
        let folder = node_file.parent().unwrap_or_else(|| Path::new(""));
        let cluster_file = folder.join(&raw_node.cluster_file);
        let remedy = format!(
            "make that file, an empty one will do, or correct cluster_file in {}",
            node_file.display()
        );
        let raw_cluster = parse_cluster(&cluster_file, &read(&cluster_file, &remedy)?)?;
        Self::check(&raw_cluster, &cluster_file, &raw_node, node_file)
    }

    /// Proves every range. The paths are for messages and for paths relative to the node's file.
    pub fn check(
        raw_cluster: &RawCluster,
        cluster_file: &Path,
        raw_node: &RawNode,
        node_file: &Path,
    ) -> Result<Self, ConfigError> {
        let cluster_checker = Checker { path: cluster_file };
        check::cluster(raw_cluster, &cluster_checker)?;
        let checker = Checker { path: node_file };
        check::node(raw_node, &checker)?;
        let Ok(listen) = raw_node.listen.parse() else {
            return Err(checker.refusal(
                "listen",
                quoted(&raw_node.listen),
                "an IP address and a port up to 65535, such as 127.0.0.1:6632",
            ));
        };
        let peers = peers::options(raw_cluster, &cluster_checker, raw_node, &checker)?;
        let folder = node_file.parent().unwrap_or_else(|| Path::new(""));
        let node = NodeOptions {
            data_dir: folder.join(&raw_node.data_dir),
            node: raw_node.node,
            cluster: raw_cluster.name.clone(),
            partitions: raw_cluster.partitions,
            limits: limits(&raw_cluster.limits, &raw_node.limits),
            storage: storage(&raw_node.storage),
            raft: raft(&raw_cluster.raft),
            peers,
        };
        Ok(Self {
            listen,
            node,
            http: http(&raw_node.http),
        })
    }

    /// A one-node configuration with every default. `partitions` 0 takes those of an existing data directory.
    pub fn dev(data_dir: PathBuf, partitions: u16, listen: SocketAddr) -> Self {
        let mut node = NodeOptions::new(data_dir);
        node.partitions = partitions;
        Self {
            listen,
            node,
            http: HttpOptions::default(),
        }
    }
}

/// Reads the text of a node's file.
pub fn parse_node(path: &Path, text: &str) -> Result<RawNode, ConfigError> {
    toml::from_str(text).map_err(|error| parse_error(path, text, &error))
}

/// Reads the text of a cluster file.
pub fn parse_cluster(path: &Path, text: &str) -> Result<RawCluster, ConfigError> {
    toml::from_str(text).map_err(|error| parse_error(path, text, &error))
}

fn read(path: &Path, remedy: &str) -> Result<String, ConfigError> {
    let refused = |reason| ConfigError::Read {
        path: path.to_path_buf(),
        reason,
        remedy: remedy.to_owned(),
    };
    let other = |reason: &str| refused(io::Error::other(reason));
    let metadata = fs::metadata(path).map_err(refused)?;
    // A pipe would wait for ever.
    if !metadata.is_file() {
        return Err(other("it is not a file"));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(other("it is over 1 MiB"));
    }
    let bytes = fs::read(path).map_err(refused)?;
    String::from_utf8(bytes).map_err(|_| other("it is not UTF-8 text"))
}

fn parse_error(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
    let line = before.matches('\n').count() + 1;
    let mut message = in_plain_words(error.message());
    if message == "duplicate key" {
        let key = error.span().and_then(|span| text.get(span)).unwrap_or_default();
        message = format!("{}: it was given before", key.trim());
    }
    if let Some(key) = key_of_value(before) {
        message = format!("{key}: {message}");
    }
    ConfigError::Parse {
        path: path.to_path_buf(),
        line,
        message,
    }
}

/// What the parser says on one line, with ranges for the names of Rust's types.
fn in_plain_words(message: &str) -> String {
    let mut message = message.lines().collect::<Vec<_>>().join(", ");
    let types = [
        ("u16", u64::from(u16::MAX)),
        ("u32", u64::from(u32::MAX)),
        ("u64", u64::MAX),
        ("usize", u64::MAX),
    ];
    for (name, max) in types {
        if let Some(before) = message.strip_suffix(&format!("expected {name}")) {
            message = format!("{before}expected a whole number from 0 to {max}");
        }
    }
    message.replace(" as i128", "")
}

/// The dotted key whose value starts where `before` ends, if one does.
fn key_of_value(before: &str) -> Option<String> {
    let line = before.lines().next_back()?;
    let left = line.trim_end().strip_suffix('=')?;
    let key = left.rsplit(['{', ',']).next()?.trim();
    let is_table = |line: &&str| line.starts_with('[') && line.ends_with(']');
    let table = before.lines().map(str::trim).rfind(is_table);
    let table = table.map(|table| table.trim_matches(['[', ']']).trim());
    Some(table.map_or_else(|| key.to_owned(), |table| format!("{table}.{key}")))
}

fn limits(cluster: &RawClusterLimits, node: &RawNodeLimits) -> NodeLimits {
    NodeLimits {
        commands_max: node.commands_max,
        in_flight_bytes_max: node.in_flight_bytes_max,
        entry_bytes_max: node.entry_bytes_max,
        parked_pops_max: node.parked_pops_max,
        lanes_max: cluster.lanes_max,
        queues_max: cluster.queues_max,
        groups_max: cluster.groups_max,
        kept_answers_max: cluster.kept_answers_max,
        kept_answer_ms: cluster.kept_answer_ms,
        pop_bytes_max: node.pop_bytes_max,
        pop_messages_max: node.pop_messages_max,
        ack_items_max: node.ack_items_max,
        resolve_scan_max: node.resolve_scan_max,
        span_cache_messages_max: node.span_cache_messages_max,
        dedup_bytes_max: node.dedup_bytes_max,
        disk_free_bytes_min: node.disk_free_bytes_min,
        leader_wait_ms: node.leader_wait_ms,
        outcome_wait_ms: node.outcome_wait_ms,
        names_bytes_max: cluster.names_bytes_max,
        transaction_id_bytes_max: cluster.transaction_id_bytes_max,
    }
}

fn storage(raw: &RawStorage) -> StorageOptions {
    StorageOptions {
        wal_segment_bytes: raw.wal_segment_bytes,
        wal_segments_max: raw.wal_segments_max,
        tail_cache_bytes: raw.tail_cache_bytes,
        checkpoint_ms_max: raw.checkpoint_ms_max,
        runs_in_memory_max: raw.runs_in_memory_max,
        dedup_rows_in_memory_max: raw.dedup_rows_in_memory_max,
    }
}

fn raft(raw: &RawRaft) -> RaftOptions {
    RaftOptions {
        heartbeat_ms: raw.heartbeat_ms,
        election_ms_min: raw.election_ms_min,
        election_ms_max: raw.election_ms_max,
    }
}

fn http(raw: &RawHttp) -> HttpOptions {
    HttpOptions {
        body_bytes_max: raw.body_bytes_max,
        bodies_bytes_max: raw.bodies_bytes_max,
        connections_max: raw.connections_max,
        head_read_timeout: Duration::from_millis(raw.head_read_timeout_ms),
        body_read_timeout: Duration::from_millis(raw.body_read_timeout_ms),
        shutdown_timeout: Duration::from_millis(raw.shutdown_timeout_ms),
        group_start_default: match raw.group_start_default {
            RawGroupStart::New => GroupStart::Registration,
            RawGroupStart::All => GroupStart::Beginning,
        },
    }
}

#[cfg(test)]
mod tests;
