//! Making snapshots of what is applied now.

use std::path::Path;
use std::sync::Arc;

use laneway_core::ids::PartitionId;
use laneway_storage::snapshot::OutgoingSnapshot;

use super::checkpoint::Written;
use super::{Round, RoundError};
use crate::snapshot::{MadeSnapshot, MakeSnapshot, SnapshotHub};

impl Round {
    pub(super) fn snapshots(&self) -> &Arc<SnapshotHub> {
        &self.work.catalog.1.snapshots
    }

    /// Makes one along with a full checkpoint.
    pub(super) fn make_snapshot(&mut self, ask: MakeSnapshot) {
        let made = if self.work.disk.is_low() {
            Err("the disk is low".to_owned())
        } else {
            self.export(ask.partition)
        };
        if let Err(reason) = &made {
            tracing::warn!(partition = %ask.partition, reason, "no snapshot was made for a replica that is too far behind");
            self.snapshots().making(ask.partition, None);
        }
        // Who asked may be gone; a folder without a list of its files is removed at the next start.
        drop(ask.reply.send(made));
    }

    fn export(&mut self, id: PartitionId) -> Result<MadeSnapshot, String> {
        let work = &self.work;
        let catalog = (id == PartitionId::CATALOG).then_some(&work.catalog.1);
        let partition = work.partitions.iter().find(|(partition, _)| partition.id == id);
        let base = catalog
            .or_else(|| partition.map(|(_, context)| context))
            .map(|context| context.dir.clone())
            .ok_or_else(|| format!("there is no partition {id} here"))?;
        let vfs = Arc::clone(&work.vfs);
        let (number, dir) = OutgoingSnapshot::create(&*vfs, &base).map_err(|error| error.to_string())?;
        match self.export_to(id, &dir) {
            Ok(()) => Ok(MadeSnapshot { id: number, dir }),
            Err(error) => {
                if let Err(error) = vfs.remove_dir_all(&dir) {
                    tracing::debug!(%error, "could not remove a half-made snapshot");
                }
                Err(error.to_string())
            }
        }
    }

    fn export_to(&mut self, id: PartitionId, dir: &Path) -> Result<(), RoundError> {
        let found = self
            .work
            .partitions
            .iter()
            .find(|(partition, _)| partition.id == id);
        let outcome = match found.cloned() {
            Some((partition, context)) => self.checkpoint_partition(&partition, &context, Some(dir)),
            None => {
                let (catalog, context) = self.work.catalog.clone();
                self.checkpoint_catalog(&catalog, &context, Some(dir))
            }
        };
        match outcome {
            Ok(Written { bytes, exported }) => {
                self.written(id, Ok(bytes));
                exported
            }
            Err(error) => {
                let reason = error.to_string();
                self.written(id, Err(error));
                Err(RoundError::NotExported(reason))
            }
        }
    }
}
