//! Runs of one lane, sorted by offset, in few bytes: most of a node's memory under backlog is this.
//!
//! A lane with one run keeps it inline. Longer lists are chunks of at most [`CHUNK_RUNS`] runs, so that nothing ever
//! moves a whole backlog's list in memory, and chunks that have emptied from the front give their memory back.

use std::collections::VecDeque;
use std::ops::Range;

use laneway_core::ids::{LANE_SEQUENCE_BITS, OFFSET_MAX, Offset};
use laneway_core::time::WallTime;

/// Runs per chunk.
const CHUNK_RUNS: usize = 256;

/// Runs taken off the front at once.
const POP_RUNS: usize = 4096;

/// Bits of [`Run::start`] that count the skipped messages.
const SKIP_BITS: u32 = 24;

const _: () = assert!(OFFSET_MAX.leading_zeros() >= SKIP_BITS && SKIP_BITS >= LANE_SEQUENCE_BITS);

/// Most messages that one stored run may hold.
pub(crate) const RUN_MESSAGES_MAX: u32 = (1 << SKIP_BITS) - 1;

/// Index of a place in the table of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PlaceSlot(pub(crate) u32);

/// Neighbouring messages of one lane that lie together in a WAL segment or backlog file: 32 bytes.
///
/// The part below the lane's head is clipped off: `first` is the first visible offset, and `skip` messages of the
/// stored bytes come before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    start: u64,
    /// Stamp of the newest message.
    pub(crate) wall_last: WallTime,
    /// Visible messages.
    pub(crate) count: u32,
    /// Position of the stored bytes in the file.
    pub(crate) at: u32,
    /// Stored bytes, those of skipped messages included.
    pub(crate) bytes: u32,
    /// Which file.
    pub(crate) place: PlaceSlot,
}

impl Run {
    pub(crate) fn new(first: Offset, skip: u32, count: u32, wall_last: WallTime, stored: Stored) -> Self {
        assert!(first.0 <= OFFSET_MAX, "offset {first} is out of range");
        assert!(
            skip <= RUN_MESSAGES_MAX,
            "{skip} messages before the first of a run"
        );
        let start = first.0 << SKIP_BITS | u64::from(skip);
        Self {
            start,
            wall_last,
            count,
            at: stored.at,
            bytes: stored.bytes,
            place: stored.place,
        }
    }

    pub(crate) fn first(&self) -> Offset {
        Offset(self.start >> SKIP_BITS)
    }

    /// Messages in the stored bytes before the first visible one.
    pub(crate) fn skip(&self) -> u32 {
        u32::try_from(self.start & u64::from(RUN_MESSAGES_MAX)).expect("masked to 24 bits")
    }

    /// End of the visible part, exclusive.
    pub(crate) fn end(&self) -> Offset {
        self.first().plus(u64::from(self.count))
    }

    /// The last visible offset.
    pub(crate) fn last(&self) -> Offset {
        Offset(self.end().0 - 1)
    }

    pub(crate) fn stored(&self) -> Stored {
        Stored {
            place: self.place,
            at: self.at,
            bytes: self.bytes,
        }
    }

    /// The part within `[from, to)`, or `None` if nothing of it is.
    pub(crate) fn clipped(&self, from: Offset, to: Offset) -> Option<Self> {
        let first = self.first().max(from);
        let end = self.end().min(to);
        let count = end.0.checked_sub(first.0).filter(|count| *count > 0)?;
        let skip = u64::from(self.skip()) + (first.0 - self.first().0);
        let skip = u32::try_from(skip).expect("at most the messages of a run");
        let count = u32::try_from(count).expect("at most the messages of a run");
        Some(Self::new(first, skip, count, self.wall_last, self.stored()))
    }

    /// Bytes of an average message of the stored run; what a pin is charged.
    pub(crate) fn message_bytes(&self) -> u32 {
        (self.bytes / self.skip().saturating_add(self.count).max(1)).max(1)
    }

    /// Estimated bytes of the visible part within `[from, to)`.
    pub(crate) fn bytes_within(&self, from: Offset, to: Offset) -> u64 {
        match self.clipped(from, to) {
            Some(part) if part.skip() == 0 && part.count == self.count => u64::from(self.bytes),
            Some(part) => u64::from(part.count) * u64::from(self.message_bytes()),
            None => 0,
        }
    }
}

/// Where the bytes of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) place: PlaceSlot,
    pub(crate) at: u32,
    pub(crate) bytes: u32,
}

/// The runs of one lane: at least one, sorted, not overlapping.
#[derive(Debug)]
pub(crate) enum LaneRuns {
    One(Run),
    Many(Box<RunList>),
}

const _: () = assert!(size_of::<Run>() == 32 && size_of::<LaneRuns>() <= 40);

/// What taking runs off the front did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Popped {
    /// Runs wholly below the head: they are gone.
    pub(crate) gone: Vec<Run>,
    /// The front run as it was before the part below the head was clipped off.
    pub(crate) clipped: Option<Run>,
    /// No run is left.
    pub(crate) empty: bool,
    /// There may be more to take.
    pub(crate) more: bool,
}

impl LaneRuns {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(list) => list.len,
        }
    }

    /// Stored bytes of all runs.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::One(run) => u64::from(run.bytes),
            Self::Many(list) => list.bytes,
        }
    }

    pub(crate) fn first(&self) -> &Run {
        match self {
            Self::One(run) => run,
            Self::Many(list) => list
                .chunks
                .front()
                .and_then(VecDeque::front)
                .expect("a lane has a run"),
        }
    }

    pub(crate) fn last(&self) -> &Run {
        match self {
            Self::One(run) => run,
            Self::Many(list) => list
                .chunks
                .back()
                .and_then(VecDeque::back)
                .expect("a lane has a run"),
        }
    }

    /// Appends a run that lies behind all others.
    pub(crate) fn push(&mut self, run: Run) {
        debug_assert!(self.last().end() <= run.first());
        self.many(|list| list.push(run));
    }

    /// Puts a run where it belongs; nothing else covers any of it.
    pub(crate) fn insert(&mut self, run: Run) {
        self.many(|list| list.insert(run));
    }

    /// The run that holds `offset`.
    pub(crate) fn find(&self, offset: Offset) -> Option<&Run> {
        self.from(offset).next().filter(|run| run.first() <= offset)
    }

    /// Runs that end above `offset`, in order.
    pub(crate) fn from(&self, offset: Offset) -> RunIter<'_> {
        match self {
            Self::One(run) => RunIter::One(Some(run).filter(|run| run.end() > offset)),
            Self::Many(list) => list.iter_from(list.position(|run| run.end() <= offset)),
        }
    }

    /// Runs whose newest message is not older than `wall`, in order.
    pub(crate) fn since(&self, wall: WallTime) -> RunIter<'_> {
        match self {
            Self::One(run) => RunIter::One(Some(run).filter(|run| run.wall_last >= wall)),
            Self::Many(list) => list.iter_from(list.position(|run| run.wall_last < wall)),
        }
    }

    /// The run before the first one whose newest message is not older than `wall`.
    pub(crate) fn last_older_than(&self, wall: WallTime) -> Option<&Run> {
        match self {
            Self::One(run) => Some(run).filter(|run| run.wall_last < wall),
            Self::Many(list) => {
                let (chunk, at) = list.position(|run| run.wall_last < wall);
                match at.checked_sub(1) {
                    Some(at) => list.chunks[chunk].get(at),
                    None => chunk.checked_sub(1).and_then(|chunk| list.chunks[chunk].back()),
                }
            }
        }
    }

    /// Takes off the front what lies below `head`, about [`POP_RUNS`] runs at a time.
    pub(crate) fn pop_below(&mut self, head: Offset) -> Popped {
        let mut popped = Popped::default();
        while self.first().end() <= head {
            popped.gone.push(*self.first());
            match self {
                Self::One(_) => popped.empty = true,
                Self::Many(list) => {
                    list.pop_front();
                    popped.empty = list.len == 0;
                }
            }
            popped.more = popped.gone.len() >= POP_RUNS && !popped.empty;
            if popped.empty || popped.more {
                break;
            }
        }
        if popped.empty {
            return popped;
        }
        self.shrink();
        let front = *self.first();
        if let Some(rest) = front.clipped(head, front.end()).filter(|rest| *rest != front) {
            popped.clipped = Some(front);
            match self {
                Self::One(run) => *run = rest,
                Self::Many(list) => *list.chunks[0].front_mut().expect("a lane has a run") = rest,
            }
        }
        popped
    }

    /// Replaces what lies in `[from, to)` and in one of the places that `old` accepts: whole runs go, a run that
    /// reaches over `to` keeps its rest. `new` covers `[from, to)`; the part below the first replaced offset is clipped
    /// off, for it was deleted in the meantime. Returns the runs gone and those put in their stead; no run may be left.
    pub(crate) fn replace(
        &mut self,
        range: Range<Offset>,
        old: impl Fn(&Run) -> bool,
        new: &[Run],
    ) -> Replaced {
        let affected: Vec<Run> = self
            .from(range.start)
            .take_while(|run| run.first() < range.end)
            .filter(|run| old(run))
            .copied()
            .collect();
        let Some(lowest) = affected.first().map(Run::first) else {
            return Replaced::default();
        };
        let lowest = lowest.max(range.start);
        let mut replaced = Replaced::default();
        let mut put: Vec<Run> = new
            .iter()
            .filter_map(|run| run.clipped(lowest, run.end()))
            .collect();
        assert!(
            put.last().is_some_and(|run| run.end() == range.end),
            "the new runs cover the range {range:?}"
        );
        replaced.put.clone_from(&put);
        for run in &affected {
            match run.clipped(range.end, run.end()) {
                Some(rest) => put.push(rest),
                None => replaced.gone.push(*run),
            }
        }
        self.many(|list| list.splice(&affected, &put));
        replaced
    }

    /// Takes out the run that starts at `first`. Returns it and whether no run is left.
    pub(crate) fn take(&mut self, first: Offset) -> (Option<Run>, bool) {
        let Some(run) = self.find(first).copied().filter(|run| run.first() == first) else {
            return (None, false);
        };
        if let Self::One(_) = self {
            return (Some(run), true);
        }
        self.many(|list| list.splice(&[run], &[]));
        (Some(run), false)
    }

    /// Changes the list form; a single run goes back inline.
    fn many(&mut self, change: impl FnOnce(&mut RunList)) {
        if let Self::One(run) = self {
            // Exact capacities: many lanes have two or three runs.
            let mut list = Box::new(RunList {
                chunks: VecDeque::with_capacity(1),
                len: 0,
                bytes: 0,
            });
            list.push(*run);
            *self = Self::Many(list);
        }
        if let Self::Many(list) = self {
            change(list);
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        if self.len() == 1 {
            *self = Self::One(*self.first());
        }
    }
}

/// See [`LaneRuns::replace`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Replaced {
    pub(crate) gone: Vec<Run>,
    pub(crate) put: Vec<Run>,
}

/// A list of runs in chunks. No chunk is empty.
#[derive(Debug)]
pub(crate) struct RunList {
    chunks: VecDeque<VecDeque<Run>>,
    len: usize,
    bytes: u64,
}

impl RunList {
    /// The first run that does not satisfy `before`, which holds for a prefix of the list.
    fn position(&self, before: impl Fn(&Run) -> bool) -> (usize, usize) {
        let chunk = self
            .chunks
            .partition_point(|chunk| chunk.back().is_some_and(&before));
        let at = self
            .chunks
            .get(chunk)
            .map_or(0, |chunk| chunk.partition_point(&before));
        (chunk, at)
    }

    fn iter_from(&self, (chunk, at): (usize, usize)) -> RunIter<'_> {
        RunIter::Many {
            list: self,
            chunk,
            at,
        }
    }

    fn push(&mut self, run: Run) {
        match self.chunks.back_mut().filter(|chunk| chunk.len() < CHUNK_RUNS) {
            Some(chunk) => chunk.push_back(run),
            None => self.chunks.push_back(VecDeque::from([run])),
        }
        self.len += 1;
        self.bytes += u64::from(run.bytes);
    }

    fn insert(&mut self, run: Run) {
        let (chunk, at) = self.position(|other| other.first() < run.first());
        if chunk == self.chunks.len() {
            return self.push(run);
        }
        self.chunks[chunk].insert(at, run);
        self.len += 1;
        self.bytes += u64::from(run.bytes);
        if self.chunks[chunk].len() > CHUNK_RUNS {
            let upper = self.chunks[chunk].split_off(CHUNK_RUNS / 2);
            self.chunks.insert(chunk + 1, upper);
        }
    }

    fn pop_front(&mut self) {
        let Some(chunk) = self.chunks.front_mut() else {
            return;
        };
        if let Some(run) = chunk.pop_front() {
            self.len -= 1;
            self.bytes -= u64::from(run.bytes);
        }
        if chunk.is_empty() {
            self.chunks.pop_front();
        } else if chunk.len() * 4 <= chunk.capacity() {
            chunk.shrink_to(chunk.len() * 2);
        }
        if self.chunks.len() * 4 <= self.chunks.capacity() {
            self.chunks.shrink_to(self.chunks.len() * 2);
        }
    }

    /// Takes out the runs `old`, which lie in order but not always side by side, and puts `new` in the place of the first.
    fn splice(&mut self, old: &[Run], new: &[Run]) {
        let (Some(front), Some(back)) = (old.first(), old.last()) else {
            return;
        };
        let (low, _) = self.position(|run| run.first() < front.first());
        let (high, _) = self.position(|run| run.first() < back.first());
        // A short left neighbour is rewritten too, or merging would leave a trail of tiny chunks.
        let low = if low > 0 && self.chunks[low - 1].len() < CHUNK_RUNS / 2 {
            low - 1
        } else {
            low
        };
        let mut gone = old.iter().peekable();
        let mut kept: Vec<Run> = Vec::new();
        for run in self.chunks.drain(low..=high).flatten() {
            self.len -= 1;
            self.bytes -= u64::from(run.bytes);
            if gone.peek().is_some_and(|other| **other == run) {
                gone.next();
            } else {
                kept.push(run);
            }
        }
        debug_assert!(gone.next().is_none(), "every replaced run was there");
        let at = kept.partition_point(|run| run.first() < front.first());
        kept.splice(at..at, new.iter().copied());
        kept.sort_unstable_by_key(Run::first);
        self.len += kept.len();
        self.bytes += kept.iter().map(|run| u64::from(run.bytes)).sum::<u64>();
        for (index, chunk) in kept.chunks(CHUNK_RUNS).enumerate() {
            self.chunks.insert(low + index, chunk.iter().copied().collect());
        }
    }
}

/// Runs in order.
#[derive(Debug)]
pub(crate) enum RunIter<'a> {
    One(Option<&'a Run>),
    Many {
        list: &'a RunList,
        chunk: usize,
        at: usize,
    },
}

impl<'a> Iterator for RunIter<'a> {
    type Item = &'a Run;

    fn next(&mut self) -> Option<&'a Run> {
        match self {
            Self::One(run) => run.take(),
            Self::Many { list, chunk, at } => {
                let runs = list.chunks.get(*chunk)?;
                let run = runs.get(*at);
                *at += 1;
                if *at >= runs.len() {
                    *chunk += 1;
                    *at = 0;
                }
                run
            }
        }
    }
}

#[cfg(test)]
mod tests;
