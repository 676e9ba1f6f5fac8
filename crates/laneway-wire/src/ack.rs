//! `POST /api/v1/ack` and `POST /api/v1/ack/batch`

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::value::Text;

/// Body of a single ack.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AckRequest<'a> {
    /// Which message.
    #[serde(borrow, rename = "transactionId")]
    pub transaction_id: Text<'a>,
    /// Lane id, as the pop showed it.
    #[serde(borrow, rename = "partitionId")]
    pub partition_id: Text<'a>,
    /// Status word, see [`AckStatus::from_word`].
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Text<'a>>,
    /// Group; absent means queue mode.
    #[serde(
        borrow,
        default,
        rename = "consumerGroup",
        skip_serializing_if = "Option::is_none"
    )]
    pub consumer_group: Option<Text<'a>>,
    /// Lease id; absent or empty is a bare ack.
    #[serde(borrow, default, rename = "leaseId", skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<Text<'a>>,
    /// Why it failed; kept on a dead letter's row.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Text<'a>>,
}

/// One acknowledgment of a batch: the fields of a single ack. Its own `consumerGroup` beats the batch's.
pub type AckItem<'a> = AckRequest<'a>;

/// Body of a batch ack.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AckBatchRequest<'a> {
    /// In order; they may span lanes and leases.
    #[serde(borrow, deserialize_with = "crate::value::objects")]
    pub acknowledgments: Vec<AckItem<'a>>,
    /// Group of items that name none; absent means queue mode.
    #[serde(
        borrow,
        default,
        rename = "consumerGroup",
        skip_serializing_if = "Option::is_none"
    )]
    pub consumer_group: Option<Text<'a>>,
}

/// What happened to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckStatus {
    /// Done.
    Completed,
    /// Redeliver, uncharged.
    Retry,
    /// Redeliver, charged to the retry budget; dead-letter when it is spent.
    Failed,
    /// Dead-letter now.
    DeadLetter,
}

impl AckStatus {
    /// Reads a status word: none, `completed`, `success`, `acked` and `ok` are completed; `retry`; `dlq`; any other word
    /// is failed, which loses nothing. Case matters.
    pub fn from_word(word: Option<&str>) -> Self {
        match word {
            None | Some("completed" | "success" | "acked" | "ok") => Self::Completed,
            Some("retry") => Self::Retry,
            Some("dlq") => Self::DeadLetter,
            Some(_) => Self::Failed,
        }
    }

    /// The word for it.
    pub fn as_word(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Retry => "retry",
            Self::Failed => "failed",
            Self::DeadLetter => "dlq",
        }
    }
}

/// Result for one acknowledgment. All seven keys are always there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AckResult<'a> {
    /// Position in the request.
    pub index: usize,
    /// As in the request.
    #[serde(rename = "transactionId")]
    pub transaction_id: Cow<'a, str>,
    /// False: refused, nothing changed by this item.
    pub success: bool,
    /// Why it was refused; null on success.
    pub error: Option<Cow<'a, str>>,
    /// The lease ended with this ack.
    #[serde(rename = "leaseReleased")]
    pub lease_released: bool,
    /// The failed head went to the dead-letter store.
    pub dlq: bool,
    /// It was settled before.
    pub noop: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_status_words_count_as_failed() {
        for word in [
            None,
            Some("completed"),
            Some("success"),
            Some("acked"),
            Some("ok"),
        ] {
            assert_eq!(AckStatus::from_word(word), AckStatus::Completed, "{word:?}");
        }
        assert_eq!(AckStatus::from_word(Some("retry")), AckStatus::Retry);
        assert_eq!(AckStatus::from_word(Some("dlq")), AckStatus::DeadLetter);
        for word in ["failed", "Completed", "OK", "", "dead"] {
            assert_eq!(AckStatus::from_word(Some(word)), AckStatus::Failed, "{word}");
        }
    }
}
