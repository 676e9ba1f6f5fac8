//! One dedup file: sorted rows in pages.
//!
//! ```text
//! header  "LWdd" ‖ u8 version ‖ u64 file number ‖ u32 CRC of all before
//! pages   u32 CRC of (file number ‖ page number ‖ rows) ‖ u16 rows ‖ rows; all but the last one hold PAGE_ROWS rows
//!         row: 16 bytes key ‖ 12 bytes (40 bits offset ‖ 52 bits wall stamp ‖ 4 bits window class), big-endian, ascending by key
//! index   u64 per page: the upper half of its first key
//! filter  see `filter.rs`
//! footer  u64 rows ‖ u64 oldest stamp ‖ u64 newest stamp ‖ u64 kept until ‖ u64 bytes of filter ‖ u32 CRC of index ‖ u32 CRC of
//!         filter ‖ u32 CRC of (file number ‖ all of the footer before) ‖ "ddWL"
//! ```
//!
//! Numbers are little-endian unless said otherwise; sections lie back to back.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use laneway_core::ids::Offset;
use laneway_core::time::WallTime;

use super::DedupKey;
use super::filter::Filter;
use super::memory::{Place, ROW_BYTES, Row};
use crate::sealed::cursor::{Cursor, Malformed};
use crate::sealed::{self, BytesFile, FileError, SealedWriter, numbered_name};
use crate::vfs::{Vfs, VfsFile};

/// Ending of a dedup file's name.
pub(crate) const DEDUP_ENDING: &str = ".dedup";

const MAGIC: &[u8; 4] = b"LWdd";
const FOOTER_MAGIC: &[u8; 4] = b"ddWL";
const VERSION: u8 = 1;
const HEADER_BYTES: u64 = 17;
const FOOTER_BYTES: u64 = 56;

/// Rows of a page: it fits 4 KiB.
const PAGE_ROWS: u64 = 146;
const PAGE_HEADER_BYTES: u64 = 6;
pub(super) const PAGE_BYTES: u64 = PAGE_HEADER_BYTES + PAGE_ROWS * ROW_BYTES;

const _: () = assert!(PAGE_BYTES <= 4096);

/// Name of a dedup file: its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DedupFileName(pub u64);

impl fmt::Display for DedupFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&numbered_name(self.0, DEDUP_ENDING))
    }
}

fn page_crc(number: u64, page: u64, rows: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(&page.to_le_bytes());
    hasher.update(rows);
    hasher.finalize()
}

fn footer_crc(number: u64, fields: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(fields);
    hasher.finalize()
}

/// The upper half of a key, by which pages are found.
fn upper(key: DedupKey) -> u64 {
    u64::try_from(key.0 >> 64).expect("64 bits")
}

/// Writes a file. Rows come in order of their keys, each key once.
#[derive(Debug)]
pub(super) struct DedupFileWriter {
    name: DedupFileName,
    out: SealedWriter,
    page: Vec<u8>,
    page_rows: u16,
    index: Vec<u8>,
    filter: Filter,
    figures: Figures,
}

/// What the footer says of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Figures {
    rows: u64,
    wall_min: WallTime,
    wall_max: WallTime,
    kept_until: WallTime,
}

impl DedupFileWriter {
    /// `rows_max` rows at most will come; the filter is made for so many.
    pub(super) fn create(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
        name: DedupFileName,
        rows_max: u64,
    ) -> Result<Self, FileError> {
        let mut out = SealedWriter::create(vfs, dir, &name.to_string())?;
        let mut header = MAGIC.to_vec();
        header.push(VERSION);
        header.extend_from_slice(&name.0.to_le_bytes());
        header.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
        out.write(&header)?;
        let figures = Figures {
            rows: 0,
            wall_min: WallTime(u64::MAX),
            wall_max: WallTime(0),
            kept_until: WallTime(0),
        };
        let (page, index, filter) = (Vec::new(), Vec::new(), Filter::for_keys(rows_max));
        Ok(Self {
            name,
            out,
            page,
            page_rows: 0,
            index,
            filter,
            figures,
        })
    }

    pub(super) fn push(&mut self, row: Row) -> Result<(), FileError> {
        if self.page_rows == 0 {
            self.index.extend_from_slice(&upper(row.key).to_le_bytes());
        }
        self.page.extend_from_slice(&row.key.0.to_be_bytes());
        self.page.extend_from_slice(&row.place.to_bytes());
        self.page_rows += 1;
        self.filter.insert(row.key);
        let figures = &mut self.figures;
        figures.rows += 1;
        figures.wall_min = figures.wall_min.min(row.place.wall());
        figures.wall_max = figures.wall_max.max(row.place.wall());
        figures.kept_until = figures.kept_until.max(row.place.kept_until());
        if u64::from(self.page_rows) == PAGE_ROWS {
            self.end_page()
        } else {
            Ok(())
        }
    }

    fn end_page(&mut self) -> Result<(), FileError> {
        if self.page_rows == 0 {
            return Ok(());
        }
        let page = (self.figures.rows - 1) / PAGE_ROWS;
        self.out
            .write(&page_crc(self.name.0, page, &self.page).to_le_bytes())?;
        self.out.write(&self.page_rows.to_le_bytes())?;
        self.out.write(&self.page)?;
        self.page.clear();
        self.page_rows = 0;
        Ok(())
    }

    /// Makes the file durable under its name. `None`: it has no row, so there is no file.
    pub(super) fn finish(mut self) -> Result<Option<DedupFileName>, FileError> {
        if self.figures.rows == 0 {
            return Ok(None);
        }
        self.end_page()?;
        let filter = self.filter.to_bytes();
        self.out.write(&self.index)?;
        self.out.write(&filter)?;
        let figures = self.figures;
        let filter_bytes = u64::try_from(filter.len()).expect("a length fits u64");
        let mut footer = Vec::new();
        for number in [
            figures.rows,
            figures.wall_min.0,
            figures.wall_max.0,
            figures.kept_until.0,
            filter_bytes,
        ] {
            footer.extend_from_slice(&number.to_le_bytes());
        }
        footer.extend_from_slice(&crc32fast::hash(&self.index).to_le_bytes());
        footer.extend_from_slice(&crc32fast::hash(&filter).to_le_bytes());
        footer.extend_from_slice(&footer_crc(self.name.0, &footer).to_le_bytes());
        footer.extend_from_slice(FOOTER_MAGIC);
        self.out.write(&footer)?;
        self.out.publish()?;
        Ok(Some(self.name))
    }
}

/// A complete file, opened: filter and page index are in memory.
#[derive(Debug)]
pub(super) struct DedupFile {
    pub(super) name: DedupFileName,
    path: PathBuf,
    file: Arc<dyn VfsFile>,
    pub(super) bytes: u64,
    pub(super) rows: u64,
    pub(super) wall_min: WallTime,
    pub(super) wall_max: WallTime,
    /// The window of the last row ends here.
    pub(super) kept_until: WallTime,
    index: Vec<u64>,
    filter: Filter,
}

impl DedupFile {
    pub(super) fn open(vfs: &dyn Vfs, path: &Path, name: DedupFileName) -> Result<Self, FileError> {
        let file = vfs.open_read(path).map_err(|error| FileError::io(path, error))?;
        let found = Self::read(file, path)?;
        if found.name == name {
            Ok(found)
        } else {
            Err(FileError::damaged(path, 0, "it belongs to another file number"))
        }
    }

    fn read(file: Arc<dyn VfsFile>, path: &Path) -> Result<Self, FileError> {
        let bytes = file.len().map_err(|error| FileError::io(path, error))?;
        let damaged = |at, what| FileError::damaged(path, at, what);
        let section = |at, length| sealed::read_within(&*file, path, bytes, at, length);
        let header = section(0, HEADER_BYTES)?;
        let number = decode_header(&header).map_err(|_| damaged(0, "the header is malformed"))?;
        let footer_at = bytes
            .checked_sub(FOOTER_BYTES)
            .ok_or_else(|| damaged(bytes, "it is too short"))?;
        let footer = section(footer_at, FOOTER_BYTES)?;
        let footer =
            decode_footer(&footer, number).map_err(|_| damaged(footer_at, "the footer is malformed"))?;
        let figures = footer.figures;
        let pages = figures.rows.div_ceil(PAGE_ROWS);
        let index_at = figures
            .rows
            .checked_mul(ROW_BYTES)
            .and_then(|rows| rows.checked_add(pages * PAGE_HEADER_BYTES + HEADER_BYTES))
            .filter(|at| *at <= footer_at)
            .ok_or_else(|| damaged(footer_at, "there are fewer rows than the footer says"))?;
        let filter_at = index_at + pages * 8;
        if figures.rows == 0 || filter_at.checked_add(footer.filter_bytes) != Some(footer_at) {
            return Err(damaged(footer_at, "the sections do not fit the file"));
        }
        let index = section(index_at, pages * 8)?;
        let filter = section(filter_at, footer.filter_bytes)?;
        if crc32fast::hash(&index) != footer.index_crc || crc32fast::hash(&filter) != footer.filter_crc {
            return Err(damaged(
                index_at,
                "the index's or filter's checksum does not match",
            ));
        }
        let filter =
            Filter::of_bytes(&filter).ok_or_else(|| damaged(filter_at, "the filter is malformed"))?;
        let index = index
            .chunks_exact(8)
            .map(|chunk| u64::from_le_bytes(chunk.try_into().expect("chunks of eight")))
            .collect();
        Ok(Self {
            name: DedupFileName(number),
            path: path.to_owned(),
            file,
            bytes,
            rows: figures.rows,
            wall_min: figures.wall_min,
            wall_max: figures.wall_max,
            kept_until: figures.kept_until,
            index,
            filter,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        u64::try_from(self.index.len() * 8 + self.filter.bytes()).expect("a length fits u64")
    }

    pub(super) fn may_hold(&self, key: DedupKey) -> bool {
        self.filter.may_hold(key)
    }

    /// Reads the page where the key belongs.
    pub(super) fn get(&self, key: DedupKey) -> Result<Option<(Offset, WallTime)>, FileError> {
        let upper = upper(key);
        let mut page = self.index.partition_point(|first| *first <= upper);
        while page > 0 {
            page -= 1;
            let rows = self.page(page)?;
            if let Ok(at) = rows.binary_search_by_key(&key, |row| row.key) {
                return Ok(Some(rows[at].place.found()));
            }
            // The key can be before this page only if its upper half does not tell them apart.
            if self.index[page] < upper {
                break;
            }
        }
        Ok(None)
    }

    pub(super) fn pages(&self) -> usize {
        self.index.len()
    }

    pub(super) fn page(&self, page: usize) -> Result<Vec<Row>, FileError> {
        let number = u64::try_from(page).expect("a length fits u64");
        let at = HEADER_BYTES + number * PAGE_BYTES;
        let count = (self.rows - number * PAGE_ROWS).min(PAGE_ROWS);
        let damaged = |what| FileError::damaged(&self.path, at, what);
        let bytes = PAGE_HEADER_BYTES + count * ROW_BYTES;
        let raw = sealed::read_within(&*self.file, &self.path, self.bytes, at, bytes)?;
        let mut cursor = Cursor::new(&raw);
        let header = (|| Ok::<_, Malformed>((cursor.u32()?, cursor.u16()?)))();
        let (crc, rows_here) = header.map_err(|_| damaged("a page is too short"))?;
        let rows = &raw[raw.len() - cursor.left()..];
        if crc != page_crc(self.name.0, number, rows) || u64::from(rows_here) != count {
            return Err(damaged("a page's checksum does not match"));
        }
        let row_bytes = usize::try_from(ROW_BYTES).expect("a small number");
        let rows: Vec<Row> = rows.chunks_exact(row_bytes).map(decode_row).collect();
        if rows.is_sorted_by(|one, next| one.key < next.key) {
            Ok(rows)
        } else {
            Err(damaged("the rows of a page are not sorted"))
        }
    }
}

fn decode_row(bytes: &[u8]) -> Row {
    let (key, place) = bytes.split_at(16);
    let key = u128::from_be_bytes(key.try_into().expect("sixteen bytes"));
    let place = Place::of_bytes(place.try_into().expect("twelve bytes"));
    Row {
        key: DedupKey(key),
        place,
    }
}

fn decode_header(header: &[u8]) -> Result<u64, Malformed> {
    let mut cursor = Cursor::new(header);
    if cursor.take(4)? != MAGIC || cursor.u8()? != VERSION {
        return Err(Malformed);
    }
    let number = cursor.u64()?;
    if cursor.u32()? == crc32fast::hash(&header[..header.len() - 4]) {
        Ok(number)
    } else {
        Err(Malformed)
    }
}

struct Footer {
    figures: Figures,
    filter_bytes: u64,
    index_crc: u32,
    filter_crc: u32,
}

fn decode_footer(footer: &[u8], number: u64) -> Result<Footer, Malformed> {
    let mut cursor = Cursor::new(footer);
    let rows = cursor.u64()?;
    let mut wall = || cursor.u64().map(WallTime);
    let figures = Figures {
        rows,
        wall_min: wall()?,
        wall_max: wall()?,
        kept_until: wall()?,
    };
    let filter_bytes = cursor.u64()?;
    let (index_crc, filter_crc) = (cursor.u32()?, cursor.u32()?);
    let fields = &footer[..footer.len() - cursor.left()];
    if cursor.u32()? != footer_crc(number, fields) || cursor.take(4)? != FOOTER_MAGIC {
        return Err(Malformed);
    }
    Ok(Footer {
        figures,
        filter_bytes,
        index_crc,
        filter_crc,
    })
}

/// Reads arbitrary bytes as a dedup file, every page of it. For fuzzing; never panics.
///
/// Returns the number of rows. Errors: [`FileError::Damaged`] for anything but a whole, consistent file.
pub fn check_dedup_bytes(bytes: &[u8]) -> Result<u64, FileError> {
    let file = DedupFile::read(
        Arc::new(BytesFile(Bytes::copy_from_slice(bytes))),
        Path::new("bytes"),
    )?;
    let mut last = None;
    for page in 0..file.pages() {
        for row in file.page(page)? {
            let known = file.may_hold(row.key) && file.get(row.key)? == Some(row.place.found());
            if last >= Some(row.key) || !known {
                return Err(FileError::damaged(&file.path, 0, "a row cannot be found"));
            }
            last = Some(row.key);
        }
    }
    Ok(file.rows)
}
