//! Bytes of a WAL segment. All integers are little-endian.
//!
//! A segment is one block of [`SEGMENT_HEADER_BYTES`] with its header, then records back to back:
//!
//! ```text
//! segment header   0 magic "LANEWAL\0"   8 u32 version (1: older than the file `newest`; 2)   12 u32 crc of 16..64   16 u64 segment   24 u64 life
//!                 32 u64 file bytes     40 u64 first drain   48 u32 previous segment   52 u32 where it ended   56 zeros
//! record           0 u32 crc of 4..64    4 u8 version    5 u8 kind   6 u16 partition   8 u32 body bytes
//!                 12 u32 crc of the body 16 u64 life     24 u64 drain   32 u32 where the drain starts
//!                 36 u8 raft's entry kind (truncate: 1 if index counts)  37 zeros  40 u64 index  48 u64 term  56 u64 leader
//!                 64 body
//! ```
//!
//! A *life* is a number that nobody can guess, minted each time a file becomes a segment: records of an earlier life of a
//! recycled file, and look-alikes inside payloads, do not carry it.

use bytes::Bytes;
use laneway_core::ids::PartitionId;
use serde::{Deserialize, Serialize};

use super::LogPosition;
use crate::codec::{DecodeError, decode, encode};

/// The block in front of the records. Never shares a disk sector with a record.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 4096;

/// Bytes in front of each body.
pub(crate) const RECORD_HEADER_BYTES: usize = 64;

const MAGIC: &[u8; 8] = b"LANEWAL\0";
const SEGMENT_VERSION: u32 = 2;
/// Segments of the time before [`super::newest`]: the bytes are the same.
const SEGMENT_VERSION_UNNAMED: u32 = 1;
const RECORD_VERSION: u8 = 1;

/// A search skips this much at once.
const ZEROS: [u8; 4096] = [0; 4096];

/// Where the bytes of a life stand in a record header.
const LIFE_AT: usize = 16;

/// The first block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The segment's number, as in its file name. Never reused.
    pub(crate) segment: u64,
    /// See the module's docs.
    pub(crate) life: u64,
    /// Length of the file.
    pub(crate) file_bytes: u64,
    /// Number of the drain that wrote the first record.
    pub(crate) first_drain: u64,
    /// The segment written before this one; `u32::MAX` for the first of all.
    pub(crate) previous: u32,
    /// Where its last record ended.
    pub(crate) previous_end: u32,
    /// Whether the log already had its file `newest` when this segment was made.
    pub(crate) named: bool,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[..8].copy_from_slice(MAGIC);
        let version = if self.named {
            SEGMENT_VERSION
        } else {
            SEGMENT_VERSION_UNNAMED
        };
        out[8..12].copy_from_slice(&version.to_le_bytes());
        out[16..24].copy_from_slice(&self.segment.to_le_bytes());
        out[24..32].copy_from_slice(&self.life.to_le_bytes());
        out[32..40].copy_from_slice(&self.file_bytes.to_le_bytes());
        out[40..48].copy_from_slice(&self.first_drain.to_le_bytes());
        out[48..52].copy_from_slice(&self.previous.to_le_bytes());
        out[52..56].copy_from_slice(&self.previous_end.to_le_bytes());
        let crc = crc32fast::hash(&out[16..64]);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None` if these are not the bytes of a header, whatever the reason.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..SEGMENT_HEADER_BYTES)?;
        let version = u32_at(bytes, 8);
        let sound = bytes[..8] == *MAGIC
            && [SEGMENT_VERSION_UNNAMED, SEGMENT_VERSION].contains(&version)
            && u32_at(bytes, 12) == crc32fast::hash(&bytes[16..64]);
        sound.then(|| Self {
            segment: u64_at(bytes, 16),
            life: u64_at(bytes, 24),
            file_bytes: u64_at(bytes, 32),
            first_drain: u64_at(bytes, 40),
            previous: u32_at(bytes, 48),
            previous_end: u32_at(bytes, 52),
            named: version >= SEGMENT_VERSION,
        })
    }
}

/// What a record says. The numbers are persisted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// A log entry.
    Entry = 1,
    /// Raft's vote.
    Vote = 2,
    /// Raft's committed position: a hint.
    Committed = 3,
    /// The entries after an index are void.
    Truncate = 4,
    /// The entries up to an index are no longer needed.
    Purge = 5,
    /// All small facts of all partitions as of the start of a segment.
    State = 6,
}

impl RecordKind {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Entry,
            2 => Self::Vote,
            3 => Self::Committed,
            4 => Self::Truncate,
            5 => Self::Purge,
            6 => Self::State,
            _ => return None,
        })
    }
}

/// The 64 bytes in front of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) kind: RecordKind,
    pub(crate) partition: PartitionId,
    pub(crate) body_bytes: u32,
    pub(crate) body_crc: u32,
    pub(crate) life: u64,
    pub(crate) drain: u64,
    /// File position of the first record of the drain.
    pub(crate) drain_at: u32,
    pub(crate) entry_kind: u8,
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) leader: u64,
}

impl RecordHeader {
    /// A header of `kind` without index, term and leader; life and drain are the writer's to fill.
    pub(crate) fn new(kind: RecordKind, partition: PartitionId, body: &[u8]) -> Self {
        Self {
            kind,
            partition,
            body_bytes: u32::try_from(body.len()).expect("bodies are bounded before they are queued"),
            body_crc: crc32fast::hash(body),
            life: 0,
            drain: 0,
            drain_at: 0,
            entry_kind: 0,
            index: 0,
            term: 0,
            leader: 0,
        }
    }

    /// The header with a log position.
    pub(crate) fn at(self, (index, term, leader): LogPosition) -> Self {
        Self {
            index,
            term,
            leader,
            ..self
        }
    }

    pub(crate) fn encode(&self) -> [u8; RECORD_HEADER_BYTES] {
        let mut out = [0; RECORD_HEADER_BYTES];
        out[4] = RECORD_VERSION;
        out[5] = self.kind as u8;
        out[6..8].copy_from_slice(&self.partition.0.to_le_bytes());
        out[8..12].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[12..16].copy_from_slice(&self.body_crc.to_le_bytes());
        out[16..24].copy_from_slice(&self.life.to_le_bytes());
        out[24..32].copy_from_slice(&self.drain.to_le_bytes());
        out[32..36].copy_from_slice(&self.drain_at.to_le_bytes());
        out[36] = self.entry_kind;
        out[40..48].copy_from_slice(&self.index.to_le_bytes());
        out[48..56].copy_from_slice(&self.term.to_le_bytes());
        out[56..64].copy_from_slice(&self.leader.to_le_bytes());
        let crc = crc32fast::hash(&out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None` if `bytes` does not begin with a header of this life.
    pub(crate) fn decode(bytes: &[u8], life: u64) -> Option<Self> {
        let bytes = bytes.get(..RECORD_HEADER_BYTES)?;
        // The life first: it alone rejects nearly every position of a search.
        if u64_at(bytes, LIFE_AT) != life
            || bytes[4] != RECORD_VERSION
            || u32_at(bytes, 0) != crc32fast::hash(&bytes[4..])
        {
            return None;
        }
        Some(Self {
            kind: RecordKind::from_number(bytes[5])?,
            partition: PartitionId(u16::from_le_bytes([bytes[6], bytes[7]])),
            body_bytes: u32_at(bytes, 8),
            body_crc: u32_at(bytes, 12),
            life,
            drain: u64_at(bytes, 24),
            drain_at: u32_at(bytes, 32),
            entry_kind: bytes[36],
            index: u64_at(bytes, 40),
            term: u64_at(bytes, 48),
            leader: u64_at(bytes, 56),
        })
    }

    /// Index of a [`RecordKind::Truncate`]; `None` voids the whole log.
    pub(crate) fn truncate_after(&self) -> Option<u64> {
        (self.entry_kind == 1).then_some(self.index)
    }

    pub(crate) fn position(&self) -> LogPosition {
        (self.index, self.term, self.leader)
    }

    /// Length of header and body.
    pub(crate) fn record_bytes(&self) -> usize {
        RECORD_HEADER_BYTES + usize::try_from(self.body_bytes).expect("usize has at least 32 bits")
    }
}

/// The small facts of one partition at a position of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) vote: Option<Bytes>,
    pub(crate) committed: Option<Bytes>,
    pub(crate) purged: Option<LogPosition>,
    /// Index of the last entry, or of the purge position if that is further.
    pub(crate) last: Option<u64>,
}

impl Facts {
    /// Entry `index` was appended; whatever was there from it on is void.
    pub(crate) fn append(&mut self, index: u64) {
        self.last = Some(index);
    }

    /// Entries after `index` are void.
    pub(crate) fn truncate_after(&mut self, index: Option<u64>) {
        let floor = self.purged.map(|(index, _, _)| index);
        self.last = self.last.min(index).max(floor);
    }

    /// Entries up to `upto` are gone. A lower position than the one known changes nothing.
    pub(crate) fn purge(&mut self, upto: LogPosition) {
        if self.purged.is_none_or(|(index, _, _)| index < upto.0) {
            self.purged = Some(upto);
            self.last = self.last.max(Some(upto.0));
        }
    }
}

/// One row of a [`RecordKind::State`] body. Field order is persisted.
#[derive(Serialize, Deserialize)]
struct StateRow {
    partition: PartitionId,
    vote: Option<Bytes>,
    committed: Option<Bytes>,
    purged: Option<LogPosition>,
    last: Option<u64>,
}

/// Body of a [`RecordKind::State`].
pub(crate) fn encode_state<'a>(facts: impl Iterator<Item = (&'a PartitionId, &'a Facts)>) -> Vec<u8> {
    let rows: Vec<StateRow> = facts
        .map(|(partition, facts)| StateRow {
            partition: *partition,
            vote: facts.vote.clone(),
            committed: facts.committed.clone(),
            purged: facts.purged,
            last: facts.last,
        })
        .collect();
    encode(&rows)
}

/// See [`encode_state`].
pub(crate) fn decode_state(body: &[u8]) -> Result<Vec<(PartitionId, Facts)>, DecodeError> {
    let rows: Vec<StateRow> = decode(body)?;
    let facts = |row: StateRow| {
        let facts = Facts {
            vote: row.vote,
            committed: row.committed,
            purged: row.purged,
            last: row.last,
        };
        (row.partition, facts)
    };
    Ok(rows.into_iter().map(facts).collect())
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Position of the next place at or after `from` where a record header of `life` could stand.
pub(crate) fn find_life(bytes: &[u8], life: u64, from: usize) -> Option<usize> {
    let needle = life.to_le_bytes();
    let mut at = from.checked_add(LIFE_AT)?;
    loop {
        let rest = bytes.get(at..).filter(|rest| rest.len() >= needle.len())?;
        // Most of a new segment is zeros, and no life begins with one.
        if rest.len() > ZEROS.len() && needle[0] != 0 && rest[..ZEROS.len()] == ZEROS {
            at += ZEROS.len();
            continue;
        }
        let window = &rest[..rest.len().min(ZEROS.len())];
        match window.iter().position(|&byte| byte == needle[0]) {
            Some(skip) if rest.get(skip..skip + needle.len()) == Some(&needle[..]) => {
                return Some(at + skip - LIFE_AT);
            }
            Some(skip) => at += skip + 1,
            None => at += window.len(),
        }
    }
}
