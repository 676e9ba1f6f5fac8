//! The catalog as gateways use it: changes go to its leader, reads to the replica here.

use std::time::Duration;

use laneway_core::catalog::{CatalogCommand, CatalogReply};
use laneway_core::ids::PartitionId;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::api::RequestError;
use crate::caller::WhoseOutcome;
use crate::leader::{AtLeader, Verb};
use crate::node::Node;

impl Node {
    /// Has a change of the catalog committed, and says at which version it then is. Errors as [`Node::at_leader`]; a full
    /// catalog is `Overloaded`.
    pub(super) async fn propose_to_catalog(
        &self,
        command: CatalogCommand,
    ) -> Result<(CatalogReply, u64), RequestError> {
        self.at_leader(PartitionId::CATALOG, Catalog(command)).await
    }

    /// The same, when a leader is looked for until `leader_by`.
    pub(super) async fn propose_to_catalog_by(
        &self,
        leader_by: Instant,
        command: CatalogCommand,
    ) -> Result<(CatalogReply, u64), RequestError> {
        self.at_leader_by(leader_by, PartitionId::CATALOG, Catalog(command))
            .await
    }

    /// Waits until the replica here has every change that was committed before now.
    pub(super) async fn catalog_up_to_date(&self) -> Result<(), RequestError> {
        let version = self.at_leader(PartitionId::CATALOG, CatalogVersion).await?;
        let catalog = &self.inner.catalog;
        let mut seen = catalog.version.subscribe();
        let wait = Duration::from_millis(self.inner.limits.leader_wait_ms);
        match tokio::time::timeout(wait, seen.wait_for(|seen| *seen >= version)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(catalog.not_taken_up()),
        }
    }
}

/// A change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Catalog(CatalogCommand);

impl AtLeader for Catalog {
    const VERB: Verb = Verb::Catalog;
    const WRITES: bool = true;
    type Answer = (CatalogReply, u64);

    async fn run(self, node: Node, _group: PartitionId) -> Result<Self::Answer, RequestError> {
        let catalog = &node.inner.catalog;
        let reply = catalog.propose(self.0).await?;
        Ok((reply, catalog.version().0))
    }
}

/// The newest committed version.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CatalogVersion;

impl AtLeader for CatalogVersion {
    const VERB: Verb = Verb::CatalogVersion;
    const WRITES: bool = false;
    type Answer = u64;

    async fn run(self, node: Node, _group: PartitionId) -> Result<u64, RequestError> {
        let catalog = &node.inner.catalog;
        catalog.read_index().await?;
        Ok(catalog.version().0)
    }
}
