//! The operating system's files.

use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FallocateFlags;

use super::{Vfs, VfsFile, VfsLock};

/// Buffers that one `pwritev` takes (Linux's `IOV_MAX`).
const WRITE_BUFFERS_MAX: usize = 1024;

/// The file system of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealVfs;

impl Vfs for RealVfs {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        Ok(Arc::new(RealFile(
            OpenOptions::new().read(true).write(true).open(path)?,
        )))
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        Ok(Arc::new(RealFile(File::open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for row in std::fs::read_dir(dir)? {
            // A name that is not UTF-8 is not one of ours.
            if let Ok(name) = row?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut missing: Vec<PathBuf> = Vec::new();
        let mut at = Some(dir);
        while let Some(path) = at.filter(|path| !path.as_os_str().is_empty()) {
            if path.try_exists()? {
                break;
            }
            missing.push(path.to_owned());
            at = path.parent();
        }
        std::fs::create_dir_all(dir)?;
        for path in missing.iter().rev() {
            if let Some(parent) = path.parent() {
                self.sync_dir(if parent.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    parent
                })?;
            }
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn lock_exclusive(&self, path: &Path) -> io::Result<Box<dyn VfsLock>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(RealLock { _file: file })),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(path)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn nonce(&self) -> u64 {
        // Keys of a fresh `RandomState` come from the operating system's randomness.
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        hasher.finish()
    }
}

#[derive(Debug)]
struct RealLock {
    _file: File,
}

impl VfsLock for RealLock {}

#[derive(Debug)]
struct RealFile(File);

impl VfsFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        loop {
            match FileExt::read_at(&self.0, buffer, at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn write_at(&self, buffer: &[u8], at: u64) -> io::Result<()> {
        self.0.write_all_at(buffer, at)
    }

    fn write_vectored_at(&self, buffers: &[&[u8]], at: u64) -> io::Result<()> {
        let mut at = at;
        let mut slices: Vec<IoSlice<'_>> = buffers
            .iter()
            .filter(|buffer| !buffer.is_empty())
            .map(|buffer| IoSlice::new(buffer))
            .collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let few = rest.len().min(WRITE_BUFFERS_MAX);
            match rustix::io::pwritev(&self.0, &rest[..few], at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    at += u64::try_from(written).expect("a length fits u64");
                    IoSlice::advance_slices(&mut rest, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        // The raw call, not `File::sync_data`: that one repeats after EINTR, which is fine, but stays out of our sight.
        Ok(rustix::fs::fdatasync(&self.0)?)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn preallocate(&self, bytes: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => Ok(()),
            // Some file systems cannot; the caller's writes of zeros then allocate.
            Err(rustix::io::Errno::OPNOTSUPP) => {
                if self.0.metadata()?.len() < bytes {
                    self.0.set_len(bytes)?;
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}
