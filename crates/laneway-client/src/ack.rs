//! Acknowledging messages.

use laneway_wire::{AckBatchRequest, AckItem, AckResult, AckStatus, Message, Text};

use crate::{Client, ClientError};

/// An acknowledgment.
#[derive(Clone, Debug)]
pub struct Ack {
    /// Which message.
    pub transaction_id: String,
    /// Lane id, as the pop showed it.
    pub lane_id: String,
    /// Consumer group; `None` = queue mode.
    pub group: Option<String>,
    /// Lease id; `None` = a bare ack.
    pub lease_id: Option<String>,
    /// What happened to it.
    pub status: AckStatus,
    /// Why it failed.
    pub error: Option<String>,
}

impl Ack {
    /// Acknowledges a popped message under its lease.
    pub fn of(message: &Message, status: AckStatus) -> Self {
        Self {
            transaction_id: message.transaction_id.clone(),
            lane_id: message.partition_id.clone(),
            group: Some(message.consumer_group.clone()),
            lease_id: Some(message.lease_id.clone()),
            status,
            error: None,
        }
    }

    /// The same with a reason, kept on the dead letter's row.
    #[must_use]
    pub fn because(mut self, error: &str) -> Self {
        self.error = Some(error.to_owned());
        self
    }
}

impl Client {
    /// Acknowledges messages; one result for each, in order. A refused item is a result with `success: false`, not an error.
    pub async fn ack(&self, acks: &[Ack]) -> Result<Vec<AckResult<'static>>, ClientError> {
        let items = acks.iter().map(|ack| AckItem {
            transaction_id: Text::from(ack.transaction_id.as_str()),
            partition_id: Text::from(ack.lane_id.as_str()),
            status: Some(Text::from(ack.status.as_word())),
            consumer_group: ack.group.as_deref().map(Text::from),
            lease_id: ack.lease_id.as_deref().map(Text::from),
            error: ack.error.as_deref().map(Text::from),
        });
        let request = AckBatchRequest {
            acknowledgments: items.collect(),
            consumer_group: None,
        };
        self.post("/api/v1/ack/batch", &request).await
    }
}
