//! Backlog files: payloads that outlived their WAL segment. Immutable.
//!
//! ```text
//! header   "LWbl" ‖ u8 version ‖ u32 bytes of body ‖ body ‖ u32 CRC of all before
//!          body: u16 partition ‖ u64 file number ‖ varint n ‖ n varint numbers of the files that this one replaces
//! blocks   u32 CRC of (file number ‖ position ‖ body) ‖ u32 bytes of body ‖ body
//!          body: varint lane ‖ varint first offset ‖ varint n ‖ n × (varint messages ‖ varint wall stamp, as difference) ‖ frames
//! index    sections, each u32 CRC of (file number ‖ position ‖ body) ‖ u32 bytes of body ‖ body
//!          body: varint n ‖ n × entry (see `index.rs`); blocks lie back to back, in the order of the entries
//! footer   u64 position of the index ‖ u64 blocks ‖ u64 messages ‖ u32 CRC of (file number ‖ the three) ‖ "lbWL"
//! ```
//!
//! Numbers are little-endian. Blocks are sorted by lane and offset; each holds neighbouring messages of one lane, of one or
//! several pushes. A file that replaces others holds every message of theirs that was alive, so when both are found
//! after a crash, the replaced ones are leftovers.

mod block;
mod index;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use laneway_core::ids::PartitionId;

use crate::sealed::cursor::{Cursor, Malformed};
use crate::sealed::{self, BytesFile, FileError};
use crate::vfs::{Vfs, VfsFile};

pub(crate) use block::Block;
pub(crate) use index::{BacklogEntry, IndexReader};
pub(crate) use writer::{BacklogMessage, BacklogWriter};

/// Ending of a backlog file's name.
pub(crate) const BACKLOG_ENDING: &str = ".backlog";

const MAGIC: &[u8; 4] = b"LWbl";
const FOOTER_MAGIC: &[u8; 4] = b"lbWL";
const VERSION: u8 = 1;

/// Bytes of the header before its body.
const HEADER_FIXED_BYTES: u64 = 9;

/// Most files that one may replace.
pub(crate) const REPLACES_MAX: usize = 1 << 16;

/// Longest header body that is believed.
const HEADER_BODY_BYTES_MAX: u32 = 1 << 20;

const FOOTER_BYTES: u64 = 32;

/// Bytes before the body of a block or index section.
const SECTION_HEADER_BYTES: u64 = 8;

/// Most bytes of an index section that are believed.
const INDEX_SECTION_BYTES_MAX: u32 = 1 << 20;

/// CRC of something at a place in a file, so that bytes which strayed from elsewhere do not pass.
fn crc_at(number: u64, at: u64, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(&at.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

/// A complete backlog file, opened.
#[derive(Clone, Debug)]
pub(crate) struct BacklogFile {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn VfsFile>,
    /// Files that this one replaces.
    pub(crate) replaces: Vec<u64>,
    /// Length of the file.
    pub(crate) bytes: u64,
    blocks_at: u64,
    index_at: u64,
    pub(crate) blocks: u64,
    pub(crate) messages: u64,
}

impl BacklogFile {
    /// Opens a file by name and checks header and footer.
    ///
    /// Errors: `Io`, and `Damaged` when it is not a whole backlog file of this partition and number.
    pub(crate) fn open(
        vfs: &dyn Vfs,
        path: &Path,
        partition: PartitionId,
        number: u64,
    ) -> Result<Self, FileError> {
        let file = vfs.open_read(path).map_err(|error| FileError::io(path, error))?;
        let found = Self::read(file, path)?;
        if found.0 != partition || found.1.number != number {
            return Err(FileError::damaged(
                path,
                0,
                "it belongs to another partition or file number",
            ));
        }
        Ok(found.1)
    }

    fn read(file: Arc<dyn VfsFile>, path: &Path) -> Result<(PartitionId, Self), FileError> {
        let damaged = |at, what| FileError::damaged(path, at, what);
        let bytes = file.len().map_err(|error| FileError::io(path, error))?;
        let fixed = sealed::read_within(&*file, path, bytes, 0, HEADER_FIXED_BYTES)?;
        let mut cursor = Cursor::new(&fixed);
        let malformed = |_| damaged(0, "the header is malformed");
        if cursor.take(4).map_err(malformed)? != MAGIC {
            return Err(damaged(0, "it is not a backlog file"));
        }
        if cursor.u8().map_err(malformed)? != VERSION {
            return Err(damaged(4, "its format version is unknown"));
        }
        let body_bytes = cursor.u32().map_err(malformed)?;
        if body_bytes > HEADER_BODY_BYTES_MAX {
            return Err(damaged(5, "the header is too long"));
        }
        let body = sealed::read_within(&*file, path, bytes, HEADER_FIXED_BYTES, u64::from(body_bytes) + 4)?;
        let (body, crc) = body.split_at(body.len() - 4);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&fixed);
        hasher.update(body);
        if crc != hasher.finalize().to_le_bytes() {
            return Err(damaged(0, "the header's checksum does not match"));
        }
        let (partition, number, replaces) = decode_header(body).map_err(malformed)?;
        let footer_at = bytes
            .checked_sub(FOOTER_BYTES)
            .ok_or_else(|| damaged(bytes, "it is too short"))?;
        let footer = sealed::read_within(&*file, path, bytes, footer_at, FOOTER_BYTES)?;
        let (index_at, blocks, messages) =
            decode_footer(&footer, number).map_err(|_| damaged(footer_at, "the footer is malformed"))?;
        let blocks_at = HEADER_FIXED_BYTES + u64::from(body_bytes) + 4;
        if index_at < blocks_at || index_at > footer_at {
            return Err(damaged(footer_at, "the index lies outside the file"));
        }
        let path = path.to_owned();
        Ok((
            partition,
            Self {
                number,
                path,
                file,
                replaces,
                bytes,
                blocks_at,
                index_at,
                blocks,
                messages,
            },
        ))
    }

    /// Reads the index from its beginning.
    pub(crate) fn index(&self) -> IndexReader<'_> {
        IndexReader::new(self)
    }

    /// Reads and checks the block of `bytes` bytes at `at`.
    pub(crate) fn block(&self, at: u32, bytes: u32) -> Result<Block, FileError> {
        let at = u64::from(at);
        let raw = self.section(at, u64::from(bytes), "a block's checksum does not match")?;
        Block::decode(raw).map_err(|_| FileError::damaged(&self.path, at, "a block is malformed"))
    }

    /// Checks the block or index section at `at` (0: the first), which all have the same frame. Returns where the next
    /// one is, or `None` behind the last.
    pub(crate) fn check_section(&self, at: u64) -> Result<Option<u64>, FileError> {
        let at = if at == 0 { self.blocks_at } else { at };
        let footer_at = self.bytes - FOOTER_BYTES;
        if at == footer_at {
            return Ok(None);
        }
        let end = if at < self.index_at {
            self.index_at
        } else {
            footer_at
        };
        let damaged = |what| FileError::damaged(&self.path, at, what);
        let header = sealed::read_within(&*self.file, &self.path, end, at, SECTION_HEADER_BYTES)?;
        let mut cursor = Cursor::new(&header);
        let body_bytes = cursor.u32().and_then(|_| cursor.u32());
        let body_bytes = body_bytes.map_err(|_| damaged("a section is too short"))?;
        let bytes = u64::from(body_bytes) + SECTION_HEADER_BYTES;
        let next = at
            .checked_add(bytes)
            .filter(|next| *next <= end)
            .ok_or_else(|| damaged("a section is longer than its part of the file"))?;
        self.section(at, bytes, "a section's checksum does not match")?;
        Ok(Some(next))
    }

    /// The body of a section whose whole length is known.
    fn section(&self, at: u64, bytes: u64, mismatch: &'static str) -> Result<Bytes, FileError> {
        let raw = sealed::read_within(&*self.file, &self.path, self.bytes, at, bytes)?;
        let mut cursor = Cursor::new(&raw);
        let header = (|| Ok::<_, Malformed>((cursor.u32()?, cursor.u32()?)))();
        let (crc, body_bytes) =
            header.map_err(|_| FileError::damaged(&self.path, at, "a section is too short"))?;
        if u64::from(body_bytes) + SECTION_HEADER_BYTES != bytes {
            return Err(FileError::damaged(
                &self.path,
                at,
                "a section has another length than expected",
            ));
        }
        let body = raw.slice(8..);
        if crc != crc_at(self.number, at, &body) {
            return Err(FileError::damaged(&self.path, at, mismatch));
        }
        Ok(body)
    }
}

fn decode_header(body: &[u8]) -> Result<(PartitionId, u64, Vec<u64>), Malformed> {
    let mut cursor = Cursor::new(body);
    let partition = cursor.partition()?;
    let number = cursor.u64()?;
    let count = usize::try_from(cursor.varint()?).map_err(|_| Malformed)?;
    if count > REPLACES_MAX || count > cursor.left() {
        return Err(Malformed);
    }
    let replaces = (0..count)
        .map(|_| cursor.varint())
        .collect::<Result<Vec<u64>, _>>()?;
    if cursor.left() > 0 || replaces.contains(&number) {
        Err(Malformed)
    } else {
        Ok((partition, number, replaces))
    }
}

fn decode_footer(footer: &[u8], number: u64) -> Result<(u64, u64, u64), Malformed> {
    let mut cursor = Cursor::new(footer);
    let fields = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
    let crc = cursor.u32()?;
    if cursor.take(4)? != FOOTER_MAGIC || crc != crc_at(number, 0, &footer[..24]) {
        return Err(Malformed);
    }
    Ok(fields)
}

/// Reads arbitrary bytes as a backlog file: header, footer, index, every block and every frame. For fuzzing; never panics.
///
/// Returns the number of messages. Errors: [`FileError::Damaged`] for anything but a whole, consistent file.
pub fn check_backlog_bytes(bytes: &[u8]) -> Result<u64, FileError> {
    let path = Path::new("bytes");
    let (_, file) = BacklogFile::read(Arc::new(BytesFile(Bytes::copy_from_slice(bytes))), path)?;
    let mut messages = 0;
    let mut index = file.index();
    while let Some(entries) = index.next_section()? {
        for entry in entries {
            let block = file.block(entry.at, entry.bytes)?;
            if !entry.matches(&block) {
                return Err(FileError::damaged(
                    path,
                    u64::from(entry.at),
                    "a block is not what the index says",
                ));
            }
            for message in block.messages() {
                message.map_err(|_| FileError::damaged(path, u64::from(entry.at), "a frame is malformed"))?;
                messages += 1;
            }
        }
    }
    if messages == file.messages {
        Ok(messages)
    } else {
        Err(FileError::damaged(path, 0, "messages are missing"))
    }
}
