//! `GET /api/v1/messages/:partitionId/:transactionId`

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::configure::QueueOptions;

/// One message with all that is known of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageDetail<'a> {
    /// Message id.
    pub id: String,
    /// Transaction id.
    pub transaction_id: Cow<'a, str>,
    /// The payload.
    pub data: Cow<'a, RawValue>,
    /// The payload again.
    pub payload: Cow<'a, RawValue>,
    /// Always null for now.
    pub trace_id: Option<String>,
    /// Always null for now.
    pub producer_sub: Option<String>,
    /// When it was pushed.
    pub created_at: String,
    /// Position in the lane.
    pub offset: u64,
    /// Lane id.
    pub partition_id: String,
    /// Lane name.
    pub partition: Cow<'a, str>,
    /// Queue name.
    pub queue: Cow<'a, str>,
    /// `queue/lane`.
    pub queue_path: String,
    /// The queue's namespace.
    pub namespace: Cow<'a, str>,
    /// The queue's task.
    pub task: Cow<'a, str>,
    /// `pending`, `processing`, `completed` or `dead_letter`.
    pub status: Cow<'a, str>,
    /// Reason of its newest dead letter.
    pub error_message: Option<Cow<'a, str>>,
    /// Charged failures.
    pub retry_count: u32,
    /// The payload is stored encrypted.
    pub is_encrypted: bool,
    /// The queue's options.
    pub queue_config: QueueOptions<'a>,
    /// Which kinds of groups read its lane.
    pub mode: DeliveryMode<'a>,
    /// Groups with a cursor on its lane.
    pub consumer_groups: Vec<ConsumerGroup<'a>>,
}

/// Which kinds of groups read a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryMode<'a> {
    /// Pops without a group were made.
    pub has_queue_mode: bool,
    /// Number of named groups.
    pub bus_groups_count: usize,
    /// `none`, `queue`, `bus` or `hybrid`.
    #[serde(rename = "type")]
    pub kind: Cow<'a, str>,
}

/// A group's stand on a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerGroup<'a> {
    /// Its name.
    pub name: Cow<'a, str>,
    /// Last offset that it has settled; −1 for none.
    pub committed: i64,
    /// It has settled this message.
    pub consumed: bool,
    /// Expiry of its live lease on the lane.
    pub lease_expires_at: Option<String>,
}
