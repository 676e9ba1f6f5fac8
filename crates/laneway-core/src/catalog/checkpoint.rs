//! Rows of the catalog, its checkpoints and its digest.

use std::collections::BTreeMap;
use std::ops::Bound;

use serde::{Deserialize, Serialize};

use super::{CatalogMachine, Changed};
use crate::digest;
use crate::ids::{CatalogVersion, QueueId};
use crate::settings::{GroupRow, QueueRow};
use crate::time::Stamps;
use crate::tracker::CheckpointStep;

/// Which row. Variants are numbered by their order and only ever appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CatalogRowKey {
    /// The one [`CatalogMetaRow`].
    Meta,
    /// A live queue.
    Queue(QueueId),
    /// A group of a live queue, by the version of its registration.
    Group(QueueId, CatalogVersion),
    /// A deleted queue.
    Tombstone(QueueId),
}

/// A row. Variants are numbered by their order and only ever appended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CatalogRow {
    /// Of [`CatalogRowKey::Meta`].
    Meta(CatalogMetaRow),
    /// Of [`CatalogRowKey::Queue`].
    Queue(Box<QueueRow>),
    /// Of [`CatalogRowKey::Group`].
    Group(GroupRow),
    /// Of [`CatalogRowKey::Tombstone`].
    Tombstone(CatalogTombstoneRow),
}

/// Stamps and version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CatalogMetaRow {
    /// Stamps of the last entry.
    pub stamps: Stamps,
    /// Version of the last change.
    pub version: CatalogVersion,
}

/// What is left of a deleted queue until all partitions know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CatalogTombstoneRow {
    /// Version of the deletion.
    pub version: CatalogVersion,
}

/// Rows that no machine can have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogLoadError {
    /// A row is of another kind, or another thing, than its key says.
    #[error("the row at {key:?} does not fit its key")]
    Misfit {
        /// The key.
        key: CatalogRowKey,
    },
    /// There are rows, but not the one with the stamps.
    #[error("the row with the catalog's stamps is missing")]
    MetaMissing,
    /// A queue whose name, versions or groups clash with others.
    #[error("the rows of queue {queue} contradict others")]
    Queue {
        /// The queue.
        queue: QueueId,
    },
}

/// All of the machine's state.
#[derive(Debug, Default)]
pub(super) struct CatalogTables {
    pub(super) meta: CatalogMetaRow,
    pub(super) queues: BTreeMap<QueueId, QueueRow>,
    pub(super) groups: BTreeMap<(QueueId, CatalogVersion), GroupRow>,
    pub(super) tombstones: BTreeMap<QueueId, CatalogTombstoneRow>,
    has_meta: bool,
}

impl CatalogTables {
    pub(super) fn contains(&self, key: CatalogRowKey) -> bool {
        match key {
            CatalogRowKey::Meta => true,
            CatalogRowKey::Queue(queue) => self.queues.contains_key(&queue),
            CatalogRowKey::Group(queue, version) => self.groups.contains_key(&(queue, version)),
            CatalogRowKey::Tombstone(queue) => self.tombstones.contains_key(&queue),
        }
    }

    pub(super) fn row(&self, key: CatalogRowKey) -> Option<CatalogRow> {
        match key {
            CatalogRowKey::Meta => Some(CatalogRow::Meta(self.meta)),
            CatalogRowKey::Queue(queue) => self
                .queues
                .get(&queue)
                .cloned()
                .map(|row| CatalogRow::Queue(Box::new(row))),
            CatalogRowKey::Group(queue, version) => {
                self.groups.get(&(queue, version)).cloned().map(CatalogRow::Group)
            }
            CatalogRowKey::Tombstone(queue) => {
                self.tombstones.get(&queue).copied().map(CatalogRow::Tombstone)
            }
        }
    }

    /// Stores a row; false when it is of another kind than its key.
    fn put(&mut self, key: CatalogRowKey, row: CatalogRow) -> bool {
        match (key, row) {
            (CatalogRowKey::Meta, CatalogRow::Meta(row)) => {
                self.meta = row;
                self.has_meta = true;
            }
            (CatalogRowKey::Queue(queue), CatalogRow::Queue(row)) if queue == row.id => {
                self.queues.insert(queue, *row);
            }
            (CatalogRowKey::Group(queue, version), CatalogRow::Group(row)) if version == row.version => {
                self.groups.insert((queue, version), row);
            }
            (CatalogRowKey::Tombstone(queue), CatalogRow::Tombstone(row)) => {
                self.tombstones.insert(queue, row);
            }
            (_, _) => return false,
        }
        true
    }

    pub(super) fn remove(&mut self, key: CatalogRowKey) {
        match key {
            CatalogRowKey::Meta => self.has_meta = false,
            CatalogRowKey::Queue(queue) => drop(self.queues.remove(&queue)),
            CatalogRowKey::Group(queue, version) => drop(self.groups.remove(&(queue, version))),
            CatalogRowKey::Tombstone(queue) => drop(self.tombstones.remove(&queue)),
        }
    }

    /// Keys of all rows beyond `after`, ascending.
    fn keys_after(&self, after: Option<CatalogRowKey>) -> impl Iterator<Item = CatalogRowKey> + '_ {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let beyond = move |key: &CatalogRowKey| match from {
            Bound::Excluded(after) => *key > after,
            Bound::Included(_) | Bound::Unbounded => true,
        };
        let queues_from = match after {
            Some(CatalogRowKey::Queue(queue)) => queue,
            Some(CatalogRowKey::Meta | CatalogRowKey::Group(..) | CatalogRowKey::Tombstone(_)) | None => {
                QueueId(0)
            }
        };
        let groups_from = match after {
            Some(CatalogRowKey::Group(queue, version)) => (queue, version),
            Some(CatalogRowKey::Meta | CatalogRowKey::Queue(_) | CatalogRowKey::Tombstone(_)) | None => {
                (QueueId(0), CatalogVersion(0))
            }
        };
        let queues = self
            .queues
            .range(queues_from..)
            .map(|(queue, _)| CatalogRowKey::Queue(*queue));
        let groups = self
            .groups
            .range(groups_from..)
            .map(|(key, _)| CatalogRowKey::Group(key.0, key.1));
        let tombstones = self
            .tombstones
            .keys()
            .map(|queue| CatalogRowKey::Tombstone(*queue));
        std::iter::once(CatalogRowKey::Meta)
            .chain(queues)
            .chain(groups)
            .chain(tombstones)
            .filter(beyond)
    }
}

impl CatalogMachine {
    /// Cuts a checkpoint here, of all rows or of those changed since the last cut; see
    /// [`crate::partition::PartitionMachine::begin_checkpoint`].
    pub fn begin_checkpoint(&mut self, full: bool) {
        self.tracker.begin(full);
    }

    /// The next rows of the checkpoint, in key order; done if none is in progress.
    pub fn checkpoint_step(&mut self, rows_max: usize) -> CheckpointStep<CatalogRowKey, CatalogRow> {
        let Self { tables, tracker, .. } = self;
        tracker.step(rows_max, |after| tables.keys_after(after), |key| tables.row(key))
    }

    /// Takes the last cut back, also after its last step.
    pub fn abandon_checkpoint(&mut self) {
        self.tracker.abandon();
    }

    /// Hash of all rows.
    pub fn digest(&self) -> u64 {
        digest::of_rows(
            self.tables
                .keys_after(None)
                .map(|key| (key, self.tables.row(key))),
        )
    }

    /// Takes a row of a checkpoint into a new machine. Nothing else may be called before [`Self::finish_load`].
    pub fn load_row(&mut self, key: CatalogRowKey, row: Option<CatalogRow>) {
        self.loading = true;
        match row {
            None => self.tables.remove(key),
            Some(row) => {
                if !self.tables.put(key, row) {
                    self.misfit.get_or_insert(key);
                }
            }
        }
    }

    /// Rebuilds what is derived. Errors: the rows contradict each other; the machine must not be used.
    pub fn finish_load(&mut self) -> Result<(), CatalogLoadError> {
        if let Some(key) = self.misfit {
            return Err(CatalogLoadError::Misfit { key });
        }
        if self.loading && !self.tables.has_meta {
            return Err(CatalogLoadError::MetaMissing);
        }
        self.loading = false;
        self.names.clear();
        self.groups.clear();
        self.changes.clear();
        let mut versions = Vec::new();
        for row in self.tables.queues.values() {
            let clash = self.names.insert(row.name.clone(), row.id);
            if clash.is_some() || self.tables.tombstones.contains_key(&row.id) {
                return Err(CatalogLoadError::Queue { queue: row.id });
            }
            self.groups.insert(row.id, BTreeMap::new());
            versions.push((row.version, Changed::Queue(row.id), row.id));
        }
        for (&(queue, version), row) in &self.tables.groups {
            let groups = self
                .groups
                .get_mut(&queue)
                .ok_or(CatalogLoadError::Queue { queue })?;
            if groups.insert(row.name.clone(), version).is_some() {
                return Err(CatalogLoadError::Queue { queue });
            }
            versions.push((version, Changed::Group(queue), queue));
        }
        for (&queue, row) in &self.tables.tombstones {
            versions.push((row.version, Changed::Tombstone(queue), queue));
        }
        for (version, changed, queue) in versions {
            let clash = self.changes.insert(version, changed);
            if clash.is_some() || version > self.version() || queue.0 > version.0 {
                return Err(CatalogLoadError::Queue { queue });
            }
        }
        self.tracker.reset();
        Ok(())
    }
}
