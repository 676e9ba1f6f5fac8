//! Free segment files, prefilled and ready, so that the hot path allocates nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::failpoint;
use crate::vfs::{Vfs, VfsFile, is_full};

/// Ending of a finished free file.
pub(crate) const FREE_SUFFIX: &str = ".free";
/// Ending of a file that is being made; removed at the next start.
pub(crate) const UNFINISHED_SUFFIX: &str = ".tmp";

/// Bytes of a new file that are written before they are synced.
const FILL_STEP_BYTES: u64 = 1024 * 1024;

/// A free file under its pool name.
#[derive(Debug)]
pub(crate) struct FreeFile {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn VfsFile>,
}

#[derive(Debug)]
pub(crate) struct Pool {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    pub(crate) segment_bytes: u64,
    state: Mutex<PoolState>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    free: Vec<FreeFile>,
    next_name: u64,
    /// A roll took the last spare: the pool's thread should make another.
    wanted: bool,
    closing: bool,
    warned: bool,
}

impl Pool {
    /// A pool with the free files found in `dir`.
    pub(crate) fn new(
        vfs: Arc<dyn Vfs>,
        dir: PathBuf,
        segment_bytes: u64,
        free: Vec<FreeFile>,
        next_name: u64,
    ) -> Self {
        let state = Mutex::new(PoolState {
            free,
            next_name,
            ..PoolState::default()
        });
        Self {
            vfs,
            dir,
            segment_bytes,
            state,
            wake: Condvar::new(),
        }
    }

    /// A ready file, if there is one. Whoever takes the last one wakes the pool's thread.
    pub(crate) fn take(&self) -> Option<FreeFile> {
        let mut state = self.lock();
        let file = state.free.pop();
        if state.free.is_empty() {
            state.wanted = true;
            self.wake.notify_all();
        }
        file
    }

    /// Adds a file that lies under a pool name durably.
    pub(crate) fn put(&self, file: FreeFile) {
        self.lock().free.push(file);
    }

    pub(crate) fn free_files(&self) -> usize {
        self.lock().free.len()
    }

    /// A pool name that no file has.
    pub(crate) fn new_path(&self) -> PathBuf {
        let mut state = self.lock();
        state.next_name += 1;
        self.dir.join(format!("{:010}{FREE_SUFFIX}", state.next_name))
    }

    /// Makes a file: allocated, written over once, synced, then named.
    pub(crate) fn create(&self) -> io::Result<FreeFile> {
        let path = self.new_path();
        let unfinished = path.with_extension(&UNFINISHED_SUFFIX[1..]);
        let made = self.make(&unfinished, &path);
        if made.is_err() {
            // Gives the space back; if that fails too, the next start does it.
            let _ = self.vfs.remove(&unfinished);
        }
        Ok(FreeFile { path, file: made? })
    }

    fn make(&self, unfinished: &Path, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let file = self.vfs.create(unfinished)?;
        failpoint::hit("pool-created");
        file.preallocate(self.segment_bytes)?;
        let mut at = 0;
        while at < self.segment_bytes {
            let step = FILL_STEP_BYTES.min(self.segment_bytes - at);
            file.write_zeros(at, step)?;
            at += step;
            if at == self.segment_bytes {
                failpoint::hit("pool-filled");
            }
            // Small steps: the log's own syncs would wait behind the write-back of a whole segment.
            file.sync_data()?;
        }
        failpoint::hit("pool-synced");
        self.vfs.rename(unfinished, path)?;
        failpoint::hit("pool-renamed");
        self.vfs.sync_dir(&self.dir)?;
        failpoint::hit("pool-dir-synced");
        Ok(file)
    }

    /// See [`super::Wal::reserve`].
    pub(crate) fn reserve(&self) -> bool {
        if self.free_files() > 0 {
            return true;
        }
        let made = self.create();
        let mut state = self.lock();
        state.wanted = false;
        match made {
            Ok(file) => {
                state.free.push(file);
                state.warned = false;
                true
            }
            Err(error) => {
                if !state.warned {
                    state.warned = true;
                    let full = is_full(&error);
                    tracing::warn!(%error, full, "no spare log segment could be made");
                }
                false
            }
        }
    }

    /// The pool's thread: makes a spare whenever the last one was taken.
    pub(crate) fn run(&self) {
        loop {
            let mut state = self.lock();
            while !state.wanted && !state.closing {
                state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.closing {
                return;
            }
            state.wanted = false;
            drop(state);
            self.reserve();
        }
    }

    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.wake.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
