//! What the store knows in memory: runs per lane, pinned messages, and how much of each file is alive.

mod look_up;
mod relocate;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use laneway_core::ids::{LaneId, Offset};
use laneway_core::time::WallTime;

use super::runs::{LaneRuns, PlaceSlot, RUN_MESSAGES_MAX, Run, Stored};
use super::{WalBlock, WalPosition};

/// A file that holds payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PlaceKind {
    /// A WAL segment.
    Segment(u64),
    /// A backlog file.
    File(u64),
}

impl PlaceKind {
    /// The number of a backlog file.
    pub(crate) fn file(self) -> Option<u64> {
        match self {
            Self::File(number) => Some(number),
            Self::Segment(_) => None,
        }
    }
}

/// How much of a file is alive.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) kind: PlaceKind,
    /// Size of a backlog file; 0 for a segment.
    pub(crate) bytes: u64,
    /// Bytes of live runs and pins.
    pub(crate) live: u64,
    /// Live runs and pins.
    pub(crate) parts: u64,
    /// Its runs are in the row store.
    pub(crate) spilled: bool,
    /// Maintenance works on it: its slot must not be given to another file.
    pub(crate) held: bool,
}

/// The location of a pinned message below its lane's head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pin {
    /// Exactly that message.
    pub(crate) run: Run,
    /// What it counts for in its place.
    pub(crate) bytes: u32,
}

/// Runs of one lane that are in the row store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpilledLane {
    pub(crate) runs: u64,
    pub(crate) bytes: u64,
    /// The lane's head, or below it if it has not moved since. Rows below are dead; maintenance removes them.
    pub(crate) head: Offset,
    /// End of the newest of these runs: from `head` to here every message is in a row or in memory.
    pub(crate) end: Offset,
}

/// A run, or the visible part of it that was asked for, with the file it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) run: Run,
    pub(crate) place: PlaceKind,
    /// Estimated bytes of the part.
    pub(crate) part_bytes: u64,
}

/// A run and its lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneRun {
    pub(crate) lane: LaneId,
    pub(crate) run: Run,
}

/// Where a scan over all runs goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanCursor {
    pub(crate) lane: LaneId,
    pub(crate) offset: Offset,
}

impl ScanCursor {
    pub(crate) const START: Self = Self {
        lane: LaneId(0),
        offset: Offset(0),
    };
}

/// Everything below is consistent whenever the index's lock is free.
#[derive(Debug, Default)]
pub(crate) struct Index {
    lanes: BTreeMap<LaneId, LaneRuns>,
    /// Every pinned message. `None` while it is above its lane's head, or in a row not yet removed: its run is found by offset.
    pins: BTreeMap<(LaneId, Offset), Option<Pin>>,
    places: Vec<Option<Place>>,
    free: Vec<PlaceSlot>,
    slots: HashMap<PlaceKind, PlaceSlot>,
    pub(crate) spilled: BTreeMap<LaneId, SpilledLane>,
    pub(crate) runs: usize,
    pub(crate) live_bytes: u64,
    /// Lanes in `spilled` whose head moved since maintenance last removed their dead rows.
    pub(crate) spilled_moved: BTreeSet<LaneId>,
    /// Behind every block ever stored here.
    pub(crate) log_end: WalPosition,
    /// Grows whenever a location moved or a file lost its last live byte: a reader that saw no change read the right bytes.
    pub(crate) moves: u64,
}

impl Index {
    pub(crate) fn place(&self, slot: PlaceSlot) -> &Place {
        self.places
            .get(usize::try_from(slot.0).expect("usize has at least 32 bits"))
            .and_then(Option::as_ref)
            .expect("a run's place exists")
    }

    pub(crate) fn place_mut(&mut self, slot: PlaceSlot) -> &mut Place {
        self.places
            .get_mut(usize::try_from(slot.0).expect("usize has at least 32 bits"))
            .and_then(Option::as_mut)
            .expect("a run's place exists")
    }

    pub(crate) fn slot(&self, kind: PlaceKind) -> Option<PlaceSlot> {
        self.slots.get(&kind).copied()
    }

    /// The slot of a file, made if it is new.
    pub(crate) fn slot_of(&mut self, kind: PlaceKind, bytes: u64) -> PlaceSlot {
        if let Some(slot) = self.slot(kind) {
            return slot;
        }
        let place = Place {
            kind,
            bytes,
            live: 0,
            parts: 0,
            spilled: false,
            held: false,
        };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = PlaceSlot(u32::try_from(self.places.len()).expect("fewer than 2^32 files"));
                self.places.push(None);
                slot
            }
        };
        self.places[usize::try_from(slot.0).expect("usize has at least 32 bits")] = Some(place);
        self.slots.insert(kind, slot);
        slot
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = (PlaceSlot, &Place)> {
        self.slots.values().map(|&slot| (slot, self.place(slot)))
    }

    /// Forgets a file. Nothing may be alive in it.
    pub(crate) fn forget(&mut self, slot: PlaceSlot) {
        let place = self.place(slot);
        assert_eq!(place.parts, 0, "{:?} is still needed", place.kind);
        let kind = place.kind;
        self.slots.remove(&kind);
        self.places[usize::try_from(slot.0).expect("usize has at least 32 bits")] = None;
        self.free.push(slot);
        self.moves += 1;
    }

    pub(crate) fn hold(&mut self, slot: PlaceSlot) {
        self.place_mut(slot).held = true;
    }

    /// Ends a hold; a segment with nothing alive in it is forgotten.
    pub(crate) fn let_go(&mut self, slot: PlaceSlot) {
        self.place_mut(slot).held = false;
        self.forget_if_dead(slot);
    }

    fn forget_if_dead(&mut self, slot: PlaceSlot) {
        let place = self.place(slot);
        if place.parts == 0 && !place.held && matches!(place.kind, PlaceKind::Segment(_)) {
            self.forget(slot);
        }
    }

    pub(crate) fn charge(&mut self, slot: PlaceSlot, bytes: u32) {
        let place = self.place_mut(slot);
        place.parts += 1;
        place.live += u64::from(bytes);
        self.live_bytes += u64::from(bytes);
    }

    pub(crate) fn discharge(&mut self, slot: PlaceSlot, bytes: u32) {
        let place = self.place_mut(slot);
        place.parts -= 1;
        place.live -= u64::from(bytes);
        self.live_bytes -= u64::from(bytes);
        self.forget_if_dead(slot);
    }
}

impl Index {
    pub(crate) fn stored(
        &mut self,
        lane: LaneId,
        first: Offset,
        count: u32,
        wall: WallTime,
        block: WalBlock,
    ) {
        assert!(count <= RUN_MESSAGES_MAX, "{count} messages in one block");
        if count == 0 {
            return;
        }
        let at = u32::try_from(block.at).expect("a segment is smaller than 4 GiB");
        self.log_end = self.log_end.max(WalPosition {
            segment: block.segment,
            at: block.at + 1,
        });
        if self.covered(lane, first) {
            return;
        }
        let place = self.slot_of(PlaceKind::Segment(block.segment), 0);
        self.add(
            lane,
            Run::new(
                first,
                0,
                count,
                wall,
                Stored {
                    place,
                    at,
                    bytes: block.bytes,
                },
            ),
        );
    }

    /// Whether the message is known in memory already: after a restart the log is replayed over what backlog files hold.
    fn covered(&self, lane: LaneId, offset: Offset) -> bool {
        self.lanes
            .get(&lane)
            .is_some_and(|runs| runs.last().end() > offset && runs.find(offset).is_some())
    }

    /// Adds a run that nothing covers yet.
    pub(crate) fn add(&mut self, lane: LaneId, run: Run) {
        match self.lanes.entry(lane) {
            Entry::Vacant(entry) => {
                entry.insert(LaneRuns::One(run));
            }
            Entry::Occupied(mut entry) if entry.get().last().end() <= run.first() => {
                entry.get_mut().push(run)
            }
            Entry::Occupied(mut entry) => entry.get_mut().insert(run),
        }
        self.runs += 1;
        self.charge(run.place, run.bytes);
    }

    /// Adds a run found at boot: what lies below `head` only as far as it is pinned, what is known already not again.
    pub(crate) fn adopt(&mut self, lane: LaneId, run: Run, head: Offset) {
        self.keep_pinned(lane, &run, head);
        let Some(run) = run.clipped(head, run.end()) else {
            return;
        };
        // A run of the WAL may overlap one of a backlog file only where it was deleted before that was written.
        if !self.covered(lane, run.first()) && !self.covered(lane, run.last()) {
            self.add(lane, run);
        }
    }

    pub(crate) fn head_moved(&mut self, lane: LaneId, head: Offset) {
        if let Some(spilled) = self.spilled.get_mut(&lane).filter(|spilled| spilled.head < head) {
            spilled.head = head;
            self.spilled_moved.insert(lane);
        }
        while let Some(runs) = self.lanes.get_mut(&lane) {
            let popped = runs.pop_below(head);
            self.runs -= popped.gone.len();
            if popped.empty {
                self.lanes.remove(&lane);
            }
            for run in popped.gone.iter().chain(&popped.clipped) {
                self.keep_pinned(lane, run, head);
            }
            for run in &popped.gone {
                self.discharge(run.place, run.bytes);
            }
            if !popped.more {
                break;
            }
        }
    }

    /// Notes where the pinned messages of a run below `head` are, for the run will not say so any longer.
    pub(crate) fn keep_pinned(&mut self, lane: LaneId, run: &Run, head: Offset) {
        let end = run.end().min(head);
        if self.pins.is_empty() || end <= run.first() {
            return;
        }
        let mut kept = Vec::new();
        for (&(_, offset), pin) in self.pins.range_mut((lane, run.first())..(lane, end)) {
            if pin.is_none() {
                let bytes = run.message_bytes();
                let run = run
                    .clipped(offset, offset.plus(1))
                    .expect("the offset is within the run");
                *pin = Some(Pin { run, bytes });
                kept.push((run.place, bytes));
            }
        }
        for (place, bytes) in kept {
            self.charge(place, bytes);
        }
    }

    pub(crate) fn pinned(&mut self, lane: LaneId, offset: Offset) {
        self.pins.entry((lane, offset)).or_insert(None);
    }

    pub(crate) fn unpinned(&mut self, lane: LaneId, offset: Offset) {
        if let Some(Some(pin)) = self.pins.remove(&(lane, offset)) {
            self.discharge(pin.run.place, pin.bytes);
        }
    }

    pub(crate) fn lane_dropped(&mut self, lane: LaneId) {
        let pins: Vec<Offset> = self.pins_of(lane).map(|(offset, _)| offset).collect();
        for offset in pins {
            self.unpinned(lane, offset);
        }
        self.head_moved(lane, Offset(u64::MAX));
    }

    fn pins_of(&self, lane: LaneId) -> impl Iterator<Item = (Offset, Option<&Pin>)> {
        self.pins_within(lane, Offset(0), Offset(u64::MAX))
    }

    pub(crate) fn pins_within(
        &self,
        lane: LaneId,
        from: Offset,
        to: Offset,
    ) -> impl Iterator<Item = (Offset, Option<&Pin>)> {
        self.pins
            .range((
                Bound::Included((lane, from)),
                Bound::Excluded((lane, to.max(from))),
            ))
            .map(|(&(_, offset), pin)| (offset, pin.as_ref()))
    }

    pub(crate) fn pin(&self, lane: LaneId, offset: Offset) -> Option<Option<&Pin>> {
        self.pins.get(&(lane, offset)).map(Option::as_ref)
    }
}
