//! Which folder is the replica's.
//!
//! ```text
//! "LWcu" ‖ u8 version ‖ u64 id ‖ u8 restart ‖ u64 index ‖ u64 term ‖ u64 leader ‖ u32 CRC of all before
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{OFFER_NAME, SnapshotOffer, is_replica_file};
use crate::sealed::cursor::{Cursor, Malformed};
use crate::sealed::{self, FileError, SealedWriter, decode_checked};
use crate::vfs::Vfs;
use crate::wal::LogPosition;

const CURRENT_NAME: &str = "current";
const MAGIC: &[u8; 4] = b"LWcu";
const VERSION: u8 = 1;

/// Beginning of the name of a folder that was received.
const FOLDER_PREFIX: &str = "snapshot-";

/// The files that a replica lives on now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Its folder: the base folder, or one in it.
    pub dir: PathBuf,
    /// Id of the snapshot that it came as; 0 for what grew here.
    pub id: u64,
    /// It was put in place and not settled yet: the log must restart behind this entry, whatever it holds.
    pub restart: Option<LogPosition>,
    base: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    id: u64,
    restart: Option<LogPosition>,
}

impl Generation {
    /// The one that the replica with this base folder lives on. The folder need not exist.
    ///
    /// Errors: the file that says so is damaged, or the file system refused.
    pub fn find(vfs: &dyn Vfs, base: &Path) -> Result<Self, FileError> {
        let path = base.join(CURRENT_NAME);
        let row = match vfs.read(&path) {
            Ok(bytes) => decode(&bytes, &path)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Row { id: 0, restart: None },
            Err(error) => return Err(FileError::io(&path, error)),
        };
        let dir = if row.id == 0 {
            base.to_owned()
        } else {
            folder(base, row.id)
        };
        Ok(Self {
            dir,
            id: row.id,
            restart: row.restart,
            base: base.to_owned(),
        })
    }

    /// Makes the received folder `id` the replica's, which then must be opened anew and never written to by who has the old
    /// one open. Its log restarts behind `applied`.
    ///
    /// Durability: after `Ok` it survives power loss; the folder's content must be durable before. After an error either
    /// generation may be found; both are whole.
    pub fn switch(vfs: &Arc<dyn Vfs>, base: &Path, id: u64, applied: LogPosition) -> Result<(), FileError> {
        let restart = Some(applied);
        publish(vfs, base, Row { id, restart })
    }

    /// The log has restarted durably. Forgets that it must, and removes all other generations.
    ///
    /// To be called by each start once the replica was read: it also removes what an earlier call did not come to. Of what is
    /// still being received only what is ahead of the checkpoint stays; that ends at entry `applied`.
    pub fn settle(&mut self, vfs: &Arc<dyn Vfs>, applied: Option<u64>) -> Result<(), FileError> {
        if self.restart.is_some() {
            let row = Row {
                id: self.id,
                restart: None,
            };
            publish(vfs, &self.base, row)?;
            self.restart = None;
        }
        if self.id != 0 {
            sealed::remove(&**vfs, &self.dir.join(OFFER_NAME))?;
        }
        let io = |error| FileError::io(&self.base, error);
        for name in vfs.list(&self.base).map_err(io)? {
            let path = self.base.join(&name);
            if self.id != 0 && is_replica_file(&name) {
                sealed::remove(&**vfs, &path)?;
            } else if name.starts_with(FOLDER_PREFIX) && path != self.dir {
                let offer = vfs.read(&path.join(OFFER_NAME)).ok();
                let offer = offer.and_then(|bytes| SnapshotOffer::decode(&bytes).ok());
                if offer.is_none_or(|offer| Some(offer.applied.0) <= applied) {
                    vfs.remove_dir_all(&path).map_err(io)?;
                }
            }
        }
        Ok(())
    }

    /// Folders in `base` that are being received.
    pub(super) fn receiving(&self, vfs: &dyn Vfs) -> Result<Vec<PathBuf>, FileError> {
        let io = |error| FileError::io(&self.base, error);
        let names = vfs.list(&self.base).map_err(io)?;
        let folders = names.iter().filter(|name| name.starts_with(FOLDER_PREFIX));
        Ok(folders
            .map(|name| self.base.join(name))
            .filter(|path| *path != self.dir)
            .collect())
    }
}

/// Where the snapshot `id` is received, and lives.
pub(super) fn folder(base: &Path, id: u64) -> PathBuf {
    base.join(format!("{FOLDER_PREFIX}{id:016x}"))
}

fn publish(vfs: &Arc<dyn Vfs>, base: &Path, row: Row) -> Result<(), FileError> {
    let mut out = SealedWriter::create(vfs, base, CURRENT_NAME)?;
    out.write(&encode(row))?;
    out.publish()?;
    Ok(())
}

fn encode(row: Row) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.push(VERSION);
    out.extend_from_slice(&row.id.to_le_bytes());
    out.push(u8::from(row.restart.is_some()));
    let (index, term, leader) = row.restart.unwrap_or_default();
    for number in [index, term, leader] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
    out
}

fn decode(bytes: &[u8], path: &Path) -> Result<Row, FileError> {
    decode_checked(bytes, path, decode_body)
}

fn decode_body(body: &[u8]) -> Result<Row, Malformed> {
    let mut cursor = Cursor::new(body);
    if cursor.take(4)? != MAGIC || cursor.u8()? != VERSION {
        return Err(Malformed);
    }
    let id = cursor.u64()?;
    let restarts = cursor.u8()?;
    let position = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let restart = match restarts {
        0 if position == (0, 0, 0) => None,
        1 => Some(position),
        _ => return Err(Malformed),
    };
    if cursor.left() > 0 {
        return Err(Malformed);
    }
    Ok(Row { id, restart })
}

/// Reads arbitrary bytes as the file `current`. For fuzzing; never panics. What it accepts encodes back to the same bytes.
pub fn check_current_bytes(bytes: &[u8]) -> Result<Vec<u8>, FileError> {
    Ok(encode(decode(bytes, Path::new("bytes"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = "4c57637501070000000000000001090000000000000003000000000000000100000000000000";

    #[test]
    fn current_is_golden_and_damage_is_refused() {
        let row = Row {
            id: 7,
            restart: Some((9, 3, 1)),
        };
        let bytes = encode(row);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(&hex[..hex.len() - 8], GOLDEN);
        let path = Path::new("current");
        assert_eq!(decode(&bytes, path).unwrap(), row);
        assert_eq!(check_current_bytes(&bytes).unwrap(), bytes);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(decode(&changed, path).is_err(), "changed at {at}");
            assert!(decode(&bytes[..at], path).is_err(), "cut at {at}");
        }
    }
}
