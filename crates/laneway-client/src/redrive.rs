//! Dead letters: listing, replaying, deleting.

use laneway_wire::{DeadLetterList, DeleteDeadLettersResponse, ReplayDestination, ReplayResponse};

use crate::path::{push_query, push_segment};
use crate::{Client, ClientError};

/// Which dead letters to list.
#[derive(Clone, Debug, Default)]
pub struct DeadLetterQuery {
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only of this group.
    pub group: Option<String>,
    /// Most rows; `None` = the broker's default.
    pub limit: Option<u32>,
    /// Rows to skip.
    pub skip: u32,
}

/// Which dead letter to replay.
#[derive(Clone, Debug)]
pub enum DeadLetter {
    /// The newest row of a message.
    Message {
        /// Lane id.
        lane_id: String,
        /// Transaction id.
        transaction_id: String,
    },
    /// By row id.
    Row(String),
}

impl Client {
    /// Lists dead letters, newest first.
    pub async fn dead_letters(
        &self,
        query: &DeadLetterQuery,
    ) -> Result<DeadLetterList<'static>, ClientError> {
        let mut path = String::from("/api/v1/dlq");
        if let Some(queue) = &query.queue {
            push_query(&mut path, "queue", queue);
        }
        if let Some(group) = &query.group {
            push_query(&mut path, "consumerGroup", group);
        }
        if let Some(limit) = query.limit {
            push_query(&mut path, "limit", &limit.to_string());
        }
        if query.skip > 0 {
            push_query(&mut path, "offset", &query.skip.to_string());
        }
        self.get(&path).await
    }

    /// Puts a dead letter back at its lane's tail and removes its row, in one step; a refusal with status 404 when there is no
    /// such row.
    pub async fn replay(&self, dead_letter: &DeadLetter) -> Result<ReplayResponse<'static>, ClientError> {
        let path = match dead_letter {
            DeadLetter::Message {
                lane_id,
                transaction_id,
            } => message_path(lane_id, transaction_id) + "/retry",
            DeadLetter::Row(id) => {
                let mut path = String::from("/api/v1/dlq");
                push_segment(&mut path, id);
                path + "/replay"
            }
        };
        self.post(&path, &ReplayDestination::default()).await
    }

    /// Deletes the dead letters of a message; a refusal with status 404 when there is none.
    pub async fn delete_dead_letters(
        &self,
        lane_id: &str,
        transaction_id: &str,
    ) -> Result<DeleteDeadLettersResponse<'static>, ClientError> {
        self.delete(&message_path(lane_id, transaction_id)).await
    }
}

pub(crate) fn message_path(lane_id: &str, transaction_id: &str) -> String {
    let mut path = String::from("/api/v1/messages");
    push_segment(&mut path, lane_id);
    push_segment(&mut path, transaction_id);
    path
}
