//! The one writer: turns the queue into drains.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use laneway_core::ids::PartitionId;

use super::drain::{Drain, Located};
use super::format::{
    Facts, RECORD_HEADER_BYTES, RecordHeader, RecordKind, SEGMENT_HEADER_BYTES, encode_state,
};
use super::log::Segment;
use super::queue::{Item, Op, Queue};
use super::roll::{Stop, create_segment, failed, file_end, position, reserve_bytes};
use super::shared::Shared;
use super::{WalEntry, WalError};
use crate::failpoint;

/// What [`WalWriter::step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalStep {
    /// Nothing was queued.
    Idle,
    /// Everything that was queued is durable or refused, and everybody was told.
    Wrote,
    /// The log has failed, now or earlier.
    Failed,
}

/// The writer as a step function: driven by a thread in the product, by hand in simulation and tests.
pub struct WalWriter {
    shared: Arc<Shared>,
    active: Arc<Segment>,
    /// Where the next drain starts.
    at: usize,
    /// Number of the next drain.
    number: u64,
    /// Small facts as of what is written.
    facts: BTreeMap<PartitionId, Facts>,
    /// (Item, segment, entries): needless as soon as that item is durable.
    deferred: Vec<(u64, u32, u64)>,
    drain: Drain,
}

impl fmt::Debug for WalWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WalWriter")
            .field("segment", &self.active.id)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl WalWriter {
    /// A writer that goes on at `at` in `active` with drain `number`.
    pub(crate) fn new(
        shared: Arc<Shared>,
        active: Arc<Segment>,
        at: usize,
        number: u64,
        facts: BTreeMap<PartitionId, Facts>,
    ) -> Self {
        Self {
            shared,
            active,
            at,
            number,
            facts,
            deferred: Vec::new(),
            drain: Drain::default(),
        }
    }

    /// Drives the writer until the log is closed or has failed.
    pub(crate) fn run(mut self) {
        while self.step() != WalStep::Failed {
            if !self.shared.wait() {
                // Whatever came before the end, and the committed positions.
                self.step();
                return;
            }
        }
    }

    /// Writes everything that is queued, in as few drains as segments allow (usually one), and tells everybody.
    pub fn step(&mut self) -> WalStep {
        let (items, committed) = self.shared.take_queue();
        if self.shared.queue().failed.is_some() {
            return WalStep::Failed;
        }
        if items.is_empty() && committed.is_empty() {
            return WalStep::Idle;
        }
        let mut items = VecDeque::from(items);
        match self.write(&mut items, committed) {
            Ok(()) => WalStep::Wrote,
            Err(error) => {
                self.fail(error, items);
                WalStep::Failed
            }
        }
    }

    fn write(
        &mut self,
        items: &mut VecDeque<Item>,
        committed: BTreeMap<PartitionId, Bytes>,
    ) -> Result<(), WalError> {
        while let Some(item) = items.pop_front() {
            match self.place(&item.op, item.sequence) {
                Ok(()) => {
                    self.drain.done.push(item.done);
                    self.drain.last_item = Some(item.sequence);
                }
                Err(Stop::Full) => self.refuse(item, items)?,
                Err(Stop::Failed(error)) => {
                    items.push_front(item);
                    return Err(error);
                }
            }
        }
        for (partition, committed) in committed {
            // A hint: not worth a new segment, whose state record would hold it anyway.
            self.facts.entry(partition).or_default().committed = Some(committed.clone());
            if self.end() + RECORD_HEADER_BYTES + committed.len() <= self.append_end() {
                self.push(
                    RecordHeader::new(RecordKind::Committed, partition, &committed),
                    &committed,
                );
            }
        }
        self.flush()
    }

    fn place(&mut self, op: &Op, sequence: u64) -> Result<(), Stop> {
        match op {
            Op::Append {
                partition,
                entries,
                ticket,
            } => return self.place_entries(*partition, entries, *ticket),
            Op::Vote { partition, vote } => {
                self.make_small_room(vote.len())?;
                self.facts.entry(*partition).or_default().vote = Some(vote.clone());
                self.push(RecordHeader::new(RecordKind::Vote, *partition, vote), vote);
            }
            Op::Truncate {
                partition,
                index,
                unneeded,
            } => {
                self.make_small_room(0)?;
                self.push_truncation(*partition, *index);
                self.defer(sequence, unneeded);
            }
            Op::Purge {
                partition,
                upto,
                unneeded,
            } => {
                self.make_small_room(0)?;
                self.facts.entry(*partition).or_default().purge(*upto);
                self.push(
                    RecordHeader::new(RecordKind::Purge, *partition, &[]).at(*upto),
                    &Bytes::new(),
                );
                self.defer(sequence, unneeded);
            }
        }
        Ok(())
    }

    fn place_entries(
        &mut self,
        partition: PartitionId,
        entries: &[WalEntry],
        ticket: u32,
    ) -> Result<(), Stop> {
        let bytes: usize = entries.iter().map(entry_bytes).sum();
        if self.end() + bytes > self.append_end() && bytes <= self.fresh_room() {
            // All of them in one segment, so that a full disk refuses all or none.
            self.roll(None)?;
        }
        let mut ticket = ticket;
        for entry in entries {
            let bytes = entry_bytes(entry);
            if self.end() + bytes > self.append_end() {
                let oversize = (bytes > self.fresh_room()).then_some(bytes);
                self.roll(oversize)?;
            }
            let header = RecordHeader::new(RecordKind::Entry, partition, &entry.body);
            let header = header.at((entry.index, entry.term, entry.leader));
            let body_at = position(self.end() + RECORD_HEADER_BYTES);
            self.push(
                RecordHeader {
                    entry_kind: entry.kind,
                    ..header
                },
                &entry.body,
            );
            self.facts.entry(partition).or_default().append(entry.index);
            self.drain.located.push(Located {
                partition,
                index: entry.index,
                ticket,
                at: body_at,
                bytes: header.body_bytes,
            });
            ticket = ticket.wrapping_add(1);
        }
        Ok(())
    }

    fn push_truncation(&mut self, partition: PartitionId, index: Option<u64>) {
        self.facts.entry(partition).or_default().truncate_after(index);
        let header = RecordHeader::new(RecordKind::Truncate, partition, &[]);
        let header = header.at((index.unwrap_or(0), 0, 0));
        self.push(
            RecordHeader {
                entry_kind: u8::from(index.is_some()),
                ..header
            },
            &Bytes::new(),
        );
    }

    fn defer(&mut self, sequence: u64, unneeded: &[(u32, u64)]) {
        self.deferred.extend(
            unneeded
                .iter()
                .map(|&(segment, entries)| (sequence, segment, entries)),
        );
    }

    /// Room for a small record. It may use the reserve; if even that is used up and the disk full, the log fails, for
    /// a vote or purge that cannot be written must not be forgotten.
    fn make_small_room(&mut self, body_bytes: usize) -> Result<(), Stop> {
        if self.end() + RECORD_HEADER_BYTES + body_bytes <= file_end(&self.active) {
            return Ok(());
        }
        self.roll(None).map_err(|stop| match stop {
            Stop::Full => Stop::Failed(failed("the disk is full and the log's reserve is used up")),
            failed => failed,
        })
    }

    /// Position after what is gathered.
    fn end(&self) -> usize {
        self.at + self.drain.bytes
    }

    /// Up to where entries may be written.
    fn append_end(&self) -> usize {
        let reserve =
            usize::try_from(reserve_bytes(self.shared.options.segment_bytes)).expect("at most 256 KiB");
        file_end(&self.active).saturating_sub(reserve)
    }

    /// Room for entries in a new segment.
    fn fresh_room(&self) -> usize {
        let segment_bytes = self.shared.options.segment_bytes;
        let room = usize::try_from(segment_bytes - reserve_bytes(segment_bytes)).expect("at most 1 GiB");
        room.saturating_sub(self.head_bytes())
    }

    /// Header and state record of a new segment.
    fn head_bytes(&self) -> usize {
        SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES + encode_state(self.facts.iter()).len()
    }

    fn push(&mut self, header: RecordHeader, body: &Bytes) {
        let header = RecordHeader {
            life: self.active.life,
            drain: self.number,
            drain_at: position(self.at),
            ..header
        };
        self.drain.push(&header, body);
    }

    /// Writes and syncs what is gathered, publishes it and tells everybody. Nothing else is written before the sync.
    fn flush(&mut self) -> Result<(), WalError> {
        if self.drain.bytes > 0 {
            failpoint::hit("drain-before-write");
            let buffers = self.drain.buffers();
            let written = self
                .active
                .file
                .write_vectored_at(&buffers, u64::from(position(self.at)));
            written.map_err(|error| self.io_failed("write", &error))?;
            failpoint::hit("drain-written");
            self.shared
                .sync(&self.active)
                .map_err(|error| self.io_failed("sync", &error))?;
            failpoint::hit("drain-synced");
            self.shared
                .count_drain(self.drain.bytes, self.drain.located.len());
            self.at += self.drain.bytes;
            self.number += 1;
        }
        self.publish();
        failpoint::hit("drain-published");
        for done in self.drain.reset() {
            done(Ok(()));
        }
        Ok(())
    }

    /// Shows readers where the entries are, and lets go of what is needless now.
    fn publish(&mut self) {
        let segment = self.active.id;
        let mut void = 0;
        let mut touched: Option<PartitionId> = None;
        let mut log = self.shared.log_write();
        log.written_to(segment, u64::from(position(self.at)));
        for located in &self.drain.located {
            if !log.located(segment, located) {
                void += 1;
            }
            if let Some(done) = touched
                .replace(located.partition)
                .filter(|&done| done != located.partition)
            {
                log.evict(done);
            }
        }
        if let Some(partition) = touched {
            log.evict(partition);
        }
        if let Some(last_item) = self.drain.last_item {
            self.deferred.retain(|&(sequence, segment, entries)| {
                let waits = sequence > last_item;
                if !waits {
                    log.unneeded(segment, entries);
                }
                waits
            });
        }
        drop(log);
        if void > 0 {
            // Truncated or purged while they were on their way: by an item that is queued at the latest now.
            let newest = self.shared.queue().next_sequence.saturating_sub(1);
            self.deferred.push((newest, segment, void));
        }
    }

    /// Goes on in a new segment: a common one, or one made for a record of `oversize` bytes.
    fn roll(&mut self, oversize: Option<usize>) -> Result<(), Stop> {
        self.flush().map_err(Stop::Failed)?;
        let previous = self.active.clone();
        let segment = self.new_segment(oversize, Some((previous.id, self.at)))?;
        self.start_segment(segment);
        Ok(())
    }

    fn start_segment(&mut self, (segment, at): (Segment, usize)) {
        let segment = Arc::new(segment);
        self.shared
            .log_write()
            .put_segment(segment.clone(), u64::from(position(at)), Vec::new());
        self.active = segment;
        self.at = at;
        self.number += 1;
    }

    /// Makes a segment with header and state record, synced before it gets its name, named durably before it is used.
    fn new_segment(
        &self,
        oversize: Option<usize>,
        previous: Option<(u32, usize)>,
    ) -> Result<(Segment, usize), Stop> {
        let id = previous.map_or(1, |(id, _)| id + 1);
        create_segment(&self.shared, id, previous, self.number, &self.facts, oversize)
    }

    /// Refuses an append for want of space, with all appends of its partition that are queued behind it.
    fn refuse(&mut self, item: Item, items: &mut VecDeque<Item>) -> Result<(), WalError> {
        let Op::Append {
            partition, entries, ..
        } = &item.op
        else {
            unreachable!("only an append stops for want of space");
        };
        let (partition, sequence) = (*partition, item.sequence);
        // A part of an append larger than a segment may be written already.
        let before = entries.first().and_then(|entry| entry.index.checked_sub(1));
        let partial = self
            .facts
            .get(&partition)
            .is_some_and(|facts| facts.last > before);
        let mut refused = vec![item];
        let unneeded = {
            let mut queue = self.shared.queue();
            let mut log = self.shared.log_write();
            let mut rest: Vec<Item> = items.drain(..).collect();
            refused.extend(Queue::take_appends(&mut rest, partition));
            items.extend(rest);
            refused.extend(Queue::take_appends(&mut queue.items, partition));
            log.drop_pending(partition);
            if partial {
                log.truncate_after(partition, before)
            } else {
                Vec::new()
            }
        };
        if partial && let Err(error) = self.void_partial(partition, before, sequence, &unneeded) {
            items.extend(refused);
            return Err(error);
        }
        tracing::warn!(%partition, "no room for another log segment, entries are refused");
        for item in refused {
            (item.done)(Err(WalError::Full));
        }
        Ok(())
    }

    fn void_partial(
        &mut self,
        partition: PartitionId,
        before: Option<u64>,
        sequence: u64,
        unneeded: &[(u32, u64)],
    ) -> Result<(), WalError> {
        self.make_small_room(0).map_err(|stop| match stop {
            Stop::Full => failed("the disk is full"),
            Stop::Failed(error) => error,
        })?;
        self.push_truncation(partition, before);
        self.defer(sequence, unneeded);
        self.drain.last_item = Some(sequence);
        self.flush()
    }

    fn io_failed(&self, action: &str, error: &io::Error) -> WalError {
        failed(&format!(
            "{action} of {}: {error}",
            self.shared.segment_path(self.active.id).display()
        ))
    }

    /// The end: everybody is told, nothing is written any more.
    fn fail(&mut self, error: WalError, items: VecDeque<Item>) {
        tracing::error!(%error, "log failed");
        let queued = self.shared.fail(&error);
        for done in self.drain.reset() {
            done(Err(error.clone()));
        }
        for item in items.into_iter().chain(queued) {
            (item.done)(Err(error.clone()));
        }
    }
}

fn entry_bytes(entry: &WalEntry) -> usize {
    RECORD_HEADER_BYTES + entry.body.len()
}
