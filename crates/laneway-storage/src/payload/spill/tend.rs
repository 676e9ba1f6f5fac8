//! Maintenance of the rows: spilling, removing dead ones, writing all anew, moving them with their file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use laneway_core::ids::{LaneId, Offset};

use super::{ROWS_PER_READ, Row};
use crate::backlog::BacklogEntry;
use crate::payload::evacuate::{Moved, run_of};
use crate::payload::index::{PlaceKind, SpilledLane};
use crate::payload::runs::{PlaceSlot, Run, Stored};
use crate::payload::{Maintenance, PayloadError, PayloadStore};
use crate::rows::RowChange;
use crate::sealed;

impl PayloadStore {
    /// Brings the row store up to date: removes dead rows, spills what is too much for memory, and writes all rows anew
    /// after a failure. A failure now leaves that to the next call; nothing is lost by it.
    pub(in crate::payload) fn tend_rows(&self, maintenance: &mut Maintenance) {
        let rows = &*self.shared.rows;
        let lost = rows.generation() != self.rows_generation() && !self.index().spilled.is_empty();
        let failed_before = maintenance.rows.failed;
        let result = if lost || failed_before {
            self.rebuild_rows()
        } else {
            self.shared
                .rows_generation
                .store(rows.generation(), Ordering::Release);
            Ok(())
        };
        let result = result
            .and_then(|()| self.settle_rows())
            .and_then(|()| self.spill_excess(maintenance));
        maintenance.rows.failed = result.is_err();
        let partition = self.shared.partition;
        match result {
            Ok(()) if lost || failed_before => {
                tracing::warn!(%partition, "payload locations in the row store were lost and are rebuilt");
            }
            Ok(()) => {}
            // It is tried again with every call; the disk may be full for long.
            Err(error) if failed_before => tracing::debug!(%partition, %error, "the row store fails still"),
            Err(error) => tracing::warn!(%partition, %error, "the row store failed"),
        }
    }

    /// Removes rows that lie below their lane's head.
    fn settle_rows(&self) -> Result<(), PayloadError> {
        loop {
            let Some(lane) = self.index().spilled_moved.first().copied() else {
                return Ok(());
            };
            let Some(head) = self.index().spilled.get(&lane).map(|spilled| spilled.head) else {
                self.index().spilled_moved.remove(&lane);
                continue;
            };
            let from = self.row_key(lane, Offset(0));
            let rows = self
                .shared
                .rows
                .range(&from, &self.row_key(lane, head), ROWS_PER_READ)?;
            let full = rows.len() == ROWS_PER_READ;
            let rows = self.decode_rows(lane, rows)?;
            let changes = self.kill_rows(lane, head, &rows);
            self.shared.rows.put_batch(&changes)?;
            let mut index = self.index();
            if !full
                && index
                    .spilled
                    .get(&lane)
                    .is_none_or(|spilled| spilled.head == head)
            {
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
            let Some(slot) = index.slot(PlaceKind::File(row.file)) else {
                changes.push((self.row_key(lane, row.run.first()), None));
                continue;
            };
            let stored = Stored {
                place: slot,
                ..row.run.stored()
            };
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
        let runs_max = u64::try_from(self.shared.options.runs_in_memory_max).unwrap_or(u64::MAX);
        loop {
            let next = match maintenance.rows.unfinished {
                Some(number) => Some(number),
                None => {
                    let index = self.index();
                    let in_memory = index
                        .places()
                        .filter(|(_, place)| !place.spilled && place.parts > 0);
                    let files: BTreeMap<u64, u64> = in_memory
                        .filter_map(|(_, place)| Some((place.kind.file()?, place.parts)))
                        .collect();
                    if files.values().sum::<u64>() <= runs_max {
                        return Ok(());
                    }
                    files.keys().next().copied()
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
            let Some(slot) = index.slot(PlaceKind::File(number)) else {
                return Ok(());
            };
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
    fn spill_entries(
        &self,
        slot: PlaceSlot,
        number: u64,
        entries: &[BacklogEntry],
    ) -> Result<bool, PayloadError> {
        let mut found = Vec::new();
        {
            let mut index = self.index();
            for entry in entries {
                let Some(runs) = index.lane(entry.lane) else {
                    continue;
                };
                let lowest = runs.first().first();
                let run = runs.from(entry.first).next().copied();
                if let Some(run) = run.filter(|run| run.place == slot && run.at == entry.at) {
                    found.push((entry.lane, run));
                    let end = run.end();
                    let new = SpilledLane {
                        head: lowest,
                        ..SpilledLane::default()
                    };
                    let spilled = index.spilled.entry(entry.lane).or_insert(new);
                    spilled.end = spilled.end.max(end);
                }
            }
        }
        let changes: Vec<RowChange> = found
            .iter()
            .map(|(lane, run)| self.row_change(*lane, run, number))
            .collect();
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
            spilled
                .filter_map(|(slot, place)| Some((place.kind.file()?, slot)))
                .collect()
        };
        for (number, slot) in spilled {
            let file = self.open_file(number)?;
            let mut sections = file.index();
            while let Some(entries) = sections.next_section()? {
                let mut changes = Vec::new();
                {
                    let mut index = self.index();
                    for entry in &entries {
                        let Some(spilled) = index.spilled.get(&entry.lane).copied() else {
                            continue;
                        };
                        let run = run_of(entry, slot);
                        index.keep_pinned(entry.lane, &run, spilled.head);
                        let Some(run) = run.clipped(spilled.head, run.end()) else {
                            continue;
                        };
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
    pub(in crate::payload) fn rewrite_spilled(
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
        let Some(moved) = self.copy(maintenance, pieces, &[number])? else {
            return Ok(None);
        };
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
            old.get(at)
                .is_some_and(|(lane, row)| *lane == entry.lane && row.run.first() < entry.end())
        };
        let live: Vec<&BacklogEntry> = moved.entries.iter().filter(is_live).collect();
        let mut changes = Vec::new();
        for entry in &live {
            changes.push(self.row_change(entry.lane, &run_of(entry, new_slot), moved.number));
        }
        self.shared.rows.put_batch(&changes)?;
        let new: BTreeSet<(LaneId, Offset)> = live.iter().map(|entry| (entry.lane, entry.first)).collect();
        let gone = old
            .iter()
            .filter(|(lane, row)| !new.contains(&(*lane, row.run.first())));
        let changes: Vec<RowChange> = gone
            .map(|(lane, row)| (self.row_key(*lane, row.run.first()), None))
            .collect();
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
