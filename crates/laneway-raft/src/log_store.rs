//! A group's log in the node's WAL.

mod unsynced;

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::stream::{self, Stream, StreamExt};
use laneway_core::ids::PartitionId;
use laneway_storage::wal::{Wal, WalEntry, WalError};
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use tokio::sync::{oneshot, watch};

pub(crate) use self::unsynced::{Durable, Unsynced};
use crate::format;
use crate::types::{Entry, LogId, Types, Vote};

/// Bytes of entries that one read of the WAL asks for; one entry may be larger.
pub(crate) const READ_BYTES_MAX: u64 = 4 << 20;

/// Writes the group's entries and votes to the WAL.
pub(crate) struct LogStore {
    reader: LogReader,
    committed: Option<LogId>,
    purged: watch::Sender<Option<u64>>,
}

/// Reads them back.
#[derive(Clone)]
pub(crate) struct LogReader {
    wal: Wal,
    partition: PartitionId,
    unsynced: Arc<Unsynced>,
    vote: Arc<Mutex<Option<Vote>>>,
}

impl LogStore {
    /// `vote` and `committed` as recovered. The receiver says up to which index the log is purged on disk. Must be called on a
    /// tokio runtime.
    pub(crate) fn new(
        wal: Wal,
        partition: PartitionId,
        vote: Option<Vote>,
        committed: Option<LogId>,
    ) -> (Self, watch::Receiver<Option<u64>>) {
        let (purged, purged_seen) = watch::channel(wal.purged(partition).map(|(index, ..)| index));
        let reader = LogReader {
            unsynced: Unsynced::new(wal.clone(), partition),
            wal,
            partition,
            vote: Arc::new(Mutex::new(vote)),
        };
        (
            Self {
                reader,
                committed,
                purged,
            },
            purged_seen,
        )
    }

    pub(crate) fn unsynced(&self) -> Arc<Unsynced> {
        Arc::clone(&self.reader.unsynced)
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let LogReader { wal, partition, .. } = &self.reader;
        let last_purged_log_id = wal.purged(*partition).map(format::log_id);
        let last_log_id = wal.last(*partition).map(format::log_id).max(last_purged_log_id);
        Ok(LogState {
            last_purged_log_id,
            last_log_id,
        })
    }

    async fn get_log_reader(&mut self) -> LogReader {
        self.reader.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let (done, synced) = oneshot::channel();
        let LogReader { wal, partition, .. } = &self.reader;
        wal.save_vote(
            *partition,
            format::encode_vote(vote),
            Box::new(move |result| _ = done.send(result)),
        );
        synced
            .await
            .map_err(|_| io::Error::other(WriterGone))?
            .map_err(io::Error::other)?;
        *self.reader.vote.lock().unwrap_or_else(PoisonError::into_inner) = Some(*vote);
        Ok(())
    }

    // Needs no sync: it only shortens what is re-elected and applied again after a restart.
    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        if let Some(id) = &committed {
            self.reader
                .wal
                .save_committed(self.reader.partition, format::encode_committed(id));
        }
        self.committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries = entries.into_iter().map(format::wal_entry).collect();
        self.reader.unsynced.append(entries, callback);
        Ok(())
    }

    // Not awaited: the WAL writes in order, so whatever is synced later was truncated first.
    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        self.reader.unsynced.truncate_after(last.map(|id| id.index));
        Ok(())
    }

    // Not awaited: a purge that is lost only brings back entries that the checkpoint covers.
    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        let purged = self.purged.clone();
        let done = Box::new(move |result: Result<(), WalError>| {
            if result.is_ok() {
                purged.send_modify(|seen| *seen = (*seen).max(Some(upto.index)));
            }
        });
        self.reader
            .wal
            .purge(self.reader.partition, format::log_id_parts(&upto), done);
        Ok(())
    }
}

/// The WAL's writer went away without answering.
#[derive(Debug, thiserror::Error)]
#[error("the log writer is gone")]
struct WriterGone;

impl LogReader {
    /// The indexes of `range` that the log holds: absence is allowed at both ends.
    fn held(&self, range: &impl RangeBounds<u64>) -> Range<u64> {
        let first = self.wal.purged(self.partition).map_or(0, |(index, ..)| index + 1);
        let unsynced = self.unsynced.end().unwrap_or(first); // asked first: what leaves here is in the WAL
        let synced = self
            .wal
            .last(self.partition)
            .map_or(first, |(index, ..)| index + 1);
        let end = synced.max(unsynced);
        let asked = bounds(range);
        asked.start.max(first)..asked.end.min(end)
    }

    fn read_wal(&self, range: &Range<u64>) -> Result<Vec<WalEntry>, io::Error> {
        self.wal
            .read(self.partition, range.clone(), READ_BYTES_MAX)
            .map_err(io::Error::other)
    }

    /// The first entries of `range`, at least one unless it is empty.
    fn read(&self, range: Range<u64>) -> Result<Vec<Entry>, io::Error> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let mut stored = self.read_wal(&range)?;
        if stored.is_empty() {
            stored = self.unsynced.read(&range, READ_BYTES_MAX);
        }
        if stored.is_empty() {
            stored = self.read_wal(&range)?; // it went there meanwhile
        }
        let contiguous = (range.start..)
            .zip(&stored)
            .all(|(index, entry)| entry.index == index);
        if stored.is_empty() || !contiguous {
            return Err(missing_entries(range));
        }
        stored
            .into_iter()
            .map(|entry| format::entry(entry).map_err(io::Error::from))
            .collect()
    }
}

/// Entries that the log should hold did not come back.
#[derive(Debug, thiserror::Error)]
#[error("the log lacks entries from {} up to {}", .range.start, .range.end.saturating_sub(1))]
struct MissingEntries {
    range: Range<u64>,
}

fn missing_entries(range: Range<u64>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, MissingEntries { range })
}

fn bounds(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}

impl RaftLogReader<Types> for LogReader {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<Entry>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let mut left = self.held(&range);
        let mut entries = self.read(left.clone())?;
        loop {
            left.start = entries.last().map_or(left.end, |entry| entry.log_id.index + 1);
            if left.is_empty() {
                return Ok(entries);
            }
            entries.append(&mut self.read(left.clone())?);
        }
    }

    async fn entries_stream<RB>(
        &mut self,
        range: RB,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let reader = self.clone();
        let asked = bounds(&range);
        let held = self.held(&range);
        // These are the entries to apply: one that is missing must stop the group, where openraft would skip it.
        let missing = (held != asked && asked.end != u64::MAX).then(|| Err(missing_entries(asked)));
        let left = if missing.is_some() { 0..0 } else { held };
        let start = (reader, left, Vec::new().into_iter());
        let entries = stream::unfold(start, |(reader, mut left, mut chunk)| async move {
            if let Some(entry) = chunk.next() {
                return Some((Ok(entry), (reader, left, chunk)));
            }
            if left.is_empty() {
                return None;
            }
            match reader.read(left.clone()) {
                Ok(entries) => {
                    left.start += u64::try_from(entries.len()).expect("a chunk's length fits u64");
                    chunk = entries.into_iter();
                    let first = chunk.next()?;
                    Some((Ok(first), (reader, left, chunk)))
                }
                Err(error) => {
                    left.start = left.end; // ends the stream behind the error
                    Some((Err(error), (reader, left, chunk)))
                }
            }
        });
        stream::iter(missing).chain(entries)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        self.read(self.held(&(start..end)))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(*self.vote.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
