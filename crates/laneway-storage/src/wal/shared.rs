//! What the handles, the writer and the pool's thread share.
//!
//! Locks are taken in this order: queue, log, small, pool.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use laneway_core::ids::PartitionId;

use super::format::{RECORD_HEADER_BYTES, RecordHeader, RecordKind};
use super::log::{LogState, ReadPart, Row, Segment, entry_of};
use super::newest::Newest;
use super::pool::{FreeFile, Pool};
use super::queue::{Item, Op, Queue};
use super::reader::scan_segment;
use super::roll::position;
use super::stats::Counters;
use super::{Done, RecoveredPartition, WalEntry, WalError, WalOptions, WalStats};
use crate::failpoint;
use crate::vfs::{Vfs, VfsLock};

/// Up to this length a body is always read whole and checked; as much as a block of a backlog file.
const CHECKED_BODY_BYTES_MAX: u32 = 64 * 1024;

/// A longer one is, if no more than this many times the bytes wanted are read.
const CHECKED_AMPLIFICATION_MAX: u32 = 4;

pub(crate) struct Shared {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) dir: PathBuf,
    pub(crate) options: WalOptions,
    pub(crate) pool: Pool,
    pub(crate) newest: Newest,
    pub(crate) counters: Counters,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) wake: Condvar,
    pub(crate) log: RwLock<LogState>,
    /// Newest vote and committed position given for each partition, written or not.
    pub(crate) small: Mutex<BTreeMap<PartitionId, RecoveredPartition>>,
    /// Keeps other processes out until the log is closed.
    pub(crate) lock: Mutex<Option<Box<dyn VfsLock>>>,
}

/// File name of a segment.
pub(crate) fn segment_name(id: u64) -> String {
    format!("{id:010}.wal")
}

/// The number in a segment's file name.
pub(crate) fn segment_id(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".wal")?;
    let id = digits.parse().ok()?;
    (segment_name(id) == name).then_some(id)
}

impl Shared {
    pub(crate) fn segment_path(&self, id: u32) -> PathBuf {
        self.dir.join(segment_name(u64::from(id)))
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn log_read(&self) -> RwLockReadGuard<'_, LogState> {
        self.log.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn log_write(&self) -> RwLockWriteGuard<'_, LogState> {
        self.log.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues what `make` yields, which sees and changes the readers' view in the same order as the queue.
    pub(crate) fn enqueue(
        &self,
        done: Done,
        make: impl FnOnce(&mut Queue, &mut LogState) -> Result<Op, WalError>,
    ) {
        let mut queue = self.queue();
        let refused = match &queue.failed {
            Some(error) => Some(error.clone()),
            None if queue.closing => Some(WalError::Closed),
            None => None,
        };
        let made = match refused {
            Some(error) => Err(error),
            None => make(&mut queue, &mut self.log_write()),
        };
        match made {
            Ok(op) => {
                queue.push(op, done);
                drop(queue);
                self.wake.notify_one();
            }
            Err(error) => {
                drop(queue);
                done(Err(error));
            }
        }
    }

    pub(crate) fn save_committed(&self, partition: PartitionId, committed: Bytes) {
        let mut queue = self.queue();
        if queue.failed.is_none() && !queue.closing {
            self.small(|small| small.entry(partition).or_default().committed = Some(committed.clone()));
            queue.committed.insert(partition, committed);
        }
    }

    pub(crate) fn small<T>(
        &self,
        look: impl FnOnce(&mut BTreeMap<PartitionId, RecoveredPartition>) -> T,
    ) -> T {
        look(&mut self.small.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Everything queued. Committed positions alone are no reason to write, except at the end.
    pub(crate) fn take_queue(&self) -> (Vec<Item>, BTreeMap<PartitionId, Bytes>) {
        let mut queue = self.queue();
        if queue.items.is_empty() && !queue.closing {
            return (Vec::new(), BTreeMap::new());
        }
        (
            std::mem::take(&mut queue.items),
            std::mem::take(&mut queue.committed),
        )
    }

    /// Waits until something is queued; `false` once the log is closing and nothing is.
    pub(crate) fn wait(&self) -> bool {
        let mut queue = self.queue();
        while queue.items.is_empty() && !queue.closing {
            queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        !queue.items.is_empty()
    }

    /// Lets another process have the log; nothing is written any more.
    pub(crate) fn unlock(&self) {
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    pub(crate) fn close(&self) {
        self.queue().closing = true;
        self.wake.notify_all();
        self.pool.close();
    }

    /// Takes no more writes, for good. Returns what was queued.
    pub(crate) fn fail(&self, error: &WalError) -> Vec<Item> {
        let mut queue = self.queue();
        queue.failed.get_or_insert_with(|| error.clone());
        queue.committed.clear();
        std::mem::take(&mut queue.items)
    }

    pub(crate) fn read(
        &self,
        partition: PartitionId,
        range: Range<u64>,
        bytes_max: u64,
    ) -> Result<Vec<WalEntry>, WalError> {
        let parts = self
            .log_read()
            .read(partition, range.start, range.end, bytes_max)?;
        let mut entries = Vec::with_capacity(parts.len());
        for part in parts {
            entries.push(match part {
                ReadPart::Hot(entry) => entry,
                ReadPart::Cold(index, row, segment) => read_cold(partition, index, &row, &segment)?,
            });
        }
        Ok(entries)
    }

    pub(crate) fn read_at_cached(&self, segment: u64, at: u64, bytes: u32) -> Option<Bytes> {
        let (segment, at) = (u32::try_from(segment).ok()?, u32::try_from(at).ok()?);
        self.log_read().hot(segment, at, bytes)
    }

    pub(crate) fn read_at(&self, segment: u64, at: u64, bytes: u32) -> Result<Bytes, WalError> {
        let no_segment = || WalError::NoSegment { segment };
        let corrupt = || WalError::Corrupt { segment, at };
        let id = u32::try_from(segment).map_err(|_| no_segment())?;
        let at32 = u32::try_from(at).map_err(|_| corrupt())?;
        let (file, body) = {
            let log = self.log_read();
            if let Some(slice) = log.hot(id, at32, bytes) {
                return Ok(slice);
            }
            let state = log.segment(id).ok_or_else(no_segment)?;
            (state.segment.clone(), state.body_around(at32, bytes))
        };
        if at.saturating_add(u64::from(bytes)) > file.file_bytes {
            return Err(corrupt());
        }
        if let Some((body_at, body_bytes)) = body.filter(|&(_, body_bytes)| worth_checking(body_bytes, bytes))
        {
            let (_, body) = read_record(&file, body_at, body_bytes)?;
            let from = usize::try_from(at32 - body_at).expect("usize has at least 32 bits");
            let slice = body.slice(from..from + usize::try_from(bytes).expect("usize has at least 32 bits"));
            // A short slice must not keep a long body in memory.
            return Ok(if slice.len() * 2 < body.len() {
                Bytes::copy_from_slice(&slice)
            } else {
                slice
            });
        }
        let mut buffer = vec![0; usize::try_from(bytes).expect("usize has at least 32 bits")];
        file.file
            .read_exact_at(&mut buffer, at)
            .map_err(|error| io_error(id, &error))?;
        Ok(buffer.into())
    }

    /// See [`super::Wal::verify_segment`].
    pub(crate) fn verify_segment(&self, segment: u64) -> Result<(), WalError> {
        let no_segment = || WalError::NoSegment { segment };
        let id = u32::try_from(segment).map_err(|_| no_segment())?;
        let (file, used) = {
            let log = self.log_read();
            let state = log.segment(id).ok_or_else(no_segment)?;
            if state.verified {
                return Ok(());
            }
            (state.segment.clone(), state.bytes_used)
        };
        let used = usize::try_from(used).expect("segments are at most 1 GiB");
        let mut buffer = vec![0; used];
        file.file
            .read_exact_at(&mut buffer, 0)
            .map_err(|error| io_error(id, &error))?;
        let corrupt = |at: usize| WalError::Corrupt {
            segment,
            at: u64::from(position(at)),
        };
        let scan = scan_segment(&buffer, |_, _| Ok(())).map_err(|damage| corrupt(damage.at))?;
        if scan.end != used {
            return Err(corrupt(scan.end));
        }
        self.log_write().verified(id);
        Ok(())
    }

    pub(crate) fn release_segment(&self, segment: u64) -> Result<bool, WalError> {
        let id = u32::try_from(segment).map_err(|_| WalError::NoSegment { segment })?;
        let (taken, segments) = {
            let mut log = self.log_write();
            let taken = log.take_unneeded(id)?;
            (taken, log.segment_infos().len())
        };
        let Some(taken) = taken else { return Ok(false) };
        let oversize = taken.oversize || taken.file_bytes != self.pool.segment_bytes;
        let free = self.pool.free_files();
        let room =
            free == 0 || segments + free < usize::try_from(self.options.segments_max).unwrap_or(usize::MAX);
        // Somebody still reads it if there is another owner: then its bytes must not change.
        let path = self.segment_path(id);
        let released = match Arc::try_unwrap(taken) {
            Ok(unshared) if room && !oversize => self.recycle(&path, unshared),
            _ => self.remove(&path),
        };
        released.map_err(|error| io_error(id, &error))?;
        Ok(true)
    }

    fn recycle(&self, path: &Path, segment: Segment) -> io::Result<()> {
        let free = self.pool.new_path();
        self.vfs.rename(path, &free)?;
        failpoint::hit("release-renamed");
        // Before anybody writes another segment's header into it.
        self.vfs.sync_dir(&self.dir)?;
        failpoint::hit("release-dir-synced");
        self.pool.put(FreeFile {
            path: free,
            file: segment.file,
        });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.vfs.remove(path)?;
        failpoint::hit("release-removed");
        self.vfs.sync_dir(&self.dir)
    }

    pub(crate) fn stats(&self) -> WalStats {
        let failed = self.queue().failed.is_some();
        let (segments, (entries, cached_bytes, segment_bytes)) = {
            let log = self.log_read();
            (log.segment_infos().len(), log.totals())
        };
        let segments_free = u64::try_from(self.pool.free_files()).expect("a length fits u64");
        WalStats {
            segments: u64::try_from(segments).expect("a length fits u64"),
            segments_free,
            file_bytes: segment_bytes + segments_free * self.pool.segment_bytes,
            entries,
            cached_bytes,
            failed,
            ..self.counters.stats()
        }
    }

    pub(crate) fn sync(&self, segment: &Segment) -> io::Result<()> {
        let started = std::time::Instant::now();
        segment.file.sync_data()?;
        self.counters.synced(started.elapsed());
        Ok(())
    }

    pub(crate) fn count_drain(&self, bytes: usize, entries: usize) {
        self.counters.drains.fetch_add(1, Ordering::Relaxed);
        let add = |counter: &std::sync::atomic::AtomicU64, more: usize| {
            counter.fetch_add(u64::try_from(more).expect("a length fits u64"), Ordering::Relaxed);
        };
        add(&self.counters.bytes_written, bytes);
        add(&self.counters.entries_written, entries);
    }
}

/// Whether a slice of `wanted` bytes is read with all of its body, whose checksum covers only the whole.
fn worth_checking(body_bytes: u32, wanted: u32) -> bool {
    body_bytes <= CHECKED_BODY_BYTES_MAX || body_bytes / CHECKED_AMPLIFICATION_MAX <= wanted
}

/// Reads a record of which it is known where its body is and how long, and checks its own checksums.
fn read_record(segment: &Segment, body_at: u32, body_bytes: u32) -> Result<(RecordHeader, Bytes), WalError> {
    let header_bytes = u32::try_from(RECORD_HEADER_BYTES).expect("a small constant");
    let corrupt = || WalError::Corrupt {
        segment: u64::from(segment.id),
        at: u64::from(body_at),
    };
    let at = body_at.checked_sub(header_bytes).ok_or_else(corrupt)?;
    let bytes = usize::try_from(body_bytes).expect("usize has at least 32 bits");
    let mut buffer = vec![0; RECORD_HEADER_BYTES + bytes];
    segment
        .file
        .read_exact_at(&mut buffer, u64::from(at))
        .map_err(|error| io_error(segment.id, &error))?;
    let record = RecordHeader::decode(&buffer, segment.life).ok_or_else(corrupt)?;
    let body = Bytes::from(buffer).slice(RECORD_HEADER_BYTES..);
    let same = record.kind == RecordKind::Entry
        && record.body_bytes == body_bytes
        && record.body_crc == crc32fast::hash(&body);
    if same { Ok((record, body)) } else { Err(corrupt()) }
}

/// Reads an entry from disk and checks that it is the one.
fn read_cold(partition: PartitionId, index: u64, row: &Row, segment: &Segment) -> Result<WalEntry, WalError> {
    let (record, body) = read_record(segment, row.at, row.bytes)?;
    if record.partition == partition && record.position() == (index, row.term, row.leader) {
        Ok(entry_of(index, row, body))
    } else {
        Err(WalError::Corrupt {
            segment: u64::from(segment.id),
            at: u64::from(row.at),
        })
    }
}

pub(crate) fn io_error(segment: u32, error: &io::Error) -> WalError {
    WalError::Io {
        segment: u64::from(segment),
        reason: error.to_string().into(),
    }
}
