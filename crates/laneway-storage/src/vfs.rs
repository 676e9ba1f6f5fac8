//! The seam between storage and the file system: [`RealVfs`] in the product, [`SimVfs`] in tests and simulation.
//!
//! Durability as Linux gives it: written bytes are durable after [`VfsFile::sync_data`], a created, renamed or removed
//! name after [`Vfs::sync_dir`] of its directory. Nothing else is promised, and the simulated file system takes away
//! whatever is not promised.

mod real;
mod sim;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

pub use real::RealVfs;
pub use sim::{Crash, SECTOR_BYTES, SimVfs};

/// Unit in which buffers of zeros are written.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// A file system. All calls block.
pub trait Vfs: Send + Sync + fmt::Debug + 'static {
    /// Creates a file that must not exist yet, for reading and writing. Its name is durable after [`Vfs::sync_dir`].
    fn create(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>>;

    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>>;

    /// Opens an existing file for reading.
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>>;

    /// Renames a file, replacing `to` if it exists. Durable after [`Vfs::sync_dir`] (of both directories, if they differ).
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives a file a second name, which must not exist yet. Durable after [`Vfs::sync_dir`] of the new name's directory. File systems
    /// without such names fail with [`io::ErrorKind::Unsupported`] or [`io::ErrorKind::PermissionDenied`].
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file. Open handles stay readable. Durable after [`Vfs::sync_dir`].
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory and everything in it; a missing one is fine.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Names of the files and directories in `dir`, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Whether a file or directory of this name exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Makes a directory and its parents durably: each new name is synced into its parent.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Makes the names in `dir` durable. An error is final, like that of [`VfsFile::sync_data`].
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes the exclusive lock that goes with `path` (created if missing), or fails with
    /// [`io::ErrorKind::WouldBlock`] if another holder lives. Released when the guard is dropped or the process ends.
    fn lock_exclusive(&self, path: &Path) -> io::Result<Box<dyn VfsLock>>;

    /// Bytes that an unprivileged process may still allocate on the file system of `path`.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;

    /// A number that nobody can guess (deterministic in simulation). Tells one life of a recycled file from another.
    fn nonce(&self) -> u64;

    /// The whole file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.open_read(path)?;
        let bytes = usize::try_from(file.len()?).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut buffer = vec![0; bytes];
        file.read_exact_at(&mut buffer, 0)?;
        Ok(buffer)
    }
}

/// An open file. Positions and lengths are bytes.
pub trait VfsFile: Send + Sync + fmt::Debug {
    /// Reads up to `buffer.len()` bytes at `at`; 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;

    /// Writes all of `buffer` at `at`. After an error any part of it may have been written.
    fn write_at(&self, buffer: &[u8], at: u64) -> io::Result<()>;

    /// Writes all buffers one after the other from `at` on, without gathering them first.
    fn write_vectored_at(&self, buffers: &[&[u8]], at: u64) -> io::Result<()>;

    /// Makes what was written durable, length included (`fdatasync`). After an error nothing is known about any
    /// unsynced byte of the file: the caller must stop using it and never try again.
    fn sync_data(&self) -> io::Result<()>;

    /// Cuts the file, or lengthens it with zeros.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Allocates the blocks of `[0, bytes)` and lengthens the file to at least that, so that later writes there do not
    /// fail for want of space (on file systems that overwrite in place). [`io::ErrorKind::StorageFull`] if there is none.
    fn preallocate(&self, bytes: u64) -> io::Result<()>;

    /// Length of the file.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buffer` from `at`, or fails with [`io::ErrorKind::UnexpectedEof`].
    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            let position = at.saturating_add(u64::try_from(done).expect("a length fits u64"));
            match self.read_at(&mut buffer[done..], position)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }

    /// Writes zeros over `[from, to)`.
    fn write_zeros(&self, from: u64, to: u64) -> io::Result<()> {
        let step = u64::try_from(ZEROS.len()).expect("a length fits u64");
        let mut at = from;
        while at < to {
            let bytes = (to - at).min(step);
            let bytes_usize = usize::try_from(bytes).expect("at most the length of a slice");
            self.write_at(&ZEROS[..bytes_usize], at)?;
            at += bytes;
        }
        Ok(())
    }
}

/// Holds a lock until dropped.
pub trait VfsLock: Send + Sync + fmt::Debug {}

/// Whether an error says that the disk (or the user's share of it) has no room.
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
