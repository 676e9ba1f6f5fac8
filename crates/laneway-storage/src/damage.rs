//! What was found damaged while in use: by a reader, or by a scrub that reads every file once.
//!
//! Files are checked block by block as they are read, so damage in a block that nobody reads stays unknown, while the
//! copy that could replace it may still exist. A scrub looks for it in small steps.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::sealed::FileError;

/// A file that does not hold what was written to it, or cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedFile {
    /// The file.
    pub file: PathBuf,
    /// What was found first: names the file and the position.
    pub what: String,
}

impl fmt::Display for DamagedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// How far a scrub of one store is. It looks at the files that were there when it began.
#[derive(Debug)]
pub struct ScrubCursor {
    /// Numbers of the files to look at, the next one last.
    pub(crate) files: Vec<u64>,
    /// Where to go on in that one; 0 is its beginning. The store's own unit.
    pub(crate) at: u64,
}

impl ScrubCursor {
    pub(crate) fn new(mut files: Vec<u64>) -> Self {
        files.reverse();
        Self { files, at: 0 }
    }

    /// Done with a file.
    pub(crate) fn next_file(&mut self) {
        self.files.pop();
        self.at = 0;
    }

    /// Whether every file was looked at.
    pub fn is_done(&self) -> bool {
        self.files.is_empty()
    }
}

/// The damaged files of one store.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    files: Mutex<BTreeMap<PathBuf, String>>,
}

impl Damage {
    /// Keeps what was found first of a file.
    pub(crate) fn found(&self, file: &Path, what: &dyn fmt::Display) {
        self.lock()
            .entry(file.to_owned())
            .or_insert_with(|| what.to_string());
    }

    pub(crate) fn found_in(&self, error: &FileError) {
        if let FileError::Damaged { file, .. } = error {
            self.found(file, error);
        }
    }

    /// The file is no longer in use.
    pub(crate) fn gone(&self, file: &Path) {
        self.lock().remove(file);
    }

    pub(crate) fn holds(&self, file: &Path) -> bool {
        self.lock().contains_key(file)
    }

    pub(crate) fn list(&self) -> Vec<DamagedFile> {
        let files = self.lock();
        let damaged = files.iter().map(|(file, what)| DamagedFile {
            file: file.clone(),
            what: what.clone(),
        });
        damaged.collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, String>> {
        // Each change is one call: there is nothing half-done in it.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
