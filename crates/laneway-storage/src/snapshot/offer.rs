//! What a snapshot consists of.
//!
//! ```text
//! "LWof" ‖ u8 version ‖ u64 id ‖ u16 partition ‖ u64 applied index ‖ u64 term ‖ u64 leader ‖ varint n ‖
//! n × (varint length of name ‖ name ‖ u64 bytes ‖ u64 xxh3) ‖ u32 CRC of all before
//! ```

use std::path::Path;

use laneway_core::ids::PartitionId;

use super::is_replica_file;
use crate::checkpoint::MANIFEST_NAME;
use crate::sealed::cursor::{Cursor, Malformed, put_varint};
use crate::sealed::{FileError, decode_checked};
use crate::wal::LogPosition;

/// Files of one snapshot.
pub const SNAPSHOT_FILES_MAX: usize = 1 << 16;

const MAGIC: &[u8; 4] = b"LWof";
const VERSION: u8 = 1;

/// Bytes of the shortest file row.
const FILE_ROW_BYTES_MIN: usize = 1 + MANIFEST_NAME.len() + 16;

/// One file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// Its name, that of a replica's file and nothing else.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// xxh3-64 of its bytes.
    pub hash: u64,
}

/// A snapshot and its files, by name. Kept beside them, and sent to who is to receive them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOffer {
    /// Drawn when it was made: never that of another one.
    pub id: u64,
    /// Whose.
    pub partition: PartitionId,
    /// The last entry in it: index, term, leader.
    pub applied: LogPosition,
    /// Its files, sorted by name.
    pub files: Vec<SnapshotFile>,
}

impl SnapshotOffer {
    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// As it is kept and sent.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.push(VERSION);
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.partition.0.to_le_bytes());
        let (index, term, leader) = self.applied;
        for number in [index, term, leader] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        put_length(&mut out, self.files.len());
        for file in &self.files {
            put_length(&mut out, file.name.len());
            out.extend_from_slice(file.name.as_bytes());
            out.extend_from_slice(&file.bytes.to_le_bytes());
            out.extend_from_slice(&file.hash.to_le_bytes());
        }
        out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
        out
    }

    /// Reads what [`SnapshotOffer::encode`] made, or what a stranger did: never panics, and accepts no name that leads out of a
    /// replica's folder. Errors: [`FileError::Damaged`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FileError> {
        Self::decode_from(bytes, Path::new("offer"))
    }

    pub(super) fn decode_from(bytes: &[u8], path: &Path) -> Result<Self, FileError> {
        decode_checked(bytes, path, decode_body)
    }
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    put_varint(out, u64::try_from(length).expect("a length fits u64"));
}

fn decode_body(body: &[u8]) -> Result<SnapshotOffer, Malformed> {
    let mut cursor = Cursor::new(body);
    if cursor.take(4)? != MAGIC || cursor.u8()? != VERSION {
        return Err(Malformed);
    }
    let id = cursor.u64()?;
    let partition = cursor.partition()?;
    let applied = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let count = usize::try_from(cursor.varint()?).map_err(|_| Malformed)?;
    if id == 0 || count > SNAPSHOT_FILES_MAX || count > cursor.left() / FILE_ROW_BYTES_MIN {
        return Err(Malformed);
    }
    let mut files: Vec<SnapshotFile> = Vec::with_capacity(count);
    let mut total: u64 = 0;
    for _ in 0..count {
        let name = std::str::from_utf8(cursor.slice()?).map_err(|_| Malformed)?;
        let (bytes, hash) = (cursor.u64()?, cursor.u64()?);
        total = total.checked_add(bytes).ok_or(Malformed)?;
        let follows = files.last().is_none_or(|before| before.name.as_str() < name);
        if !follows || !is_replica_file(name) {
            return Err(Malformed);
        }
        files.push(SnapshotFile {
            name: name.to_owned(),
            bytes,
            hash,
        });
    }
    let whole = files.iter().any(|file| file.name == MANIFEST_NAME);
    if cursor.left() > 0 || !whole {
        return Err(Malformed);
    }
    Ok(SnapshotOffer {
        id,
        partition,
        applied,
        files,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> SnapshotFile {
        SnapshotFile {
            name: name.to_owned(),
            bytes: 300,
            hash: 7,
        }
    }

    fn offer(files: Vec<SnapshotFile>) -> SnapshotOffer {
        SnapshotOffer {
            id: 5,
            partition: PartitionId(2),
            applied: (9, 3, 1),
            files,
        }
    }

    const GOLDEN: &str = "4c576f660105000000000000000200090000000000000003000000000000000100000000000000021830\
303030303030303030303030303031\
2e6261636b6c6f672c010000000000000700000000000000086d616e69666573742c010000000000000700000000000000f8b1b01e";

    #[test]
    fn offer_is_golden_and_survives() {
        let sent = offer(vec![file("0000000000000001.backlog"), file("manifest")]);
        let hex: String = sent.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, GOLDEN);
        assert_eq!(SnapshotOffer::decode(&sent.encode()).unwrap(), sent);
        assert_eq!(sent.bytes(), 600);
    }

    #[test]
    fn names_that_lead_elsewhere_or_come_twice_are_refused() {
        for files in [
            vec![],
            vec![file("0000000000000001.backlog")],
            vec![file("../manifest"), file("manifest")],
            vec![file("/etc/passwd"), file("manifest")],
            vec![file("manifest"), file("manifest")],
            vec![file("manifest"), file("0000000000000001.backlog")],
            vec![file("1.backlog"), file("manifest")],
            vec![file("current"), file("manifest")],
        ] {
            let bytes = offer(files.clone()).encode();
            assert!(SnapshotOffer::decode(&bytes).is_err(), "{files:?}");
        }
        let mut huge = offer(vec![file("0000000000000001.backlog"), file("manifest")]);
        huge.files[0].bytes = u64::MAX;
        assert!(SnapshotOffer::decode(&huge.encode()).is_err());
    }

    #[test]
    fn cut_or_changed_offers_are_refused() {
        let bytes = offer(vec![file("manifest")]).encode();
        for end in 0..bytes.len() {
            assert!(SnapshotOffer::decode(&bytes[..end]).is_err(), "cut at {end}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(SnapshotOffer::decode(&changed).is_err(), "changed at {at}");
        }
    }
}
