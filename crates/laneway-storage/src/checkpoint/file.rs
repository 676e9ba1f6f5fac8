//! One checkpoint file.
//!
//! ```text
//! header   "LWcp" ‖ u8 version ‖ u8 kind (1 base, 2 delta) ‖ u16 partition ‖ u64 number ‖ u64 number of the file before (0)
//!          ‖ u32 CRC of all before
//! sections u8 kind ‖ u32 bytes of body ‖ u32 CRC of (file number ‖ position ‖ kind ‖ body) ‖ body
//!   1 rows      rows back to back: varint length of key ‖ key ‖ varint 0 (row removed) or length of value + 1 ‖ value
//!   2 payloads  locations back to back: varints lane, first offset, messages skipped, messages, wall stamp, segment, position,
//!               bytes
//!   3 end       u64 rows ‖ u64 locations; the last one, and nothing follows it
//! ```

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use laneway_core::ids::PartitionId;

use super::{CheckpointError, EachRow, path_of};
use crate::payload::{CutRun, CutSection};
use crate::sealed::cursor::{Cursor, Malformed, put_varint};
use crate::sealed::{self, BytesFile, FileError, SealedWriter, numbered_name};
use crate::vfs::{Vfs, VfsFile};

/// Ending of a checkpoint file's name.
pub(crate) const CHECKPOINT_ENDING: &str = ".checkpoint";

const MAGIC: &[u8; 4] = b"LWcp";
const VERSION: u8 = 1;
const HEADER_BYTES: u64 = 28;
const SECTION_HEADER_BYTES: u64 = 9;

/// A section is ended once it has so many bytes; a large row makes it longer.
const SECTION_BYTES: usize = 64 * 1024;

/// Name of a checkpoint file: its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointFileName(pub u64);

impl fmt::Display for CheckpointFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&numbered_name(self.0, CHECKPOINT_ENDING))
    }
}

/// Whether a file stands alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    /// All rows.
    Base,
    /// What changed since another file.
    Delta { of: CheckpointFileName },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SectionKind {
    Rows,
    Payloads,
    End,
}

impl SectionKind {
    fn byte(self) -> u8 {
        match self {
            Self::Rows => 1,
            Self::Payloads => 2,
            Self::End => 3,
        }
    }

    fn of(byte: u8) -> Option<Self> {
        [Self::Rows, Self::Payloads, Self::End]
            .into_iter()
            .find(|kind| kind.byte() == byte)
    }
}

fn section_crc(number: u64, at: u64, kind: SectionKind, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(&at.to_le_bytes());
    hasher.update(&[kind.byte()]);
    hasher.update(body);
    hasher.finalize()
}

/// Writes a checkpoint file.
#[derive(Debug)]
pub(super) struct FileWriter {
    pub(super) kind: FileKind,
    number: u64,
    out: SealedWriter,
    body: Vec<u8>,
    body_kind: SectionKind,
    rows: u64,
    runs: u64,
}

impl FileWriter {
    pub(super) fn create(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
        partition: PartitionId,
        name: CheckpointFileName,
        kind: FileKind,
    ) -> Result<Self, FileError> {
        let mut out = SealedWriter::create(vfs, dir, &name.to_string())?;
        let (kind_byte, before) = match kind {
            FileKind::Base => (1, 0),
            FileKind::Delta { of } => (2, of.0),
        };
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&[VERSION, kind_byte]);
        header.extend_from_slice(&partition.0.to_le_bytes());
        header.extend_from_slice(&name.0.to_le_bytes());
        header.extend_from_slice(&before.to_le_bytes());
        header.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
        out.write(&header)?;
        let body_kind = SectionKind::Rows;
        Ok(Self {
            kind,
            number: name.0,
            out,
            body: Vec::new(),
            body_kind,
            rows: 0,
            runs: 0,
        })
    }

    pub(super) fn row(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), FileError> {
        self.turn_to(SectionKind::Rows)?;
        put_length(&mut self.body, key.len());
        self.body.extend_from_slice(key);
        match value {
            Some(value) => {
                put_length(&mut self.body, value.len() + 1);
                self.body.extend_from_slice(value);
            }
            None => self.body.push(0),
        }
        self.rows += 1;
        self.end_if_full()
    }

    pub(super) fn run(&mut self, run: &CutRun) -> Result<(), FileError> {
        self.turn_to(SectionKind::Payloads)?;
        run.encode(&mut self.body);
        self.runs += 1;
        self.end_if_full()
    }

    fn turn_to(&mut self, kind: SectionKind) -> Result<(), FileError> {
        if self.body_kind != kind {
            self.end_section()?;
            self.body_kind = kind;
        }
        Ok(())
    }

    fn end_if_full(&mut self) -> Result<(), FileError> {
        if self.body.len() >= SECTION_BYTES {
            self.end_section()
        } else {
            Ok(())
        }
    }

    fn end_section(&mut self) -> Result<(), FileError> {
        if self.body.is_empty() {
            return Ok(());
        }
        let crc = section_crc(self.number, self.out.position(), self.body_kind, &self.body);
        let bytes = u32::try_from(self.body.len()).expect("rows are smaller than 4 GiB");
        self.out.write(&[self.body_kind.byte()])?;
        self.out.write(&bytes.to_le_bytes())?;
        self.out.write(&crc.to_le_bytes())?;
        self.out.write(&self.body)?;
        self.body.clear();
        Ok(())
    }

    /// Makes the file durable under its name; returns its length.
    pub(super) fn finish(mut self) -> Result<u64, FileError> {
        self.turn_to(SectionKind::End)?;
        self.body.extend_from_slice(&self.rows.to_le_bytes());
        self.body.extend_from_slice(&self.runs.to_le_bytes());
        self.end_section()?;
        self.out.publish()
    }
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    put_varint(out, u64::try_from(length).expect("a length fits u64"));
}

/// Reads a checkpoint file from front to back.
#[derive(Debug)]
pub(super) struct FileReader {
    pub(super) path: PathBuf,
    pub(super) kind: FileKind,
    pub(super) bytes: u64,
    number: u64,
    file: Arc<dyn VfsFile>,
    at: u64,
    rows: u64,
    runs: u64,
}

impl FileReader {
    pub(super) fn open(
        vfs: &dyn Vfs,
        dir: &Path,
        partition: PartitionId,
        name: CheckpointFileName,
    ) -> Result<Self, FileError> {
        let path = path_of(dir, name);
        let file = vfs
            .open_read(&path)
            .map_err(|error| FileError::io(&path, error))?;
        let (found, reader) = Self::begin(file, path)?;
        if found != partition || reader.number != name.0 {
            return Err(FileError::damaged(
                &reader.path,
                0,
                "it belongs to another partition or file number",
            ));
        }
        Ok(reader)
    }

    fn begin(file: Arc<dyn VfsFile>, path: PathBuf) -> Result<(PartitionId, Self), FileError> {
        let bytes = file.len().map_err(|error| FileError::io(&path, error))?;
        let header = sealed::read_within(&*file, &path, bytes, 0, HEADER_BYTES)?;
        let (partition, number, kind) =
            decode_header(&header).map_err(|_| FileError::damaged(&path, 0, "the header is malformed"))?;
        Ok((
            partition,
            Self {
                path,
                kind,
                bytes,
                number,
                file,
                at: HEADER_BYTES,
                rows: 0,
                runs: 0,
            },
        ))
    }

    fn damaged(&self, what: &'static str) -> FileError {
        FileError::damaged(&self.path, self.at, what)
    }

    /// Reads everything: rows go to `each_row`, sections with payload locations are checked and noted.
    pub(super) fn read(
        &mut self,
        each_row: &mut EachRow<'_>,
        sections: &mut Vec<CutSection>,
    ) -> Result<(), CheckpointError> {
        loop {
            let (kind, body) = self.section()?;
            match kind {
                SectionKind::Rows => self.section_rows(&body, each_row)?,
                SectionKind::Payloads => sections.push(self.section_runs(&body)?),
                SectionKind::End => return Ok(self.check_end(&body)?),
            }
            self.at += SECTION_HEADER_BYTES + u64::try_from(body.len()).expect("a length fits u64");
        }
    }

    fn section(&self) -> Result<(SectionKind, Bytes), FileError> {
        let read = |at, bytes| sealed::read_within(&*self.file, &self.path, self.bytes, at, bytes);
        let header = read(self.at, SECTION_HEADER_BYTES)?;
        let mut cursor = Cursor::new(&header);
        let fields = (|| Ok::<_, Malformed>((cursor.u8()?, cursor.u32()?, cursor.u32()?)))();
        let (kind, bytes, crc) = fields.map_err(|_| self.damaged("a section is too short"))?;
        let kind = SectionKind::of(kind).ok_or_else(|| self.damaged("a section's kind is unknown"))?;
        let body = read(self.at + SECTION_HEADER_BYTES, u64::from(bytes))?;
        if crc != section_crc(self.number, self.at, kind, &body) {
            return Err(self.damaged("a section's checksum does not match"));
        }
        Ok((kind, body))
    }

    fn section_rows(&mut self, body: &[u8], each_row: &mut EachRow<'_>) -> Result<(), CheckpointError> {
        let mut cursor = Cursor::new(body);
        while cursor.left() > 0 {
            let (key, value) = decode_row(&mut cursor).map_err(|_| self.damaged("a row is malformed"))?;
            each_row(key, value).map_err(|error| CheckpointError::Row {
                file: self.path.clone(),
                error,
            })?;
            self.rows += 1;
        }
        Ok(())
    }

    fn section_runs(&mut self, body: &[u8]) -> Result<CutSection, FileError> {
        let mut cursor = Cursor::new(body);
        while cursor.left() > 0 {
            CutRun::decode(&mut cursor).map_err(|_| self.damaged("a payload location is malformed"))?;
            self.runs += 1;
        }
        Ok(CutSection {
            file: Arc::clone(&self.file),
            path: self.path.clone(),
            at: self.at + SECTION_HEADER_BYTES,
            bytes: u64::try_from(body.len()).expect("a length fits u64"),
            crc: crc32fast::hash(body),
        })
    }

    fn check_end(&self, body: &[u8]) -> Result<(), FileError> {
        let mut cursor = Cursor::new(body);
        let counts = (|| Ok::<_, Malformed>((cursor.u64()?, cursor.u64()?)))();
        let end = self.at + SECTION_HEADER_BYTES + u64::try_from(body.len()).expect("a length fits u64");
        if counts != Ok((self.rows, self.runs)) || cursor.left() > 0 || end != self.bytes {
            return Err(self.damaged("the end does not fit what comes before it"));
        }
        Ok(())
    }
}

fn decode_header(header: &[u8]) -> Result<(PartitionId, u64, FileKind), Malformed> {
    let mut cursor = Cursor::new(header);
    if cursor.take(4)? != MAGIC || cursor.u8()? != VERSION {
        return Err(Malformed);
    }
    let kind = cursor.u8()?;
    let partition = cursor.partition()?;
    let (number, before) = (cursor.u64()?, cursor.u64()?);
    if cursor.u32()? != crc32fast::hash(&header[..header.len() - 4]) {
        return Err(Malformed);
    }
    match (kind, before) {
        (1, 0) => Ok((partition, number, FileKind::Base)),
        (2, _) => Ok((
            partition,
            number,
            FileKind::Delta {
                of: CheckpointFileName(before),
            },
        )),
        _ => Err(Malformed),
    }
}

fn decode_row<'a>(cursor: &mut Cursor<'a>) -> Result<(&'a [u8], Option<&'a [u8]>), Malformed> {
    let key = cursor.slice()?;
    let value = match cursor.varint()? {
        0 => None,
        length => Some(cursor.take(usize::try_from(length - 1).map_err(|_| Malformed)?)?),
    };
    Ok((key, value))
}

/// Reads arbitrary bytes as a checkpoint file, all of it. For fuzzing; never panics.
///
/// Returns the number of rows. Errors: [`FileError::Damaged`] inside a [`CheckpointError::File`].
pub fn check_checkpoint_bytes(bytes: &[u8]) -> Result<u64, CheckpointError> {
    let file = Arc::new(BytesFile(Bytes::copy_from_slice(bytes)));
    let (_, mut reader) = FileReader::begin(file, PathBuf::from("bytes"))?;
    reader.read(&mut |_, _| Ok(()), &mut Vec::new())?;
    Ok(reader.rows)
}
