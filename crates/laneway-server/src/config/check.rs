//! The range of every value.

use std::path::Path;

use laneway_node::{NAMES_BYTES_MAX, PARTITIONS_MAX};

use super::{ConfigError, RawCluster, RawNode};

/// Longest name of a cluster, in bytes.
const CLUSTER_NAME_BYTES_MAX: usize = 64;

/// Smallest WAL segment, in bytes.
const WAL_SEGMENT_BYTES_MIN: u64 = 1024 * 1024;

/// See [`WAL_SEGMENT_BYTES_MIN`].
const WAL_SEGMENT_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Longest time of Raft's timing, in ms: a node without a leader for minutes serves nobody.
const RAFT_MS_MAX: u64 = 600_000;

/// Shortest time before new data may take a node's place, in ms: below it a short hiccup would pass for a death.
const TAKEOVER_MS_MIN: u64 = 100;

/// See [`TAKEOVER_MS_MIN`].
const TAKEOVER_MS_MAX: u64 = 3_600_000;

/// Longest transaction id that fits a stored frame, in bytes.
const TRANSACTION_ID_BYTES_MAX: u64 = 65_535;

pub(super) fn cluster(raw: &RawCluster, checker: &Checker<'_>) -> Result<(), ConfigError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if raw.name.is_empty() || raw.name.len() > CLUSTER_NAME_BYTES_MAX || !raw.name.chars().all(plain) {
        return Err(checker.refusal(
            "name",
            quoted(&raw.name),
            "1 to 64 letters, digits, dots, underscores or hyphens",
        ));
    }
    checker.within("partitions", raw.partitions.into(), 1, PARTITIONS_MAX.into())?;
    checker.within(
        "generation_takeover_ms",
        raw.generation_takeover_ms,
        TAKEOVER_MS_MIN,
        TAKEOVER_MS_MAX,
    )?;
    let limits = &raw.limits;
    checker.at_least("limits.lanes_max", limits.lanes_max.into(), 1)?;
    checker.at_least("limits.queues_max", limits.queues_max.into(), 1)?;
    checker.at_least("limits.groups_max", limits.groups_max.into(), 1)?;
    checker.at_least("limits.kept_answers_max", limits.kept_answers_max.into(), 1)?;
    checker.at_least("limits.kept_answer_ms", limits.kept_answer_ms, 1)?;
    checker.within(
        "limits.names_bytes_max",
        count(limits.names_bytes_max),
        1,
        count(NAMES_BYTES_MAX),
    )?;
    let transaction_id_bytes_max = count(limits.transaction_id_bytes_max);
    checker.within(
        "limits.transaction_id_bytes_max",
        transaction_id_bytes_max,
        36,
        TRANSACTION_ID_BYTES_MAX,
    )?;
    let timing = &raw.raft;
    checker.within("raft.heartbeat_ms", timing.heartbeat_ms, 1, RAFT_MS_MAX / 4)?;
    checker.within_other(
        ("raft.election_ms_min", timing.election_ms_min),
        (timing.heartbeat_ms * 2, "twice raft.heartbeat_ms"),
        RAFT_MS_MAX / 2,
    )?;
    checker.within_other(
        ("raft.election_ms_max", timing.election_ms_max),
        (timing.election_ms_min + 1, "above raft.election_ms_min"),
        RAFT_MS_MAX,
    )
}

pub(super) fn node(raw: &RawNode, checker: &Checker<'_>) -> Result<(), ConfigError> {
    checker.at_least("node", raw.node.into(), 1)?;
    if raw.data_dir.is_empty() || raw.data_dir.contains('\0') {
        return Err(checker.refusal("data_dir", quoted(&raw.data_dir), "the path of a folder"));
    }
    let limits = &raw.limits;
    checker.at_least("limits.commands_max", limits.commands_max.into(), 1)?;
    checker.at_least_other(
        ("limits.in_flight_bytes_max", limits.in_flight_bytes_max.into()),
        (limits.entry_bytes_max.into(), "limits.entry_bytes_max"),
    )?;
    checker.at_least("limits.entry_bytes_max", limits.entry_bytes_max.into(), 1)?;
    checker.at_least("limits.pop_bytes_max", limits.pop_bytes_max, 1)?;
    checker.at_least("limits.pop_messages_max", limits.pop_messages_max.into(), 1)?;
    checker.at_least("limits.ack_items_max", limits.ack_items_max.into(), 1)?;
    checker.at_least("limits.resolve_scan_max", limits.resolve_scan_max.into(), 1)?;
    checker.at_least("limits.leader_wait_ms", limits.leader_wait_ms, 1)?;
    checker.at_least("limits.outcome_wait_ms", limits.outcome_wait_ms, 1)?;
    let storage = &raw.storage;
    checker.within(
        "storage.wal_segment_bytes",
        storage.wal_segment_bytes,
        WAL_SEGMENT_BYTES_MIN,
        WAL_SEGMENT_BYTES_MAX,
    )?;
    checker.at_least("storage.wal_segments_max", storage.wal_segments_max.into(), 2)?;
    checker.at_least("storage.checkpoint_ms_max", storage.checkpoint_ms_max, 1)?;
    checker.at_least("storage.runs_in_memory_max", count(storage.runs_in_memory_max), 1)?;
    checker.at_least(
        "storage.dedup_rows_in_memory_max",
        storage.dedup_rows_in_memory_max,
        1,
    )?;
    let http = &raw.http;
    checker.at_least("http.body_bytes_max", count(http.body_bytes_max), 1)?;
    checker.at_least_other(
        ("http.bodies_bytes_max", count(http.bodies_bytes_max)),
        (count(http.body_bytes_max), "http.body_bytes_max"),
    )?;
    checker.at_least("http.connections_max", count(http.connections_max), 1)?;
    checker.at_least("http.head_read_timeout_ms", http.head_read_timeout_ms, 1)?;
    checker.at_least("http.body_read_timeout_ms", http.body_read_timeout_ms, 1)
}

/// As a text of the file, so that an empty one and blanks can be seen.
pub(super) fn quoted(text: &str) -> String {
    format!("{text:?}")
}

fn count(value: usize) -> u64 {
    u64::try_from(value).expect("usize is at most 64 bits")
}

/// Refuses values of one file.
pub(super) struct Checker<'a> {
    pub(super) path: &'a Path,
}

impl Checker<'_> {
    pub(super) fn at_least(&self, key: &'static str, value: u64, min: u64) -> Result<(), ConfigError> {
        if value >= min {
            Ok(())
        } else {
            Err(self.refusal(key, value, format_args!("at least {min}")))
        }
    }

    fn within(&self, key: &'static str, value: u64, min: u64, max: u64) -> Result<(), ConfigError> {
        let fits = (min..=max).contains(&value);
        if fits {
            Ok(())
        } else {
            Err(self.refusal(key, value, format_args!("from {min} to {max}")))
        }
    }

    /// [`Checker::at_least`] with a bound that comes from another key, so that the line names both.
    fn at_least_other(
        &self,
        (key, value): (&'static str, u64),
        (min, why): (u64, &str),
    ) -> Result<(), ConfigError> {
        if value >= min {
            Ok(())
        } else {
            Err(self.refusal(key, value, format_args!("at least {min}, {why}")))
        }
    }

    /// [`Checker::within`] with a lower bound that comes from another key.
    fn within_other(
        &self,
        (key, value): (&'static str, u64),
        (min, why): (u64, &str),
        max: u64,
    ) -> Result<(), ConfigError> {
        let fits = (min..=max).contains(&value);
        if fits {
            Ok(())
        } else {
            let wanted = format_args!("from {min} ({why}) to {max}");
            Err(self.refusal(key, value, wanted))
        }
    }

    pub(super) fn refusal(
        &self,
        key: &'static str,
        value: impl ToString,
        wanted: impl ToString,
    ) -> ConfigError {
        ConfigError::Value {
            path: self.path.to_path_buf(),
            key,
            value: value.to_string(),
            wanted: wanted.to_string(),
        }
    }
}
