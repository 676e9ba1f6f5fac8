//! Reading messages, while maintenance may be moving them.
//!
//! A reader looks locations up, reads outside the lock, and then checks that nothing it read from has moved. A WAL
//! segment is recycled only after every location in it has changed or died, so bytes whose location is unchanged after
//! the read are the right ones; anything else is looked up again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use laneway_core::ids::{LaneId, Offset};
use laneway_core::time::WallTime;

use super::index::{Piece, PlaceKind};
use super::runs::Run;
use super::spill::{Limit, Spilled};
use super::{PayloadError, PayloadStore, StoredHeader, StoredMessage};
use crate::backlog::{BacklogFile, Block};
use crate::codec::{Frame, frames};
use crate::sealed::FileError;

/// Runs looked up under one lock.
const PIECES_MAX: usize = 256;

/// Failed attempts after which a reader keeps maintenance from moving anything.
const ATTEMPTS_UNLOCKED: u32 = 3;

/// Backlog files kept open for reading.
const OPEN_FILES_MAX: usize = 32;

/// How much a reader still wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) bytes: u64,
    pub(super) messages: usize,
}

/// A message found.
pub(super) type Found = (Offset, WallTime, Frame);

/// A read: which messages of which lane.
#[derive(Clone, Copy, Debug)]
struct Span {
    lane: LaneId,
    from: Offset,
    to: Offset,
}

/// Locations looked up under one lock.
struct Look {
    pieces: Vec<Piece>,
    /// Everything below was looked at.
    end: Offset,
    /// The index's change counter at that time.
    moves: u64,
}

impl PayloadStore {
    /// The messages of `[from, to)`, in order, as many as hold `bytes_max` bytes (ids and payloads) and at least one.
    ///
    /// Deleted ones are skipped. What is in the log's tail cache is not copied; the rest is read from disk: call it where
    /// blocking is allowed. Errors: see [`PayloadError`]; none of them says that a message is deleted.
    pub fn read(
        &self,
        lane: LaneId,
        from: Offset,
        to: Offset,
        bytes_max: u64,
    ) -> Result<Vec<StoredMessage>, PayloadError> {
        let budget = Budget {
            bytes: bytes_max,
            messages: usize::MAX,
        };
        Ok(self
            .collect(Span { lane, from, to }, budget)?
            .into_iter()
            .map(message)
            .collect())
    }

    /// Like [`PayloadStore::read`], without ever blocking: `None` if not all of it is in the log's tail cache.
    pub fn read_cached(
        &self,
        lane: LaneId,
        from: Offset,
        to: Offset,
        bytes_max: u64,
    ) -> Option<Vec<StoredMessage>> {
        let mut part = Part::new(
            Budget {
                bytes: bytes_max,
                messages: usize::MAX,
            },
            true,
        );
        let mut at = from;
        while at < to && !part.stopped {
            let (pieces, end) = {
                let index = self.index();
                if index.spilled.contains_key(&lane) {
                    return None;
                }
                index.pieces(lane, at, to, part.budget.bytes, PIECES_MAX)
            };
            for piece in pieces {
                let PlaceKind::Segment(segment) = piece.place else {
                    return None;
                };
                let run = &piece.run;
                // The cache goes by entry, not by file: a recycled segment has another number.
                let bytes = self
                    .shared
                    .wal
                    .read_at_cached(segment, u64::from(run.at), run.bytes)?;
                Source::Log(segment, bytes)
                    .messages(lane, &piece, &mut |found| part.take(found))
                    .ok()?;
                if part.stopped {
                    break;
                }
            }
            at = end;
        }
        Some(part.found.into_iter().map(message).collect())
    }

    /// Like [`PayloadStore::read`], without payloads: at most `messages_max`, at least one.
    pub fn headers(
        &self,
        lane: LaneId,
        from: Offset,
        to: Offset,
        messages_max: usize,
    ) -> Result<Vec<StoredHeader>, PayloadError> {
        let budget = Budget {
            bytes: u64::MAX,
            messages: messages_max.max(1),
        };
        let found = self.collect(Span { lane, from, to }, budget)?;
        let headers = found.into_iter().map(|(offset, wall, frame)| StoredHeader {
            offset,
            wall,
            transaction_id: frame.transaction_id.as_str().to_owned(),
        });
        Ok(headers.collect())
    }

    fn collect(&self, span: Span, budget: Budget) -> Result<Vec<Found>, PayloadError> {
        let mut all: Vec<Found> = Vec::new();
        let mut part = Part::new(budget, true);
        let mut left = span;
        while left.from < left.to && !part.stopped {
            (part, left.from) = self.collect_part(left, part.budget, all.is_empty())?;
            all.append(&mut part.found);
        }
        Ok(all)
    }

    /// Reads some of the span: up to the returned end, or less if the budget was spent.
    fn collect_part(
        &self,
        span: Span,
        budget: Budget,
        first_always: bool,
    ) -> Result<(Part, Offset), PayloadError> {
        self.settled_part(span, budget, first_always)
            .map_err(|error| self.noted(error))
    }

    /// Tries until nothing moves meanwhile.
    fn settled_part(
        &self,
        span: Span,
        budget: Budget,
        first_always: bool,
    ) -> Result<(Part, Offset), PayloadError> {
        for _ in 0..ATTEMPTS_UNLOCKED {
            if let Some(result) = self.attempt(span, Part::new(budget, first_always)) {
                return result;
            }
        }
        // Locations can still die now, but none can move and no segment can be given up.
        let _still = self.maintenance();
        loop {
            if let Some(result) = self.attempt(span, Part::new(budget, first_always)) {
                return result;
            }
        }
    }

    /// `None`: something moved meanwhile.
    fn attempt(&self, span: Span, mut part: Part) -> Option<Result<(Part, Offset), PayloadError>> {
        let look = match self.look_up(span, part.budget) {
            Ok(look) => look,
            Err((error, moves)) => return (self.index().moves == moves).then_some(Err(error)),
        };
        let result = self.read_pieces(span.lane, &look.pieces, &mut part);
        let index = self.index();
        if index.moves != look.moves {
            let in_log = |piece: &&Piece| matches!(piece.place, PlaceKind::Segment(_));
            let mut in_log = look.pieces.iter().filter(in_log);
            if result.is_err() || !in_log.all(|piece| index.still_there(span.lane, piece)) {
                return None;
            }
        }
        Some(result.map(|()| (part, look.end)))
    }

    fn look_up(&self, span: Span, budget: Budget) -> Result<Look, (PayloadError, u64)> {
        let Span { lane, from, to } = span;
        let pieces_max = PIECES_MAX.min(budget.messages);
        let (pieces, end, spilled, moves) = {
            let index = self.index();
            let (pieces, end) = index.pieces(lane, from, to, budget.bytes, pieces_max);
            (pieces, end, Spilled::of(&index, lane), index.moves)
        };
        let Some(spilled) = spilled else {
            return Ok(Look { pieces, end, moves });
        };
        let limit = Limit {
            bytes: budget.bytes,
            pieces: pieces_max,
        };
        match self.fill_from_rows(lane, from..end, limit, &spilled, pieces) {
            Ok((pieces, end)) => Ok(Look { pieces, end, moves }),
            Err(error) => Err((error, moves)),
        }
    }

    fn read_pieces(&self, lane: LaneId, pieces: &[Piece], part: &mut Part) -> Result<(), PayloadError> {
        for piece in pieces {
            self.read_source(piece)?
                .messages(lane, piece, &mut |found| part.take(found))?;
            if part.stopped {
                break;
            }
        }
        Ok(())
    }

    /// Reads the bytes of a run.
    pub(super) fn read_source(&self, piece: &Piece) -> Result<Source, PayloadError> {
        match piece.place {
            PlaceKind::Segment(segment) => {
                let run = &piece.run;
                Ok(Source::Log(
                    segment,
                    self.shared.wal.read_at(segment, u64::from(run.at), run.bytes)?,
                ))
            }
            PlaceKind::File(number) => {
                let file = self.open_file(number)?;
                let block = file.block(piece.run.at, piece.run.bytes)?;
                Ok(Source::Block(file, block))
            }
        }
    }

    /// Opens a backlog file, or takes one of those kept open.
    pub(super) fn open_file(&self, number: u64) -> Result<Arc<BacklogFile>, FileError> {
        let shared = &self.shared;
        if let Some(file) = shared.open_files.get(number) {
            return Ok(file);
        }
        let file = BacklogFile::open(&*shared.vfs, &self.path_of(number), shared.partition, number)?;
        let file = Arc::new(file);
        shared.open_files.keep(&file);
        Ok(file)
    }

    pub(super) fn close_file(&self, number: u64) {
        self.shared.open_files.forget(number);
    }
}

fn message((offset, wall, frame): Found) -> StoredMessage {
    let transaction_id = frame.transaction_id.as_str().to_owned();
    StoredMessage {
        offset,
        wall,
        transaction_id,
        payload: frame.payload,
    }
}

fn wanted_bytes(frame: &Frame) -> u64 {
    u64::try_from(frame.transaction_id.len() + frame.payload.len()).expect("a length fits u64")
}

/// What one attempt found.
struct Part {
    found: Vec<Found>,
    budget: Budget,
    /// The first message is taken whether it fits or not.
    first_always: bool,
    /// No more is wanted.
    stopped: bool,
}

impl Part {
    fn new(budget: Budget, first_always: bool) -> Self {
        Self {
            found: Vec::new(),
            budget,
            first_always,
            stopped: false,
        }
    }

    /// Takes a message if there is room. False: wants no more.
    fn take(&mut self, found: Found) -> bool {
        let bytes = wanted_bytes(&found.2);
        let fits = bytes <= self.budget.bytes && self.budget.messages > 0;
        if fits || self.first_always {
            self.budget.bytes = self.budget.bytes.saturating_sub(bytes);
            self.budget.messages = self.budget.messages.saturating_sub(1);
            self.first_always = false;
            self.found.push(found);
            self.stopped = self.budget.bytes == 0 || self.budget.messages == 0;
        } else {
            self.stopped = true;
        }
        !self.stopped
    }
}

/// The bytes of a run, and where they came from.
#[derive(Debug)]
pub(super) enum Source {
    Log(u64, Bytes),
    Block(Arc<BacklogFile>, Block),
}

impl Source {
    /// The visible messages of the run at `piece`, in order, until `take` says no.
    pub(super) fn messages(
        &self,
        lane: LaneId,
        piece: &Piece,
        take: &mut dyn FnMut(Found) -> bool,
    ) -> Result<(), PayloadError> {
        match self {
            Self::Log(segment, bytes) => log_messages(*segment, bytes, lane, &piece.run, take),
            Self::Block(file, block) => block_messages(file, block, lane, &piece.run, take),
        }
    }
}

fn log_messages(
    segment: u64,
    bytes: &Bytes,
    lane: LaneId,
    run: &Run,
    take: &mut dyn FnMut(Found) -> bool,
) -> Result<(), PayloadError> {
    let damaged = || PayloadError::Damaged {
        segment,
        at: u64::from(run.at),
        lane,
        offset: run.first(),
    };
    let mut frames = frames(bytes);
    for _ in 0..run.skip() {
        frames.next().and_then(Result::ok).ok_or_else(damaged)?;
    }
    for ahead in 0..run.count {
        let frame = frames.next().and_then(Result::ok).ok_or_else(damaged)?;
        if !take((run.first().plus(u64::from(ahead)), run.wall_last, frame)) {
            break;
        }
    }
    Ok(())
}

fn block_messages(
    file: &BacklogFile,
    block: &Block,
    lane: LaneId,
    run: &Run,
    take: &mut dyn FnMut(Found) -> bool,
) -> Result<(), PayloadError> {
    let damaged = |what| FileError::damaged(&file.path, u64::from(run.at), what);
    let end = block.first.plus(block.count());
    if block.lane != lane || block.first > run.first() || end < run.end() {
        return Err(damaged("a block is not what the index says").into());
    }
    for message in block.messages() {
        let message = message.map_err(|_| damaged("a frame is malformed"))?;
        if message.0 >= run.end() || (message.0 >= run.first() && !take(message)) {
            break;
        }
    }
    Ok(())
}

/// Backlog files kept open, the one used last at the end.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    files: Mutex<VecDeque<Arc<BacklogFile>>>,
}

impl OpenFiles {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<BacklogFile>>> {
        // A cache is right whatever a panic left in it.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, number: u64) -> Option<Arc<BacklogFile>> {
        let mut files = self.lock();
        let at = files.iter().position(|file| file.number == number)?;
        let file = files.remove(at)?;
        files.push_back(Arc::clone(&file));
        Some(file)
    }

    fn keep(&self, file: &Arc<BacklogFile>) {
        let mut files = self.lock();
        files.retain(|other| other.number != file.number);
        files.push_back(Arc::clone(file));
        if files.len() > OPEN_FILES_MAX {
            files.pop_front();
        }
    }

    fn forget(&self, number: u64) {
        self.lock().retain(|file| file.number != number);
    }
}
