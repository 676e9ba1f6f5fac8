//! The log of one partition, in memory.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::{PENDING, Unneeded};
use crate::wal::{LogPosition, WalEntry};

/// What a cached body costs beside its bytes.
const CACHED_OVERHEAD_BYTES: u64 = 128;

/// Where an entry is: 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) term: u64,
    pub(crate) leader: u64,
    pub(crate) segment: u32,
    /// File position of the body.
    pub(crate) at: u32,
    pub(crate) bytes: u32,
    pub(crate) kind: u8,
}

const _: () = assert!(size_of::<Row>() == 32, "millions of rows are kept");

/// A body in memory.
#[derive(Debug)]
pub(super) struct Cached {
    pub(super) body: Bytes,
    pub(super) segment: u32,
    pub(super) at: u32,
}

/// The log of one partition.
#[derive(Debug, Default)]
pub(crate) struct PartitionLog {
    pub(crate) purged: Option<LogPosition>,
    /// Index of the first row (of the next entry, if there is no row).
    pub(super) first: u64,
    pub(super) rows: VecDeque<Row>,
    /// Bodies of the entries from `cached_first` up to the last one. May reach back behind `first`.
    pub(super) cached: VecDeque<Cached>,
    pub(super) cached_first: u64,
    pub(super) cached_bytes: u64,
}

impl PartitionLog {
    /// A log as recovered.
    pub(crate) fn recovered(purged: Option<LogPosition>, first: u64, rows: VecDeque<Row>) -> Self {
        let after_purged = purged.map_or(0, |(index, _, _)| index.saturating_add(1));
        let first = if rows.is_empty() { after_purged } else { first };
        let cached_first = first + count(rows.len());
        Self {
            purged,
            first,
            rows,
            cached_first,
            ..Self::default()
        }
    }

    /// Index of the next entry.
    pub(super) fn next(&self) -> u64 {
        self.first.saturating_add(count(self.rows.len()))
    }

    pub(super) fn row(&self, index: u64) -> Option<&Row> {
        self.rows
            .get(usize::try_from(index.checked_sub(self.first)?).ok()?)
    }

    pub(super) fn row_mut(&mut self, index: u64) -> Option<&mut Row> {
        self.rows
            .get_mut(usize::try_from(index.checked_sub(self.first)?).ok()?)
    }

    pub(super) fn cached_body(&self, index: u64) -> Option<&Bytes> {
        let slot = usize::try_from(index.checked_sub(self.cached_first)?).ok()?;
        self.cached.get(slot).map(|cached| &cached.body)
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn entries(&self) -> u64 {
        count(self.rows.len())
    }

    pub(crate) fn last(&self) -> Option<LogPosition> {
        match self.rows.back() {
            Some(row) => Some((self.next() - 1, row.term, row.leader)),
            None => self.purged,
        }
    }

    /// Whether an entry of this index may be appended. A log that never had an entry begins at 0 or 1.
    pub(super) fn check_next(&self, index: u64) -> Result<(), u64> {
        let fresh = self.rows.is_empty() && self.purged.is_none();
        if index == self.next() || fresh && index <= 1 {
            Ok(())
        } else {
            Err(self.next())
        }
    }
}

pub(crate) fn entry_of(index: u64, row: &Row, body: Bytes) -> WalEntry {
    WalEntry {
        index,
        term: row.term,
        leader: row.leader,
        kind: row.kind,
        body,
    }
}

pub(super) fn pop_last(
    log: &mut PartitionLog,
    hot: &mut BTreeMap<(u32, u32), Bytes>,
    unneeded: &mut Unneeded,
) {
    let Some(row) = log.rows.pop_back() else { return };
    add_unneeded(unneeded, row.segment);
    // The cache reaches up to the last row, or it is empty and begins behind it.
    match log.cached.pop_back() {
        Some(cached) => uncache(&cached, &mut log.cached_bytes, hot),
        None => log.cached_first = log.next(),
    }
}

pub(super) fn uncache(cached: &Cached, cached_bytes: &mut u64, hot: &mut BTreeMap<(u32, u32), Bytes>) {
    *cached_bytes -= cost(&cached.body);
    hot.remove(&(cached.segment, cached.at));
}

pub(super) fn add_unneeded(unneeded: &mut Unneeded, segment: u32) {
    if segment == PENDING {
        // It gets its segment when it is written, and is found to be void then.
        return;
    }
    match unneeded.iter_mut().find(|(known, _)| *known == segment) {
        Some((_, entries)) => *entries += 1,
        None => unneeded.push((segment, 1)),
    }
}

pub(super) fn cost(body: &Bytes) -> u64 {
    count(body.len()) + CACHED_OVERHEAD_BYTES
}

pub(super) fn count(len: usize) -> u64 {
    u64::try_from(len).expect("a length fits u64")
}
