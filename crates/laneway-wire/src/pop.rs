//! `GET /api/v1/pop/...`
//!
//! The gateway writes these answers by hand, so that payloads are not copied; its tests compare them with these types.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Answer of a pop that found something. Nothing found is 204 without a body.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PopResponse {
    /// Always true.
    pub success: bool,
    /// Queue name; empty for a pop by namespace and task.
    pub queue: String,
    /// Name of the first lane claimed.
    pub partition: String,
    /// Id of the first lane claimed.
    #[serde(rename = "partitionId")]
    pub partition_id: String,
    /// The lease, shared by all lanes of the answer; empty under auto-ack.
    #[serde(rename = "leaseId")]
    pub lease_id: String,
    /// The group popped for.
    #[serde(rename = "consumerGroup")]
    pub consumer_group: String,
    /// Messages of one lane are contiguous and in offset order.
    pub messages: Vec<Message>,
    /// How many lanes were claimed.
    #[serde(rename = "partitionsClaimed")]
    pub partitions_claimed: u32,
}

/// A delivered message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Message {
    /// Message id.
    pub id: String,
    /// Transaction id: the given one, else the message id.
    #[serde(rename = "transactionId")]
    pub transaction_id: String,
    /// Always null for now.
    #[serde(rename = "traceId")]
    pub trace_id: Option<String>,
    /// The payload as pushed.
    pub data: Box<RawValue>,
    /// Always null for now.
    #[serde(rename = "producerSub")]
    pub producer_sub: Option<String>,
    /// When it was pushed, in milliseconds.
    #[serde(rename = "createdAt")]
    pub created_at: String,
    /// Lane id.
    #[serde(rename = "partitionId")]
    pub partition_id: String,
    /// Lane name.
    pub partition: String,
    /// Queue name.
    #[serde(default)]
    pub queue: String,
    /// The lease.
    #[serde(rename = "leaseId")]
    pub lease_id: String,
    /// The group popped for.
    #[serde(rename = "consumerGroup")]
    pub consumer_group: String,
    /// 1 for a first delivery.
    #[serde(rename = "deliveryAttempt")]
    pub delivery_attempt: u32,
    /// Position in the lane.
    pub offset: u64,
}

/// Answer of a pop that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PopFailure {
    /// Always false.
    pub success: bool,
    /// For a person.
    pub error: String,
    /// For a program.
    pub code: String,
    /// Always empty.
    pub messages: [(); 0],
}
