//! The index of a backlog file: one entry per block.
//!
//! An entry is: varint lane, as difference to the previous entry's ‖ varint first offset ‖ varint messages ‖ varint
//! newest wall stamp, as zigzag difference to the previous entry's ‖ varint bytes of the whole block. A section's first entry
//! has differences to 0. Positions follow from the lengths.

use laneway_core::ids::{LaneId, OFFSET_MAX, Offset};
use laneway_core::time::WallTime;

use super::{BacklogFile, Block, INDEX_SECTION_BYTES_MAX, SECTION_HEADER_BYTES};
use crate::sealed::cursor::{Cursor, Malformed, put_varint};
use crate::sealed::{self, FileError};

/// Entries per section.
pub(crate) const SECTION_ENTRIES: usize = 2048;

/// Most messages of a block that are believed.
const BLOCK_MESSAGES_MAX: u32 = (1 << 24) - 1;

/// One block of a backlog file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BacklogEntry {
    pub(crate) lane: LaneId,
    pub(crate) first: Offset,
    pub(crate) count: u32,
    pub(crate) wall_last: WallTime,
    pub(crate) at: u32,
    pub(crate) bytes: u32,
}

impl BacklogEntry {
    pub(crate) fn end(&self) -> Offset {
        self.first.plus(u64::from(self.count))
    }

    pub(crate) fn matches(&self, block: &Block) -> bool {
        self.lane == block.lane
            && self.first == block.first
            && u64::from(self.count) == block.count()
            && self.wall_last == block.wall_last()
    }
}

/// Appends the body of a section.
pub(crate) fn encode_section(out: &mut Vec<u8>, entries: &[BacklogEntry]) {
    put_varint(out, u64::try_from(entries.len()).expect("a length fits u64"));
    let (mut lane, mut wall) = (0, 0u64);
    for entry in entries {
        put_varint(out, entry.lane.0 - lane);
        put_varint(out, entry.first.0);
        put_varint(out, u64::from(entry.count));
        put_varint(out, zigzag(entry.wall_last.0.wrapping_sub(wall)));
        put_varint(out, u64::from(entry.bytes));
        (lane, wall) = (entry.lane.0, entry.wall_last.0);
    }
}

/// Reads the body of a section whose first block is at `at`; returns the end of its last block.
fn decode_section(body: &[u8], mut at: u64) -> Result<(Vec<BacklogEntry>, u64), Malformed> {
    let mut cursor = Cursor::new(body);
    let count = usize::try_from(cursor.varint()?).map_err(|_| Malformed)?;
    // An entry takes at least five bytes.
    if count == 0 || count > cursor.left() / 5 {
        return Err(Malformed);
    }
    let mut entries = Vec::with_capacity(count);
    let (mut lane, mut wall) = (0u64, 0u64);
    for _ in 0..count {
        lane = lane.checked_add(cursor.varint()?).ok_or(Malformed)?;
        let first = cursor.varint()?;
        let messages = cursor.varint_u32()?;
        wall = wall.wrapping_add(unzigzag(cursor.varint()?));
        let bytes = cursor.varint_u32()?;
        let end = first.checked_add(u64::from(messages)).ok_or(Malformed)?;
        if messages == 0 || messages > BLOCK_MESSAGES_MAX || end > OFFSET_MAX + 1 {
            return Err(Malformed);
        }
        entries.push(BacklogEntry {
            lane: LaneId(lane),
            first: Offset(first),
            count: messages,
            wall_last: WallTime(wall),
            at: u32::try_from(at).map_err(|_| Malformed)?,
            bytes,
        });
        at += u64::from(bytes);
    }
    if cursor.left() > 0 {
        Err(Malformed)
    } else {
        Ok((entries, at))
    }
}

fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ (difference.cast_signed() >> 63).cast_unsigned()
}

fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

/// Reads an index section by section.
#[derive(Debug)]
pub(crate) struct IndexReader<'a> {
    file: &'a BacklogFile,
    at: u64,
    block_at: u64,
    entries: u64,
}

impl<'a> IndexReader<'a> {
    pub(crate) fn new(file: &'a BacklogFile) -> Self {
        Self {
            file,
            at: file.index_at,
            block_at: file.blocks_at,
            entries: 0,
        }
    }

    /// The next entries, in order of lane and offset; `None` at the end, when all of them were seen.
    pub(crate) fn next_section(&mut self) -> Result<Option<Vec<BacklogEntry>>, FileError> {
        let file = self.file;
        let damaged = |at, what| FileError::damaged(&file.path, at, what);
        let end = file.bytes - super::FOOTER_BYTES;
        if self.at == end {
            let whole = self.entries == file.blocks && self.block_at == file.index_at;
            return if whole {
                Ok(None)
            } else {
                Err(damaged(self.at, "the index does not describe all blocks"))
            };
        }
        let header = sealed::read_within(&*file.file, &file.path, end, self.at, SECTION_HEADER_BYTES)?;
        let mut cursor = Cursor::new(&header);
        let body_bytes = cursor.u32().and_then(|_| cursor.u32()).unwrap_or(u32::MAX);
        let bytes = u64::from(body_bytes) + SECTION_HEADER_BYTES;
        if body_bytes > INDEX_SECTION_BYTES_MAX || self.at + bytes > end {
            return Err(damaged(self.at, "an index section is too long"));
        }
        let body = file.section(self.at, bytes, "the index's checksum does not match")?;
        let (entries, block_end) = decode_section(&body, self.block_at)
            .map_err(|_| damaged(self.at, "an index section is malformed"))?;
        self.at += bytes;
        self.block_at = block_end;
        self.entries += u64::try_from(entries.len()).expect("a length fits u64");
        Ok(Some(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zigzag_comes_back() {
        for value in [0, 1, u64::MAX, 1 << 63, (1 << 63) - 1, 12_345] {
            assert_eq!(unzigzag(zigzag(value)), value);
        }
        assert_eq!(zigzag(u64::MAX), 1);
    }
}
