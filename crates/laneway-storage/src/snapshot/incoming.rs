//! A snapshot on its way in.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::generation::{Generation, folder};
use super::{OFFER_NAME, SnapshotOffer, hash_file};
use crate::checkpoint::{MANIFEST_NAME, Manifest};
use crate::sealed::{self, FileError, SealedWriter};
use crate::vfs::Vfs;

/// A folder that is being filled with the files of an offer. Calls block. One writer at a time.
#[derive(Debug)]
pub struct IncomingSnapshot {
    vfs: Arc<dyn Vfs>,
    base: PathBuf,
    dir: PathBuf,
    offer: SnapshotOffer,
}

impl IncomingSnapshot {
    /// Begins to receive `offer` for the replica with this base folder, or goes on with what is there of the same offer.
    /// What was received of any other is removed.
    ///
    /// Errors: the file system refused.
    pub fn open(vfs: Arc<dyn Vfs>, base: PathBuf, offer: SnapshotOffer) -> Result<Self, FileError> {
        let dir = folder(&base, offer.id);
        vfs.create_dir_all(&base)
            .map_err(|error| FileError::io(&base, error))?;
        let current = Generation::find(&*vfs, &base)?;
        for other in current.receiving(&*vfs)? {
            if other != dir {
                vfs.remove_dir_all(&other)
                    .map_err(|error| FileError::io(&other, error))?;
            }
        }
        vfs.create_dir_all(&dir)
            .map_err(|error| FileError::io(&dir, error))?;
        let mut out = SealedWriter::create(&vfs, &dir, OFFER_NAME)?;
        out.write(&offer.encode())?;
        out.publish()?;
        let incoming = Self {
            vfs,
            base,
            dir,
            offer,
        };
        for file in 0..incoming.offer.files.len() {
            if incoming.held(file)? > incoming.offer.files[file].bytes {
                incoming.discard(file)?;
            }
        }
        Ok(incoming)
    }

    /// What is received.
    #[must_use]
    pub fn offer(&self) -> &SnapshotOffer {
        &self.offer
    }

    /// Bytes of the file (by its place in the offer) that are there; the next ones are wanted.
    pub fn held(&self, file: usize) -> Result<u64, FileError> {
        let path = self.path(file);
        match self.vfs.open_read(&path).and_then(|file| file.len()) {
            Ok(bytes) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(FileError::io(&path, error)),
        }
    }

    /// Adds the bytes that follow those at hand. Not durable yet.
    pub fn write(&self, file: usize, at: u64, bytes: &[u8]) -> Result<(), FileError> {
        let path = self.path(file);
        let writing = || -> io::Result<()> {
            let open = match self.vfs.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.vfs.create(&path)?,
                other => other?,
            };
            open.write_at(bytes, at)
        };
        writing().map_err(|error| FileError::io(&path, error))
    }

    /// Checks every file against the offer and makes them durable. Returns those that are not what was offered, which are
    /// removed and must be received again; with none left, the manifest is checked too, and the folder is ready for
    /// [`Generation::switch`].
    ///
    /// Errors: the file system refused; [`FileError::Damaged`]: the sender's manifest is of another snapshot.
    pub fn check(&self) -> Result<Vec<usize>, FileError> {
        let mut wrong = Vec::new();
        for (at, file) in self.offer.files.iter().enumerate() {
            let path = self.path(at);
            if file.bytes == 0 && self.held(at)? == 0 {
                self.write(at, 0, &[])?;
            }
            let found = hash_file(&*self.vfs, &path);
            match found {
                Ok(found) if found == (file.bytes, file.hash) => {
                    let synced = self.vfs.open(&path).and_then(|file| file.sync_data());
                    synced.map_err(|error| FileError::io(&path, error))?;
                }
                Ok(_) => {
                    self.discard(at)?;
                    wrong.push(at);
                }
                Err(error) if error.is_missing() => wrong.push(at),
                Err(error) => return Err(error),
            }
        }
        if wrong.is_empty() {
            self.check_manifest()?;
            self.vfs
                .sync_dir(&self.dir)
                .map_err(|error| FileError::io(&self.dir, error))?;
        }
        Ok(wrong)
    }

    fn check_manifest(&self) -> Result<(), FileError> {
        let path = self.dir.join(MANIFEST_NAME);
        let bytes = self
            .vfs
            .read(&path)
            .map_err(|error| FileError::io(&path, error))?;
        let manifest = Manifest::decode(&bytes, &path)?;
        if (manifest.partition, manifest.applied) == (self.offer.partition, self.offer.applied) {
            Ok(())
        } else {
            Err(FileError::damaged(
                &path,
                0,
                "it is not that of the offered snapshot",
            ))
        }
    }

    /// Removes everything received.
    pub fn remove(&self) -> Result<(), FileError> {
        self.vfs
            .remove_dir_all(&self.dir)
            .map_err(|error| FileError::io(&self.dir, error))
    }

    /// Base folder of the replica.
    #[must_use]
    pub fn base(&self) -> &Path {
        &self.base
    }

    fn path(&self, file: usize) -> PathBuf {
        self.dir.join(&self.offer.files[file].name)
    }

    fn discard(&self, file: usize) -> Result<(), FileError> {
        sealed::remove(&*self.vfs, &self.path(file))
    }
}
