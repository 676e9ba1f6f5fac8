//! Locations in the WAL, as a checkpoint keeps them.
//!
//! A cut need not be of one instant: what was evacuated since is found in a backlog file, what died since the replayed
//! log kills again, what was stored since the replayed log stores again. So it is streamed while the partition goes on.

use std::path::PathBuf;
use std::sync::Arc;

use laneway_core::ids::{LaneId, OFFSET_MAX, Offset};
use laneway_core::time::WallTime;

use super::PayloadStore;
use super::index::{Index, PlaceKind, ScanCursor};
use super::runs::{RUN_MESSAGES_MAX, Run};
use crate::sealed::cursor::{Cursor, Malformed, put_varint};
use crate::sealed::{self, FileError};
use crate::vfs::VfsFile;

/// Runs looked at under one lock.
const SCAN_RUNS: usize = 4096;

/// A position in the whole WAL; later entries of a partition have higher ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WalPosition {
    pub(crate) segment: u64,
    pub(crate) at: u64,
}

/// The locations of payloads in the WAL that a checkpoint needs: made by [`PayloadStore::cut`] and written by
/// [`CheckpointWriter::payload_cut`](crate::checkpoint::CheckpointWriter::payload_cut), or read back by
/// [`CheckpointStore::load`](crate::checkpoint::CheckpointStore::load) and given to [`PayloadStore::restore`].
///
/// A few words of memory, however many locations it stands for. The default has none.
#[derive(Clone, Debug, Default)]
pub struct PayloadCut {
    pub(super) source: CutSource,
    /// Every block stored before the cut lies below.
    pub(crate) end: WalPosition,
}

#[derive(Clone, Debug, Default)]
pub(super) enum CutSource {
    #[default]
    Nothing,
    Store(PayloadStore),
    Files(Vec<CutSection>),
}

/// One run that is in the WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CutRun {
    pub(crate) lane: LaneId,
    pub(crate) first: Offset,
    pub(crate) skip: u32,
    pub(crate) count: u32,
    pub(crate) wall: WallTime,
    pub(crate) segment: u64,
    pub(crate) at: u32,
    pub(crate) bytes: u32,
}

/// Where a checkpoint file holds some encoded runs.
#[derive(Clone, Debug)]
pub(crate) struct CutSection {
    pub(crate) file: Arc<dyn VfsFile>,
    pub(crate) path: PathBuf,
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    pub(crate) crc: u32,
}

impl CutRun {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.lane.0);
        put_varint(out, self.first.0);
        put_varint(out, u64::from(self.skip));
        put_varint(out, u64::from(self.count));
        put_varint(out, self.wall.0);
        put_varint(out, self.segment);
        put_varint(out, u64::from(self.at));
        put_varint(out, u64::from(self.bytes));
    }

    pub(crate) fn decode(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let run = Self {
            lane: LaneId(cursor.varint()?),
            first: Offset(cursor.varint()?),
            skip: cursor.varint_u32()?,
            count: cursor.varint_u32()?,
            wall: WallTime(cursor.varint()?),
            segment: cursor.varint()?,
            at: cursor.varint_u32()?,
            bytes: cursor.varint_u32()?,
        };
        let messages = u64::from(run.skip) + u64::from(run.count);
        let fits = run.first.0 <= OFFSET_MAX && messages <= u64::from(RUN_MESSAGES_MAX) && run.count > 0;
        if fits { Ok(run) } else { Err(Malformed) }
    }
}

impl PayloadCut {
    /// Calls `each` with the runs at or above `from`, some at a time. Blocks.
    pub(crate) fn each<E: From<FileError>>(
        &self,
        from: WalPosition,
        each: &mut dyn FnMut(&[CutRun]) -> Result<(), E>,
    ) -> Result<(), E> {
        match &self.source {
            CutSource::Nothing => Ok(()),
            CutSource::Store(store) => store.each_in_log(from, each),
            CutSource::Files(sections) => sections.iter().try_for_each(|section| each(&section.read()?)),
        }
    }

    pub(crate) fn of_files(sections: Vec<CutSection>, end: WalPosition) -> Self {
        Self {
            source: CutSource::Files(sections),
            end,
        }
    }
}

impl CutSection {
    fn read(&self) -> Result<Vec<CutRun>, FileError> {
        let damaged = |what| FileError::damaged(&self.path, self.at, what);
        let length = self
            .file
            .len()
            .map_err(|error| FileError::io(&self.path, error))?;
        let body = sealed::read_within(&*self.file, &self.path, length, self.at, self.bytes)?;
        if crc32fast::hash(&body) != self.crc {
            return Err(damaged("its checksum does not match"));
        }
        let mut cursor = Cursor::new(&body);
        let mut runs = Vec::new();
        while cursor.left() > 0 {
            runs.push(CutRun::decode(&mut cursor).map_err(|_| damaged("a payload location is malformed"))?);
        }
        Ok(runs)
    }
}

impl PayloadStore {
    /// The WAL locations that a checkpoint cut at this moment needs. Cheap: they are read when they are written.
    ///
    /// Call it at the checkpoint's cut or later, never before: later ones do no harm, missing ones do.
    pub fn cut(&self) -> PayloadCut {
        PayloadCut {
            end: self.index().log_end,
            source: CutSource::Store(self.clone()),
        }
    }

    fn each_in_log<E>(
        &self,
        from: WalPosition,
        each: &mut dyn FnMut(&[CutRun]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut cursor = Some(ScanCursor::START);
        while let Some(at) = cursor {
            let mut found = Vec::new();
            let runs = {
                let index = self.index();
                cursor = index.scan(
                    at,
                    SCAN_RUNS,
                    |run| position(&index, run) >= Some(from),
                    &mut found,
                );
                found
                    .iter()
                    .filter_map(|found| cut_run(&index, found.lane, &found.run))
                    .collect::<Vec<_>>()
            };
            each(&runs)?;
        }
        let pins: Vec<CutRun> = {
            let index = self.index();
            let pins = index.pins_in(|run| position(&index, run) >= Some(from));
            pins.iter()
                .filter_map(|found| cut_run(&index, found.lane, &found.run))
                .collect()
        };
        each(&pins)
    }
}

/// Where in the WAL a run is; `None` if it is in a backlog file.
fn position(index: &Index, run: &Run) -> Option<WalPosition> {
    match index.place(run.place).kind {
        PlaceKind::Segment(segment) => Some(WalPosition {
            segment,
            at: u64::from(run.at),
        }),
        PlaceKind::File(_) => None,
    }
}

fn cut_run(index: &Index, lane: LaneId, run: &Run) -> Option<CutRun> {
    let PlaceKind::Segment(segment) = index.place(run.place).kind else {
        return None;
    };
    Some(CutRun {
        lane,
        first: run.first(),
        skip: run.skip(),
        count: run.count,
        wall: run.wall_last,
        segment,
        at: run.at,
        bytes: run.bytes,
    })
}
