//! The file `newest`: which segment is the last one.
//!
//! Segments link backwards only, so without it a log whose last files were removed would look like one that ends earlier.
//! It names a segment from the moment that is durable, and before anything in it is acknowledged: at most one segment,
//! in which nobody was told of anything, is newer than the one it names.
//!
//! ```text
//! two slots of 4096 bytes; a segment is written to the slot of its number's parity, so that the other slot stays whole
//! slot   0 magic "LWns"   4 u8 version   5 zeros   8 u64 segment (0: none yet)   16 u64 life of the segment
//!       24 u32 crc of 0..24   28 zeros
//! ```
//!
//! Integers are little-endian. The file has its full length from the start and is written in place: moving to another
//! segment costs one write and one sync, and needs no room on a full disk.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::WalOpenError;
use super::format::{u32_at, u64_at};
use super::log::Segment;
use super::pool::UNFINISHED_SUFFIX;
use crate::failpoint;
use crate::vfs::{Vfs, VfsFile, is_full};

/// Its name in the log's directory.
const NAME: &str = "newest";

/// A slot shares no block of a disk with the other one, so that a torn write harms only one.
const SLOT_BYTES: usize = 4096;
const FILE_BYTES: usize = 2 * SLOT_BYTES;
const RECORD_BYTES: usize = 28;

const MAGIC: &[u8; 4] = b"LWns";
const VERSION: u8 = 1;

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Named {
    /// Number of the segment; 0 before there is one.
    pub(crate) segment: u64,
    /// Tells it from another file of that number.
    pub(crate) life: u64,
}

impl Named {
    /// Of a log that has no segment yet.
    pub(crate) const NONE: Self = Self { segment: 0, life: 0 };

    pub(crate) fn of(segment: &Segment) -> Self {
        Self {
            segment: u64::from(segment.id),
            life: segment.life,
        }
    }

    fn slot_at(self) -> usize {
        if self.segment.is_multiple_of(2) {
            0
        } else {
            SLOT_BYTES
        }
    }

    fn encode(self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        out[..4].copy_from_slice(MAGIC);
        out[4] = VERSION;
        out[8..16].copy_from_slice(&self.segment.to_le_bytes());
        out[16..24].copy_from_slice(&self.life.to_le_bytes());
        let crc = crc32fast::hash(&out[..24]);
        out[24..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// What one slot says; `None` if it is empty, torn or damaged.
    fn decode(slot: &[u8]) -> Option<Self> {
        let record = slot.get(..RECORD_BYTES)?;
        let sound = record[..4] == *MAGIC
            && record[4] == VERSION
            && u32_at(record, 24) == crc32fast::hash(&record[..24]);
        sound.then(|| Self {
            segment: u64_at(record, 8),
            life: u64_at(record, 16),
        })
    }

    /// What a whole file says: the newer of its slots. `None` if neither can be read.
    pub(crate) fn decode_file(bytes: &[u8]) -> Option<Self> {
        let slot = |at: usize| {
            let named = Self::decode(bytes.get(at..at + SLOT_BYTES)?)?;
            (named.slot_at() == at).then_some(named)
        };
        slot(0).max(slot(SLOT_BYTES))
    }
}

/// The file, opened.
pub(crate) struct Newest {
    pub(crate) path: PathBuf,
    file: Arc<dyn VfsFile>,
    /// What it said at the start; `None` if it was made just now.
    pub(crate) found: Option<Named>,
}

impl fmt::Debug for Newest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Newest")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Newest {
    /// Path of the file in a log's directory.
    pub(crate) fn path(dir: &Path) -> PathBuf {
        dir.join(NAME)
    }

    /// Opens the file; `None` if there is none.
    ///
    /// Errors: `Damaged` if neither slot can be read, which no crash explains.
    pub(crate) fn open(vfs: &dyn Vfs, dir: &Path) -> Result<Option<Self>, WalOpenError> {
        let path = Self::path(dir);
        let io_error = |source| WalOpenError::Io {
            path: path.clone(),
            source,
        };
        let file = match vfs.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(error)),
        };
        let bytes = file.len().map_err(io_error)?;
        let whole = u64::try_from(FILE_BYTES).expect("a small constant");
        let mut buffer = vec![0; FILE_BYTES];
        if bytes == whole {
            file.read_exact_at(&mut buffer, 0).map_err(io_error)?;
        }
        let Some(found) = Named::decode_file(&buffer) else {
            return Err(WalOpenError::Damaged {
                file: path.clone(),
                at: bytes.min(whole),
                what: "it does not tell which log segment is the newest".to_owned(),
            });
        };
        Ok(Some(Self {
            path,
            file,
            found: Some(found),
        }))
    }

    /// Makes the file, durably, for a log that ends with `named` (`None`: has no segment yet).
    pub(crate) fn create(vfs: &dyn Vfs, dir: &Path, named: Option<Named>) -> Result<Self, WalOpenError> {
        let path = Self::path(dir);
        let unfinished = dir.join(format!("{NAME}{UNFINISHED_SUFFIX}"));
        let make = || -> io::Result<Arc<dyn VfsFile>> {
            let file = vfs.create(&unfinished)?;
            let named = named.unwrap_or(Named::NONE);
            let mut bytes = vec![0; FILE_BYTES];
            let at = named.slot_at();
            bytes[at..at + RECORD_BYTES].copy_from_slice(&named.encode());
            file.write_at(&bytes, 0)?;
            file.sync_data()?;
            failpoint::hit("newest-created");
            vfs.rename(&unfinished, &path)?;
            vfs.sync_dir(dir)?;
            failpoint::hit("newest-dir-synced");
            Ok(file)
        };
        let file = make().map_err(|source| {
            // Gives the space back; if that fails too, the next start does it.
            let _ = vfs.remove(&unfinished);
            if is_full(&source) {
                WalOpenError::Full {
                    dir: dir.to_owned(),
                    bytes: u64::try_from(FILE_BYTES).expect("a small constant"),
                }
            } else {
                WalOpenError::Io {
                    path: path.clone(),
                    source,
                }
            }
        })?;
        Ok(Self {
            path,
            file,
            found: None,
        })
    }

    /// Names a segment, which is durable itself; durable when this returns. An error is final.
    pub(crate) fn write(&self, named: Named) -> io::Result<()> {
        let at = u64::try_from(named.slot_at()).expect("a small constant");
        self.file.write_at(&named.encode(), at)?;
        failpoint::hit("newest-written");
        self.file.sync_data()?;
        failpoint::hit("newest-synced");
        Ok(())
    }
}
