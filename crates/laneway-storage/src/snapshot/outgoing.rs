//! A snapshot on its way out.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use laneway_core::ids::PartitionId;

use super::{OFFER_NAME, STEP_BYTES, SnapshotFile, SnapshotOffer, hash_file, is_replica_file, link};
use crate::checkpoint::{MANIFEST_NAME, Manifest};
use crate::sealed::{FileError, SealedWriter};
use crate::vfs::Vfs;

/// Beginning of the name of a folder that is sent from.
const FOLDER_PREFIX: &str = "outgoing-";

/// A whole snapshot in a folder of its own. Calls block.
#[derive(Debug)]
pub struct OutgoingSnapshot {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    offer: SnapshotOffer,
    membership: Bytes,
}

impl OutgoingSnapshot {
    /// Makes an empty folder for a new snapshot of the replica with this base folder. Returns its id and the folder, to be
    /// filled and given to [`OutgoingSnapshot::seal`].
    pub fn create(vfs: &dyn Vfs, base: &Path) -> Result<(u64, PathBuf), FileError> {
        let id = vfs.nonce().max(1);
        let dir = base.join(format!("{FOLDER_PREFIX}{id:016x}"));
        vfs.create_dir_all(&dir)
            .map_err(|error| FileError::io(&dir, error))?;
        Ok((id, dir))
    }

    /// Gives an immutable file of the replica a second name in the folder `into`: it stays there until that is removed.
    pub fn link(vfs: &dyn Vfs, from: &Path, into: &Path, name: &str) -> Result<(), FileError> {
        link(vfs, &from.join(name), &into.join(name))
    }

    /// Lists what is in the folder: from then on it is a snapshot, also after a restart. Reads all of it.
    ///
    /// Every file in it must be durable but for its name. Errors: there is no manifest, or the file system refused.
    pub fn seal(vfs: Arc<dyn Vfs>, dir: PathBuf, id: u64, partition: PartitionId) -> Result<Self, FileError> {
        let manifest = manifest_of(&*vfs, &dir)?;
        let mut files = Vec::new();
        let names = vfs.list(&dir).map_err(|error| FileError::io(&dir, error))?;
        for name in names.into_iter().filter(|name| is_replica_file(name)) {
            let (bytes, hash) = hash_file(&*vfs, &dir.join(&name))?;
            files.push(SnapshotFile { name, bytes, hash });
        }
        let offer = SnapshotOffer {
            id,
            partition,
            applied: manifest.applied,
            files,
        };
        vfs.sync_dir(&dir).map_err(|error| FileError::io(&dir, error))?;
        let mut out = SealedWriter::create(&vfs, &dir, OFFER_NAME)?;
        out.write(&offer.encode())?;
        out.publish()?;
        Ok(Self {
            vfs,
            dir,
            offer,
            membership: manifest.membership,
        })
    }

    /// The whole snapshot that an earlier process left in this base folder, if it did. Unfinished ones, and all but one
    /// whole one, are removed.
    pub fn find(vfs: &Arc<dyn Vfs>, base: &Path, partition: PartitionId) -> Result<Option<Self>, FileError> {
        if !vfs.exists(base).map_err(|error| FileError::io(base, error))? {
            return Ok(None);
        }
        let mut found: Option<Self> = None;
        for name in vfs.list(base).map_err(|error| FileError::io(base, error))? {
            if !name.starts_with(FOLDER_PREFIX) {
                continue;
            }
            let dir = base.join(&name);
            match Self::open(vfs, &dir, partition) {
                Ok(whole)
                    if found
                        .as_ref()
                        .is_none_or(|found| found.offer.applied < whole.offer.applied) =>
                {
                    if let Some(older) = found.replace(whole) {
                        older.remove()?;
                    }
                }
                // Half made, damaged, or an older one: it can be made again.
                Ok(_) | Err(_) => vfs
                    .remove_dir_all(&dir)
                    .map_err(|error| FileError::io(&dir, error))?,
            }
        }
        Ok(found)
    }

    fn open(vfs: &Arc<dyn Vfs>, dir: &Path, partition: PartitionId) -> Result<Self, FileError> {
        let path = dir.join(OFFER_NAME);
        let bytes = vfs.read(&path).map_err(|error| FileError::io(&path, error))?;
        let offer = SnapshotOffer::decode_from(&bytes, &path)?;
        let manifest = manifest_of(&**vfs, dir)?;
        if (offer.partition, offer.applied) != (partition, manifest.applied) {
            return Err(FileError::damaged(&path, 0, "it is of another snapshot"));
        }
        Ok(Self {
            vfs: Arc::clone(vfs),
            dir: dir.to_owned(),
            offer,
            membership: manifest.membership,
        })
    }

    /// What it consists of.
    #[must_use]
    pub fn offer(&self) -> &SnapshotOffer {
        &self.offer
    }

    /// Raft's membership as of its last entry; opaque.
    #[must_use]
    pub fn membership(&self) -> &Bytes {
        &self.membership
    }

    /// Up to `bytes` bytes (at most 1 MiB) of a file, by its place in the offer, from `at` on; fewer at its end. `None`: the
    /// offer has no such file.
    pub fn read(&self, file: usize, at: u64, bytes: usize) -> Result<Option<Bytes>, FileError> {
        let Some(row) = self.offer.files.get(file) else {
            return Ok(None);
        };
        let path = self.dir.join(&row.name);
        let mut buffer = vec![0; bytes.min(STEP_BYTES)];
        let reading = || {
            let open = self.vfs.open_read(&path)?;
            let left = usize::try_from(row.bytes.saturating_sub(at)).unwrap_or(usize::MAX);
            buffer.truncate(left);
            open.read_exact_at(&mut buffer, at)
        };
        let mut reading = reading;
        reading().map_err(|error| FileError::io(&path, error))?;
        Ok(Some(buffer.into()))
    }

    /// Removes the folder; files that are still linked elsewhere live on there.
    pub fn remove(&self) -> Result<(), FileError> {
        self.vfs
            .remove_dir_all(&self.dir)
            .map_err(|error| FileError::io(&self.dir, error))
    }
}

fn manifest_of(vfs: &dyn Vfs, dir: &Path) -> Result<Manifest, FileError> {
    let path = dir.join(MANIFEST_NAME);
    let bytes = vfs.read(&path).map_err(|error| FileError::io(&path, error))?;
    Manifest::decode(&bytes, &path)
}
