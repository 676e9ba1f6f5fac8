//! What of the files is alive, after a start.

use std::collections::HashMap;
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;

use laneway_core::ids::{LaneId, Offset};

use super::cut::{CutRun, WalPosition};
use super::evacuate::run_of;
use super::index::PlaceKind;
use super::runs::{PlaceSlot, Run, Stored};
use super::{PayloadCut, PayloadError, PayloadStore};
use crate::rows::RowChange;

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
        rows.remove_prefix(&self.shared.partition.0.to_be_bytes())?;
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
            self.restore_file(number, slot, number < in_memory_from, &heads)?;
        }
        let segments: HashSet<u64> = self
            .shared
            .wal
            .segments()
            .iter()
            .map(|segment| segment.id)
            .collect();
        cut.each::<PayloadError>(WalPosition::default(), &mut |runs| {
            runs.iter()
                .filter(|run| segments.contains(&run.segment))
                .try_for_each(|run| self.restore_run(run, &heads))
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
        number: u64,
        slot: PlaceSlot,
        to_rows: bool,
        heads: &Heads,
    ) -> Result<(), PayloadError> {
        let file = self.open_file(number)?;
        self.index().place_mut(slot).spilled = to_rows;
        let mut sections = file.index();
        while let Some(entries) = sections.next_section()? {
            let mut changes: Vec<RowChange> = Vec::new();
            {
                let mut index = self.index();
                for entry in &entries {
                    let Some(&head) = heads.get(&entry.lane) else {
                        continue;
                    };
                    let run = run_of(entry, slot);
                    if !to_rows {
                        index.adopt(entry.lane, run, head);
                        continue;
                    }
                    index.keep_pinned(entry.lane, &run, head);
                    let Some(run) = run.clipped(head, run.end()) else {
                        continue;
                    };
                    index.charge(slot, run.bytes);
                    index.count_spilled(entry.lane, &run, head);
                    changes.push(self.row_change(entry.lane, &run, number));
                }
            }
            self.shared.rows.put_batch(&changes)?;
        }
        Ok(())
    }

    fn restore_run(&self, cut: &CutRun, heads: &Heads) -> Result<(), PayloadError> {
        let Some(&head) = heads.get(&cut.lane) else {
            return Ok(());
        };
        let place = self.index().slot_of(PlaceKind::Segment(cut.segment), 0);
        let run = Run::new(
            cut.first,
            cut.skip,
            cut.count,
            cut.wall,
            Stored {
                place,
                at: cut.at,
                bytes: cut.bytes,
            },
        );
        // Held, so that the segment is not forgotten before its first live run is there.
        self.index().hold(place);
        let covered = match run.clipped(head, run.end()) {
            Some(alive) => {
                self.row_holds(cut.lane, alive.first())? || self.row_holds(cut.lane, alive.last())?
            }
            None => false,
        };
        let mut index = self.index();
        if covered {
            index.keep_pinned(cut.lane, &run, head);
        } else {
            index.adopt(cut.lane, run, head);
        }
        index.let_go(place);
        Ok(())
    }

    fn row_holds(&self, lane: LaneId, offset: Offset) -> Result<bool, PayloadError> {
        let in_rows = self.index().spilled.contains_key(&lane);
        Ok(in_rows && !self.rows_within(lane, offset, offset.plus(1))?.is_empty())
    }
}
