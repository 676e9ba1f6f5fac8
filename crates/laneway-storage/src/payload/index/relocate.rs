//! Changing locations: to another file, or to the row store.

use laneway_core::ids::{LaneId, Offset};

use super::{Index, Pin, SpilledLane};
use crate::payload::runs::{PlaceSlot, Run};

impl Index {
    /// Puts `new` runs, which cover `[from, to)` of the lane, in the stead of those in the places that `old` accepts.
    pub(crate) fn relocate(
        &mut self,
        lane: LaneId,
        from: Offset,
        to: Offset,
        old: impl Fn(&Run) -> bool,
        new: &[Run],
    ) {
        self.moves += 1;
        let Some(runs) = self.lanes.get_mut(&lane) else {
            return;
        };
        let before = runs.len();
        let replaced = runs.replace(from..to, old, new);
        self.runs = self.runs + runs.len() - before;
        for run in &replaced.put {
            self.charge(run.place, run.bytes);
        }
        for run in &replaced.gone {
            self.discharge(run.place, run.bytes);
        }
    }

    /// Moves a pinned message below the head, if it is still pinned.
    pub(crate) fn relocate_pin(&mut self, lane: LaneId, run: Run, bytes: u32) {
        self.moves += 1;
        let Some(Some(pin)) = self.pins.get_mut(&(lane, run.first())) else {
            return;
        };
        let old = std::mem::replace(pin, Pin { run, bytes });
        self.charge(run.place, bytes);
        self.discharge(old.run.place, old.bytes);
    }

    /// Takes a run out of memory that the row store now has. False if it is gone or was changed.
    pub(crate) fn spill(&mut self, lane: LaneId, run: &Run) -> bool {
        let Some(runs) = self.lanes.get_mut(&lane) else {
            return false;
        };
        if runs.find(run.first()) != Some(run) {
            return false;
        }
        if runs.take(run.first()).1 {
            self.lanes.remove(&lane);
        }
        self.runs -= 1;
        self.moves += 1;
        true
    }
}

/// Runs in the row store.
impl Index {
    /// Notes that a run of the lane is in a row. `head` counts if the lane has none there yet.
    pub(crate) fn count_spilled(&mut self, lane: LaneId, run: &Run, head: Offset) {
        let spilled = self.spilled.entry(lane).or_insert_with(|| SpilledLane {
            head,
            ..SpilledLane::default()
        });
        spilled.runs += 1;
        spilled.bytes += u64::from(run.bytes);
        spilled.end = spilled.end.max(run.end());
    }

    /// Notes that a row of the lane is gone.
    pub(crate) fn uncount_spilled(&mut self, lane: LaneId, bytes: u32) {
        if let Some(spilled) = self.spilled.get_mut(&lane) {
            spilled.runs = spilled.runs.saturating_sub(1);
            spilled.bytes = spilled.bytes.saturating_sub(u64::from(bytes));
        }
        self.drop_unspilled(lane);
    }

    /// Forgets a lane that has no row any more.
    pub(crate) fn drop_unspilled(&mut self, lane: LaneId) {
        if self.spilled.get(&lane).is_some_and(|spilled| spilled.runs == 0) {
            self.spilled.remove(&lane);
            self.spilled_moved.remove(&lane);
        }
    }

    /// Takes back what rows count for in their files; heads stay, for the rows are about to be written anew.
    pub(crate) fn forget_rows(&mut self) {
        self.moves += 1;
        for spilled in self.spilled.values_mut() {
            spilled.runs = 0;
            spilled.bytes = 0;
        }
        let mut given_back = 0;
        for place in self.places.iter_mut().flatten().filter(|place| place.spilled) {
            given_back += place.live;
            place.live = 0;
            place.parts = 0;
        }
        self.live_bytes -= given_back;
        let mut kept: Vec<(PlaceSlot, u32)> = Vec::new();
        for run in self.lanes.values().flat_map(|runs| runs.from(Offset(0))) {
            if self.place(run.place).spilled {
                kept.push((run.place, run.bytes));
            }
        }
        for pin in self.pins.values().flatten() {
            if self.place(pin.run.place).spilled {
                kept.push((pin.run.place, pin.bytes));
            }
        }
        for (place, bytes) in kept {
            self.charge(place, bytes);
        }
    }
}
