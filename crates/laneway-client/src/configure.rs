//! Configuring queues.

use laneway_wire::{ConfigureRequest, ConfigureResponse};

use crate::{Client, ClientError};

impl Client {
    /// Creates or changes a queue. Options that are absent return to their defaults, unless `mode` is `merge`.
    pub async fn configure(
        &self,
        request: &ConfigureRequest<'_>,
    ) -> Result<ConfigureResponse<'static>, ClientError> {
        self.post("/api/v1/configure", request).await
    }
}
