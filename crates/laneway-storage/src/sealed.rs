//! Immutable files: written once under a temporary name, synced, renamed, and only then known to anybody.
//!
//! A file under its final name is therefore complete; one that does not check out is damaged, never half-written.

pub(crate) mod cursor;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::sealed::cursor::Malformed;
use crate::vfs::{Vfs, VfsFile};

/// Ending of the name that a file has while it is written.
const TEMPORARY_ENDING: &str = ".tmp";

/// Bytes gathered before they are handed to the file system.
const WRITE_BUFFER_BYTES: usize = 256 * 1024;

/// What went wrong with one file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file system refused.
    #[error("{}: {error}", file.display())]
    Io {
        /// The file or directory.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The bytes are not what was once written.
    #[error("{} is damaged at byte {at}: {what}; restore the data directory from a copy, or move it aside and start empty", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where in it.
        at: u64,
        /// What does not fit.
        what: &'static str,
    },
}

impl FileError {
    pub(crate) fn io(file: &Path, error: io::Error) -> Self {
        Self::Io {
            file: file.to_owned(),
            error,
        }
    }

    pub(crate) fn damaged(file: &Path, at: u64, what: &'static str) -> Self {
        Self::Damaged {
            file: file.to_owned(),
            at,
            what,
        }
    }

    /// Whether the file is not there.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }

    /// Whether the disk has no room.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Io { error, .. } if crate::vfs::is_full(error))
    }
}

/// Decodes a small file whose last four bytes are the CRC32 (little-endian) of all before them.
pub(crate) fn decode_checked<T>(
    bytes: &[u8],
    path: &Path,
    decode: impl FnOnce(&[u8]) -> Result<T, Malformed>,
) -> Result<T, FileError> {
    let damaged = |what| FileError::damaged(path, 0, what);
    let (body, crc) = bytes
        .split_last_chunk::<4>()
        .ok_or_else(|| damaged("it is too short"))?;
    if *crc != crc32fast::hash(body).to_le_bytes() {
        return Err(damaged("its checksum does not match"));
    }
    decode(body).map_err(|_| damaged("it is malformed, or of an unknown version"))
}

/// Writes one immutable file from front to back.
///
/// Dropped before [`SealedWriter::publish`], it takes its temporary file away again.
#[derive(Debug)]
pub(crate) struct SealedWriter {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    path: PathBuf,
    temporary: PathBuf,
    file: Option<Arc<dyn VfsFile>>,
    buffer: Vec<u8>,
    flushed: u64,
}

impl SealedWriter {
    /// Starts the file `name` in `dir`. A temporary file of that name left by an earlier attempt is replaced.
    pub(crate) fn create(vfs: &Arc<dyn Vfs>, dir: &Path, name: &str) -> Result<Self, FileError> {
        let temporary = dir.join(format!("{name}{TEMPORARY_ENDING}"));
        let file = match vfs.create(&temporary) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                vfs.remove(&temporary).and_then(|()| vfs.create(&temporary))
            }
            other => other,
        };
        let file = file.map_err(|error| FileError::io(&temporary, error))?;
        Ok(Self {
            vfs: Arc::clone(vfs),
            dir: dir.to_owned(),
            path: dir.join(name),
            temporary,
            file: Some(file),
            buffer: Vec::new(),
            flushed: 0,
        })
    }

    /// Position of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.flushed + u64::try_from(self.buffer.len()).expect("a length fits u64")
    }

    /// Appends bytes. Not durable before [`SealedWriter::publish`].
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= WRITE_BUFFER_BYTES {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) -> Result<(), FileError> {
        let file = self
            .file
            .as_ref()
            .expect("the file is open until it is published");
        file.write_at(&self.buffer, self.flushed)
            .map_err(|error| FileError::io(&self.temporary, error))?;
        self.flushed = self.position();
        self.buffer.clear();
        Ok(())
    }

    /// Makes the file durable under its final name; returns its length in bytes.
    ///
    /// After `Ok` name and content survive power loss. After an error the file may or may not exist under that name,
    /// but if it does, it is complete.
    pub(crate) fn publish(mut self) -> Result<u64, FileError> {
        self.flush()?;
        let file = self
            .file
            .as_ref()
            .expect("the file is open until it is published");
        file.sync_data()
            .map_err(|error| FileError::io(&self.temporary, error))?;
        self.vfs
            .rename(&self.temporary, &self.path)
            .map_err(|error| FileError::io(&self.temporary, error))?;
        self.file = None;
        self.vfs
            .sync_dir(&self.dir)
            .map_err(|error| FileError::io(&self.dir, error))?;
        Ok(self.flushed)
    }
}

impl Drop for SealedWriter {
    fn drop(&mut self) {
        if self.file.take().is_some() && self.vfs.remove(&self.temporary).is_err() {
            tracing::debug!(file = %self.temporary.display(), "could not remove an unfinished file");
        }
    }
}

/// Removes what interrupted writers left in `dir`; returns the names of all other files, sorted.
pub(crate) fn list_sealed(vfs: &dyn Vfs, dir: &Path) -> Result<Vec<String>, FileError> {
    let mut names = vfs.list(dir).map_err(|error| FileError::io(dir, error))?;
    for name in names.iter().filter(|name| name.ends_with(TEMPORARY_ENDING)) {
        remove(vfs, &dir.join(name))?;
    }
    names.retain(|name| !name.ends_with(TEMPORARY_ENDING));
    Ok(names)
}

/// Removes a file; one that is gone already is fine.
pub(crate) fn remove(vfs: &dyn Vfs, path: &Path) -> Result<(), FileError> {
    match vfs.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::io(path, error)),
        _ => Ok(()),
    }
}

/// Reads `bytes` bytes at `at` of a file of `length` bytes; a length from a damaged file never makes us allocate more.
pub(crate) fn read_within(
    file: &dyn VfsFile,
    path: &Path,
    length: u64,
    at: u64,
    bytes: u64,
) -> Result<Bytes, FileError> {
    if at.checked_add(bytes).is_none_or(|end| end > length) {
        return Err(FileError::damaged(
            path,
            at,
            "a range reaches beyond the end of the file",
        ));
    }
    let bytes = usize::try_from(bytes).map_err(|_| FileError::damaged(path, at, "a range is too large"))?;
    let mut buffer = vec![0; bytes];
    file.read_exact_at(&mut buffer, at)
        .map_err(|error| FileError::io(path, error))?;
    Ok(Bytes::from(buffer))
}

/// Name of a numbered file: sixteen hexadecimal digits and an ending.
pub(crate) fn numbered_name(number: u64, ending: &str) -> String {
    format!("{number:016x}{ending}")
}

/// The number in a name made by [`numbered_name`], or `None` for any other name.
pub(crate) fn number_of(name: &str, ending: &str) -> Option<u64> {
    let digits = name.strip_suffix(ending)?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (numbered_name(number, ending) == name).then_some(number)
}

/// A file of bytes in memory, so that the readers can be fuzzed without a file system.
#[derive(Debug)]
pub(crate) struct BytesFile(pub(crate) Bytes);

impl VfsFile for BytesFile {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let at = usize::try_from(at).unwrap_or(usize::MAX).min(self.0.len());
        let bytes = buffer.len().min(self.0.len() - at);
        buffer[..bytes].copy_from_slice(&self.0[at..at + bytes]);
        Ok(bytes)
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn write_vectored_at(&self, _: &[&[u8]], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn preallocate(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(u64::try_from(self.0.len()).expect("a length fits u64"))
    }
}
