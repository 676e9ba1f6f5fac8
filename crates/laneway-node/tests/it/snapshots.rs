//! A node that was away too long, or lost all it had, comes back with everything.

use std::collections::BTreeMap;
use std::path::Path;

use laneway_core::command::AckStatus;
use laneway_core::reply::AckedItem;
use laneway_node::{AckOutcome, ClusterChange, GroupDigest, Node, NodeOptions, PushReply, PushRequest};
use tokio::time::{Duration, Instant};

use crate::support::{ack, ack_item, item, payloads, pop, push};
use crate::three::Cluster;

/// Longest wait for a snapshot to arrive.
const PATIENCE: Duration = Duration::from_secs(120);

const LANES: usize = 12;

/// Little log, so that little is much too much for it.
fn little_log(options: &mut NodeOptions) {
    options.storage.wal_segment_bytes = 128 * 1024;
    options.storage.wal_segments_max = 4;
    options.storage.checkpoint_ms_max = 200;
}

fn payload(round: usize, lane: usize) -> String {
    format!("\"{round}/{lane}-{}\"", "x".repeat(1_500))
}

/// One message to each lane in each round, repeated until it is known to be stored: leaders may change under this load.
async fn fill(node: &Node, rounds: std::ops::Range<usize>) {
    let deadline = Instant::now() + PATIENCE;
    for round in rounds {
        let mut left: Vec<usize> = (0..LANES).collect();
        while !left.is_empty() {
            let items = left.iter().map(|&lane| {
                let id = format!("{round}/{lane}");
                item("q", &format!("lane{lane}"), &id, &payload(round, lane))
            });
            let request = PushRequest {
                request_id: None,
                items: items.collect(),
            };
            match node.push(request).await {
                Ok(replies) => {
                    let mut replies = replies.into_iter();
                    left.retain(|_| matches!(replies.next(), None | Some(PushReply::Refused(_))));
                }
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            assert!(
                Instant::now() < deadline,
                "round {round}: {left:?} are not stored"
            );
        }
    }
}

/// Waits until all replicas have applied the same, and it is the same.
async fn alike(cluster: &Cluster) {
    let deadline = Instant::now() + PATIENCE;
    let mut seen: BTreeMap<(u16, u64), u64> = BTreeMap::new();
    loop {
        let mut all: Vec<Vec<GroupDigest>> = Vec::new();
        for at in 0..3 {
            // A replica that is being opened on a snapshot answers a moment later.
            if let Ok(digests) = cluster.node(at).digests().await {
                all.push(digests);
            }
        }
        for digest in all.iter().flatten() {
            let at = (digest.partition.0, digest.applied_index);
            let known = *seen.entry(at).or_insert(digest.digest);
            assert_eq!(known, digest.digest, "partition {} at index {}", at.0, at.1);
        }
        let indexes = |digests: &Vec<GroupDigest>| {
            digests
                .iter()
                .map(|digest| digest.applied_index)
                .collect::<Vec<_>>()
        };
        if all.len() == 3 && all.iter().all(|digests| indexes(digests) == indexes(&all[0])) {
            return;
        }
        assert!(Instant::now() < deadline, "{all:?}");
        tokio::task::yield_now().await;
    }
}

/// Partitions of a node that live on a snapshot.
fn received(dir: &Path) -> usize {
    let partitions = std::fs::read_dir(dir.join("partitions")).expect("the node has partitions");
    partitions
        .flatten()
        .filter(|partition| partition.path().join("current").exists())
        .count()
}

/// Reads everything there is from a node that leads everything, and settles it.
async fn serves_all(cluster: &Cluster, number: u16, rounds: usize) {
    let node = cluster.node(usize::from(number) - 1);
    let change = ClusterChange::TransferLeader(None, number);
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = node.change_cluster(change).await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::task::yield_now().await;
    }
    for (round, lane) in [(0, 0), (rounds / 2, 3), (rounds - 1, LANES - 1)] {
        let again = item("q", &format!("lane{lane}"), &format!("{round}/{lane}"), "1");
        let replies = push(node, vec![again]).await;
        assert!(
            matches!(&replies[0], PushReply::Duplicate(at) if at.offset.0 == round as u64),
            "{replies:?}"
        );
    }
    for _ in 0..LANES {
        let popped = pop(node, "q").await;
        let lane = popped.lanes.first().expect("a lane is left");
        let name = &lane.messages[0].transaction_id;
        let number: usize = name
            .split('/')
            .next_back()
            .and_then(|number| number.parse().ok())
            .expect("names end in a number");
        let all: Vec<String> = (0..rounds).map(|round| payload(round, number)).collect();
        assert_eq!(payloads(&popped), all, "lane{number}");
        let last = format!("{}/{number}", rounds - 1);
        let item = ack_item(lane.lane, &last, AckStatus::Completed, popped.lease_id);
        let done = ack(node, item).await;
        assert_eq!(done.outcome, AckOutcome::Applied(AckedItem::Done));
    }
    assert!(payloads(&pop(node, "q").await).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follower_behind_the_purged_log_comes_back_by_snapshot() {
    let mut cluster = Cluster::start_with(little_log).await;
    fill(cluster.node(0), 0..10).await;
    cluster.stop_node(2).await;
    cluster.ready().await;
    fill(cluster.node(0), 10..120).await;
    cluster.start_node(2).await;
    fill(cluster.node(1), 120..130).await;
    alike(&cluster).await;
    assert!(received(cluster.dir(2)) > 0, "something came as a snapshot");
    serves_all(&cluster, 3, 130).await;

    // What it lives on now is as good a base as any other.
    cluster.stop_node(2).await;
    cluster.start_node(2).await;
    cluster.ready().await;
    fill(cluster.node(2), 130..135).await;
    alike(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wiped_node_comes_back_with_everything() {
    let mut cluster = Cluster::start_with(little_log).await;
    fill(cluster.node(0), 0..90).await;
    cluster.stop_node(1).await;
    cluster.ready().await;
    for row in std::fs::read_dir(cluster.dir(1)).unwrap().flatten() {
        let removed = if row.file_type().unwrap().is_dir() {
            std::fs::remove_dir_all(row.path())
        } else {
            std::fs::remove_file(row.path())
        };
        removed.unwrap();
    }
    fill(cluster.node(0), 90..100).await;
    cluster.start_node(1).await;
    fill(cluster.node(2), 100..110).await;
    alike(&cluster).await;
    assert!(received(cluster.dir(1)) > 0, "something came as a snapshot");
    serves_all(&cluster, 2, 110).await;
    alike(&cluster).await;
    cluster.stop().await;
}
