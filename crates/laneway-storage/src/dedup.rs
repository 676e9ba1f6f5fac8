//! Which transaction ids were stored lately, and where: one row per message, for as long as its queue's window.
//!
//! The newest rows are in memory. With each checkpoint they are frozen and written to an immutable sorted file with a
//! filter; files are merged with those not much larger, so that there are rarely more than a dozen. The checkpoint's
//! manifest names the files: rows behind it come again when the log is replayed.
//!
//! **In memory** a row takes 28 bytes in a hash table; of a file there are 10 bits per row (the filter) and 8 bytes per
//! page of 146 rows. **On disk** a row takes 28 bytes and its share of filter and index: about 29.5.
//!
//! **Invariants.** A look-up finds the newest row of a key that is not older than asked for, wherever it is. A row is
//! dropped only when its window is over.
//!
//! **Deliberately absent**: the decision what is a duplicate. The leader makes it, from here and from its own plans.

mod file;
mod filter;
mod memory;
mod merge;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use laneway_core::ids::{Offset, QueueId};
use laneway_core::time::WallTime;
use xxhash_rust::xxh3::Xxh3;

use crate::damage::{Damage, DamagedFile, ScrubCursor};
use crate::sealed::{self, FileError, number_of};
use crate::vfs::Vfs;

pub(crate) use file::DEDUP_ENDING;
use file::{DedupFile, DedupFileWriter};
pub use file::{DedupFileName, check_dedup_bytes};
use memory::MemoryRows;

/// Key of a row: a hash of queue incarnation, lane name and transaction id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct DedupKey(pub u128);

/// Limits of a dedup store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupOptions {
    /// Bytes of all files and of the rows in memory, beyond which the store is full. Default 1 GiB.
    pub bytes_max: u64,
    /// Rows in memory beyond which the store is full: a checkpoint is overdue. Default 4 000 000.
    pub rows_in_memory_max: u64,
}

impl Default for DedupOptions {
    fn default() -> Self {
        Self {
            bytes_max: 1 << 30,
            rows_in_memory_max: 4_000_000,
        }
    }
}

/// What a dedup store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DedupStats {
    /// Rows in memory, frozen ones included.
    pub rows_in_memory: u64,
    /// Rows in files, those whose window is over and that are not dropped yet included.
    pub rows_in_files: u64,
    /// Files in use.
    pub files: u64,
    /// Their length in bytes.
    pub file_bytes: u64,
    /// Bytes of memory taken by rows, filters and page indexes, roughly.
    pub memory_bytes: u64,
}

/// A dedup file failed or is damaged.
#[derive(Debug, thiserror::Error)]
pub enum DedupError {
    /// A file failed or is damaged.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file that the checkpoint names is not there.
    #[error("dedup file {} is missing; restore the data directory from a copy, or move it aside and start empty", .0.display())]
    Missing(PathBuf),
}

/// Rows frozen at a checkpoint's cut; shared with the store, nothing is copied.
#[derive(Clone, Debug)]
pub struct FrozenDedup {
    rows: Vec<Arc<MemoryRows>>,
}

/// The dedup rows of one partition. A cheap handle.
///
/// [`insert`](Self::insert) is for the thread that applies entries, [`get`](Self::get) for any: it reads at most one page
/// of each file whose filter says that the key may be there. [`write`](Self::write) is for the maintenance thread.
#[derive(Clone, Debug)]
pub struct DedupStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    options: DedupOptions,
    state: RwLock<State>,
    /// Number of the next file. Held while files are written.
    next_file: Mutex<u64>,
    damage: Damage,
}

#[derive(Debug, Default)]
struct State {
    current: MemoryRows,
    /// Oldest first.
    frozen: Vec<Arc<MemoryRows>>,
    /// By age of their rows, oldest first.
    files: Vec<Arc<DedupFile>>,
    /// The newest stamp of any row: the store's idea of now.
    wall: WallTime,
    /// Rows older than this may be dropped.
    expired_before: WallTime,
}

impl DedupStore {
    /// Opens the store in `dir`, which is made if missing and belongs to it, with the files that the checkpoint's
    /// manifest names. Other files in it are deleted.
    ///
    /// Errors: a named file is missing or damaged. Filters and page indexes are read and checked here, rows when they are used.
    pub fn open(
        vfs: Arc<dyn Vfs>,
        dir: PathBuf,
        options: DedupOptions,
        files: &[DedupFileName],
    ) -> Result<Self, DedupError> {
        vfs.create_dir_all(&dir)
            .map_err(|error| FileError::io(&dir, error))?;
        let names = sealed::list_sealed(&*vfs, &dir)?;
        let numbers: Vec<u64> = names
            .iter()
            .filter_map(|name| number_of(name, DEDUP_ENDING))
            .collect();
        let next = numbers
            .iter()
            .chain(files.iter().map(|name| &name.0))
            .max()
            .map_or(1, |number| number + 1);
        let mut state = State::default();
        for name in files {
            let path = dir.join(name.to_string());
            let file = match DedupFile::open(&*vfs, &path, *name) {
                Err(error) if error.is_missing() => return Err(DedupError::Missing(path)),
                other => other?,
            };
            state.wall = state.wall.max(file.wall_max);
            state.files.push(Arc::new(file));
        }
        let shared = Shared {
            vfs,
            dir,
            options,
            state: RwLock::new(state),
            next_file: Mutex::new(next),
            damage: Damage::default(),
        };
        let store = Self {
            shared: Arc::new(shared),
        };
        store.remove_unlisted(files)?;
        Ok(store)
    }

    /// The key of a message.
    pub fn key(queue: QueueId, lane: &str, transaction_id: &str) -> DedupKey {
        let mut hash = Xxh3::new();
        hash.update(&queue.0.to_le_bytes());
        hash.update(lane.as_bytes());
        hash.update(&[0]);
        hash.update(transaction_id.as_bytes());
        DedupKey(hash.digest128())
    }

    /// Notes that a message was stored. Memory only. Of several rows of a key the one with the newest stamp counts.
    ///
    /// `wall` is exact up to the year 2112, `offset` up to 40 bits. A row is kept for at least `window_seconds`.
    pub fn insert(&self, key: DedupKey, offset: Offset, wall: WallTime, window_seconds: u64) {
        let mut state = self.write_state();
        state.wall = state.wall.max(wall);
        state.current.insert(key, offset, wall, window_seconds);
    }

    /// The newest row of `key`, if it is stamped `not_before` or later: offset and stamp of the message.
    ///
    /// May block on a disk: mostly not, a filter answers for files without the key. Errors: a page could not be read.
    pub fn get(&self, key: DedupKey, not_before: WallTime) -> Result<Option<(Offset, WallTime)>, DedupError> {
        let (mut newest, files) = {
            let state = self.read_state();
            let frozen = state.frozen.iter().filter_map(|rows| rows.get(key));
            let newest = frozen.chain(state.current.get(key)).max_by_key(|(_, wall)| *wall);
            let may_have = |file: &&Arc<DedupFile>| {
                file.wall_max >= not_before && newest.is_none_or(|(_, wall)| file.wall_max > wall)
            };
            let files = state
                .files
                .iter()
                .filter(may_have)
                .filter(|file| file.may_hold(key));
            (newest, files.cloned().collect::<Vec<_>>())
        };
        for file in files {
            let found = file.get(key).map_err(|error| self.noted(error))?;
            newest = newest.into_iter().chain(found).max_by_key(|(_, wall)| *wall);
        }
        Ok(newest.filter(|(_, wall)| *wall >= not_before))
    }

    /// Whether there is no room for more rows: refuse pushes until a checkpoint was written or rows have expired.
    pub fn full(&self) -> bool {
        let stats = self.stats();
        let rows_bytes = stats.rows_in_memory * memory::ROW_BYTES;
        stats.file_bytes + rows_bytes >= self.shared.options.bytes_max
            || stats.rows_in_memory >= self.shared.options.rows_in_memory_max
    }

    /// Freezes the rows in memory, at a checkpoint's cut. Cheap. They can still be looked up; rows inserted later are not
    /// among them. What was frozen before and is not written yet is.
    pub fn freeze(&self) -> FrozenDedup {
        let mut state = self.write_state();
        if !state.current.is_empty() {
            let rows = std::mem::take(&mut state.current);
            state.frozen.push(Arc::new(rows));
        }
        FrozenDedup {
            rows: state.frozen.clone(),
        }
    }

    /// Writes frozen rows to a file, merges and drops files, and returns the list for the checkpoint's manifest.
    ///
    /// Durability: every listed file is durable. Files that are no longer listed stay until
    /// [`DedupStore::remove_unlisted`] is called with a list that a durable manifest has.
    /// Errors: the rows stay in memory, to be frozen again by the next checkpoint.
    pub fn write(&self, frozen: FrozenDedup) -> Result<Vec<DedupFileName>, DedupError> {
        let mut next_file = self
            .shared
            .next_file
            .lock()
            .expect("nobody panicked while writing");
        if !frozen.rows.is_empty() {
            let newest = self.write_rows(&frozen, &mut next_file)?;
            let mut state = self.write_state();
            state.files.extend(newest);
            state
                .frozen
                .retain(|rows| !frozen.rows.iter().any(|written| Arc::ptr_eq(written, rows)));
        }
        self.drop_expired();
        self.merge(&mut next_file).map_err(|error| match error {
            DedupError::File(error) => DedupError::File(self.noted(error)),
            missing @ DedupError::Missing(_) => missing,
        })?;
        Ok(self.read_state().files.iter().map(|file| file.name).collect())
    }

    fn write_rows(
        &self,
        frozen: &FrozenDedup,
        next_file: &mut u64,
    ) -> Result<Option<Arc<DedupFile>>, DedupError> {
        let mut writer = self.new_file(next_file, frozen.rows.iter().map(|rows| rows.len()).sum())?;
        memory::each_sorted(&frozen.rows, &mut |row| writer.push(row))?;
        Ok(self.finish_file(writer)?)
    }

    fn new_file(&self, next_file: &mut u64, rows_max: u64) -> Result<DedupFileWriter, FileError> {
        let name = DedupFileName(*next_file);
        *next_file += 1;
        DedupFileWriter::create(&self.shared.vfs, &self.shared.dir, name, rows_max)
    }

    fn finish_file(&self, writer: DedupFileWriter) -> Result<Option<Arc<DedupFile>>, FileError> {
        let Some(name) = writer.finish()? else {
            return Ok(None);
        };
        let path = self.shared.dir.join(name.to_string());
        Ok(Some(Arc::new(DedupFile::open(&*self.shared.vfs, &path, name)?)))
    }

    /// Allows rows older than `before` to be dropped: call it with now less the longest window of any queue.
    ///
    /// Rows whose own window is over are dropped without it, when their file is merged or nothing else is in it. Files go
    /// with the next [`DedupStore::write`].
    pub fn expire(&self, before: WallTime) {
        let mut state = self.write_state();
        state.expired_before = state.expired_before.max(before);
    }

    fn drop_expired(&self) {
        let mut state = self.write_state();
        let (before, now) = (state.expired_before, state.wall);
        state
            .files
            .retain(|file| file.wall_max >= before && file.kept_until >= now);
    }

    /// Deletes files that neither `listed` (the newest durable manifest) nor the store itself names.
    pub fn remove_unlisted(&self, listed: &[DedupFileName]) -> Result<(), DedupError> {
        // Nothing is being written meanwhile, so every file is known.
        let _writing = self
            .shared
            .next_file
            .lock()
            .expect("nobody panicked while writing");
        let shared = &self.shared;
        let used: Vec<DedupFileName> = self.read_state().files.iter().map(|file| file.name).collect();
        let names = shared
            .vfs
            .list(&shared.dir)
            .map_err(|error| FileError::io(&shared.dir, error))?;
        for name in names {
            let Some(number) = number_of(&name, DEDUP_ENDING).map(DedupFileName) else {
                continue;
            };
            if !listed.contains(&number) && !used.contains(&number) {
                let path = shared.dir.join(&name);
                sealed::remove(&*shared.vfs, &path)?;
                shared.damage.gone(&path);
            }
        }
        Ok(())
    }

    /// Starts a scrub of the files in use now.
    pub fn begin_scrub(&self) -> ScrubCursor {
        ScrubCursor::new(self.read_state().files.iter().map(|file| file.name.0).collect())
    }

    /// Checks the next pages, about `bytes_max` bytes of them (at least one). Returns the bytes read.
    ///
    /// Damage is told by [`DedupStore::damaged`]; the scrub goes on with the next file. Blocks on the disk, but keeps
    /// nobody waiting. Indexes and filters were checked when the files were opened, and are in memory.
    pub fn scrub(&self, cursor: &mut ScrubCursor, bytes_max: u64) -> u64 {
        let mut read = 0;
        while let Some(&number) = cursor.files.last()
            && read < bytes_max
        {
            let file = {
                let state = self.read_state();
                state.files.iter().find(|file| file.name.0 == number).cloned()
            };
            let page = usize::try_from(cursor.at).unwrap_or(usize::MAX);
            let Some(file) = file.filter(|file| page < file.pages()) else {
                cursor.next_file();
                continue;
            };
            cursor.at += 1;
            read += file::PAGE_BYTES;
            if let Err(error) = file.page(page) {
                self.shared.damage.found(file.path(), &error);
                cursor.next_file();
            }
        }
        read
    }

    /// Files that were found damaged and are still needed. Rows elsewhere are found as before.
    pub fn damaged(&self) -> Vec<DamagedFile> {
        self.shared.damage.list()
    }

    /// Remembers which file an error is of.
    fn noted(&self, error: FileError) -> FileError {
        self.shared.damage.found_in(&error);
        error
    }

    /// What the store holds.
    pub fn stats(&self) -> DedupStats {
        let state = self.read_state();
        let memory = state.frozen.iter().map(|rows| &**rows).chain([&state.current]);
        let (rows, bytes) = memory.fold((0, 0), |(rows, bytes), part| {
            (rows + part.len(), bytes + part.memory_bytes())
        });
        DedupStats {
            rows_in_memory: rows,
            rows_in_files: state.files.iter().map(|file| file.rows).sum(),
            files: u64::try_from(state.files.len()).expect("a length fits u64"),
            file_bytes: state.files.iter().map(|file| file.bytes).sum(),
            memory_bytes: bytes + state.files.iter().map(|file| file.memory_bytes()).sum::<u64>(),
        }
    }

    fn read_state(&self) -> RwLockReadGuard<'_, State> {
        self.shared
            .state
            .read()
            .expect("nobody panicked while changing the state")
    }

    fn write_state(&self) -> RwLockWriteGuard<'_, State> {
        self.shared
            .state
            .write()
            .expect("nobody panicked while changing the state")
    }
}
