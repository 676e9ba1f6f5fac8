//! The row store of the product, and the only user of sled.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sled::Db;

use super::{ROW_BATCH_MAX, RowChange, RowStore, RowStoreError, StoredRow};

/// Bytes of pages that sled keeps in memory.
const CACHE_BYTES: u64 = 32 * 1024 * 1024;

/// A sled database, empty whenever it is opened. One per node; each partition has keys of its own.
#[derive(Debug)]
pub struct SledRowStore {
    dir: PathBuf,
    state: Mutex<State>,
}

/// A database that failed may still be held by its own threads, so its successor gets another folder.
#[derive(Debug)]
struct State {
    generation: u64,
    db: Option<Db>,
}

impl SledRowStore {
    /// Opens an empty database in a folder of its own below `dir`, made if missing. Everything else in `dir` is deleted.
    ///
    /// `dir` belongs to the store. Nothing an earlier process left there is read, so no damage of it can matter.
    /// Errors: the file system refused.
    pub fn open(dir: &Path) -> Result<Self, RowStoreError> {
        match std::fs::remove_dir_all(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        std::fs::create_dir_all(dir)?;
        let store = Self {
            dir: dir.to_owned(),
            state: Mutex::new(State {
                generation: 0,
                db: None,
            }),
        };
        store.begin_anew(&mut store.lock())?;
        Ok(store)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic inside sled leaves at worst a database that fails, and that is cleared.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_anew(&self, state: &mut State) -> Result<(), RowStoreError> {
        let old = self.dir.join(state.generation.to_string());
        state.db = None;
        if let Err(error) = std::fs::remove_dir_all(&old)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(file = %old.display(), %error, "could not remove an old row store");
        }
        state.generation += 1;
        let path = self.dir.join(state.generation.to_string());
        let config = sled::Config::new()
            .path(path)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(None);
        state.db = Some(config.open().map_err(io::Error::from)?);
        Ok(())
    }

    fn db(&self) -> Result<Db, RowStoreError> {
        self.lock()
            .db
            .clone()
            .ok_or_else(|| io::Error::other("the database could not be opened").into())
    }
}

fn failed(error: sled::Error) -> RowStoreError {
    io::Error::from(error).into()
}

fn owned((key, value): (sled::IVec, sled::IVec)) -> StoredRow {
    (key.to_vec(), value.to_vec())
}

impl RowStore for SledRowStore {
    fn put_batch(&self, changes: &[RowChange]) -> Result<(), RowStoreError> {
        let db = self.db()?;
        for part in changes.chunks(ROW_BATCH_MAX) {
            let mut batch = sled::Batch::default();
            for (key, value) in part {
                match value {
                    Some(value) => batch.insert(key.as_slice(), value.as_slice()),
                    None => batch.remove(key.as_slice()),
                }
            }
            db.apply_batch(batch).map_err(failed)?;
        }
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, RowStoreError> {
        Ok(self.db()?.get(key).map_err(failed)?.map(|value| value.to_vec()))
    }

    fn range(&self, from: &[u8], to: &[u8], rows_max: usize) -> Result<Vec<StoredRow>, RowStoreError> {
        if from >= to {
            return Ok(Vec::new());
        }
        self.db()?
            .range(from..to)
            .take(rows_max)
            .map(|row| row.map(owned).map_err(failed))
            .collect()
    }

    fn last_at_or_before(&self, lowest: &[u8], key: &[u8]) -> Result<Option<StoredRow>, RowStoreError> {
        if lowest > key {
            return Ok(None);
        }
        self.db()?
            .range(lowest..=key)
            .next_back()
            .map(|row| row.map(owned).map_err(failed))
            .transpose()
    }

    fn remove_prefix(&self, prefix: &[u8]) -> Result<(), RowStoreError> {
        let db = self.db()?;
        loop {
            let keys: Vec<sled::IVec> = db
                .scan_prefix(prefix)
                .keys()
                .take(ROW_BATCH_MAX)
                .collect::<Result<_, _>>()
                .map_err(failed)?;
            if keys.is_empty() {
                return Ok(());
            }
            let mut batch = sled::Batch::default();
            keys.into_iter().for_each(|key| batch.remove(key));
            db.apply_batch(batch).map_err(failed)?;
        }
    }

    fn clear(&self) -> Result<(), RowStoreError> {
        self.begin_anew(&mut self.lock())
    }

    fn generation(&self) -> u64 {
        self.lock().generation
    }

    fn bytes(&self) -> u64 {
        self.db().ok().and_then(|db| db.size_on_disk().ok()).unwrap_or(0)
    }
}
