//! What of the files is alive, after a start.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering;

use laneway_core::ids::{LaneId, Offset};

use super::cut::{CutRun, WalPosition};
use super::evacuate::run_of;
use super::index::{Index, PlaceKind};
use super::runs::{PlaceSlot, Run, Stored};
use super::{Maintenance, PayloadCut, PayloadError, PayloadStore};
use crate::backlog::BacklogEntry;
use crate::rows::{RowChange, RowStoreError};

/// The heads of all lanes.
type Heads = HashMap<LaneId, Offset>;

impl PayloadStore {
    /// Finds out what is alive, from the newest checkpoint: its cut, and the heads and pins of its machine. To be called
    /// once, before the log behind the checkpoint is replayed.
    ///
    /// Lanes that `heads` does not name are dead. Takes time in proportion to the backlog's blocks.
    /// Errors: a file failed or is damaged.
    pub fn restore(
        &self,
        cut: &PayloadCut,
        heads: impl Iterator<Item = (LaneId, Offset)>,
        pins: impl Iterator<Item = (LaneId, Offset)>,
    ) -> Result<(), PayloadError> {
        let mut maintenance = self.maintenance();
        let heads: Heads = heads.collect();
        let rows = &*self.shared.rows;
        if let Err(error) = rows.remove_prefix(&self.shared.partition.0.to_be_bytes()) {
            tracing::warn!(partition = %self.shared.partition, %error, "the row store failed");
            maintenance.rows.failed = true;
        }
        self.shared
            .rows_generation
            .store(rows.generation(), Ordering::Release);
        let files: BTreeSet<(u64, PlaceSlot)> = {
            let mut index = self.index();
            let old = std::mem::take(&mut *index);
            for (_, place) in old.places().filter(|(_, place)| place.kind.file().is_some()) {
                index.slot_of(place.kind, place.bytes);
            }
            for (lane, offset) in pins.filter(|(lane, _)| heads.contains_key(lane)) {
                index.pinned(lane, offset);
            }
            index
                .places()
                .filter_map(|(slot, place)| Some((place.kind.file()?, slot)))
                .collect()
        };
        let in_memory_from = self.first_file_in_memory(&files)?;
        for (number, slot) in files {
            let to_rows = number < in_memory_from && !maintenance.rows.failed;
            self.restore_file(&mut maintenance, number, slot, to_rows, &heads)?;
        }
        let segments: HashSet<u64> = self
            .shared
            .wal
            .segments()
            .iter()
            .map(|segment| segment.id)
            .collect();
        cut.each::<PayloadError>(WalPosition::default(), &mut |runs| {
            let mut in_rows = Vec::new();
            {
                let mut index = self.index();
                for run in runs.iter().filter(|run| segments.contains(&run.segment)) {
                    let Some(&head) = heads.get(&run.lane) else {
                        continue;
                    };
                    if index.spilled.contains_key(&run.lane) {
                        in_rows.push((*run, head));
                    } else {
                        adopt(&mut index, run, head, false);
                    }
                }
            }
            for (run, head) in in_rows {
                let covered = self.rows_hold(&run, head)?;
                adopt(&mut self.index(), &run, head, covered);
            }
            Ok(())
        })?;
        let mut index = self.index();
        index.log_end = index.log_end.max(cut.end);
        maintenance.restored = true;
        Ok(())
    }

    /// The newest files whose runs fit into memory stay there.
    fn first_file_in_memory(&self, files: &BTreeSet<(u64, PlaceSlot)>) -> Result<u64, PayloadError> {
        let mut runs = 0;
        let runs_max = u64::try_from(self.shared.options.runs_in_memory_max).unwrap_or(u64::MAX);
        for (number, _) in files.iter().rev() {
            runs += self.open_file(*number)?.blocks;
            if runs > runs_max {
                return Ok(number + 1);
            }
        }
        Ok(0)
    }

    fn restore_file(
        &self,
        maintenance: &mut Maintenance,
        number: u64,
        slot: PlaceSlot,
        to_rows: bool,
        heads: &Heads,
    ) -> Result<(), PayloadError> {
        let file = self.open_file(number)?;
        self.index().place_mut(slot).spilled = to_rows;
        let mut sections = file.index();
        while let Some(entries) = sections.next_section()? {
            if to_rows && !maintenance.rows.failed {
                match self.restore_to_rows(number, slot, &entries, heads) {
                    Ok(()) => continue,
                    Err(error) => {
                        // Say, the disk is full: memory must do for now, or the node could not start.
                        tracing::warn!(partition = %self.shared.partition, %error, "the row store failed");
                        maintenance.rows.give_up(number);
                    }
                }
            }
            let mut index = self.index();
            for entry in &entries {
                if let Some(&head) = heads.get(&entry.lane) {
                    index.adopt(entry.lane, run_of(entry, slot), head);
                }
            }
        }
        Ok(())
    }

    fn restore_to_rows(
        &self,
        number: u64,
        slot: PlaceSlot,
        entries: &[BacklogEntry],
        heads: &Heads,
    ) -> Result<(), RowStoreError> {
        let alive = |entry: &BacklogEntry| {
            let head = *heads.get(&entry.lane)?;
            let run = run_of(entry, slot);
            Some((entry.lane, head, run.clipped(head, run.end())?))
        };
        let runs: Vec<(LaneId, Offset, Run)> = entries.iter().filter_map(alive).collect();
        let changes: Vec<RowChange> = runs
            .iter()
            .map(|(lane, _, run)| self.row_change(*lane, run, number))
            .collect();
        self.shared.rows.put_batch(&changes)?;
        let mut index = self.index();
        for entry in entries {
            if let Some(&head) = heads.get(&entry.lane) {
                index.keep_pinned(entry.lane, &run_of(entry, slot), head);
            }
        }
        for (lane, head, run) in runs {
            index.charge(slot, run.bytes);
            index.count_spilled(lane, &run, head);
        }
        Ok(())
    }

    /// Whether what is alive of a run was evacuated since, to a file whose runs are in rows.
    fn rows_hold(&self, run: &CutRun, head: Offset) -> Result<bool, PayloadError> {
        let (first, end) = (run.first.max(head), run.first.plus(u64::from(run.count)));
        if first >= end {
            return Ok(false);
        }
        let last = Offset(end.0 - 1);
        let rows_of = |offset: Offset| self.rows_within(run.lane, offset, offset.plus(1));
        Ok(!rows_of(first)?.is_empty() || !rows_of(last)?.is_empty())
    }
}

/// Adds a run that is in the log, or if it is `covered` only its pinned messages below the head.
fn adopt(index: &mut Index, cut: &CutRun, head: Offset, covered: bool) {
    let place = index.slot_of(PlaceKind::Segment(cut.segment), 0);
    let stored = Stored {
        place,
        at: cut.at,
        bytes: cut.bytes,
    };
    let run = Run::new(cut.first, cut.skip, cut.count, cut.wall, stored);
    // Held, so that the segment is not forgotten before its first live run is there.
    index.hold(place);
    if covered {
        index.keep_pinned(cut.lane, &run, head);
    } else {
        index.adopt(cut.lane, run, head);
    }
    index.let_go(place);
}
