//! A log on a simulated disk, and a naive model of what it should hold.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use laneway_core::ids::PartitionId;
use laneway_storage::vfs::SimVfs;
use laneway_storage::wal::{
    Done, LogPosition, Wal, WalEntry, WalError, WalOpenError, WalOptions, WalRecovery, WalWriter,
};

pub(crate) const DIR: &str = "/data/wal";

/// Small segments, so that a short run fills many.
pub(crate) const SMALL: WalOptions = WalOptions {
    segment_bytes: 16 * 1024,
    segments_max: 6,
    tail_cache_bytes: 1024,
};

pub(crate) const P0: PartitionId = PartitionId(0);
pub(crate) const P1: PartitionId = PartitionId(1);

/// An entry whose body tells its place and term.
pub(crate) fn entry(index: u64, term: u64, bytes: usize) -> WalEntry {
    let mut body: Vec<u8> = (0..bytes)
        .map(|at| (at as u64 * 31 + index * 7 + term) as u8)
        .collect();
    let head = format!("{index}/{term}");
    let shown = head.len().min(bytes);
    body[..shown].copy_from_slice(&head.as_bytes()[..shown]);
    WalEntry {
        index,
        term,
        leader: 7,
        kind: 1,
        body: body.into(),
    }
}

/// A callback and where its answer goes.
pub(crate) fn callback() -> (Done, Answer) {
    let answer = Answer::default();
    let filled = answer.clone();
    (
        Box::new(move |result| *filled.0.lock().unwrap() = Some(result)),
        answer,
    )
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Answer(Arc<Mutex<Option<Result<(), WalError>>>>);

impl Answer {
    pub(crate) fn get(&self) -> Option<Result<(), WalError>> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.get() == Some(Ok(()))
    }
}

pub(crate) struct Node {
    pub(crate) vfs: SimVfs,
    pub(crate) wal: Wal,
    pub(crate) writer: WalWriter,
    pub(crate) recovery: WalRecovery,
}

impl Node {
    pub(crate) fn open(vfs: &SimVfs, options: WalOptions) -> Result<Self, WalOpenError> {
        let (wal, writer, recovery) = Wal::open_stepped(Arc::new(vfs.clone()), PathBuf::from(DIR), options)?;
        Ok(Self {
            vfs: vfs.clone(),
            wal,
            writer,
            recovery,
        })
    }

    pub(crate) fn new(options: WalOptions) -> Self {
        Self::open(&SimVfs::new(), options).unwrap()
    }

    /// Appends and steps; panics unless it becomes durable.
    pub(crate) fn append(&mut self, partition: PartitionId, entries: Vec<WalEntry>) {
        let (done, answer) = callback();
        self.wal.append(partition, entries, done);
        self.writer.step();
        assert_eq!(answer.get(), Some(Ok(())));
    }

    pub(crate) fn try_append(
        &mut self,
        partition: PartitionId,
        entries: Vec<WalEntry>,
    ) -> Result<(), WalError> {
        let (done, answer) = callback();
        self.wal.append(partition, entries, done);
        self.writer.step();
        answer.get().expect("a step answers everybody")
    }

    pub(crate) fn vote(&mut self, partition: PartitionId, vote: &'static [u8]) -> Result<(), WalError> {
        let (done, answer) = callback();
        self.wal.save_vote(partition, Bytes::from_static(vote), done);
        self.writer.step();
        answer.get().expect("a step answers everybody")
    }

    pub(crate) fn purge(&mut self, partition: PartitionId, upto: u64) -> Result<(), WalError> {
        let (done, answer) = callback();
        self.wal.purge(partition, (upto, 1, 7), done);
        self.writer.step();
        answer.get().expect("a step answers everybody")
    }

    pub(crate) fn truncate(&mut self, partition: PartitionId, index: Option<u64>) {
        let (done, answer) = callback();
        self.wal.truncate_after(partition, index, done);
        self.writer.step();
        assert_eq!(answer.get(), Some(Ok(())));
    }

    /// Gives back every segment that the log does not need.
    pub(crate) fn release_all(&self) -> usize {
        let free = |info: &&laneway_storage::wal::SegmentInfo| !info.log_needed && !info.active;
        let ids: Vec<u64> = self
            .wal
            .segments()
            .iter()
            .filter(free)
            .map(|info| info.id)
            .collect();
        ids.iter()
            .filter(|&&id| self.wal.release_segment(id).unwrap())
            .count()
    }

    /// Path and end of the active segment.
    pub(crate) fn tail(&self) -> (PathBuf, usize) {
        let info = self.wal.segments().into_iter().find(|info| info.active).unwrap();
        (segment_path(info.id), info.bytes_used as usize)
    }

    pub(crate) fn dump(&self) -> State {
        dump(&self.wal, &self.recovery)
    }

    /// Drops the handles and opens the log again.
    pub(crate) fn reopen(self, options: WalOptions) -> Result<Self, WalOpenError> {
        let vfs = self.vfs.clone();
        drop(self);
        Self::open(&vfs, options)
    }
}

/// Length of the file that names the newest segment.
pub(crate) const NEWEST_BYTES: u64 = 8192;

pub(crate) fn newest_path() -> PathBuf {
    Path::new(DIR).join("newest")
}

pub(crate) fn segment_path(id: u64) -> PathBuf {
    Path::new(DIR).join(format!("{id:010}.wal"))
}

/// What a log holds, by partition.
pub(crate) type State = BTreeMap<PartitionId, PartitionState>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartitionState {
    pub(crate) vote: Option<Bytes>,
    pub(crate) purged: Option<LogPosition>,
    pub(crate) entries: Vec<WalEntry>,
}

/// What is in a freshly opened log, read through its public face.
pub(crate) fn dump(wal: &Wal, recovery: &WalRecovery) -> State {
    let mut state = State::new();
    for (&id, partition) in &recovery.partitions {
        let first = wal.first_index(id);
        let end = partition.last.map_or(0, |(index, _, _)| index + 1);
        let entries = wal.read(id, first..end, u64::MAX).unwrap();
        assert_eq!(entries.len() as u64, end.saturating_sub(first));
        for entry in &entries {
            let at = wal.locate(id, entry.index).unwrap();
            assert_eq!(
                wal.read_at(at.segment, at.body_at, at.body_bytes).unwrap(),
                entry.body
            );
        }
        assert_eq!(wal.last(id), partition.last);
        let known = PartitionState {
            vote: partition.vote.clone(),
            purged: partition.purged,
            entries,
        };
        if known != PartitionState::default() {
            state.insert(id, known);
        }
    }
    state
}

/// One record's worth of change.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Append(PartitionId, WalEntry),
    Vote(PartitionId, Bytes),
    Truncate(PartitionId, Option<u64>),
    Purge(PartitionId, LogPosition),
}

/// The naive model.
pub(crate) fn apply(state: &mut State, change: &Change) {
    match change {
        Change::Append(id, entry) => state.entry(*id).or_default().entries.push(entry.clone()),
        Change::Vote(id, vote) => state.entry(*id).or_default().vote = Some(vote.clone()),
        Change::Truncate(id, index) => {
            let partition = state.entry(*id).or_default();
            partition.entries.retain(|entry| Some(entry.index) <= *index);
        }
        Change::Purge(id, upto) => {
            let partition = state.entry(*id).or_default();
            if partition.purged.is_none_or(|(index, _, _)| index < upto.0) {
                partition.purged = Some(*upto);
                partition.entries.retain(|entry| entry.index > upto.0);
            }
        }
    }
    state.retain(|_, partition| *partition != PartitionState::default());
}
