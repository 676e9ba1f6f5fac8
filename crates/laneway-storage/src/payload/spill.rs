//! Runs of whole backlog files in the row store, for when memory is short.
//!
//! Key: partition ‖ lane ‖ first visible offset, big-endian. Value: file number ‖ position ‖ bytes ‖ messages ‖ newest wall
//! stamp, little-endian. Rows below a lane's head are removed by maintenance; until then look-ups leave them out.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use laneway_core::ids::{LaneId, OFFSET_MAX, Offset};
use laneway_core::time::WallTime;

use super::evacuate::{Moved, run_of};
use super::index::{Index, Piece, PlaceKind, SpilledLane};
use super::runs::{PlaceSlot, Run, Stored};
use super::{Maintenance, PayloadError, PayloadStore};
use crate::backlog::BacklogEntry;
use crate::rows::{RowChange, StoredRow};
use crate::sealed;
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

/// A run read from a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) run: Run,
    pub(super) file: u64,
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
        let pins = pins.filter_map(|(offset, pin)| pin.is_none().then_some(offset)).collect();
        Some(Self { lane: spilled, pins })
    }
}

impl Row {
    pub(super) fn piece(&self) -> Piece {
        let part_bytes = u64::from(self.run.bytes);
        Piece { run: self.run, place: PlaceKind::File(self.file), part_bytes }
    }

    fn decode(key: &[u8], value: &[u8]) -> Result<Self, Malformed> {
        let offset = key.last_chunk::<8>().ok_or(Malformed)?;
        let first = Offset(u64::from_be_bytes(*offset));
        if first.0 > OFFSET_MAX {
            return Err(Malformed);
        }
        let mut cursor = Cursor::new(value);
        let file = cursor.u64()?;
        let stored = Stored { place: NO_SLOT, at: cursor.u32()?, bytes: cursor.u32()? };
        let (count, wall) = (cursor.u32()?, WallTime(cursor.u64()?));
        Ok(Self { run: Run::new(first, 0, count, wall, stored), file })
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

// ---- looking up
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
        let missing = || PayloadError::RowsMissing { lane, offset: Offset(0) };
        if self.shared.rows.generation() != self.rows_generation() {
            return Err(missing());
        }
        rows.iter().map(|(key, value)| Row::decode(key, value).map_err(|_| missing())).collect()
    }

    /// The row that holds `offset`, or else the last one before it.
    fn row_at_or_before(&self, lane: LaneId, offset: Offset) -> Result<Option<Row>, PayloadError> {
        let row = self
            .shared
            .rows
            .last_at_or_before(&self.row_key(lane, Offset(0)), &self.row_key(lane, offset))?;
        Ok(self.decode_rows(lane, row.into_iter().collect())?.pop())
    }

    /// All runs in rows that reach into `[from, to)`, in order.
    pub(super) fn rows_within(&self, lane: LaneId, from: Offset, to: Offset) -> Result<Vec<Row>, PayloadError> {
        let mut found: Vec<Row> = self.row_at_or_before(lane, from)?.into_iter().collect();
        found.retain(|row| row.run.end() > from);
        let mut at = from.plus(1);
        while at < to {
            let rows = self.shared.rows.range(&self.row_key(lane, at), &self.row_key(lane, to), ROWS_PER_READ)?;
            let rows = self.decode_rows(lane, rows)?;
            let Some(last) = rows.last() else { break };
            at = last.run.first().plus(1);
            found.extend(rows);
        }
        Ok(found)
    }

    /// Adds to `pieces`, found in memory within `[from, to)`, what of the gaps is in rows.
    ///
    /// Errors: a message that must be there is neither here nor there, so rows were lost.
    pub(super) fn fill_from_rows(
        &self,
        lane: LaneId,
        from: Offset,
        to: Offset,
        spilled: &Spilled,
        mut pieces: Vec<Piece>,
    ) -> Result<Vec<Piece>, PayloadError> {
        for &offset in spilled.pins.iter().filter(|offset| (from..to).contains(offset)) {
            let row = self.row_at_or_before(lane, offset)?;
            let run = row.and_then(|row| Some((row.run.clipped(offset, offset.plus(1))?, row)));
            let (run, row) = run.ok_or(PayloadError::RowsMissing { lane, offset })?;
            let part_bytes = u64::from(row.run.message_bytes());
            pieces.push(Piece { run, place: PlaceKind::File(row.file), part_bytes });
        }
        pieces.sort_by_key(|piece| piece.run.first());
        let mut filled = Vec::new();
        let mut at = from.max(spilled.lane.head);
        let end = to.min(spilled.lane.end);
        let mut in_memory = pieces.into_iter().peekable();
        loop {
            // Pinned messages below the head come first: nothing is missing between them.
            while let Some(piece) = in_memory.next_if(|piece| piece.run.first() <= at) {
                at = at.max(piece.run.end());
                filled.push(piece);
            }
            let gap_end = in_memory.peek().map_or(end, |piece| piece.run.first());
            if at < gap_end.min(end) {
                self.fill_gap(lane, at, gap_end.min(end), &mut filled)?;
            }
            match in_memory.next() {
                Some(piece) => {
                    at = piece.run.end();
                    filled.push(piece);
                }
                None => return Ok(filled),
            }
        }
    }

    fn fill_gap(
        &self,
        lane: LaneId,
        from: Offset,
        to: Offset,
        filled: &mut Vec<Piece>,
    ) -> Result<(), PayloadError> {
        let mut at = from;
        for row in self.rows_within(lane, from, to)? {
            if row.run.first() > at {
                break;
            }
            // While a file is rewritten, old and new rows may overlap: either will do.
            if let Some(part) = row.run.clipped(at, to) {
                let part_bytes = row.run.bytes_within(at, to);
                filled.push(Piece { run: part, place: PlaceKind::File(row.file), part_bytes });
                at = part.end();
            }
        }
        if at < to { Err(PayloadError::RowsMissing { lane, offset: at }) } else { Ok(()) }
    }

    /// Like the look-up of a read, but all that holds about `bytes_max` bytes.
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
        match spilled {
            Some(spilled) => self.fill_from_rows(lane, from, end, &spilled, pieces),
            None => Ok(pieces),
        }
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
            match self.row_at_or_before(lane, middle)?.filter(|row| row.run.end() > low) {
                Some(row) if row.run.wall_last >= at => {
                    high = row.run.first();
                    found = Some(row);
                }
                Some(row) => low = row.run.end().max(middle.plus(1)),
                None => low = middle.plus(1),
            }
        }
        let clip = |row: Row| Row { run: row.run.clipped(spilled.head, row.run.end()).unwrap_or(row.run), ..row };
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
        let Some(last) = end.0.checked_sub(1).map(Offset) else { return Ok(None) };
        let older = self.row_at_or_before(lane, last)?.filter(|row| row.run.wall_last < before);
        Ok(older.map(|row| row.run.end()).filter(|end| *end > spilled.head))
    }
}

// ---- maintenance
impl PayloadStore {
    /// Brings the row store up to date: removes dead rows, spills what is too much for memory, and writes all rows anew
    /// after a failure. A failure now leaves that to the next call; nothing is lost by it.
    pub(super) fn tend_rows(&self, maintenance: &mut Maintenance) {
        let rows = &*self.shared.rows;
        let lost = maintenance.rows.failed || rows.generation() != self.rows_generation();
        let result = if lost && !self.index().spilled.is_empty() {
            tracing::warn!(partition = %self.shared.partition, "payload locations in the row store are rebuilt");
            self.rebuild_rows()
        } else {
            self.shared.rows_generation.store(rows.generation(), Ordering::Release);
            Ok(())
        };
        let result = result.and_then(|()| self.settle_rows()).and_then(|()| self.spill_excess(maintenance));
        maintenance.rows.failed = result.is_err();
        if let Err(error) = result {
            tracing::warn!(partition = %self.shared.partition, %error, "the row store could not be brought up to date");
        }
    }

    /// Removes rows that lie below their lane's head.
    fn settle_rows(&self) -> Result<(), PayloadError> {
        loop {
            let Some(lane) = self.index().spilled_moved.first().copied() else { return Ok(()) };
            let Some(head) = self.index().spilled.get(&lane).map(|spilled| spilled.head) else {
                self.index().spilled_moved.remove(&lane);
                continue;
            };
            let from = self.row_key(lane, Offset(0));
            let rows = self.shared.rows.range(&from, &self.row_key(lane, head), ROWS_PER_READ)?;
            let full = rows.len() == ROWS_PER_READ;
            let rows = self.decode_rows(lane, rows)?;
            let changes = self.kill_rows(lane, head, &rows);
            self.shared.rows.put_batch(&changes)?;
            let mut index = self.index();
            if !full && index.spilled.get(&lane).is_none_or(|spilled| spilled.head == head) {
                index.spilled_moved.remove(&lane);
            }
        }
    }

    /// Accounts for rows that begin below `head`; returns what to change.
    fn kill_rows(&self, lane: LaneId, head: Offset, rows: &[Row]) -> Vec<RowChange> {
        let mut index = self.index();
        index.moves += 1;
        let mut changes = Vec::new();
        for row in rows {
            let Some(slot) = index.slot(PlaceKind::File(row.file)) else { continue };
            let stored = Stored { place: slot, ..row.run.stored() };
            let run = Run::new(row.run.first(), 0, row.run.count, row.run.wall_last, stored);
            index.keep_pinned(lane, &run, head);
            changes.push((self.row_key(lane, run.first()), None));
            match run.clipped(head, run.end()) {
                Some(rest) => changes.push(self.row_change(lane, &rest, row.file)),
                None => {
                    index.discharge(slot, run.bytes);
                    index.uncount_spilled(lane, run.bytes);
                }
            }
        }
        changes
    }

    /// Moves the runs of the oldest backlog files to rows until memory holds few enough.
    fn spill_excess(&self, maintenance: &mut Maintenance) -> Result<(), PayloadError> {
        loop {
            let next = match maintenance.rows.unfinished {
                Some(number) => Some(number),
                None => {
                    let index = self.index();
                    if index.runs <= self.shared.options.runs_in_memory_max {
                        return Ok(());
                    }
                    let unspilled = index.places().filter(|(_, place)| !place.spilled && place.parts > 0);
                    let numbers = unspilled.filter_map(|(_, place)| match place.kind {
                        PlaceKind::File(number) => Some(number),
                        PlaceKind::Segment(_) => None,
                    });
                    numbers.min()
                }
            };
            let Some(number) = next else { return Ok(()) };
            maintenance.rows.unfinished = Some(number);
            self.spill_file(number)?;
            maintenance.rows.unfinished = None;
        }
    }

    fn spill_file(&self, number: u64) -> Result<(), PayloadError> {
        let slot = {
            let mut index = self.index();
            let Some(slot) = index.slot(PlaceKind::File(number)) else { return Ok(()) };
            index.place_mut(slot).spilled = true;
            slot
        };
        let file = self.open_file(number)?;
        let mut sections = file.index();
        while let Some(entries) = sections.next_section()? {
            while self.spill_entries(slot, number, &entries)? {}
        }
        Ok(())
    }

    /// Moves the live runs of some blocks to rows. True if some changed meanwhile and are still in memory.
    fn spill_entries(&self, slot: PlaceSlot, number: u64, entries: &[BacklogEntry]) -> Result<bool, PayloadError> {
        let mut found = Vec::new();
        {
            let mut index = self.index();
            for entry in entries {
                let Some(runs) = index.lane(entry.lane) else { continue };
                let lowest = runs.first().first();
                let run = runs.from(entry.first).next().copied();
                if let Some(run) = run.filter(|run| run.place == slot && run.at == entry.at) {
                    found.push((entry.lane, run));
                    let end = run.end();
                    let new = SpilledLane { head: lowest, ..SpilledLane::default() };
                    let spilled = index.spilled.entry(entry.lane).or_insert(new);
                    spilled.end = spilled.end.max(end);
                }
            }
        }
        let changes: Vec<RowChange> =
            found.iter().map(|(lane, run)| self.row_change(*lane, run, number)).collect();
        self.shared.rows.put_batch(&changes)?;
        let mut stale = Vec::new();
        {
            let mut index = self.index();
            for (lane, run) in &found {
                if index.spill(*lane, run) {
                    index.count_spilled(*lane, run, run.first());
                } else {
                    stale.push((self.row_key(*lane, run.first()), None));
                }
            }
            found.iter().for_each(|(lane, _)| index.drop_unspilled(*lane));
        }
        self.shared.rows.put_batch(&stale)?;
        Ok(!stale.is_empty())
    }

    /// Writes the rows of all spilled files anew, from the files' own indexes.
    fn rebuild_rows(&self) -> Result<(), PayloadError> {
        let rows = &*self.shared.rows;
        if self.rows_generation() == rows.generation() {
            // Nobody else has begun anew since ours failed.
            rows.clear()?;
        }
        let generation = rows.generation();
        rows.remove_prefix(&self.shared.partition.0.to_be_bytes())?;
        let spilled: BTreeSet<(u64, PlaceSlot)> = {
            let mut index = self.index();
            index.forget_rows();
            let spilled = index.places().filter(|(_, place)| place.spilled);
            spilled.filter_map(|(slot, place)| Some((place.kind.file()?, slot))).collect()
        };
        for (number, slot) in spilled {
            let file = self.open_file(number)?;
            let mut sections = file.index();
            while let Some(entries) = sections.next_section()? {
                let mut changes = Vec::new();
                {
                    let mut index = self.index();
                    for entry in &entries {
                        let Some(spilled) = index.spilled.get(&entry.lane).copied() else { continue };
                        let run = run_of(entry, slot);
                        index.keep_pinned(entry.lane, &run, spilled.head);
                        let Some(run) = run.clipped(spilled.head, run.end()) else { continue };
                        let in_memory = index.lane(entry.lane).and_then(|runs| runs.find(run.first()));
                        if in_memory.is_none() {
                            index.charge(slot, run.bytes);
                            index.count_spilled(entry.lane, &run, spilled.head);
                            changes.push(self.row_change(entry.lane, &run, number));
                        }
                    }
                }
                rows.put_batch(&changes)?;
            }
        }
        self.index().spilled.retain(|_, spilled| spilled.runs > 0);
        self.shared.rows_generation.store(generation, Ordering::Release);
        Ok(())
    }

    /// Writes a mostly dead file anew whose runs are in rows; they stay there.
    pub(super) fn rewrite_spilled(
        &self,
        maintenance: &mut Maintenance,
        slot: PlaceSlot,
        number: u64,
    ) -> Result<Option<Moved>, PayloadError> {
        let file = self.open_file(number)?;
        let mut rows: Vec<(LaneId, Row)> = Vec::new();
        let mut sections = file.index();
        while let Some(entries) = sections.next_section()? {
            for entry in entries {
                let found = self.rows_within(entry.lane, entry.first, entry.end())?;
                let found = found.into_iter().filter(|row| row.file == number);
                rows.extend(found.map(|row| (entry.lane, row)));
            }
        }
        let within = |run: &Run| run.place == slot;
        let mut pieces: Vec<_> = rows.iter().map(|(lane, row)| (*lane, row.piece())).collect();
        pieces.extend(self.pinned_pieces(within));
        let Some(moved) = self.copy(maintenance, pieces, &[number])? else { return Ok(None) };
        let new_slot = {
            let mut index = self.index();
            let new_slot = index.slot_of(PlaceKind::File(moved.number), moved.bytes);
            index.place_mut(new_slot).spilled = true;
            new_slot
        };
        if let Err(error) = self.replace_rows(&rows, slot, &moved, new_slot) {
            self.index().forget(new_slot);
            sealed::remove(&*self.shared.vfs, &self.path_of(moved.number))?;
            return Err(error);
        }
        self.relocate_pins(&moved.entries, new_slot, within);
        Ok(Some(moved))
    }

    /// New rows first, so that a reader finds each message in one or the other.
    fn replace_rows(
        &self,
        old: &[(LaneId, Row)],
        old_slot: PlaceSlot,
        moved: &Moved,
        new_slot: PlaceSlot,
    ) -> Result<(), PayloadError> {
        // Blocks that only hold pinned messages get no row.
        let is_live = |entry: &&BacklogEntry| {
            let at = old.partition_point(|(lane, row)| (*lane, row.run.end()) <= (entry.lane, entry.first));
            old.get(at).is_some_and(|(lane, row)| *lane == entry.lane && row.run.first() < entry.end())
        };
        let live: Vec<&BacklogEntry> = moved.entries.iter().filter(is_live).collect();
        let mut changes = Vec::new();
        for entry in &live {
            changes.push(self.row_change(entry.lane, &run_of(entry, new_slot), moved.number));
        }
        self.shared.rows.put_batch(&changes)?;
        let new: BTreeSet<(LaneId, Offset)> = live.iter().map(|entry| (entry.lane, entry.first)).collect();
        let gone = old.iter().filter(|(lane, row)| !new.contains(&(*lane, row.run.first())));
        let changes: Vec<RowChange> =
            gone.map(|(lane, row)| (self.row_key(*lane, row.run.first()), None)).collect();
        self.shared.rows.put_batch(&changes)?;
        let mut index = self.index();
        for entry in live {
            let run = run_of(entry, new_slot);
            index.charge(new_slot, run.bytes);
            index.count_spilled(entry.lane, &run, entry.first);
        }
        for (lane, row) in old {
            index.discharge(old_slot, row.run.bytes);
            index.uncount_spilled(*lane, row.run.bytes);
        }
        index.moves += 1;
        Ok(())
    }
}
