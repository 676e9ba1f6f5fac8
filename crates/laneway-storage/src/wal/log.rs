//! What is in the log, in memory: where each unpurged entry is, the newest bodies, and the segments.
//!
//! This view runs ahead of the disk: an entry is here from the moment it is queued. Segments are counted as needed until
//! the record that makes them needless is durable.

mod partition;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use laneway_core::ids::PartitionId;

use super::drain::Located;
use super::{EntryLocation, LogPosition, SegmentInfo, WalEntry, WalError};
use crate::vfs::VfsFile;

use partition::{Cached, add_unneeded, cost, count, pop_last, uncache};
pub(crate) use partition::{PartitionLog, Row, entry_of};

/// Segment of a row whose entry is not on disk yet; its `at` is then the entry's ticket.
pub(crate) const PENDING: u32 = u32::MAX;

/// An open segment. Readers hold it by `Arc`: its file is recycled only when nobody else does.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) id: u32,
    pub(crate) file: Arc<dyn VfsFile>,
    /// Carried by each of its records.
    pub(crate) life: u64,
    pub(crate) file_bytes: u64,
    /// Whether it was made for one entry: never recycled.
    pub(crate) oversize: bool,
}

/// A segment's row in the table.
#[derive(Debug)]
pub(crate) struct SegmentState {
    pub(crate) segment: Arc<Segment>,
    pub(crate) bytes_used: u64,
    /// Unpurged entries in it, as far as the disk knows.
    pub(crate) needed: u64,
    /// Position and length of every entry's body, ascending: purged ones too, for their payloads may be alive.
    bodies: Vec<(u32, u32)>,
    /// Every record of it was read and found sound, after it was written to for the last time.
    pub(crate) verified: bool,
}

impl SegmentState {
    /// The body that holds all of `[at, at + bytes)`.
    pub(crate) fn body_around(&self, at: u32, bytes: u32) -> Option<(u32, u32)> {
        let behind = self.bodies.partition_point(|&(body_at, _)| body_at <= at);
        let (body_at, body_bytes) = *self.bodies.get(behind.checked_sub(1)?)?;
        let end = u64::from(at) + u64::from(bytes);
        (end <= u64::from(body_at) + u64::from(body_bytes)).then_some((body_at, body_bytes))
    }
}

/// Everything that readers see. Guarded by one lock.
#[derive(Debug, Default)]
pub(crate) struct LogState {
    partitions: BTreeMap<PartitionId, PartitionLog>,
    segments: BTreeMap<u32, SegmentState>,
    /// Cached bodies by (segment, position), for payload reads.
    hot: BTreeMap<(u32, u32), Bytes>,
    active: u32,
    cache_bytes_max: u64,
}

/// Segments and how many entries in each are no longer needed.
pub(crate) type Unneeded = Vec<(u32, u64)>;

/// Part of the answer to a read.
pub(crate) enum ReadPart {
    Hot(WalEntry),
    Cold(u64, Row, Arc<Segment>),
}

impl LogState {
    pub(crate) fn new(cache_bytes_max: u64) -> Self {
        Self {
            cache_bytes_max,
            ..Self::default()
        }
    }

    pub(crate) fn partition(&self, id: PartitionId) -> Option<&PartitionLog> {
        self.partitions.get(&id)
    }

    pub(crate) fn put_recovered(&mut self, id: PartitionId, log: PartitionLog) {
        for row in &log.rows {
            if let Some(state) = self.segments.get_mut(&row.segment) {
                state.needed += 1;
            }
        }
        self.partitions.insert(id, log);
    }

    /// Registers a segment, from now on the active one. `bodies` are those of the entries found in it.
    pub(crate) fn put_segment(&mut self, segment: Arc<Segment>, bytes_used: u64, bodies: Vec<(u32, u32)>) {
        let id = segment.id;
        self.segments.insert(
            id,
            SegmentState {
                segment,
                bytes_used,
                needed: 0,
                bodies,
                verified: false,
            },
        );
        self.active = id;
    }

    /// Adds queued entries, which are contiguous. `ticket` is that of the first.
    pub(crate) fn append(
        &mut self,
        id: PartitionId,
        entries: &[WalEntry],
        ticket: u32,
    ) -> Result<(), WalError> {
        let log = self.partitions.entry(id).or_default();
        let Some(first) = entries.first() else {
            return Ok(());
        };
        log.check_next(first.index).map_err(|expected| WalError::Gap {
            partition: id,
            expected,
            found: first.index,
        })?;
        for pair in entries.windows(2) {
            if pair[1].index != pair[0].index.wrapping_add(1) {
                return Err(WalError::Gap {
                    partition: id,
                    expected: pair[0].index + 1,
                    found: pair[1].index,
                });
            }
        }
        if log.rows.is_empty() && log.first != first.index {
            log.first = first.index;
            log.cached_first = first.index;
        }
        let mut ticket = ticket;
        for entry in entries {
            let bytes = u32::try_from(entry.body.len()).expect("bodies are bounded before they are queued");
            log.rows.push_back(Row {
                term: entry.term,
                leader: entry.leader,
                segment: PENDING,
                at: ticket,
                bytes,
                kind: entry.kind,
            });
            log.cached.push_back(Cached {
                body: entry.body.clone(),
                segment: PENDING,
                at: ticket,
            });
            log.cached_bytes += cost(&entry.body);
            ticket = ticket.wrapping_add(1);
        }
        Ok(())
    }

    /// Drops the entries after `index`.
    pub(crate) fn truncate_after(&mut self, id: PartitionId, index: Option<u64>) -> Unneeded {
        let Self { partitions, hot, .. } = self;
        let log = partitions.entry(id).or_default();
        let next = index.map_or(0, |index| index.saturating_add(1)).max(log.first);
        let mut unneeded = Unneeded::new();
        while log.next() > next {
            pop_last(log, hot, &mut unneeded);
        }
        unneeded
    }

    /// Drops the entries up to `upto`. Their bodies may stay in the cache.
    pub(crate) fn purge(&mut self, id: PartitionId, upto: LogPosition) -> Unneeded {
        let Self { partitions, hot, .. } = self;
        let log = partitions.entry(id).or_default();
        let mut unneeded = Unneeded::new();
        if log.purged.is_some_and(|(index, _, _)| index >= upto.0) {
            return unneeded;
        }
        log.purged = Some(upto);
        while log.first <= upto.0 {
            let Some(row) = log.rows.pop_front() else { break };
            add_unneeded(&mut unneeded, row.segment);
            log.first += 1;
        }
        if log.first <= upto.0 {
            // The log ended before the purge position: it goes on behind it.
            log.first = upto.0.saturating_add(1);
            while let Some(cached) = log.cached.pop_front() {
                uncache(&cached, &mut log.cached_bytes, hot);
            }
            log.cached_first = log.first;
        }
        unneeded
    }

    /// Takes back entries that were queued and will never be written.
    pub(crate) fn drop_pending(&mut self, id: PartitionId) {
        let Self { partitions, hot, .. } = self;
        let Some(log) = partitions.get_mut(&id) else {
            return;
        };
        let mut unneeded = Unneeded::new();
        while log.rows.back().is_some_and(|row| row.segment == PENDING) {
            pop_last(log, hot, &mut unneeded);
        }
    }

    /// An entry is on disk. If it was truncated or purged meanwhile, its segment counts as needed until that is durable
    /// too: the answer is then `false`.
    pub(crate) fn located(&mut self, segment: u32, located: &Located) -> bool {
        let &Located {
            partition: id,
            index,
            ticket,
            at,
            bytes,
        } = located;
        if let Some(state) = self.segments.get_mut(&segment) {
            state.needed += 1;
            state.bodies.push((at, bytes));
        }
        let Self { partitions, hot, .. } = self;
        let Some(log) = partitions.get_mut(&id) else {
            return false;
        };
        let slot = index
            .checked_sub(log.cached_first)
            .and_then(|slot| usize::try_from(slot).ok());
        if let Some(cached) = slot.and_then(|slot| log.cached.get_mut(slot))
            && (cached.segment, cached.at) == (PENDING, ticket)
        {
            (cached.segment, cached.at) = (segment, at);
            if !cached.body.is_empty() {
                hot.insert((segment, at), cached.body.clone());
            }
        }
        match log.row_mut(index) {
            Some(row) if (row.segment, row.at) == (PENDING, ticket) => {
                (row.segment, row.at) = (segment, at);
                true
            }
            _ => false,
        }
    }

    /// Notes that a segment was found sound.
    pub(crate) fn verified(&mut self, segment: u32) {
        if segment != self.active
            && let Some(state) = self.segments.get_mut(&segment)
        {
            state.verified = true;
        }
    }

    /// Sets how far the active segment is written.
    pub(crate) fn written_to(&mut self, segment: u32, bytes_used: u64) {
        if let Some(state) = self.segments.get_mut(&segment) {
            state.bytes_used = bytes_used;
        }
    }

    /// The disk knows that these entries are no longer needed.
    pub(crate) fn unneeded(&mut self, segment: u32, entries: u64) {
        if let Some(state) = self.segments.get_mut(&segment) {
            state.needed = state.needed.saturating_sub(entries);
        }
    }

    /// Forgets the oldest bodies of a partition beyond the bound. What is not on disk yet stays.
    pub(crate) fn evict(&mut self, id: PartitionId) {
        let Self {
            partitions,
            hot,
            cache_bytes_max,
            ..
        } = self;
        let Some(log) = partitions.get_mut(&id) else {
            return;
        };
        while log.cached_bytes > *cache_bytes_max
            && log.cached.front().is_some_and(|front| front.segment != PENDING)
        {
            let Some(cached) = log.cached.pop_front() else {
                break;
            };
            log.cached_first += 1;
            uncache(&cached, &mut log.cached_bytes, hot);
        }
    }

    /// Entries of `[from, to)` until `bytes_max`, at least one if there is any.
    pub(crate) fn read(
        &self,
        id: PartitionId,
        from: u64,
        to: u64,
        bytes_max: u64,
    ) -> Result<Vec<ReadPart>, WalError> {
        let Some(log) = self.partitions.get(&id) else {
            return Ok(Vec::new());
        };
        if from < log.first && from < to && log.purged.is_some_and(|(index, _, _)| from <= index) {
            return Err(WalError::Purged {
                partition: id,
                index: from,
                first: log.first,
            });
        }
        let mut parts = Vec::new();
        let mut bytes = 0;
        for index in from.max(log.first)..to.min(log.next()) {
            let Some(&row) = log.row(index) else { break };
            bytes += u64::from(row.bytes);
            if bytes > bytes_max && !parts.is_empty() {
                break;
            }
            let part = match log.cached_body(index) {
                Some(body) => ReadPart::Hot(entry_of(index, &row, body.clone())),
                None => {
                    let state = self.segments.get(&row.segment);
                    let state = state.ok_or_else(|| WalError::NoSegment {
                        segment: u64::from(row.segment),
                    })?;
                    ReadPart::Cold(index, row, state.segment.clone())
                }
            };
            parts.push(part);
        }
        Ok(parts)
    }

    pub(crate) fn locate(&self, id: PartitionId, index: u64) -> Option<EntryLocation> {
        let row = self.partitions.get(&id)?.row(index)?;
        (row.segment != PENDING).then(|| EntryLocation {
            segment: u64::from(row.segment),
            body_at: u64::from(row.at),
            body_bytes: row.bytes,
        })
    }

    /// A cached slice of a segment.
    pub(crate) fn hot(&self, segment: u32, at: u32, bytes: u32) -> Option<Bytes> {
        let (&(hot_segment, body_at), body) = self.hot.range(..=(segment, at)).next_back()?;
        if hot_segment != segment {
            return None;
        }
        let start = usize::try_from(at - body_at).ok()?;
        let end = start.checked_add(usize::try_from(bytes).ok()?)?;
        (end <= body.len()).then(|| body.slice(start..end))
    }

    pub(crate) fn segment(&self, id: u32) -> Option<&SegmentState> {
        self.segments.get(&id)
    }

    pub(crate) fn segment_infos(&self) -> Vec<SegmentInfo> {
        let info = |(&id, state): (&u32, &SegmentState)| SegmentInfo {
            id: u64::from(id),
            bytes_used: state.bytes_used,
            file_bytes: state.segment.file_bytes,
            log_needed: state.needed > 0,
            active: id == self.active,
        };
        self.segments.iter().map(info).collect()
    }

    /// Takes a segment out, unless it is active or the log needs it.
    pub(crate) fn take_unneeded(&mut self, id: u32) -> Result<Option<Arc<Segment>>, WalError> {
        let state = self.segments.get(&id).ok_or_else(|| WalError::NoSegment {
            segment: u64::from(id),
        })?;
        if id == self.active || state.needed > 0 {
            return Ok(None);
        }
        Ok(self.segments.remove(&id).map(|state| state.segment))
    }

    pub(crate) fn totals(&self) -> (u64, u64, u64) {
        let rows = self.partitions.values().map(|log| count(log.rows.len())).sum();
        let cached = self.partitions.values().map(|log| log.cached_bytes).sum();
        let file_bytes = self.segments.values().map(|state| state.segment.file_bytes).sum();
        (rows, cached, file_bytes)
    }
}
