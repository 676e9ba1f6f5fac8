//! Configure and delete queues: through the catalog's log into every partition's.

use laneway_core::catalog::{CatalogCommand, CatalogReply};
use laneway_core::settings::QueueRow;

use super::unexpected;
use crate::api::{ConfigureRequest, RequestError};
use crate::node::Node;

impl Node {
    /// Creates or changes a queue. At the answer every partition has applied it.
    ///
    /// Errors: `OutcomeUnknown` when it is committed but some partition has not taken it in time; that is caught up
    /// later by itself. Idempotent. Cancel safety: dropping the future withdraws nothing.
    pub async fn configure(&self, request: ConfigureRequest) -> Result<QueueRow, RequestError> {
        self.check_names(&request.queue, &[])?;
        let name = request.queue.to_string();
        let command = CatalogCommand::Configure {
            name,
            patch: request.patch,
            merge: request.merge,
        };
        let row = match self.propose_to_catalog(command).await? {
            (CatalogReply::Queue { row, .. }, _) => row,
            (reply, _) => return Err(unexpected(&reply)),
        };
        if row.settings.encryption_enabled {
            tracing::warn!(
                queue = row.name,
                "encryption is not built yet: this queue stores plain text"
            );
        }
        self.taken_everywhere(row.version.0).await?;
        Ok(row)
    }

    /// Deletes a queue with all it has. At the answer every partition refuses it. True: it was there. Idempotent.
    ///
    /// Errors and cancel safety as [`Node::configure`].
    pub async fn delete_queue(&self, queue: &str) -> Result<bool, RequestError> {
        self.check_names(queue, &[])?;
        let command = CatalogCommand::DeleteQueue {
            name: queue.to_owned(),
        };
        let (existed, version) = match self.propose_to_catalog(command).await? {
            (CatalogReply::Deleted { existed, .. }, version) => (existed, version),
            (reply, _) => return Err(unexpected(&reply)),
        };
        self.taken_everywhere(version).await?;
        Ok(existed)
    }
}
