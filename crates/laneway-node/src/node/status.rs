//! What a node tells of itself.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use laneway_core::ids::PartitionId;
use laneway_storage::DamagedFile;

use super::Node;
use crate::api::{GroupDigest, GroupStatus, Metrics, NodeStatus, Readiness, RequestError, StorageStatus};
use crate::partition::PartitionHandle;
use crate::process;

/// Longest wait for the leaders' word on the queues.
const GAUGES_WAIT: Duration = Duration::from_millis(500);

impl Node {
    /// Whether it serves all partitions, and what it lacks.
    ///
    /// Damaged files are among the reasons, but do not make it unready: nearly everything is served, and a balancer that
    /// took the node away for one bad block would take all the rest away, too.
    pub fn readiness(&self) -> Readiness {
        let partitions = self.inner.partitions.iter().map(|partition| partition.id);
        let groups = [PartitionId::CATALOG].into_iter().chain(partitions);
        let mut reasons: Vec<String> = match self.apart() {
            // One reason for all.
            Some(why) => vec![why],
            None => groups.filter_map(|group| self.lack_of(group)).collect(),
        };
        if self.waits_for_room() {
            reasons.push(format!(
                "the disk of {} is full and writes wait: free some room",
                self.inner.data_dir.display()
            ));
        }
        let ready = reasons.is_empty();
        reasons.extend(self.damage());
        Readiness { ready, reasons }
    }

    fn waits_for_room(&self) -> bool {
        self.inner.groups().any(|group| group.metrics().waits_for_room)
    }

    /// One line per damaged file that is still needed.
    fn damage(&self) -> Vec<String> {
        let line = |(partition, damaged)| {
            format!("partition {partition}: {damaged}; requests that need it fail, all others are served")
        };
        self.damaged_files().map(line).collect()
    }

    /// Files found damaged that are still needed, by who needs them.
    pub(crate) fn damaged_files(&self) -> impl Iterator<Item = (PartitionId, DamagedFile)> {
        self.inner.partitions.iter().flat_map(|partition| {
            let damaged = partition.stores().map(|stores| stores.damaged());
            damaged
                .unwrap_or_default()
                .into_iter()
                .map(|damaged| (partition.id, damaged))
        })
    }

    /// The node for people and tools.
    pub async fn status(&self) -> NodeStatus {
        let inner = &self.inner;
        let mut groups = vec![self.catalog_status()];
        groups.extend(
            inner
                .partitions
                .iter()
                .map(|partition| partition_status(partition)),
        );
        let identity = inner.standing.identity();
        NodeStatus {
            version: env!("CARGO_PKG_VERSION"),
            cluster_id: format!("{:016x}", identity.cluster_id),
            node: identity.node,
            cluster: identity.cluster,
            uptime: inner.started.elapsed(),
            data_dir: inner.data_dir.display().to_string(),
            disk_free_bytes: inner.disk.free_bytes(),
            disk_low: inner.disk.is_low(),
            groups,
            storage: self.storage_status(),
            parked_pops: inner.parking.parked(),
        }
    }

    fn catalog_status(&self) -> GroupStatus {
        let catalog = &self.inner.catalog;
        let checkpoint = catalog.checkpoint_index.load(Ordering::Acquire);
        let leads = catalog.serving.load(Ordering::Acquire);
        group_status(
            PartitionId::CATALOG,
            catalog.group(),
            leads,
            checkpoint,
            catalog.stopped(),
        )
    }

    fn storage_status(&self) -> StorageStatus {
        let inner = &self.inner;
        let wal = inner.wal.stats();
        let mut status = StorageStatus {
            wal_bytes: inner
                .wal
                .segments()
                .iter()
                .map(|segment| segment.file_bytes)
                .sum(),
            checkpoint_bytes: inner.checkpoint_bytes.load(Ordering::Relaxed),
            wal_syncs: wal.fsyncs,
            ..StorageStatus::default()
        };
        let mut damaged = BTreeSet::new();
        for stores in inner
            .partitions
            .iter()
            .filter_map(|partition| partition.stores().ok())
        {
            // Partitions share the log's segments.
            damaged.extend(stores.damaged().into_iter().map(|damaged| damaged.file));
            let payloads = stores.payloads.stats();
            status.backlog_bytes += payloads.backlog_bytes;
            status.backlog_live_bytes += payloads.backlog_live_bytes;
            status.dedup_bytes += stores.dedup.stats().file_bytes;
        }
        status.damaged_files = u64::try_from(damaged.len()).expect("a length fits u64");
        status
    }

    /// Digest of every group's state at its applied index.
    pub async fn digests(&self) -> Result<Vec<GroupDigest>, RequestError> {
        let catalog = {
            let applied_index = self.inner.catalog.applied_index.load(Ordering::Acquire);
            let digest = self.inner.catalog.machine().digest();
            GroupDigest {
                partition: PartitionId::CATALOG,
                applied_index,
                digest,
            }
        };
        let mut digests = vec![catalog];
        for partition in &self.inner.partitions {
            let digest = partition.look(|running| GroupDigest {
                partition: running.id,
                applied_index: running.applied.map_or(0, |applied| applied.index),
                digest: running.machine.digest(),
            });
            digests.push(digest.await?);
        }
        Ok(digests)
    }

    /// Figures for monitoring. Totals are of the replicas here: the same on every node, but for what a replica has yet to
    /// receive. Queues are left out while a partition has no leader.
    pub async fn metrics(&self) -> Metrics {
        let inner = &self.inner;
        let mut metrics = Metrics {
            duplicates: inner.counters.duplicates.load(Ordering::Relaxed),
            commit_seconds: inner.counters.commit_seconds.read(),
            sync_seconds: process::wal_histogram(&inner.wal.stats()),
            memory_bytes: process::memory_bytes(),
            cpu_seconds: process::cpu_seconds(),
            ..Metrics::default()
        };
        for partition in &inner.partitions {
            if let Ok(totals) = partition.look(|running| running.machine.totals()).await {
                metrics.pushed += totals.pushed;
                metrics.delivered += totals.delivered;
                metrics.settled += totals.settled;
                metrics.dead_lettered += totals.dead_lettered;
                metrics.expired_leases += totals.expired_leases;
            }
        }
        // Monitoring must have an answer above all when a partition has none.
        let gauges = tokio::time::timeout(GAUGES_WAIT, self.queue_gauges()).await;
        metrics.queues = gauges.ok().and_then(Result::ok).unwrap_or_default();
        metrics
    }
}
fn partition_status(partition: &PartitionHandle) -> GroupStatus {
    let checkpoint = partition.checkpoint_index.load(Ordering::Acquire);
    let leads = partition.serving.load(Ordering::Acquire);
    group_status(
        partition.id,
        partition.group(),
        leads,
        checkpoint,
        partition.stopped(),
    )
}

fn group_status(
    partition: PartitionId,
    group: Option<laneway_raft::Group>,
    leads: bool,
    checkpoint_index: u64,
    stopped: Option<String>,
) -> GroupStatus {
    let metrics = group.map(|group| group.metrics());
    GroupStatus {
        partition,
        term: metrics.as_ref().map_or(0, |metrics| metrics.term),
        leader: metrics
            .as_ref()
            .and_then(|metrics| metrics.leader)
            .map(laneway_raft::node_number),
        leads,
        last_index: metrics
            .as_ref()
            .and_then(|metrics| metrics.last_index)
            .unwrap_or(0),
        commit_index: metrics
            .as_ref()
            .and_then(|metrics| metrics.committed)
            .unwrap_or(0),
        applied_index: metrics.as_ref().and_then(|metrics| metrics.applied).unwrap_or(0),
        checkpoint_index,
        stopped,
    }
}
