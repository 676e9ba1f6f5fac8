//! The row store of the simulation: same answers, over a [`Vfs`], so that its faults reach it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{ROW_BATCH_MAX, RowChange, RowStore, RowStoreError, StoredRow};
use crate::vfs::{Vfs, VfsFile};

/// Name of the store's file.
const FILE_NAME: &str = "rows";

/// Keeps all rows in memory and writes each change to a file that is never read back: rows do not outlive a process, but
/// a full or failing disk is noticed as sled would notice it.
#[derive(Debug)]
pub struct VfsRowStore {
    vfs: Arc<dyn Vfs>,
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    file: Option<Arc<dyn VfsFile>>,
    written: u64,
    generation: u64,
}

impl VfsRowStore {
    /// An empty store with its file in `dir`, which is made if missing.
    pub fn open(vfs: Arc<dyn Vfs>, dir: &Path) -> Result<Self, RowStoreError> {
        vfs.create_dir_all(dir)?;
        let store = Self {
            vfs,
            path: dir.join(FILE_NAME),
            state: Mutex::default(),
        };
        store.clear()?;
        Ok(store)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write(&mut self, changes: &[RowChange]) -> Result<(), RowStoreError> {
        let mut bytes = Vec::new();
        for (key, value) in changes {
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(value.as_deref().unwrap_or_default());
        }
        let file = self
            .file
            .as_ref()
            .ok_or_else(|| io::Error::other("the store failed before"))?;
        if let Err(error) = file.write_at(&bytes, self.written) {
            self.file = None;
            return Err(error.into());
        }
        self.written += u64::try_from(bytes.len()).expect("a length fits u64");
        for (key, value) in changes {
            match value {
                Some(value) => self.rows.insert(key.clone(), value.clone()),
                None => self.rows.remove(key),
            };
        }
        Ok(())
    }
}

impl RowStore for VfsRowStore {
    fn put_batch(&self, changes: &[RowChange]) -> Result<(), RowStoreError> {
        let mut state = self.lock();
        changes
            .chunks(ROW_BATCH_MAX)
            .try_for_each(|part| state.write(part))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, RowStoreError> {
        Ok(self.lock().rows.get(key).cloned())
    }

    fn range(&self, from: &[u8], to: &[u8], rows_max: usize) -> Result<Vec<StoredRow>, RowStoreError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let state = self.lock();
        let rows = state.rows.range(from.to_vec()..to.to_vec()).take(rows_max);
        Ok(rows.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn last_at_or_before(&self, lowest: &[u8], key: &[u8]) -> Result<Option<StoredRow>, RowStoreError> {
        if lowest > key {
            return Ok(None);
        }
        let state = self.lock();
        let row = state.rows.range(lowest.to_vec()..=key.to_vec()).next_back();
        Ok(row.map(|(key, value)| (key.clone(), value.clone())))
    }

    fn remove_prefix(&self, prefix: &[u8]) -> Result<(), RowStoreError> {
        let mut state = self.lock();
        let keys = state.rows.range(prefix.to_vec()..).map(|(key, _)| key);
        let changes: Vec<RowChange> = keys
            .take_while(|key| key.starts_with(prefix))
            .map(|key| (key.clone(), None))
            .collect();
        changes
            .chunks(ROW_BATCH_MAX)
            .try_for_each(|part| state.write(part))
    }

    fn clear(&self) -> Result<(), RowStoreError> {
        let mut state = self.lock();
        *state = State {
            generation: state.generation + 1,
            ..State::default()
        };
        if self.vfs.exists(&self.path)? {
            self.vfs.remove(&self.path)?;
        }
        state.file = Some(self.vfs.create(&self.path)?);
        Ok(())
    }

    fn generation(&self) -> u64 {
        self.lock().generation
    }

    fn bytes(&self) -> u64 {
        self.lock().written
    }
}
