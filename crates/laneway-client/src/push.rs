//! Pushing messages.

use laneway_wire::{PushItem, PushRequest, PushResult, Text};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::{Client, ClientError};

/// A message to push.
#[derive(Clone, Debug)]
pub struct Push {
    /// Queue name.
    pub queue: String,
    /// Lane name; `None` = the default lane.
    pub lane: Option<String>,
    /// De-duplication key; `None` = the message id.
    pub transaction_id: Option<String>,
    /// JSON text.
    pub payload: Box<RawValue>,
}

impl Push {
    /// A message for the default lane of `queue`.
    ///
    /// Errors: `payload` has no JSON form (a map with keys that are no strings).
    pub fn new(queue: &str, payload: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self {
            queue: queue.to_owned(),
            lane: None,
            transaction_id: None,
            payload: to_raw_value(payload)?,
        })
    }

    /// The same for a lane.
    #[must_use]
    pub fn lane(mut self, lane: &str) -> Self {
        self.lane = Some(lane.to_owned());
        self
    }

    /// The same with a de-duplication key.
    #[must_use]
    pub fn transaction_id(mut self, id: &str) -> Self {
        self.transaction_id = Some(id.to_owned());
        self
    }
}

impl Client {
    /// Pushes messages; one result for each, in order. Items of one (queue, lane) are stored together or not at all. Durable
    /// when it returns.
    pub async fn push(&self, messages: &[Push]) -> Result<Vec<PushResult<'static>>, ClientError> {
        let items = messages.iter().map(|message| PushItem {
            queue: Text::from(message.queue.as_str()),
            partition: message.lane.as_deref().map(Text::from),
            payload: &message.payload,
            transaction_id: message.transaction_id.as_deref().map(Text::from),
        });
        self.post(
            "/api/v1/push",
            &PushRequest {
                items: items.collect(),
            },
        )
        .await
    }
}
