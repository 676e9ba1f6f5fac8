//! Helpers of these tests.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use laneway_core::catalog::SettingsPatch;
use laneway_core::command::AckStatus;
use laneway_core::ids::{LaneId, LeaseId};
use laneway_core::settings::GroupStart;
use laneway_node::{
    AckItem, AckReply, AckRequest, ConfigureRequest, Node, NodeOptions, PopReply, PopRequest, PopSource,
    PushItem, PushReply, PushRequest, QUEUE_MODE_GROUP,
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
