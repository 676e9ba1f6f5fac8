//! Everything that is alive, for a snapshot.

use std::path::Path;

use laneway_core::ids::LaneId;

use super::evacuate::Copier;
use super::index::{Piece, PlaceKind, ScanCursor};
use super::runs::{PlaceSlot, Run};
use super::{Maintenance, PayloadError, PayloadStore};
use crate::backlog::{BACKLOG_ENDING, BacklogWriter};
use crate::sealed::numbered_name;
use crate::snapshot;

/// Runs looked at under one lock.
const SCAN_RUNS: usize = 4096;

/// What an export did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportReport {
    /// Backlog files that got a second name.
    pub linked: u64,
    /// Bytes of payloads copied out of the log.
    pub copied_bytes: u64,
}

impl PayloadStore {
    /// Puts all that is alive now into the folder `into`, for a replica that opens a store there: backlog files by a second
    /// name, and what is in the log as new backlog files. The store itself is left as it is.
    ///
    /// Call it after the checkpoint that goes with it was cut: what dies in between is missing, and the log behind the
    /// checkpoint kills it there too. Durability: the files are durable, the names of those linked are not. Errors: the folder
    /// is of no use then; [`PayloadError::Damaged`] and [`PayloadError::Wal`] name a damaged segment.
    pub fn export(&self, into: &Path) -> Result<ExportReport, PayloadError> {
        // Held throughout: no file goes, no location moves.
        let mut maintenance = self.maintenance();
        if !maintenance.restored {
            return Err(PayloadError::NotRestored);
        }
        let mut report = ExportReport::default();
        let segments = self.hold_segments();
        let copied = self
            .pieces_in_log(&segments)
            .and_then(|pieces| self.export_pieces(&mut maintenance, pieces, into, &mut report));
        self.let_go(&segments);
        copied.map_err(|error| self.noted(error))?;
        let files: Vec<u64> = {
            let index = self.index();
            let alive = index
                .places()
                .filter(|(_, place)| place.parts > 0 || place.spilled);
            alive.filter_map(|(_, place)| place.kind.file()).collect()
        };
        for number in files {
            let name = numbered_name(number, BACKLOG_ENDING);
            snapshot::link(&*self.shared.vfs, &self.path_of(number), &into.join(name))?;
            report.linked += 1;
        }
        Ok(report)
    }

    /// The segments with live payloads; their slots are given to no other file until they are let go.
    fn hold_segments(&self) -> Vec<(u64, PlaceSlot)> {
        let mut index = self.index();
        let segments: Vec<(u64, PlaceSlot)> = index
            .places()
            .filter_map(|(slot, place)| match place.kind {
                PlaceKind::Segment(segment) => Some((segment, slot)),
                PlaceKind::File(_) => None,
            })
            .collect();
        for (_, slot) in &segments {
            index.hold(*slot);
        }
        segments
    }

    fn let_go(&self, segments: &[(u64, PlaceSlot)]) {
        let mut index = self.index();
        for (_, slot) in segments {
            index.let_go(*slot);
        }
    }

    /// All that is alive in segments, which are checked first: their new file gets a checksum of whatever they hold.
    fn pieces_in_log(&self, segments: &[(u64, PlaceSlot)]) -> Result<Vec<(LaneId, Piece)>, PayloadError> {
        for (segment, slot) in segments {
            self.verify(*segment, *slot)?;
        }
        let within = |run: &Run| segments.iter().any(|(_, slot)| *slot == run.place);
        let mut pieces = Vec::new();
        let mut found = Vec::new();
        let mut cursor = Some(ScanCursor::START);
        while let Some(at) = cursor {
            let index = self.index();
            cursor = index.scan(at, SCAN_RUNS, within, &mut found);
            pieces.extend(found.drain(..).map(|found| (found.lane, index.piece(found.run))));
        }
        pieces.extend(self.pinned_pieces(within));
        pieces.sort_unstable_by_key(|(lane, piece)| (*lane, piece.run.first()));
        Ok(pieces)
    }

    fn export_pieces(
        &self,
        maintenance: &mut Maintenance,
        pieces: Vec<(LaneId, Piece)>,
        into: &Path,
        report: &mut ExportReport,
    ) -> Result<(), PayloadError> {
        let shared = &self.shared;
        let mut pieces = pieces.into_iter().peekable();
        while pieces.peek().is_some() {
            let number = maintenance.next_file;
            maintenance.next_file += 1;
            let block_bytes_max = shared.options.block_bytes_max;
            let mut writer =
                BacklogWriter::create(&shared.vfs, into, shared.partition, number, &[], block_bytes_max)?;
            let mut copier = Copier::new(self);
            let mut bytes = 0;
            while bytes < shared.options.backlog_file_bytes_max
                && let Some((lane, piece)) = pieces.next()
            {
                bytes += u64::from(piece.run.bytes);
                copier.copy(lane, &piece, &mut writer)?;
            }
            let (_, _, written) = writer.finish()?;
            report.copied_bytes += written;
        }
        Ok(())
    }
}
