//! The manifest: which files together are a partition's checkpoint.
//!
//! ```text
//! "LWmf" ‖ u8 version ‖ u16 partition ‖ u64 generation ‖ u64 applied index ‖ u64 term ‖ u64 leader ‖ u64 segment and
//! u64 position up to which payload locations are covered ‖ u64 base ‖ varint n ‖ n × u64 deltas ‖ varint n ‖ n × u64 dedup files
//! ‖ varint length of membership ‖ membership ‖ u32 CRC of all before
//! ```

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use laneway_core::ids::PartitionId;

use super::{CheckpointFileName, DELTAS_MAX};
use crate::dedup::DedupFileName;
use crate::payload::WalPosition;
use crate::sealed::cursor::{Cursor, Malformed, put_varint};
use crate::sealed::{FileError, SealedWriter, decode_checked};
use crate::vfs::Vfs;
use crate::wal::LogPosition;

/// Its file name.
pub const MANIFEST_NAME: &str = "manifest";

const MAGIC: &[u8; 4] = b"LWmf";
const VERSION: u8 = 1;

/// A complete checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Whose.
    pub partition: PartitionId,
    /// Grows with each checkpoint.
    pub generation: u64,
    /// The last entry applied before the machine was cut: index, term, leader.
    pub applied: LogPosition,
    /// Raft's membership as of that entry; opaque.
    pub membership: Bytes,
    /// All rows.
    pub base: CheckpointFileName,
    /// Rows changed since, oldest first.
    pub deltas: Vec<CheckpointFileName>,
    /// The dedup files that hold every row up to that entry.
    pub dedup: Vec<DedupFileName>,
    /// Payload locations below are in base and deltas.
    pub(crate) payload_end: WalPosition,
}

impl Manifest {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.push(VERSION);
        out.extend_from_slice(&self.partition.0.to_le_bytes());
        let (index, term, leader) = self.applied;
        let WalPosition { segment, at } = self.payload_end;
        for number in [self.generation, index, term, leader, segment, at, self.base.0] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        put_numbers(&mut out, self.deltas.iter().map(|name| name.0));
        put_numbers(&mut out, self.dedup.iter().map(|name| name.0));
        put_varint(
            &mut out,
            u64::try_from(self.membership.len()).expect("a length fits u64"),
        );
        out.extend_from_slice(&self.membership);
        out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8], path: &Path) -> Result<Self, FileError> {
        decode_checked(bytes, path, decode_body)
    }

    pub(super) fn publish(&self, vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<(), FileError> {
        let mut out = SealedWriter::create(vfs, dir, MANIFEST_NAME)?;
        out.write(&self.encode())?;
        out.publish()?;
        Ok(())
    }
}

fn put_numbers(out: &mut Vec<u8>, numbers: impl ExactSizeIterator<Item = u64>) {
    put_varint(out, u64::try_from(numbers.len()).expect("a length fits u64"));
    numbers.for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

fn take_numbers(cursor: &mut Cursor<'_>) -> Result<Vec<u64>, Malformed> {
    let count = usize::try_from(cursor.varint()?).map_err(|_| Malformed)?;
    if count > cursor.left() / 8 {
        return Err(Malformed);
    }
    (0..count).map(|_| cursor.u64()).collect()
}

fn decode_body(body: &[u8]) -> Result<Manifest, Malformed> {
    let mut cursor = Cursor::new(body);
    if cursor.take(4)? != MAGIC || cursor.u8()? != VERSION {
        return Err(Malformed);
    }
    let partition = cursor.partition()?;
    let generation = cursor.u64()?;
    let applied = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let payload_end = WalPosition {
        segment: cursor.u64()?,
        at: cursor.u64()?,
    };
    let base = CheckpointFileName(cursor.u64()?);
    let deltas: Vec<CheckpointFileName> = take_numbers(&mut cursor)?
        .into_iter()
        .map(CheckpointFileName)
        .collect();
    let dedup = take_numbers(&mut cursor)?
        .into_iter()
        .map(DedupFileName)
        .collect();
    let membership = Bytes::copy_from_slice(cursor.slice()?);
    if cursor.left() > 0 || deltas.len() > DELTAS_MAX {
        return Err(Malformed);
    }
    Ok(Manifest {
        partition,
        generation,
        applied,
        membership,
        base,
        deltas,
        dedup,
        payload_end,
    })
}

/// Reads arbitrary bytes as a manifest. For fuzzing; never panics. What it accepts encodes back to the same bytes.
pub fn check_manifest_bytes(bytes: &[u8]) -> Result<Manifest, FileError> {
    Manifest::decode(bytes, Path::new("bytes"))
}
