//! What a restart must find.

use laneway_core::command::AckStatus;
use laneway_core::reply::AckedItem;
use laneway_node::{AckOutcome, Node, PushReply, StartError};

use crate::support::{
    FILL_MESSAGES, ack, ack_item, backlog_file, filled, item, options, payloads, pop, push, refusal_without,
    start,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_finds_messages_leases_and_dedup_rows() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    let items = (0..3)
        .map(|n| item("q", "a", &format!("t{n}"), &n.to_string()))
        .collect();
    push(&node, items).await;
    let popped = pop(&node, "q").await;
    let digests = node.digests().await.unwrap();
    node.shutdown().await;
    drop(node);

    let node = start(dir.path()).await;
    for (before, after) in digests.iter().zip(node.digests().await.unwrap()) {
        if before.applied_index == after.applied_index {
            assert_eq!(before.digest, after.digest, "partition {}", before.partition);
        }
    }
    assert_eq!(payloads(&pop(&node, "q").await).len(), 0);
    let duplicate = push(&node, vec![item("q", "a", "t1", "9")]).await;
    assert!(matches!(&duplicate[0], PushReply::Duplicate(position) if position.offset.0 == 1));
    let lane = popped.lanes[0].lane;
    let done = ack(&node, ack_item(lane, "t1", AckStatus::Completed, popped.lease_id)).await;
    assert_eq!(done.outcome, AckOutcome::Applied(AckedItem::Done));
    assert!(!done.lease_released);
    let failed = ack(&node, ack_item(lane, "t2", AckStatus::Failed, popped.lease_id)).await;
    assert!(failed.lease_released);
    assert_eq!(payloads(&pop(&node, "q").await), ["2"]);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoints_purge_the_log_and_carry_the_state() {
    let dir = tempfile::tempdir().unwrap();
    let small = filled(dir.path()).await;
    let file = backlog_file(&dir.path().join("partitions")).expect("the node has made a backlog file");
    let refusal = refusal_without(&[file], &small).await;
    assert!(refusal.to_string().contains("are missing from"), "{refusal}");
    let (node, _) = Node::start(small).await.unwrap();
    let mut messages = 0;
    loop {
        let popped = pop(&node, "q").await;
        if popped.lanes.is_empty() {
            break;
        }
        for lane in &popped.lanes {
            assert_eq!(lane.messages[0].offset.0, 0);
            messages += lane.messages.len();
        }
    }
    assert_eq!(messages, FILL_MESSAGES);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_that_went_before_a_checkpoint_said_so_is_not_missed() {
    let dir = tempfile::tempdir().unwrap();
    let mut small = filled(dir.path()).await;

    // One checkpoint follows the start, then none for long, as the log has room.
    small.storage.checkpoint_ms_max = 3_600_000;
    small.storage.wal_segments_max = 64;
    let (node, _) = Node::start(small.clone()).await.unwrap();
    loop {
        let groups = node.status().await.groups;
        if groups
            .iter()
            .all(|group| group.leads && group.checkpoint_index == group.applied_index)
        {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(node.delete_queue("q").await.unwrap());
    let partitions = dir.path().join("partitions");
    assert!(backlog_file(&partitions).is_some());
    // The messages are gone at once, their files as soon as maintenance comes by.
    while backlog_file(&partitions).is_some() {
        tokio::task::yield_now().await;
    }
    node.shutdown().await;
    drop(node);

    let (node, recovered) = Node::start(small).await.unwrap();
    assert!(recovered.entries > 0, "no checkpoint covers the deletion");
    assert!(node.queue("q").await.unwrap().is_none());
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identity_of_another_directory_is_refused() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for dir in &dirs {
        start(dir.path()).await.shutdown().await;
    }
    let identity = |at: usize| dirs[at].path().join("identity");
    let own = std::fs::read(identity(0)).unwrap();
    std::fs::copy(identity(1), identity(0)).unwrap();
    let refused = Node::start(options(dirs[0].path())).await.unwrap_err();
    assert!(
        refused.to_string().contains("written under another identity"),
        "{refused}"
    );
    std::fs::write(identity(0), own).unwrap();
    start(dirs[0].path()).await.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_directory_has_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    assert!(matches!(
        Node::start(options(dir.path())).await,
        Err(StartError::DataDirInUse { .. })
    ));
    node.shutdown().await;
    drop(node);
    let mut other = options(dir.path());
    other.partitions = 7;
    assert!(matches!(
        Node::start(other).await,
        Err(StartError::PartitionsDiffer { found: 4, .. })
    ));
    let mut other = options(dir.path());
    other.node = 2;
    assert!(matches!(
        Node::start(other).await,
        Err(StartError::OtherNode { found_node: 1, .. })
    ));
}
