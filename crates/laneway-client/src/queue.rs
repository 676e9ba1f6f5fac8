//! Reading and deleting queues and messages.

use laneway_wire::{DeleteQueueResponse, MessageDetail, QueueDetail, QueueList};

use crate::path::push_segment;
use crate::redrive::message_path;
use crate::{Client, ClientError};

impl Client {
    /// All queues with their counters.
    pub async fn queues(&self) -> Result<QueueList<'static>, ClientError> {
        self.get("/api/v1/resources/queues").await
    }

    /// One queue with its lanes; a refusal with status 404 when there is none.
    pub async fn queue(&self, name: &str) -> Result<QueueDetail<'static>, ClientError> {
        self.get(&queue_path(name)).await
    }

    /// Deletes a queue with its messages, groups and dead letters.
    pub async fn delete_queue(&self, name: &str) -> Result<DeleteQueueResponse<'static>, ClientError> {
        self.delete(&queue_path(name)).await
    }

    /// One message with all that is known of it; a refusal with status 404 when there is none.
    pub async fn message(
        &self,
        lane_id: &str,
        transaction_id: &str,
    ) -> Result<MessageDetail<'static>, ClientError> {
        self.get(&message_path(lane_id, transaction_id)).await
    }
}

fn queue_path(name: &str) -> String {
    let mut path = String::from("/api/v1/resources/queues");
    push_segment(&mut path, name);
    path
}
