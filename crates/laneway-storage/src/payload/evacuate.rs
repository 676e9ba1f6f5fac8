//! Moving live payloads: out of WAL segments that are to be recycled, out of backlog files that are mostly dead.

use std::collections::HashSet;

use laneway_core::ids::LaneId;

use super::index::{Index, Piece, PlaceKind, ScanCursor};
use super::read::Source;
use super::runs::{PlaceSlot, Run, Stored};
use super::{Maintenance, PayloadError, PayloadStore};
use crate::backlog::{BacklogEntry, BacklogMessage, BacklogWriter, REPLACES_MAX};
use crate::codec::push_frame;
use crate::sealed;

/// Runs looked at under one lock.
const SCAN_RUNS: usize = 4096;

/// Locations changed under one lock.
const RELOCATE_RUNS: usize = 256;

/// Files that one call of [`PayloadStore::compact`] writes at most.
const COMPACT_FILES_MAX: u64 = 64;

/// A file this many times smaller than [`super::PayloadOptions::backlog_file_bytes_max`] is small.
const SMALL_FILE_DIVISOR: u64 = 8;

/// So many small files are gathered into one.
const SMALL_FILES_MAX: usize = 8;

/// What an evacuation did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvacuateReport {
    /// Messages copied.
    pub messages: u64,
    /// Length of the backlog file written; 0 if nothing was alive.
    pub bytes: u64,
    /// Nothing of this partition is left in the segment. False only if entries of it were applied during the call.
    pub clear: bool,
}

/// What a compaction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactReport {
    /// Files written.
    pub files_written: u64,
    /// Files removed.
    pub files_removed: u64,
    /// Messages copied.
    pub messages: u64,
    /// Bytes of the files written.
    pub bytes_written: u64,
    /// Bytes of the files removed.
    pub bytes_removed: u64,
}

/// A backlog file just written.
pub(super) struct Moved {
    pub(super) number: u64,
    pub(super) entries: Vec<BacklogEntry>,
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl PayloadStore {
    /// Copies what is alive in a WAL segment to a backlog file and moves the locations there.
    ///
    /// Afterwards nothing of this partition needs the segment, if the report says `clear`. Call it when the log no
    /// longer needs the segment either ([`SegmentInfo::log_needed`](crate::wal::SegmentInfo::log_needed) is false), so that
    /// no entry of it is still to be applied. Durability: what was moved survives power loss.
    /// Errors: nothing moved or only part of it; the segment must be kept, and the call may be repeated.
    pub fn evacuate(&self, segment: u64) -> Result<EvacuateReport, PayloadError> {
        let mut maintenance = self.maintenance();
        if !maintenance.restored {
            return Err(PayloadError::NotRestored);
        }
        let slot = {
            let mut index = self.index();
            // Readers that saw a location here which has died since must notice.
            index.moves += 1;
            let slot = index.slot(PlaceKind::Segment(segment));
            slot.inspect(|slot| index.hold(*slot))
        };
        let path = self.shared.wal.segment_path(segment);
        let Some(slot) = slot else {
            self.shared.damage.gone(&path);
            return Ok(EvacuateReport {
                clear: true,
                ..EvacuateReport::default()
            });
        };
        let moved = self
            .verify(segment, slot)
            .and_then(|()| self.move_out(&mut maintenance, &[slot], &[]))
            .map_err(|error| self.noted(error));
        let clear = {
            let mut index = self.index();
            let clear = index.place(slot).parts == 0;
            index.let_go(slot);
            clear
        };
        let moved = moved?;
        if clear {
            self.shared.damage.gone(&path);
        }
        self.tend_rows(&mut maintenance);
        let (messages, bytes) = moved.map_or((0, 0), |moved| (moved.messages, moved.bytes));
        Ok(EvacuateReport {
            messages,
            bytes,
            clear,
        })
    }

    /// Checks a segment with live payloads before they are copied: in their new file they get a checksum of whatever they
    /// are now. Reading it all costs no more than the copy, and finds damage in bodies too long to be checked on each read.
    pub(super) fn verify(&self, segment: u64, slot: PlaceSlot) -> Result<(), PayloadError> {
        if self.index().place(slot).parts == 0 {
            return Ok(());
        }
        Ok(self.shared.wal.verify_segment(segment)?)
    }

    /// Removes dead backlog files, rewrites those less than half alive, and gathers small ones.
    ///
    /// Stops after about [`PayloadOptions::backlog_file_bytes_max`](super::PayloadOptions::backlog_file_bytes_max) bytes were
    /// written: call it now and then. Errors: whatever was not done is done by the next call.
    pub fn compact(&self) -> Result<CompactReport, PayloadError> {
        let mut maintenance = self.maintenance();
        if !maintenance.restored {
            return Err(PayloadError::NotRestored);
        }
        self.tend_rows(&mut maintenance);
        let mut report = CompactReport::default();
        let file_bytes_max = self.shared.options.backlog_file_bytes_max;
        while report.bytes_written < file_bytes_max && report.files_written < COMPACT_FILES_MAX {
            self.remove_dead(&mut report)?;
            // A damaged file stays as it is: what of it can be read is, and it must not keep others from being compacted.
            let damaged = |number| self.shared.damage.holds(&self.path_of(number));
            let victims = victims(&self.index(), file_bytes_max, !maintenance.rows.failed, &damaged);
            let Some(victims) = victims else {
                break;
            };
            let moved = if victims.spilled {
                let moved = self.rewrite_spilled(&mut maintenance, victims.slots[0], victims.numbers[0]);
                // What went wrong may have left rows of both files: they are written anew.
                maintenance.rows.failed |= moved.is_err();
                moved
            } else {
                self.move_out(&mut maintenance, &victims.slots, &victims.numbers)
            };
            let moved = moved.map_err(|error| self.noted(error))?;
            if let Some(moved) = moved {
                report.files_written += 1;
                report.messages += moved.messages;
                report.bytes_written += moved.bytes;
            }
            let index = self.index();
            let left = victims.slots.iter().any(|slot| index.place(*slot).parts > 0);
            if left && victims.spilled {
                // Rows were lost without a word.
                maintenance.rows.failed = true;
            }
            assert!(
                !left || victims.spilled,
                "everything alive moved out of {:?}",
                victims.numbers
            );
        }
        self.remove_dead(&mut report)?;
        self.tend_rows(&mut maintenance);
        Ok(report)
    }

    fn remove_dead(&self, report: &mut CompactReport) -> Result<(), PayloadError> {
        let dead: Vec<(u64, u64)> = {
            let mut index = self.index();
            let dead: Vec<PlaceSlot> = index
                .places()
                .filter(|(_, place)| place.parts == 0 && matches!(place.kind, PlaceKind::File(_)))
                .map(|(slot, _)| slot)
                .collect();
            let mut files = Vec::new();
            for slot in dead {
                let place = index.place(slot);
                if let PlaceKind::File(number) = place.kind {
                    files.push((number, place.bytes));
                }
                index.forget(slot);
            }
            files
        };
        for (number, bytes) in dead {
            self.close_file(number);
            let path = self.path_of(number);
            sealed::remove(&*self.shared.vfs, &path)?;
            self.shared.damage.gone(&path);
            report.files_removed += 1;
            report.bytes_removed += bytes;
        }
        Ok(())
    }

    /// Copies what is alive in the given places to one new file and moves the locations. `None`: nothing is alive.
    fn move_out(
        &self,
        maintenance: &mut Maintenance,
        sources: &[PlaceSlot],
        replaces: &[u64],
    ) -> Result<Option<Moved>, PayloadError> {
        let sources: HashSet<PlaceSlot> = sources.iter().copied().collect();
        let within = |run: &Run| sources.contains(&run.place);
        let mut pieces = Vec::new();
        let mut found = Vec::new();
        let mut cursor = Some(ScanCursor::START);
        while let Some(at) = cursor {
            let index = self.index();
            cursor = index.scan(at, SCAN_RUNS, within, &mut found);
            pieces.extend(found.drain(..).map(|found| (found.lane, index.piece(found.run))));
        }
        pieces.extend(self.pinned_pieces(within));
        let Some(moved) = self.copy(maintenance, pieces, replaces)? else {
            return Ok(None);
        };
        let slot = self.index().slot_of(PlaceKind::File(moved.number), moved.bytes);
        for entries in moved.entries.chunks(RELOCATE_RUNS) {
            let mut index = self.index();
            for group in entries.chunk_by(|one, next| one.lane == next.lane && one.end() == next.first) {
                let new: Vec<Run> = group.iter().map(|entry| run_of(entry, slot)).collect();
                let (Some(first), Some(last)) = (group.first(), group.last()) else {
                    continue;
                };
                index.relocate(first.lane, first.first, last.end(), within, &new);
            }
        }
        self.relocate_pins(&moved.entries, slot, within);
        Ok(Some(moved))
    }

    /// Pinned messages below their lane's head.
    pub(super) fn pinned_pieces(&self, within: impl Fn(&Run) -> bool) -> Vec<(LaneId, Piece)> {
        let index = self.index();
        index
            .pins_in(within)
            .iter()
            .map(|pin| (pin.lane, index.piece(pin.run)))
            .collect()
    }

    /// Moves pinned messages below their lane's head to a new file, which holds them all.
    pub(super) fn relocate_pins(
        &self,
        entries: &[BacklogEntry],
        slot: PlaceSlot,
        within: impl Fn(&Run) -> bool,
    ) {
        let mut index = self.index();
        for pin in index.pins_in(within) {
            let offset = pin.run.first();
            let at = entries.partition_point(|entry| (entry.lane, entry.end()) <= (pin.lane, offset));
            let entry = entries
                .get(at)
                .filter(|entry| entry.lane == pin.lane && entry.first <= offset);
            let whole = run_of(entry.expect("every live message was copied"), slot);
            let run = whole
                .clipped(offset, offset.plus(1))
                .expect("the entry holds the offset");
            index.relocate_pin(pin.lane, run, whole.message_bytes());
        }
    }

    /// Copies runs and pinned messages to a new, durable backlog file. `None`: there are none.
    pub(super) fn copy(
        &self,
        maintenance: &mut Maintenance,
        mut pieces: Vec<(LaneId, Piece)>,
        replaces: &[u64],
    ) -> Result<Option<Moved>, PayloadError> {
        if pieces.is_empty() {
            return Ok(None);
        }
        pieces.sort_unstable_by_key(|(lane, piece)| (*lane, piece.run.first()));
        let shared = &self.shared;
        let number = maintenance.next_file;
        maintenance.next_file += 1;
        let (dir, block_bytes_max) = (&shared.dir, shared.options.block_bytes_max);
        let mut writer = BacklogWriter::create(
            &shared.vfs,
            dir,
            shared.partition,
            number,
            replaces,
            block_bytes_max,
        )?;
        let mut copier = Copier::new(self);
        for (lane, piece) in &pieces {
            copier.copy(*lane, piece, &mut writer)?;
        }
        let (entries, messages, bytes) = writer.finish()?;
        Ok(Some(Moved {
            number,
            entries,
            messages,
            bytes,
        }))
    }
}

/// The run that a block of a new file is.
pub(super) fn run_of(entry: &BacklogEntry, place: PlaceSlot) -> Run {
    let stored = Stored {
        place,
        at: entry.at,
        bytes: entry.bytes,
    };
    Run::new(entry.first, 0, entry.count, entry.wall_last, stored)
}

/// Copies runs, reading a block only once for all pinned messages in it.
pub(super) struct Copier<'a> {
    store: &'a PayloadStore,
    last: Option<(Piece, Source)>,
    frame: Vec<u8>,
}

impl<'a> Copier<'a> {
    pub(super) fn new(store: &'a PayloadStore) -> Self {
        Self {
            store,
            last: None,
            frame: Vec::new(),
        }
    }

    pub(super) fn copy(
        &mut self,
        lane: LaneId,
        piece: &Piece,
        writer: &mut BacklogWriter,
    ) -> Result<(), PayloadError> {
        let same = |last: &Piece| {
            (last.place, last.run.at, last.run.bytes) == (piece.place, piece.run.at, piece.run.bytes)
        };
        if !self.last.as_ref().is_some_and(|(last, _)| same(last)) {
            self.last = Some((*piece, self.store.read_source(piece)?));
        }
        let source = &self.last.as_ref().expect("read above").1;
        let frame = &mut self.frame;
        let mut written = Ok(());
        source.messages(lane, piece, &mut |(offset, wall, message)| {
            frame.clear();
            push_frame(frame, &message.transaction_id, &message.payload);
            written = writer.push(BacklogMessage {
                lane,
                offset,
                wall,
                frame,
            });
            written.is_ok()
        })?;
        Ok(written?)
    }
}

/// Files to be written anew as one.
struct Victims {
    slots: Vec<PlaceSlot>,
    numbers: Vec<u64>,
    spilled: bool,
}

fn victims(
    index: &Index,
    file_bytes_max: u64,
    with_spilled: bool,
    damaged: &dyn Fn(u64) -> bool,
) -> Option<Victims> {
    let mut mostly_dead = Vec::new();
    let mut small = Vec::new();
    for (slot, place) in index.places() {
        let PlaceKind::File(number) = place.kind else {
            continue;
        };
        if place.spilled && !with_spilled || damaged(number) {
            continue;
        }
        if place.live.saturating_mul(2) < place.bytes {
            mostly_dead.push((number, slot, place.live, place.spilled));
        } else if !place.spilled && place.bytes < file_bytes_max / SMALL_FILE_DIVISOR {
            small.push((number, slot, place.live, false));
        }
    }
    mostly_dead.sort_unstable_by_key(|victim| victim.0);
    small.sort_unstable_by_key(|victim| victim.0);
    if let Some(&(number, slot, _, _)) = mostly_dead.iter().find(|victim| victim.3) {
        return Some(Victims {
            slots: vec![slot],
            numbers: vec![number],
            spilled: true,
        });
    }
    if mostly_dead.is_empty() && small.len() >= SMALL_FILES_MAX {
        mostly_dead = small;
    }
    let mut victims = Victims {
        slots: Vec::new(),
        numbers: Vec::new(),
        spilled: false,
    };
    let mut live = 0;
    for (number, slot, bytes, _) in mostly_dead.into_iter().take(REPLACES_MAX) {
        live += bytes;
        if live > file_bytes_max && !victims.slots.is_empty() {
            break;
        }
        victims.slots.push(slot);
        victims.numbers.push(number);
    }
    if victims.slots.is_empty() {
        None
    } else {
        Some(victims)
    }
}
