//! `POST /api/v1/push`

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::value::Text;

/// Body of a push.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PushRequest<'a> {
    /// In order; one result comes back for each.
    #[serde(borrow, deserialize_with = "crate::value::objects")]
    pub items: Vec<PushItem<'a>>,
}

/// One message to push.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PushItem<'a> {
    /// Queue name.
    #[serde(borrow)]
    pub queue: Text<'a>,
    /// Lane name; absent or empty means [`crate::limits::LANE_DEFAULT`].
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Text<'a>>,
    /// Any JSON value.
    #[serde(borrow)]
    pub payload: &'a RawValue,
    /// De-duplication key; absent or empty means the message id.
    #[serde(
        borrow,
        default,
        rename = "transactionId",
        skip_serializing_if = "Option::is_none"
    )]
    pub transaction_id: Option<Text<'a>>,
}

/// Result for one pushed item. The mix of cases is the contract's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushResult<'a> {
    /// Position in the request.
    pub index: usize,
    /// The message stored now or before; empty when the item was refused.
    pub message_id: Cow<'a, str>,
    /// Its transaction id.
    pub transaction_id: Cow<'a, str>,
    /// Its queue.
    #[serde(rename = "queueName")]
    pub queue_name: Cow<'a, str>,
    /// What became of it.
    pub status: PushStatus,
    /// Its offset; absent when the item was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Why it was refused, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Cow<'a, str>>,
    /// Why it was refused, for a program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Cow<'a, str>>,
}

/// What became of a pushed item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PushStatus {
    /// Stored now.
    Queued,
    /// Stored before.
    Duplicate,
    /// Refused, with all items of the same queue and lane.
    Error,
}
