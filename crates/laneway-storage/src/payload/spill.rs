//! Runs of whole backlog files in the row store, for when memory is short.
//!
//! Key: partition ‖ lane ‖ first visible offset, big-endian. Value: file number ‖ position ‖ bytes ‖ messages ‖ newest wall
//! stamp, little-endian. Rows below a lane's head are removed by maintenance; until then look-ups leave them out.

mod tend;

use std::ops::Range;
use std::sync::atomic::Ordering;

use laneway_core::ids::{LaneId, OFFSET_MAX, Offset};
use laneway_core::time::WallTime;

use super::index::{Index, Piece, PlaceKind, SpilledLane};
use super::runs::{PlaceSlot, Run, Stored};
use super::{PayloadError, PayloadStore};
use crate::rows::{RowChange, StoredRow};
use crate::sealed::cursor::{Cursor, Malformed};

/// Rows read at once.
const ROWS_PER_READ: usize = 512;

/// Stands in the runs made from rows, which name their file themselves.
const NO_SLOT: PlaceSlot = PlaceSlot(u32::MAX);

/// What maintenance knows of the row store.
#[derive(Debug, Default)]
pub(super) struct RowsState {
    /// Rows must be written anew.
    pub(super) failed: bool,
    /// A file whose runs are partly in memory, partly in rows.
    unfinished: Option<u64>,
}

impl RowsState {
    /// A failure left the runs of this file partly in memory.
    pub(super) fn give_up(&mut self, file: u64) {
        self.failed = true;
        self.unfinished = Some(file);
    }
}

/// A run read from a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) run: Run,
    pub(super) file: u64,
}

/// How much a look-up still wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    pub(super) bytes: u64,
    pub(super) pieces: usize,
}

impl Limit {
    fn is_reached(self) -> bool {
        self.bytes == 0 || self.pieces == 0
    }

    fn take(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.pieces = self.pieces.saturating_sub(1);
    }
}

/// What a look-up in rows must know of the lane.
#[derive(Clone, Debug)]
pub(super) struct Spilled {
    pub(super) lane: SpilledLane,
    /// Pinned messages below the head whose row is not removed yet.
    pins: Vec<Offset>,
}

impl Spilled {
    /// `None`: no run of the lane is in a row.
    pub(super) fn of(index: &Index, lane: LaneId) -> Option<Self> {
        let spilled = *index.spilled.get(&lane)?;
        let pins = index.pins_within(lane, Offset(0), spilled.head);
        let pins = pins
            .filter_map(|(offset, pin)| pin.is_none().then_some(offset))
            .collect();
        Some(Self { lane: spilled, pins })
    }
}

impl Row {
    pub(super) fn piece(&self) -> Piece {
        let part_bytes = u64::from(self.run.bytes);
        Piece {
            run: self.run,
            place: PlaceKind::File(self.file),
            part_bytes,
        }
    }

    fn decode(key: &[u8], value: &[u8]) -> Result<Self, Malformed> {
        let offset = key.last_chunk::<8>().ok_or(Malformed)?;
        let first = Offset(u64::from_be_bytes(*offset));
        if first.0 > OFFSET_MAX {
            return Err(Malformed);
        }
        let mut cursor = Cursor::new(value);
        let file = cursor.u64()?;
        let stored = Stored {
            place: NO_SLOT,
            at: cursor.u32()?,
            bytes: cursor.u32()?,
        };
        let (count, wall) = (cursor.u32()?, WallTime(cursor.u64()?));
        Ok(Self {
            run: Run::new(first, 0, count, wall, stored),
            file,
        })
    }

    fn encode(run: &Run, file: u64) -> Vec<u8> {
        let mut value = Vec::with_capacity(28);
        value.extend_from_slice(&file.to_le_bytes());
        value.extend_from_slice(&run.at.to_le_bytes());
        value.extend_from_slice(&run.bytes.to_le_bytes());
        value.extend_from_slice(&run.count.to_le_bytes());
        value.extend_from_slice(&run.wall_last.0.to_le_bytes());
        value
    }
}

impl PayloadStore {
    pub(super) fn row_key(&self, lane: LaneId, offset: Offset) -> Vec<u8> {
        let mut key = Vec::with_capacity(18);
        key.extend_from_slice(&self.shared.partition.0.to_be_bytes());
        key.extend_from_slice(&lane.0.to_be_bytes());
        key.extend_from_slice(&offset.0.to_be_bytes());
        key
    }

    pub(super) fn row_change(&self, lane: LaneId, run: &Run, file: u64) -> RowChange {
        (self.row_key(lane, run.first()), Some(Row::encode(run, file)))
    }

    fn rows_generation(&self) -> u64 {
        self.shared.rows_generation.load(Ordering::Acquire)
    }

    /// Decodes rows just read, unless the store began anew before that: then they are not the ones that were written.
    fn decode_rows(&self, lane: LaneId, rows: Vec<StoredRow>) -> Result<Vec<Row>, PayloadError> {
        let missing = || PayloadError::RowsMissing {
            lane,
            offset: Offset(0),
        };
        if self.shared.rows.generation() != self.rows_generation() {
            return Err(missing());
        }
        rows.iter()
            .map(|(key, value)| Row::decode(key, value).map_err(|_| missing()))
            .collect()
    }

    /// The row that holds `offset`, or else the last one before it.
    fn row_at_or_before(&self, lane: LaneId, offset: Offset) -> Result<Option<Row>, PayloadError> {
        let row = self
            .shared
            .rows
            .last_at_or_before(&self.row_key(lane, Offset(0)), &self.row_key(lane, offset))?;
        Ok(self.decode_rows(lane, row.into_iter().collect())?.pop())
    }

    /// The run in a row that holds `at`, and some that follow it and begin below `to`, in order.
    fn rows_from(&self, lane: LaneId, at: Offset, to: Offset) -> Result<Vec<Row>, PayloadError> {
        let mut found: Vec<Row> = self.row_at_or_before(lane, at)?.into_iter().collect();
        found.retain(|row| row.run.end() > at);
        let (from, to) = (self.row_key(lane, at.plus(1)), self.row_key(lane, to));
        found.extend(self.decode_rows(lane, self.shared.rows.range(&from, &to, ROWS_PER_READ)?)?);
        Ok(found)
    }

    /// All runs in rows that reach into `[from, to)`, in order.
    pub(super) fn rows_within(
        &self,
        lane: LaneId,
        from: Offset,
        to: Offset,
    ) -> Result<Vec<Row>, PayloadError> {
        let mut all: Vec<Row> = Vec::new();
        let mut at = from;
        while at < to {
            let rows = self.rows_from(lane, at, to)?;
            let Some(last) = rows.last() else { break };
            at = last.run.end();
            all.extend(rows);
        }
        Ok(all)
    }

    /// Adds to `pieces`, found in memory within the range, what of the gaps is in rows, until the limit is reached.
    /// Returns also the end of what was looked at.
    ///
    /// Errors: a message that must be there is neither here nor there, so rows were lost.
    pub(super) fn fill_from_rows(
        &self,
        lane: LaneId,
        range: Range<Offset>,
        mut limit: Limit,
        spilled: &Spilled,
        mut pieces: Vec<Piece>,
    ) -> Result<(Vec<Piece>, Offset), PayloadError> {
        for &offset in spilled.pins.iter().filter(|offset| range.contains(offset)) {
            let row = self.row_at_or_before(lane, offset)?;
            let found = row.and_then(|row| Some((row.run.clipped(offset, offset.plus(1))?, row)));
            let (run, row) = found.ok_or(PayloadError::RowsMissing { lane, offset })?;
            let part_bytes = u64::from(row.run.message_bytes());
            pieces.push(Piece {
                run,
                place: PlaceKind::File(row.file),
                part_bytes,
            });
        }
        pieces.sort_by_key(|piece| piece.run.first());
        let mut filled = Vec::new();
        let mut at = range.start.max(spilled.lane.head);
        let rows_end = range.end.min(spilled.lane.end);
        for piece in pieces {
            // Pinned messages below the head come first: nothing is missing between them.
            let gap_end = piece.run.first().min(rows_end);
            if at < gap_end {
                at = self.fill_gap(lane, at..gap_end, &mut limit, &mut filled)?;
                if at < gap_end {
                    return Ok((filled, at));
                }
            }
            at = at.max(piece.run.end());
            filled.push(piece);
        }
        if at < rows_end {
            at = self.fill_gap(lane, at..rows_end, &mut limit, &mut filled)?;
            if at < rows_end {
                return Ok((filled, at));
            }
        }
        Ok((filled, range.end))
    }

    /// Adds the runs in rows that cover the gap; returns how far.
    fn fill_gap(
        &self,
        lane: LaneId,
        gap: Range<Offset>,
        limit: &mut Limit,
        filled: &mut Vec<Piece>,
    ) -> Result<Offset, PayloadError> {
        let mut at = gap.start;
        while at < gap.end {
            let before = at;
            for row in self.rows_from(lane, at, gap.end)? {
                if row.run.first() > at {
                    break;
                }
                // While a file is rewritten, old and new rows may overlap: either will do.
                let Some(part) = row.run.clipped(at, gap.end) else {
                    continue;
                };
                if limit.is_reached() && !filled.is_empty() {
                    return Ok(at);
                }
                let part_bytes = row.run.bytes_within(at, gap.end);
                limit.take(part_bytes);
                filled.push(Piece {
                    run: part,
                    place: PlaceKind::File(row.file),
                    part_bytes,
                });
                at = part.end();
            }
            if at == before {
                return Err(PayloadError::RowsMissing { lane, offset: at });
            }
        }
        Ok(at)
    }

    /// All runs, in memory and in rows, that hold about `bytes_max` bytes.
    pub(super) fn look_up_all(
        &self,
        lane: LaneId,
        from: Offset,
        to: Offset,
        bytes_max: u64,
    ) -> Result<Vec<Piece>, PayloadError> {
        let (pieces, end, spilled) = {
            let index = self.index();
            let (pieces, end) = index.pieces(lane, from, to, bytes_max, usize::MAX);
            (pieces, end, Spilled::of(&index, lane))
        };
        let Some(spilled) = spilled else { return Ok(pieces) };
        let limit = Limit {
            bytes: bytes_max,
            pieces: usize::MAX,
        };
        Ok(self.fill_from_rows(lane, from..end, limit, &spilled, pieces)?.0)
    }

    /// The first row whose newest message is not older than `at`.
    pub(super) fn first_row_since(
        &self,
        lane: LaneId,
        at: WallTime,
        spilled: &SpilledLane,
    ) -> Result<Option<Row>, PayloadError> {
        let (mut low, mut high) = (spilled.head, spilled.end);
        let mut found = None;
        while low < high {
            let middle = Offset(low.0 + (high.0 - low.0) / 2);
            match self
                .row_at_or_before(lane, middle)?
                .filter(|row| row.run.end() > low)
            {
                Some(row) if row.run.wall_last >= at => {
                    high = row.run.first();
                    found = Some(row);
                }
                Some(row) => low = row.run.end().max(middle.plus(1)),
                None => low = middle.plus(1),
            }
        }
        let clip = |row: Row| Row {
            run: row.run.clipped(spilled.head, row.run.end()).unwrap_or(row.run),
            ..row
        };
        Ok(found.map(clip))
    }

    /// End of the last row whose newest message is older than `before`. Nothing is concluded from the absence of a row.
    pub(super) fn rows_older_than(
        &self,
        lane: LaneId,
        before: WallTime,
        spilled: &SpilledLane,
    ) -> Result<Option<Offset>, PayloadError> {
        let first_newer = self.first_row_since(lane, before, spilled)?;
        let end = first_newer.map_or(spilled.end, |row| row.run.first());
        let Some(last) = end.0.checked_sub(1).map(Offset) else {
            return Ok(None);
        };
        let older = self
            .row_at_or_before(lane, last)?
            .filter(|row| row.run.wall_last < before);
        Ok(older.map(|row| row.run.end()).filter(|end| *end > spilled.head))
    }
}
