//! Dead letters: `GET /api/v1/dlq`, `POST /api/v1/dlq/:id/replay`, `POST /api/v1/messages/.../retry`,
//! `DELETE /api/v1/messages/...`

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::push::PushStatus;
use crate::value::Text;

/// Dead letters, newest first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeadLetterList<'a> {
    /// The page.
    pub messages: Vec<DeadLetterRow<'a>>,
    /// Rows in this page.
    pub total: usize,
    /// What was asked for.
    pub pagination: Pagination,
}

/// Part of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pagination {
    /// Most rows.
    pub limit: usize,
    /// Rows skipped.
    pub offset: usize,
}

/// A dead letter.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterRow<'a> {
    /// Row id.
    pub id: String,
    /// Queue name.
    pub queue: Cow<'a, str>,
    /// Lane name.
    pub partition: Cow<'a, str>,
    /// Lane id.
    pub partition_id: String,
    /// The group that failed it.
    pub consumer_group: Cow<'a, str>,
    /// Position in the lane.
    pub offset: u64,
    /// Message id.
    pub message_id: String,
    /// Transaction id.
    pub transaction_id: Cow<'a, str>,
    /// The payload.
    pub data: Cow<'a, RawValue>,
    /// The payload again.
    pub payload: Cow<'a, RawValue>,
    /// Why.
    pub error_message: Cow<'a, str>,
    /// Charged failures at filing.
    pub retry_count: u32,
    /// When it was filed.
    pub created_at: String,
    /// When it was filed.
    pub failed_at: String,
    /// Always null for now.
    pub producer_sub: Option<String>,
}

/// Body of a replay; may be empty. A destination other than the message's own lane is not supported yet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReplayDestination<'a> {
    /// Another queue.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Text<'a>>,
    /// Another lane.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Text<'a>>,
}

/// Answer of a replay: the dead letter became a new message at the tail of its lane, in one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayResponse<'a> {
    /// Always true.
    pub success: bool,
    /// Always true.
    pub replayed: bool,
    /// Always `moved`.
    pub result: Cow<'a, str>,
    /// Queue name.
    pub queue: Cow<'a, str>,
    /// Lane name.
    pub partition: Cow<'a, str>,
    /// Lane id.
    pub partition_id: String,
    /// The group that had failed it.
    pub consumer_group: Cow<'a, str>,
    /// The row that was.
    pub dlq_id: String,
    /// Its transaction id.
    pub original_transaction_id: Cow<'a, str>,
    /// The new message.
    pub replayed_as: ReplayedAs<'a>,
    /// Always true.
    pub dlq_row_removed: bool,
}

/// The message that a dead letter became. The mix of cases is the contract's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayedAs<'a> {
    /// Always 0.
    pub index: usize,
    /// Message id.
    pub message_id: String,
    /// Transaction id, made from the row's id.
    pub transaction_id: Cow<'a, str>,
    /// Queue name.
    #[serde(rename = "queueName")]
    pub queue_name: Cow<'a, str>,
    /// Always queued.
    pub status: PushStatus,
    /// Position in the lane.
    pub offset: u64,
}

/// Answer of the deletion of a message's dead letters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeleteDeadLettersResponse<'a> {
    /// Always true.
    pub success: bool,
    /// Lane id.
    pub partition_id: String,
    /// Transaction id.
    pub transaction_id: Cow<'a, str>,
    /// Rows deleted.
    pub deleted: u64,
}
