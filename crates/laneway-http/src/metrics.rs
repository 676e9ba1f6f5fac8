//! Metrics in Prometheus' text format: names, help, and the writer. Labels are bounded: queues, partitions, verbs; never lanes.

use std::fmt::{Display, Write};

use laneway_node::{GroupStatus, Histogram, Metrics, NodeStatus, QueueMetrics};

use crate::counts::{Counts, STATUS_CLASSES, Verb};

/// Name and help text.
type Metric = (&'static str, &'static str);

/// A metric with one sample for each `T`.
type PerItem<T> = (Metric, fn(&T) -> u64);

const BUILD_INFO: Metric = ("laneway_build_info", "Always 1; the version is the label.");
const UPTIME: Metric = ("laneway_uptime_seconds", "Time since the start.");
const MEMORY: Metric = ("laneway_memory_resident_bytes", "Resident memory of the process.");
const CPU: Metric = ("laneway_cpu_seconds_total", "CPU time of the process.");
const DISK_FREE: Metric = (
    "laneway_disk_free_bytes",
    "Free bytes of the data directory's file system.",
);
const DISK_LOW: Metric = (
    "laneway_disk_low",
    "1 while pushes are refused because the disk is low.",
);
const PARKED_POPS: Metric = ("laneway_parked_pops", "Pops that wait for a message.");

const PUSHED: Metric = ("laneway_messages_pushed_total", "Messages pushed.");
const DUPLICATES: Metric = (
    "laneway_messages_duplicate_total",
    "Pushed items answered as duplicates.",
);
const DELIVERED: Metric = ("laneway_messages_delivered_total", "Messages delivered.");
const SETTLED: Metric = ("laneway_messages_settled_total", "Messages settled by acks.");
const DEAD_LETTERED: Metric = (
    "laneway_messages_dead_lettered_total",
    "Messages filed as dead letters.",
);
const EXPIRED_LEASES: Metric = ("laneway_leases_expired_total", "Leases that ran out.");

const QUEUE_READY: Metric = (
    "laneway_queue_ready_messages",
    "Per lane the most that any one named group has neither settled nor leased (without named groups: queue mode), summed over the lanes.",
);
const QUEUE_LEASED: Metric = ("laneway_queue_leased_messages", "Messages under live leases.");
const QUEUE_DEAD: Metric = ("laneway_queue_dead_letters", "Dead letters.");
const QUEUE_LANES: Metric = ("laneway_queue_lanes", "Lanes.");

const TERM: Metric = ("laneway_partition_term", "Raft term of the partition's group.");
const LEADER: Metric = (
    "laneway_partition_leader_node",
    "Node that leads the partition's group; 0 = none known.",
);
const LEADS: Metric = (
    "laneway_partition_leads",
    "1 if this node leads the partition and serves it.",
);
const LAST_INDEX: Metric = (
    "laneway_partition_last_index",
    "Last index in the partition's log.",
);
const COMMIT_INDEX: Metric = (
    "laneway_partition_commit_index",
    "Committed index of the partition's log.",
);
const APPLIED_INDEX: Metric = (
    "laneway_partition_applied_index",
    "Applied index of the partition's log.",
);
const CHECKPOINT_INDEX: Metric = (
    "laneway_partition_checkpoint_index",
    "Index of the newest checkpoint.",
);
const STOPPED: Metric = (
    "laneway_partition_stopped",
    "1 if the partition was stopped after repeated faults.",
);

const SYNC: Metric = ("laneway_wal_sync_seconds", "Time of one sync of the WAL.");
const COMMIT: Metric = (
    "laneway_commit_seconds",
    "From proposing an entry to having applied it.",
);
const WAL_BYTES: Metric = ("laneway_wal_bytes", "Bytes of WAL segments in use.");
const WAL_SYNCS: Metric = ("laneway_wal_syncs_total", "Syncs of the WAL.");
const BACKLOG: Metric = ("laneway_backlog_bytes", "Bytes of backlog files.");
const BACKLOG_LIVE: Metric = ("laneway_backlog_live_bytes", "Live bytes in backlog files.");
const DEDUP: Metric = ("laneway_dedup_bytes", "Bytes of dedup rows.");
const DAMAGED: Metric = (
    "laneway_damaged_files",
    "Files found damaged that are still needed; readyz and the log name them.",
);
const CHECKPOINTS: Metric = ("laneway_checkpoint_bytes", "Bytes of checkpoint files.");

const REQUESTS: Metric = ("laneway_http_requests_total", "HTTP requests answered.");
const CONNECTIONS: Metric = ("laneway_http_connections", "Open HTTP connections.");
const BODY_BYTES: Metric = ("laneway_http_body_bytes", "Bytes of request bodies held.");

/// Figures of the gateway at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatewayFigures {
    pub(crate) requests: u64,
    pub(crate) request_rate: f64,
    pub(crate) connections: u64,
    pub(crate) body_bytes: u64,
}

/// Everything, in the text format.
pub(crate) fn prometheus(
    status: &NodeStatus,
    metrics: &Metrics,
    gateway: &GatewayFigures,
    counts: &Counts,
) -> String {
    let mut out = Text(String::with_capacity(8 * 1024));
    process(&mut out, status, metrics);
    messages(&mut out, metrics);
    partitions(&mut out, status);
    storage(&mut out, status, metrics);
    http(&mut out, gateway, counts);
    out.0
}

fn process(out: &mut Text, status: &NodeStatus, metrics: &Metrics) {
    out.head(BUILD_INFO, "gauge");
    out.sample(BUILD_INFO.0, &[("version", status.version)], 1);
    out.gauge(UPTIME, status.uptime.as_secs_f64());
    out.gauge(MEMORY, metrics.memory_bytes);
    out.head(CPU, "counter");
    out.sample(CPU.0, &[("mode", "user")], metrics.cpu_seconds.0);
    out.sample(CPU.0, &[("mode", "system")], metrics.cpu_seconds.1);
    out.gauge(DISK_FREE, status.disk_free_bytes);
    out.gauge(DISK_LOW, u8::from(status.disk_low));
    out.gauge(PARKED_POPS, status.parked_pops);
}

fn messages(out: &mut Text, metrics: &Metrics) {
    out.counter(PUSHED, metrics.pushed);
    out.counter(DUPLICATES, metrics.duplicates);
    out.counter(DELIVERED, metrics.delivered);
    out.counter(SETTLED, metrics.settled);
    out.counter(DEAD_LETTERED, metrics.dead_lettered);
    out.counter(EXPIRED_LEASES, metrics.expired_leases);
    let per_queue: [PerItem<QueueMetrics>; 4] = [
        (QUEUE_READY, |queue| queue.ready),
        (QUEUE_LEASED, |queue| queue.leased),
        (QUEUE_DEAD, |queue| queue.dead),
        (QUEUE_LANES, |queue| queue.lanes),
    ];
    for (metric, value) in per_queue {
        out.head(metric, "gauge");
        for queue in &metrics.queues {
            out.sample(metric.0, &[("queue", &queue.queue)], value(queue));
        }
    }
}

fn partitions(out: &mut Text, status: &NodeStatus) {
    let per_partition: [PerItem<GroupStatus>; 8] = [
        (TERM, |group| group.term),
        (LEADER, |group| u64::from(group.leader.unwrap_or(0))),
        (LEADS, |group| u64::from(group.leads)),
        (LAST_INDEX, |group| group.last_index),
        (COMMIT_INDEX, |group| group.commit_index),
        (APPLIED_INDEX, |group| group.applied_index),
        (CHECKPOINT_INDEX, |group| group.checkpoint_index),
        (STOPPED, |group| u64::from(group.stopped.is_some())),
    ];
    for (metric, value) in per_partition {
        out.head(metric, "gauge");
        for group in &status.groups {
            out.sample(
                metric.0,
                &[("partition", &group.partition.to_string())],
                value(group),
            );
        }
    }
}

fn storage(out: &mut Text, status: &NodeStatus, metrics: &Metrics) {
    out.histogram(SYNC, &metrics.sync_seconds);
    out.histogram(COMMIT, &metrics.commit_seconds);
    out.gauge(WAL_BYTES, status.storage.wal_bytes);
    out.counter(WAL_SYNCS, status.storage.wal_syncs);
    out.gauge(BACKLOG, status.storage.backlog_bytes);
    out.gauge(BACKLOG_LIVE, status.storage.backlog_live_bytes);
    out.gauge(DEDUP, status.storage.dedup_bytes);
    out.gauge(CHECKPOINTS, status.storage.checkpoint_bytes);
    out.gauge(DAMAGED, status.storage.damaged_files);
}

fn http(out: &mut Text, gateway: &GatewayFigures, counts: &Counts) {
    out.head(REQUESTS, "counter");
    for verb in Verb::ALL {
        for (class, name) in STATUS_CLASSES.into_iter().enumerate() {
            let value = counts.requests(verb, class);
            if value > 0 {
                out.sample(REQUESTS.0, &[("verb", verb.name()), ("status", name)], value);
            }
        }
    }
    out.gauge(CONNECTIONS, gateway.connections);
    out.gauge(BODY_BYTES, gateway.body_bytes);
}

struct Text(String);

impl Text {
    fn head(&mut self, (name, help): Metric, kind: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn gauge(&mut self, metric: Metric, value: impl Display) {
        self.head(metric, "gauge");
        self.sample(metric.0, &[], value);
    }

    fn counter(&mut self, metric: Metric, value: impl Display) {
        self.head(metric, "counter");
        self.sample(metric.0, &[], value);
    }

    /// Buckets are cumulative in this format.
    fn histogram(&mut self, metric: Metric, histogram: &Histogram) {
        self.head(metric, "histogram");
        let bucket = format!("{}_bucket", metric.0);
        let mut seen = 0;
        let bounds = histogram
            .bounds
            .iter()
            .map(ToString::to_string)
            .chain([String::from("+Inf")]);
        for (at, bound) in bounds.enumerate() {
            seen += histogram.counts.get(at).copied().unwrap_or(0);
            self.sample(&bucket, &[("le", &bound)], seen);
        }
        self.sample(&format!("{}_sum", metric.0), &[], histogram.sum);
        self.sample(&format!("{}_count", metric.0), &[], seen);
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            self.0.push(if at == 0 { '{' } else { ',' });
            self.0.push_str(label);
            self.0.push_str("=\"");
            self.escaped(text);
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        self.line(format_args!(" {value}"));
    }

    fn escaped(&mut self, text: &str) {
        for char in text.chars() {
            match char {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                other => self.0.push(other),
            }
        }
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        self.0
            .write_fmt(text)
            .expect("a string takes all that is written");
        self.0.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use laneway_core::ids::PartitionId;
    use laneway_node::StorageStatus;

    use super::*;

    fn text() -> String {
        let group = |partition| GroupStatus {
            partition,
            term: 3,
            leader: Some(1),
            leads: true,
            last_index: 12,
            commit_index: 11,
            applied_index: 10,
            checkpoint_index: 9,
            stopped: None,
        };
        let status = NodeStatus {
            version: "0.1.0",
            cluster: "dev".to_owned(),
            cluster_id: "c".to_owned(),
            node: 1,
            uptime: Duration::from_millis(1500),
            data_dir: "d".to_owned(),
            disk_free_bytes: 5,
            disk_low: true,
            groups: vec![group(PartitionId::CATALOG), group(PartitionId(0))],
            storage: StorageStatus {
                wal_bytes: 64,
                ..StorageStatus::default()
            },
            parked_pops: 2,
        };
        let queue = |name: &str| QueueMetrics {
            queue: name.to_owned(),
            ready: 1,
            leased: 2,
            dead: 3,
            lanes: 4,
        };
        let metrics = Metrics {
            pushed: 7,
            sync_seconds: Histogram {
                bounds: vec![0.001, 0.01],
                counts: vec![4, 2, 1],
                sum: 0.5,
            },
            queues: vec![queue("orders"), queue("a\\b\"c")],
            cpu_seconds: (1.5, 0.25),
            ..Metrics::default()
        };
        let counts = Counts::new();
        counts.answered(Verb::Push, 201);
        let gateway = GatewayFigures {
            requests: 1,
            request_rate: 0.0,
            connections: 6,
            body_bytes: 0,
        };
        prometheus(&status, &metrics, &gateway, &counts)
    }

    #[test]
    fn text_holds_the_figures() {
        let text = text();
        for line in [
            "laneway_build_info{version=\"0.1.0\"} 1",
            "laneway_uptime_seconds 1.5",
            "laneway_cpu_seconds_total{mode=\"system\"} 0.25",
            "laneway_disk_low 1",
            "laneway_messages_pushed_total 7",
            "laneway_queue_ready_messages{queue=\"orders\"} 1",
            "laneway_queue_dead_letters{queue=\"a\\\\b\\\"c\"} 3",
            "laneway_partition_term{partition=\"catalog\"} 3",
            "laneway_partition_leader_node{partition=\"0\"} 1",
            "laneway_wal_sync_seconds_bucket{le=\"0.001\"} 4",
            "laneway_wal_sync_seconds_bucket{le=\"0.01\"} 6",
            "laneway_wal_sync_seconds_bucket{le=\"+Inf\"} 7",
            "laneway_wal_sync_seconds_sum 0.5",
            "laneway_wal_sync_seconds_count 7",
            "laneway_commit_seconds_bucket{le=\"+Inf\"} 0",
            "laneway_wal_bytes 64",
            "laneway_http_requests_total{verb=\"push\",status=\"2xx\"} 1",
            "laneway_http_connections 6",
        ] {
            assert!(
                text.lines().any(|written| written == line),
                "no line {line} in\n{text}"
            );
        }
    }

    #[test]
    fn every_metric_has_help_and_type_once_before_its_samples() {
        let text = text();
        let mut known = std::collections::BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                assert!(known.insert(rest.split(' ').next().unwrap()), "{line} twice");
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                let base = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|end| name.strip_suffix(end));
                assert!(
                    known.contains(name) || base.is_some_and(|base| known.contains(base)),
                    "{line}"
                );
                assert!(name.starts_with("laneway_"), "{line}");
            }
        }
        assert_eq!(text.matches("# HELP ").count(), text.matches("# TYPE ").count());
    }
}
