//! What the records of all segments, read in order, add up to.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use bytes::Bytes;
use laneway_core::ids::PartitionId;

use super::format::{Facts, RecordHeader, RecordKind, decode_state};
use super::log::Row;

/// Recovered state of all partitions. Later records win over earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    pub(crate) partitions: BTreeMap<PartitionId, ReplayPartition>,
}

#[derive(Debug, Default)]
pub(crate) struct ReplayPartition {
    pub(crate) facts: Facts,
    /// Ascending. While segments are read there may be gaps: entries in released segments, which a record that is still
    /// to come voids.
    rows: VecDeque<(u64, Row)>,
}

/// Entries that must be there and are not: a segment that was still needed is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingEntries {
    pub(crate) partition: PartitionId,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Replay {
    /// Takes in the next record; `body_at` is its body's place in the file of `segment`.
    pub(crate) fn apply(
        &mut self,
        record: &RecordHeader,
        body: &[u8],
        segment: u32,
        body_at: usize,
    ) -> Result<(), &'static str> {
        if record.kind == RecordKind::State {
            return self.apply_state(body);
        }
        let partition = self.partitions.entry(record.partition).or_default();
        match record.kind {
            RecordKind::Entry => {
                let at = u32::try_from(body_at).map_err(|_| "an entry lies beyond 4 GiB")?;
                partition.append(record, segment, at)?;
            }
            RecordKind::Vote => partition.facts.vote = Some(Bytes::copy_from_slice(body)),
            RecordKind::Committed => partition.facts.committed = Some(Bytes::copy_from_slice(body)),
            RecordKind::Truncate => {
                partition.facts.truncate_after(record.truncate_after());
                partition.trim();
            }
            RecordKind::Purge => {
                partition.facts.purge(record.position());
                partition.trim();
            }
            RecordKind::State => {}
        }
        Ok(())
    }

    fn apply_state(&mut self, body: &[u8]) -> Result<(), &'static str> {
        for (id, facts) in decode_state(body).map_err(|_| "its state record cannot be decoded")? {
            let partition = self.partitions.entry(id).or_default();
            partition.facts = facts;
            partition.trim();
        }
        Ok(())
    }

    /// Checks at the end that no entry is missing.
    pub(crate) fn check(&self) -> Result<(), MissingEntries> {
        for (&id, partition) in &self.partitions {
            partition.check(id)?;
        }
        Ok(())
    }
}

impl ReplayPartition {
    fn append(&mut self, record: &RecordHeader, segment: u32, at: u32) -> Result<(), &'static str> {
        if record.index == u64::MAX {
            return Err("an entry's index is out of range");
        }
        // An append voids whatever stood at its index and after.
        while self.rows.back().is_some_and(|&(index, _)| index >= record.index) {
            self.rows.pop_back();
        }
        let row = Row {
            term: record.term,
            leader: record.leader,
            segment,
            at,
            bytes: record.body_bytes,
            kind: record.entry_kind,
        };
        self.rows.push_back((record.index, row));
        self.facts.append(record.index);
        Ok(())
    }

    /// Drops rows that the facts void.
    fn trim(&mut self) {
        let purged = self.facts.purged.map(|(index, _, _)| index);
        while self.rows.front().is_some_and(|&(index, _)| Some(index) <= purged) {
            self.rows.pop_front();
        }
        while self
            .rows
            .back()
            .is_some_and(|&(index, _)| Some(index) > self.facts.last)
        {
            self.rows.pop_back();
        }
    }

    fn check(&self, partition: PartitionId) -> Result<(), MissingEntries> {
        let purged = self.facts.purged.map(|(index, _, _)| index);
        let Some(last) = self.facts.last.filter(|&last| Some(last) > purged) else {
            return Ok(());
        };
        let mut wanted = purged.map_or(0, |index| index.saturating_add(1));
        // Raft's log begins at 0; a log that was never purged may also begin at 1.
        if purged.is_none() && self.rows.front().is_some_and(|&(index, _)| index == 1) {
            wanted = 1;
        }
        for &(index, _) in &self.rows {
            if index != wanted {
                return Err(MissingEntries {
                    partition,
                    first: wanted,
                    last: index - 1,
                });
            }
            wanted += 1;
        }
        if wanted <= last {
            Err(MissingEntries {
                partition,
                first: wanted,
                last,
            })
        } else {
            Ok(())
        }
    }

    /// Index of the first row (0 if there is none), and the rows, which [`Replay::check`] found to be without gaps.
    pub(crate) fn into_rows(self) -> (u64, VecDeque<Row>) {
        let first = self.rows.front().map_or(0, |&(index, _)| index);
        (first, self.rows.into_iter().map(|(_, row)| row).collect())
    }
}
