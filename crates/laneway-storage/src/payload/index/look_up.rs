//! Looking runs up, and scanning all of them.

use laneway_core::ids::{LaneId, Offset};

use super::{Index, LaneRun, Piece, ScanCursor};
use crate::payload::runs::{LaneRuns, Run};

impl Index {
    pub(crate) fn lane(&self, lane: LaneId) -> Option<&LaneRuns> {
        self.lanes.get(&lane)
    }

    pub(crate) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// A run as a whole.
    pub(crate) fn piece(&self, run: Run) -> Piece {
        Piece {
            run,
            place: self.place(run.place).kind,
            part_bytes: u64::from(run.bytes),
        }
    }

    /// Runs and pinned messages within `[from, to)`, in order, clipped to it: as many as hold about `bytes_max` bytes and
    /// at most `pieces_max`, but at least one. Returns also the end of what was looked at.
    pub(crate) fn pieces(
        &self,
        lane: LaneId,
        from: Offset,
        to: Offset,
        bytes_max: u64,
        pieces_max: usize,
    ) -> (Vec<Piece>, Offset) {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut bytes = 0u64;
        let mut pins = self
            .pins_within(lane, from, to)
            .filter_map(|(_, pin)| pin)
            .peekable();
        let mut runs = self
            .lanes
            .get(&lane)
            .map(|runs| runs.from(from))
            .into_iter()
            .flatten()
            .peekable();
        loop {
            let run = runs
                .peek()
                .and_then(|run| Some((run.clipped(from, to)?, run.bytes_within(from, to))));
            let pin = pins.peek().map(|pin| (pin.run, u64::from(pin.bytes)));
            let (next, next_bytes) = match (pin, run) {
                (Some(pin), Some(run)) if run.0.first() < pin.0.first() => run,
                (Some(pin), _) => pin,
                (None, Some(run)) => run,
                (None, None) => return (pieces, to),
            };
            if !pieces.is_empty() && (bytes >= bytes_max || pieces.len() >= pieces_max) {
                return (pieces, next.first());
            }
            if pins.next_if(|pin| pin.run == next).is_none() {
                runs.next();
            }
            bytes = bytes.saturating_add(next_bytes);
            pieces.push(Piece {
                part_bytes: next_bytes,
                ..self.piece(next)
            });
        }
    }

    /// Whether a piece looked up earlier is still where it was.
    pub(crate) fn still_there(&self, lane: LaneId, piece: &Piece) -> bool {
        let offset = piece.run.first();
        let now = match self.pin(lane, offset) {
            Some(Some(pin)) => Some(pin.run),
            _ => self.lanes.get(&lane).and_then(|runs| runs.find(offset)).copied(),
        };
        now.is_some_and(|run| {
            run.at == piece.run.at
                && run.bytes == piece.run.bytes
                && self.place(run.place).kind == piece.place
        })
    }

    /// Runs of the given places from `cursor` on, about `runs_max` looked at; pins are not among them.
    pub(crate) fn scan(
        &self,
        cursor: ScanCursor,
        runs_max: usize,
        wanted: impl Fn(&Run) -> bool,
        out: &mut Vec<LaneRun>,
    ) -> Option<ScanCursor> {
        let mut seen = 0;
        for (&lane, runs) in self.lanes.range(cursor.lane..) {
            let offset = if lane == cursor.lane {
                cursor.offset
            } else {
                Offset(0)
            };
            seen += 1;
            for run in runs.from(offset) {
                if seen >= runs_max {
                    return Some(ScanCursor {
                        lane,
                        offset: run.first(),
                    });
                }
                seen += 1;
                if wanted(run) {
                    out.push(LaneRun { lane, run: *run });
                }
            }
        }
        None
    }

    /// Pins whose location lies below the head, in one of the wanted places.
    pub(crate) fn pins_in(&self, wanted: impl Fn(&Run) -> bool) -> Vec<LaneRun> {
        self.pins
            .iter()
            .filter_map(|(&(lane, _), pin)| pin.as_ref().map(|pin| LaneRun { lane, run: pin.run }))
            .filter(|found| wanted(&found.run))
            .collect()
    }
}
