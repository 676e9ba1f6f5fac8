//! Reading every backlog file once, and what was found damaged.

use super::index::PlaceKind;
use super::{PayloadError, PayloadStore};
use crate::backlog::BacklogFile;
use crate::damage::{DamagedFile, ScrubCursor};
use crate::sealed::FileError;
use crate::wal::WalError;

impl PayloadStore {
    /// Starts a scrub of the backlog files in use now. Those written later were in memory a moment ago.
    pub fn begin_scrub(&self) -> ScrubCursor {
        let mut files: Vec<u64> = self
            .index()
            .places()
            .filter_map(|(_, place)| match place.kind {
                PlaceKind::File(number) if place.parts > 0 || place.spilled => Some(number),
                _ => None,
            })
            .collect();
        files.sort_unstable();
        ScrubCursor::new(files)
    }

    /// Checks the next blocks and index sections, about `bytes_max` bytes of them (at least one). Returns the bytes read.
    ///
    /// Damage is told by [`PayloadStore::damaged`]; the scrub goes on with the next file. Blocks on the disk, but keeps
    /// nobody waiting.
    pub fn scrub(&self, cursor: &mut ScrubCursor, bytes_max: u64) -> u64 {
        let mut read = 0;
        while let Some(&number) = cursor.files.last()
            && read < bytes_max
        {
            match self.scrub_file(number, cursor, bytes_max - read) {
                Ok(bytes) => read += bytes,
                Err(error) => {
                    // Compaction may have removed it in the meantime.
                    if self.in_use(number) {
                        self.shared.damage.found(&self.path_of(number), &error);
                    }
                    cursor.next_file();
                    // An error costs something too, and a folder of broken files is no reason to read on and on.
                    read += 1;
                }
            }
        }
        read
    }

    fn scrub_file(&self, number: u64, cursor: &mut ScrubCursor, bytes_max: u64) -> Result<u64, FileError> {
        let shared = &self.shared;
        // Not through the files kept open, which are those that readers want.
        let file = BacklogFile::open(&*shared.vfs, &self.path_of(number), shared.partition, number)?;
        let mut read = 0;
        while read < bytes_max {
            match file.check_section(cursor.at)? {
                Some(next) => {
                    read += next - cursor.at;
                    cursor.at = next;
                }
                None => {
                    cursor.next_file();
                    break;
                }
            }
        }
        Ok(read)
    }

    fn in_use(&self, number: u64) -> bool {
        let index = self.index();
        let mut places = index.places();
        places.any(|(_, place)| place.kind == PlaceKind::File(number))
    }

    /// Files that were found damaged and are still needed: backlog files, and log segments with payloads. What lies
    /// elsewhere is read as before.
    pub fn damaged(&self) -> Vec<DamagedFile> {
        self.shared.damage.list()
    }

    /// Remembers which file an error is of.
    pub(super) fn noted(&self, error: PayloadError) -> PayloadError {
        match &error {
            PayloadError::File(file) => self.shared.damage.found_in(file),
            PayloadError::Damaged { segment, at, .. }
            | PayloadError::Wal(WalError::Corrupt { segment, at }) => {
                let path = self.shared.wal.segment_path(*segment);
                let what = format!("{} is damaged at byte {at}", path.display());
                self.shared.damage.found(&path, &what);
            }
            PayloadError::Wal(_)
            | PayloadError::Rows(_)
            | PayloadError::RowsMissing { .. }
            | PayloadError::NotRestored => {}
        }
        error
    }
}
