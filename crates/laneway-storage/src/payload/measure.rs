//! Sizes and ages, from runs alone: exact to a run, mostly without touching a disk.

use laneway_core::ids::{LaneId, Offset};
use laneway_core::time::WallTime;

use super::index::{Index, PlaceKind};
use super::read::Source;
use super::{PayloadError, PayloadStats, PayloadStore};

impl PayloadStore {
    /// Stored bytes of `[from, to)`, frames included: parts of runs are estimated.
    ///
    /// Memory only, but for lanes that have runs in the row store. Takes time in proportion to the runs.
    pub fn bytes(&self, lane: LaneId, from: Offset, to: Offset) -> u64 {
        let (in_memory, spilled) = {
            let index = self.index();
            let runs = index.lane(lane).map(|runs| runs.from(from)).into_iter().flatten();
            let runs = runs.take_while(|run| run.first() < to);
            (
                runs.map(|run| run.bytes_within(from, to)).sum::<u64>(),
                index.spilled.get(&lane).copied(),
            )
        };
        let in_rows = spilled.map_or(0, |spilled| {
            let rows = self.rows_within(lane, from.max(spilled.head), to);
            rows.unwrap_or_default()
                .iter()
                .map(|row| row.run.bytes_within(from, to))
                .sum()
        });
        in_memory + in_rows
    }

    /// The first offset of `[from, to)` whose place is not known: what a missing file leaves. Memory only; of lanes with runs
    /// in the row store it knows nothing, and says `None`.
    pub fn first_gap(&self, lane: LaneId, from: Offset, to: Offset) -> Option<Offset> {
        let index = self.index();
        if index.spilled.contains_key(&lane) {
            return None;
        }
        let mut covered = from;
        for run in index.lane(lane).map(|runs| runs.from(from)).into_iter().flatten() {
            if run.first() > covered || covered >= to {
                break;
            }
            covered = covered.max(run.end());
        }
        (covered < to).then_some(covered)
    }

    /// End of the longest prefix of `[from, to)` that holds about `bytes_max` stored bytes: at least one message, if
    /// there is one. Same cost as [`PayloadStore::bytes`].
    pub fn fits(&self, lane: LaneId, from: Offset, to: Offset, bytes_max: u64) -> Offset {
        let mut left = bytes_max;
        let mut end = from;
        let pieces = self.look_up_all(lane, from, to, bytes_max).unwrap_or_default();
        for piece in pieces {
            let message_bytes = (piece.part_bytes / u64::from(piece.run.count)).max(1);
            let fit = (left / message_bytes).min(u64::from(piece.run.count));
            left -= fit * message_bytes;
            end = piece.run.first().plus(fit);
            if fit < u64::from(piece.run.count) {
                break;
            }
            end = end.max(piece.run.end());
        }
        end.max(from.plus(1)).min(to)
    }

    /// The first message stamped `at` or later; `tail` if all are older. Reads at most one block.
    pub fn offset_at(&self, lane: LaneId, at: WallTime, tail: Offset) -> Result<Offset, PayloadError> {
        loop {
            let (in_memory, spilled, moves) = {
                let index = self.index();
                let run = index.lane(lane).and_then(|runs| runs.since(at).next()).copied();
                (
                    run.map(|run| index.piece(run)),
                    index.spilled.get(&lane).copied(),
                    index.moves,
                )
            };
            let in_rows = match spilled {
                Some(spilled) => self.first_row_since(lane, at, &spilled)?.map(|row| row.piece()),
                None => None,
            };
            let Some(piece) = in_memory
                .into_iter()
                .chain(in_rows)
                .min_by_key(|piece| piece.run.first())
            else {
                return Ok(tail);
            };
            let first = piece.run.first();
            if let PlaceKind::Segment(_) = piece.place {
                return Ok(first.min(tail));
            }
            match self.read_source(&piece) {
                Ok(Source::Block(_, block)) => {
                    return Ok(block
                        .offset_at(at)
                        .map_or_else(|| piece.run.end(), |offset| offset.max(first))
                        .min(tail));
                }
                Ok(Source::Log(..)) => return Ok(first.min(tail)),
                Err(error) if self.index().moves == moves => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// An offset below which every message is older than `before`, as far as runs tell; `None` if none is known to be.
    ///
    /// A run counts as a whole by its newest message: a push in the WAL, a block of up to 64 KiB in a backlog file.
    pub fn older_than(&self, lane: LaneId, before: WallTime) -> Option<Offset> {
        let (in_memory, spilled) = {
            let index = self.index();
            let end = index
                .lane(lane)
                .and_then(|runs| runs.last_older_than(before))
                .map(|run| run.end());
            (end, index.spilled.get(&lane).copied())
        };
        let in_rows = spilled.and_then(|spilled| self.rows_older_than(lane, before, &spilled).ok().flatten());
        in_memory.max(in_rows)
    }

    /// Stored bytes of the lane, by whole runs; pinned messages below its head do not count. Of runs in the row store, dead
    /// ones count until maintenance removes them, as long as any is alive.
    pub fn retained_bytes(&self, lane: LaneId) -> u64 {
        let index = self.index();
        let spilled = index
            .spilled
            .get(&lane)
            .filter(|spilled| spilled.head < spilled.end);
        let in_rows = spilled.map_or(0, |spilled| spilled.bytes);
        index.lane(lane).map_or(0, |runs| runs.bytes()) + in_rows
    }

    /// Stored bytes of all lanes, by whole runs, and of all pinned messages.
    pub fn retained_bytes_total(&self) -> u64 {
        self.index().live_bytes
    }

    /// Live bytes of this partition in a WAL segment, by whole runs: what [`PayloadStore::evacuate`] would copy.
    pub fn segment_live_bytes(&self, segment: u64) -> u64 {
        let index = self.index();
        index
            .slot(PlaceKind::Segment(segment))
            .map_or(0, |slot| index.place(slot).live)
    }

    /// What the store holds.
    pub fn stats(&self) -> PayloadStats {
        stats(&self.index())
    }
}

fn stats(index: &Index) -> PayloadStats {
    let count = |count: usize| u64::try_from(count).expect("a length fits u64");
    let mut stats = PayloadStats {
        lanes_in_memory: count(index.lanes()),
        runs_in_memory: count(index.runs),
        runs_in_rows: index.spilled.values().map(|spilled| spilled.runs).sum(),
        ..PayloadStats::default()
    };
    for (_, place) in index.places() {
        match place.kind {
            PlaceKind::Segment(_) => stats.wal_live_bytes += place.live,
            PlaceKind::File(_) => {
                stats.backlog_files += 1;
                stats.backlog_bytes += place.bytes;
                stats.backlog_live_bytes += place.live;
            }
        }
    }
    stats
}
