//! Writing checkpoints, and along with them the rows of a snapshot.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, MutexGuard};

use laneway_core::ids::PartitionId;
use laneway_raft::CheckpointName;
use laneway_storage::checkpoint::{CheckpointStore, CheckpointWriter, Manifest};
use laneway_storage::codec;
use laneway_storage::dedup::DedupFileName;
use laneway_storage::snapshot::{Generation, OutgoingSnapshot};

use super::{ROWS_WAIT, Round, RoundError};
use crate::catalog::{CatalogHandle, CatalogMsg, CatalogPart};
use crate::partition::{CheckpointPart, LogPosition, PartitionHandle, PartitionMsg};
use crate::replica::ReplicaContext;
use crate::snapshot::ReplicaDisk;

/// A checkpoint that was written.
pub(super) struct Written {
    /// Bytes of its files.
    pub(super) bytes: u64,
    /// How it went with the snapshot, if one was wanted.
    pub(super) exported: Result<(), RoundError>,
}

/// Where a replica's files are, with the right to change them.
struct Files<'a> {
    dir: PathBuf,
    store: CheckpointStore,
    _disk: MutexGuard<'a, ()>,
}

impl<'a> Files<'a> {
    fn lock(
        context: &ReplicaContext,
        partition: PartitionId,
        disk: &'a Arc<ReplicaDisk>,
    ) -> Result<Self, RoundError> {
        let lock = disk.lock();
        if disk.is_superseded() {
            return Err(RoundError::Superseded);
        }
        let dir = Generation::find(&*context.vfs, &context.dir)?.dir;
        let (store, _) = CheckpointStore::open(Arc::clone(&context.vfs), dir.clone(), partition)?;
        Ok(Self {
            dir,
            store,
            _disk: lock,
        })
    }
}

/// A checkpoint being written, and the same rows for a snapshot.
struct Writers {
    own: CheckpointWriter,
    copy: Option<CheckpointWriter>,
}

impl Writers {
    /// `export` is the snapshot's folder; its checkpoint is a full one without locations, which mean nothing elsewhere.
    fn begin(
        files: &Files<'_>,
        context: &ReplicaContext,
        partition: PartitionId,
        full: bool,
        export: Option<&Path>,
    ) -> Result<Self, RoundError> {
        let own = files.store.begin(full)?;
        let mut copy = None;
        if let Some(dir) = export {
            let (store, _) = CheckpointStore::open(Arc::clone(&context.vfs), dir.to_owned(), partition)?;
            copy = Some(store.begin(true)?);
        }
        Ok(Self { own, copy })
    }

    fn row<K: serde::Serialize, R: serde::Serialize>(
        &mut self,
        key: &K,
        row: Option<&R>,
    ) -> Result<(), RoundError> {
        let (key, row) = (codec::encode(key), row.map(codec::encode));
        self.own.row(&key, row.as_deref())?;
        if let Some(copy) = &mut self.copy {
            copy.row(&key, row.as_deref())?;
        }
        Ok(())
    }

    fn finish(
        self,
        applied: LogPosition,
        membership: bytes::Bytes,
        dedup: Vec<DedupFileName>,
    ) -> Result<Manifest, RoundError> {
        let applied = (applied.index, applied.term, applied.leader);
        let manifest = self.own.finish(applied, membership.clone(), dedup.clone())?;
        if let Some(copy) = self.copy {
            copy.finish(applied, membership, dedup)?;
        }
        Ok(manifest)
    }
}

impl Round {
    pub(super) fn checkpoint_partition(
        &self,
        partition: &Arc<PartitionHandle>,
        context: &ReplicaContext,
        export: Option<&Path>,
    ) -> Result<Written, RoundError> {
        let files = Files::lock(context, partition.id, partition.disk())?;
        let full = export.is_some() || self.wants_full(&files.store, partition.id);
        let (to, parts) = mpsc::channel();
        let stores = partition.stores().map_err(|_| RoundError::NoActor)?;
        if !partition.cast(PartitionMsg::BeginCheckpoint { full, to }) {
            return Err(RoundError::NoActor);
        }
        let write = || {
            let CheckpointPart::Cut {
                applied,
                membership,
                payloads,
                dedup,
                dedup_from,
            } = next(&parts)?
            else {
                return Err(RoundError::NoActor);
            };
            self.hold_for(export, partition.id, applied);
            let mut writers = Writers::begin(&files, context, partition.id, full, export)?;
            loop {
                partition.cast(PartitionMsg::CheckpointStep);
                let CheckpointPart::Rows { rows, done } = next(&parts)? else {
                    return Err(RoundError::NoActor);
                };
                for (key, row) in rows {
                    writers.row(&key, row.as_ref())?;
                }
                if done {
                    break;
                }
            }
            writers.own.payload_cut(&payloads)?;
            stores.dedup.expire(dedup_from);
            let dedup_files = stores.dedup.write(dedup)?;
            let manifest = writers.finish(applied, membership, dedup_files)?;
            stores.dedup.remove_unlisted(&manifest.dedup)?;
            Ok(manifest)
        };
        let manifest = match write() {
            Ok(manifest) => manifest,
            Err(error) => {
                partition.cast(PartitionMsg::AbandonCheckpoint);
                return Err(error);
            }
        };
        let name = name_of(&manifest);
        partition.cast(PartitionMsg::CheckpointWritten(name.clone()));
        let exported = export.map_or(Ok(()), |into| {
            for dedup in &manifest.dedup {
                OutgoingSnapshot::link(&*context.vfs, &files.dir, into, &dedup.to_string())?;
            }
            stores.payloads.export(into)?;
            Ok(())
        });
        if export.is_none() {
            self.purge(partition.group(), partition.id, name.index);
        }
        let bytes = files.store.bytes();
        Ok(Written { bytes, exported })
    }

    pub(super) fn checkpoint_catalog(
        &self,
        catalog: &Arc<CatalogHandle>,
        context: &ReplicaContext,
        export: Option<&Path>,
    ) -> Result<Written, RoundError> {
        let id = PartitionId::CATALOG;
        let files = Files::lock(context, id, catalog.disk())?;
        let full = export.is_some() || self.wants_full(&files.store, id);
        let (to, parts) = mpsc::channel();
        if !catalog.cast(CatalogMsg::BeginCheckpoint { full, to }) {
            return Err(RoundError::NoActor);
        }
        let write = || {
            let CatalogPart::Cut { applied, membership } = next(&parts)? else {
                return Err(RoundError::NoActor);
            };
            self.hold_for(export, id, applied);
            let mut writers = Writers::begin(&files, context, id, full, export)?;
            loop {
                catalog.cast(CatalogMsg::CheckpointStep);
                let CatalogPart::Rows { rows, done } = next(&parts)? else {
                    return Err(RoundError::NoActor);
                };
                for (key, row) in rows {
                    writers.row(&key, row.as_ref())?;
                }
                if done {
                    break;
                }
            }
            writers.finish(applied, membership, Vec::new())
        };
        match write() {
            Ok(manifest) => {
                let name = name_of(&manifest);
                catalog.cast(CatalogMsg::CheckpointWritten(name.clone()));
                if export.is_none() {
                    self.purge(catalog.group(), id, name.index);
                }
                let bytes = files.store.bytes();
                Ok(Written {
                    bytes,
                    exported: Ok(()),
                })
            }
            Err(error) => {
                catalog.cast(CatalogMsg::AbandonCheckpoint);
                Err(error)
            }
        }
    }

    fn wants_full(&self, store: &CheckpointStore, partition: PartitionId) -> bool {
        store.wants_full() || self.full_wanted.get(&partition).copied().unwrap_or(false)
    }

    /// From the cut on, the log behind a snapshot must stay.
    fn hold_for(&self, export: Option<&Path>, partition: PartitionId, applied: LogPosition) {
        if export.is_some() {
            self.snapshots().making(partition, Some(applied.index));
        }
    }
}

fn next<T>(parts: &Receiver<T>) -> Result<T, RoundError> {
    parts.recv_timeout(ROWS_WAIT).map_err(|_| RoundError::NoActor)
}

fn name_of(manifest: &Manifest) -> CheckpointName {
    let (index, term, leader) = manifest.applied;
    CheckpointName {
        index,
        term,
        leader,
        membership: manifest.membership.clone(),
    }
}
