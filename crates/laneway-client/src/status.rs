//! The node itself.

use laneway_wire::{DigestResponse, MetricsResponse, ReadyResponse, StatusResponse};

use crate::{Client, ClientError};

impl Client {
    /// Whether the node serves; a refusal with status 503 when it does not.
    pub async fn ready(&self) -> Result<ReadyResponse, ClientError> {
        self.get("/readyz").await
    }

    /// The node for people and tools. Answered on loopback only.
    pub async fn status(&self) -> Result<StatusResponse, ClientError> {
        self.get("/admin/v1/status").await
    }

    /// State digests of all groups, each at its applied index. Answered on loopback only.
    pub async fn digest(&self) -> Result<DigestResponse, ClientError> {
        self.get("/admin/v1/digest").await
    }

    /// Counters and histograms as JSON.
    pub async fn metrics(&self) -> Result<MetricsResponse, ClientError> {
        self.get("/metrics").await
    }
}
