//! Files that are gone or damaged.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use laneway_node::{Node, PopRequest, PopSource, StartError};
use laneway_storage::vfs::RealVfs;
use laneway_storage::wal::{Wal, WalOpenError, WalOptions};

use crate::support::{
    FILL_MESSAGES, SOON, backlog_file, filled, item, options, payloads, pop, pop_request, push,
    refusal_without, start,
};
use crate::three::{Cluster, push_much};

fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("the folder is there").flatten();
    let mut paths: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().ends_with(ending))
        .collect();
    paths.sort();
    paths
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_that_is_gone_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    push(&node, vec![item("q", "a", "t", "1")]).await;
    node.shutdown().await;
    drop(node);
    let (options, wal) = (options(dir.path()), dir.path().join("wal"));

    let segments = files(&wal, ".wal");
    let newest = vec![wal.join("newest")];
    let refusal = refusal_without(&segments[segments.len() - 1..], &options).await;
    assert!(
        matches!(
            &refusal,
            StartError::Wal(WalOpenError::NewestSegmentMissing { .. })
        ),
        "{refusal}"
    );
    let refusal = refusal_without(&newest, &options).await;
    assert!(
        matches!(&refusal, StartError::Wal(WalOpenError::NewestMissing { .. })),
        "{refusal}"
    );
    // All of it, before there was ever a checkpoint and after.
    let all: Vec<_> = segments.iter().chain(&newest).cloned().collect();
    for _ in 0..2 {
        let refusal = refusal_without(&all, &options).await;
        assert!(matches!(&refusal, StartError::NoLog { .. }), "{refusal}");
        let text = refusal.to_string();
        assert!(text.contains("wal") && text.contains("backup"), "{text}");
        let node = start(dir.path()).await;
        node.shutdown().await;
    }
    let node = start(dir.path()).await;
    assert_eq!(payloads(&pop(&node, "q").await), ["1"]);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_without_identity_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    push(&node, vec![item("q", "a", "t", "1")]).await;
    node.shutdown().await;
    drop(node);
    for folder in ["partitions", "catalog"] {
        fs::remove_dir_all(dir.path().join(folder)).unwrap();
    }
    let identity = dir.path().join("identity");
    let refusal = refusal_without(std::slice::from_ref(&identity), &options(dir.path())).await;
    assert!(matches!(&refusal, StartError::NoIdentity { .. }), "{refusal}");
    assert!(
        refusal.to_string().contains(identity.to_str().unwrap()),
        "{refusal}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_start_that_was_cut_short_is_done_again() {
    let dir = tempfile::tempdir().unwrap();
    // So far it came: a log in which nothing was written.
    let (wal, _) = Wal::open(
        Arc::new(RealVfs),
        dir.path().join("wal"),
        WalOptions {
            segment_bytes: 1024 * 1024,
            ..WalOptions::default()
        },
    )
    .unwrap();
    wal.close();
    let node = start(dir.path()).await;
    push(&node, vec![item("q", "a", "t", "1")]).await;
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_manifest_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let small = filled(dir.path()).await;
    let file = backlog_file(&dir.path().join("partitions")).expect("the node has made a backlog file");
    let manifest = file.with_file_name("manifest");
    let refusal = refusal_without(std::slice::from_ref(&manifest), &small).await;
    let text = refusal.to_string();
    for part in [
        manifest.to_str().unwrap(),
        "is missing",
        "lacks entries up to",
        "backup",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("Some("), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_backlog_file_is_found_without_a_request_and_the_rest_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let small = filled(dir.path()).await;
    let file = backlog_file(&dir.path().join("partitions")).expect("the node has made a backlog file");
    let mut bytes = fs::read(&file).unwrap();
    // In a payload of the first block.
    bytes[2000] ^= 1;
    fs::write(&file, bytes).unwrap();

    let (node, _) = Node::start(small).await.unwrap();
    let deadline = tokio::time::Instant::now() + SOON;
    while node.status().await.storage.damaged_files == 0 {
        assert!(tokio::time::Instant::now() < deadline, "the scrub finds it");
        tokio::task::yield_now().await;
    }
    let readiness = node.readiness();
    assert!(readiness.ready, "nearly everything is served");
    assert_eq!(readiness.reasons.len(), 1);
    for part in [
        file.to_str().unwrap(),
        "partition ",
        "is damaged at byte",
        "restore the data directory",
    ] {
        assert!(readiness.reasons[0].contains(part), "{:?}", readiness.reasons);
    }
    assert_eq!(node.status().await.storage.damaged_files, 1);
    let replies = push(&node, vec![item("q", "other", "t", "1")]).await;
    assert_eq!(replies.len(), 1);
    let (mut served, mut failed) = (0, 0);
    for lane in 0..20 {
        let request = PopRequest {
            source: PopSource::Lane("q".into(), format!("lane{lane}").into()),
            ..pop_request("q")
        };
        match node.pop(request).await {
            Ok(mut reply) => {
                reply.delivered();
                served += payloads(&reply).len();
            }
            Err(_) => failed += 1,
        }
    }
    assert!(failed > 0, "what is damaged is never served");
    assert_eq!(served, FILL_MESSAGES - failed * (FILL_MESSAGES / 20));
    assert!(failed < 20);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_found_while_one_of_three_runs_is_mended_from_the_others() {
    let mut cluster = Cluster::start().await;
    push_much(&cluster, "first").await;
    let deadline = tokio::time::Instant::now() + SOON;
    let file = loop {
        if let Some(file) = backlog_file(&cluster.dir(2).join("partitions")) {
            break file;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "node 3 has a backlog file, too"
        );
        tokio::task::yield_now().await;
    };
    cluster.stop_node(2).await;
    let mut bytes = fs::read(&file).unwrap();
    bytes[2000] ^= 1;
    fs::write(&file, bytes).unwrap();
    cluster.start_node(2).await;
    cluster.condemned_node_is_replaced(2, "is damaged at byte").await;
    assert_eq!(cluster.node(2).status().await.storage.damaged_files, 0);
    cluster.stop().await;
}
