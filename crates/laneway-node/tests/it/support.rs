//! Helpers of these tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use laneway_core::catalog::SettingsPatch;
use laneway_core::command::AckStatus;
use laneway_core::ids::{LaneId, LeaseId};
use laneway_core::settings::GroupStart;
use laneway_node::{
    AckItem, AckReply, AckRequest, ConfigureRequest, Node, NodeOptions, PopReply, PopRequest, PopSource,
    PushItem, PushReply, PushRequest, QUEUE_MODE_GROUP, StartError,
};

pub(crate) fn options(dir: &Path) -> NodeOptions {
    let mut options = NodeOptions::new(dir.to_owned());
    options.storage.wal_segment_bytes = 1024 * 1024;
    options.limits.disk_free_bytes_min = 0;
    options
}

pub(crate) async fn start(dir: &Path) -> Node {
    let (node, _) = Node::start(options(dir)).await.expect("the node starts");
    node
}

pub(crate) fn item(queue: &str, lane: &str, transaction_id: &str, payload: &str) -> PushItem {
    PushItem {
        queue: queue.into(),
        lane: lane.into(),
        transaction_id: transaction_id.into(),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
    }
}

pub(crate) async fn push(node: &Node, items: Vec<PushItem>) -> Vec<PushReply> {
    node.push(PushRequest {
        request_id: None,
        items,
    })
    .await
    .expect("the push is taken")
}

pub(crate) fn pop_request(queue: &str) -> PopRequest {
    PopRequest {
        source: PopSource::Queue(queue.into()),
        group: QUEUE_MODE_GROUP.into(),
        start: GroupStart::Beginning,
        batch: 200,
        lanes_max: 1,
        wait: None,
        auto_ack: false,
        lease_ms: None,
    }
}

pub(crate) async fn pop(node: &Node, queue: &str) -> PopReply {
    let mut reply = node.pop(pop_request(queue)).await.expect("the pop is answered");
    reply.delivered();
    reply
}

pub(crate) fn payloads(reply: &PopReply) -> Vec<String> {
    let messages = reply.lanes.iter().flat_map(|lane| &lane.messages);
    messages
        .map(|message| String::from_utf8(message.payload.to_vec()).expect("payloads are text"))
        .collect()
}

pub(crate) fn ack_item(lane: LaneId, id: &str, status: AckStatus, lease: Option<LeaseId>) -> AckItem {
    AckItem {
        lane: Ok(lane),
        transaction_id: id.into(),
        group: QUEUE_MODE_GROUP.into(),
        status,
        lease_id: lease.map(Ok),
        error: Some(Arc::from("boom")),
    }
}

pub(crate) async fn ack(node: &Node, item: AckItem) -> AckReply {
    let request = AckRequest {
        request_id: None,
        items: vec![item],
    };
    node.ack(request)
        .await
        .expect("the ack is answered")
        .pop()
        .expect("one answer per item")
}

pub(crate) async fn configure(node: &Node, queue: &str, patch: SettingsPatch) {
    node.configure(ConfigureRequest {
        queue: queue.into(),
        patch,
        merge: false,
    })
    .await
    .expect("the queue is configured");
}

/// A wait long enough for anything that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Messages of [`fill_backlog`].
pub(crate) const FILL_MESSAGES: usize = 60 * 20;

/// Options with which [`fill_backlog`] works.
pub(crate) fn small(dir: &Path) -> NodeOptions {
    let mut small = options(dir);
    small.storage.checkpoint_ms_max = 200;
    small.storage.wal_segments_max = 3;
    small
}

/// Pushes to 20 lanes of queue `q` until every group has a checkpoint and some payloads have left the log.
pub(crate) async fn fill_backlog(node: &Node) {
    let filler = "x".repeat(4_000);
    for round in 0..60 {
        let payload = format!("\"{round}-{filler}\"");
        let items = (0..20)
            .map(|n| item("q", &format!("lane{n}"), &format!("{round}/{n}"), &payload))
            .collect();
        push(node, items).await;
    }
    let deadline = tokio::time::Instant::now() + SOON;
    loop {
        let status = node.status().await;
        if status.groups.iter().all(|group| group.checkpoint_index > 0) && status.storage.backlog_bytes > 0 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{status:?}");
        tokio::task::yield_now().await;
    }
}

/// A backlog file in the folder of any partition.
pub(crate) fn backlog_file(partitions: &Path) -> Option<PathBuf> {
    for partition in std::fs::read_dir(partitions).ok()?.flatten() {
        for file in std::fs::read_dir(partition.path()).ok()?.flatten() {
            if file.path().extension().is_some_and(|name| name == "backlog") {
                return Some(file.path());
            }
        }
    }
    None
}

/// Fills a new data directory as [`fill_backlog`] does and stops; gives the options that it was filled with.
pub(crate) async fn filled(dir: &Path) -> NodeOptions {
    let small = small(dir);
    let (node, _) = Node::start(small.clone()).await.expect("the node starts");
    fill_backlog(&node).await;
    node.shutdown().await;
    small
}

/// Takes files away, sees the start refused, and puts them back.
pub(crate) async fn refusal_without(files: &[PathBuf], options: &NodeOptions) -> StartError {
    for file in files {
        std::fs::rename(file, file.with_extension("away")).expect("the file moves");
    }
    let refusal = Node::start(options.clone()).await.expect_err("a file is missing");
    for file in files {
        std::fs::rename(file.with_extension("away"), file).expect("the file moves back");
    }
    refusal
}
