//! The write-ahead log of a node: one for all partitions, one writer, one `fdatasync` per drain.
//!
//! Callers queue records and are told when they are durable. A *drain* is everything that is queued when the writer looks:
//! gathered, written, synced, then all its callers are told, in order. The next drain is not written before that, so a
//! crash can only tear the last one, and whatever is torn nobody was told of.
//!
//! Segments are prefilled files of one size, recycled through a pool. Each begins with the small facts of every
//! partition (vote, committed position, purge position, last index), so that a segment holds the only copy of nothing but
//! entries, and can go once those are purged and their payloads are elsewhere. A small file names the newest segment, so
//! that a start notices when files are gone from the end of the log.
//!
//! The view that readers get runs ahead of the disk: a queued entry can be read at once.

mod drain;
mod error;
mod format;
mod fuzz;
mod log;
mod newest;
mod pool;
mod queue;
mod reader;
mod recover;
mod replay;
mod roll;
mod shared;
mod stats;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use laneway_core::ids::PartitionId;

use self::queue::Op;
use self::shared::Shared;
use crate::vfs::Vfs;

pub use error::{WalError, WalOpenError};
pub use fuzz::fuzz_segment;
pub use stats::{LatencyHistogram, WalStats};
pub use writer::{WalStep, WalWriter};

/// Largest body of an entry, in bytes.
pub const ENTRY_BYTES_MAX: u32 = 512 * 1024 * 1024;

/// Largest vote or committed position, in bytes.
pub const SMALL_RECORD_BYTES_MAX: usize = 1024;

/// Bounds of [`WalOptions::segment_bytes`].
pub const SEGMENT_BYTES_MIN: u64 = 16 * 1024;
/// See [`SEGMENT_BYTES_MIN`].
pub const SEGMENT_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Index, term and leader (Raft node id) of an entry.
pub type LogPosition = (u64, u64, u64);

/// Told once, when what was asked is durable or has failed.
pub type Done = Box<dyn FnOnce(Result<(), WalError>) + Send>;

/// How the log is laid out. Checked by [`Wal::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalOptions {
    /// Length of a segment file, in bytes; default 64 MiB. A change applies to new segments.
    pub segment_bytes: u64,
    /// Segment files, free ones included, beyond which a released one is removed instead of kept; default 16.
    pub segments_max: u32,
    /// Bodies of the newest entries kept in memory, in bytes per partition; default 16 MiB. What is queued is kept anyway.
    pub tail_cache_bytes: u64,
}

impl Default for WalOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 64 * 1024 * 1024,
            segments_max: 16,
            tail_cache_bytes: 16 * 1024 * 1024,
        }
    }
}

/// One entry of a partition's log. The log does not look into `body`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalEntry {
    /// Position in the partition's log; without gaps.
    pub index: u64,
    /// Raft's term.
    pub term: u64,
    /// Raft node id of the leader that made it.
    pub leader: u64,
    /// Raft's own: 0 blank, 1 normal, 2 membership.
    pub kind: u8,
    /// At most [`ENTRY_BYTES_MAX`].
    pub body: Bytes,
}

/// Where the body of an entry is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryLocation {
    /// The segment.
    pub segment: u64,
    /// File position of the body's first byte.
    pub body_at: u64,
    /// Length of the body.
    pub body_bytes: u32,
}

/// One segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its number; newer segments have higher ones.
    pub id: u64,
    /// How far it is written.
    pub bytes_used: u64,
    /// Length of the file.
    pub file_bytes: u64,
    /// Whether it holds an entry that no durable record has purged or truncated.
    pub log_needed: bool,
    /// Whether it is the one written to.
    pub active: bool,
}

/// What [`Wal::open`] found of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredPartition {
    /// The last vote saved.
    pub vote: Option<Bytes>,
    /// The last committed position that reached the disk.
    pub committed: Option<Bytes>,
    /// The log begins behind this entry.
    pub purged: Option<LogPosition>,
    /// The last entry, or the purge position if there is none.
    pub last: Option<LogPosition>,
}

/// What [`Wal::open`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalRecovery {
    /// Every partition that the log knows.
    pub partitions: BTreeMap<PartitionId, RecoveredPartition>,
    /// Segment files read.
    pub segments: usize,
    /// Unpurged entries.
    pub entries: u64,
    /// Bytes of the torn last drain that were cut off. Nobody was told that they were durable.
    pub torn_bytes_cut: u64,
}

/// Handle of a node's log. Cheap to clone; the log is closed when the last clone goes.
#[derive(Clone)]
pub struct Wal {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for Wal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wal")
            .field("dir", &self.handle.shared.dir)
            .finish_non_exhaustive()
    }
}

impl Wal {
    /// Opens the log in `dir` (created if missing), reads all of it and starts the writer's thread. Blocks.
    ///
    /// A torn last drain is cut off. Everything found is durable when this returns.
    pub fn open(
        vfs: Arc<dyn Vfs>,
        dir: PathBuf,
        options: WalOptions,
    ) -> Result<(Self, WalRecovery), WalOpenError> {
        let (wal, writer, recovery) = Self::open_stepped(vfs, dir, options)?;
        let io = |source| WalOpenError::Io {
            path: wal.handle.shared.dir.clone(),
            source,
        };
        let shared = wal.handle.shared.clone();
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(run)
        };
        let mut threads = vec![spawn("wal-writer", Box::new(move || writer.run())).map_err(io)?];
        threads.push(spawn("wal-pool", Box::new(move || shared.pool.run())).map_err(io)?);
        *wal.handle.threads.lock().unwrap_or_else(PoisonError::into_inner) = threads;
        Ok((wal, recovery))
    }

    /// Like [`Wal::open`], but the caller drives the writer by [`WalWriter::step`]: for simulation and tests.
    pub fn open_stepped(
        vfs: Arc<dyn Vfs>,
        dir: PathBuf,
        options: WalOptions,
    ) -> Result<(Self, WalWriter, WalRecovery), WalOpenError> {
        let (shared, writer, recovery) = recover::open(vfs, dir, options)?;
        shared.small(|small| small.clone_from(&recovery.partitions));
        let handle = Arc::new(Handle {
            shared,
            threads: Mutex::default(),
        });
        Ok((Self { handle }, writer, recovery))
    }

    /// Queues entries; never waits for the disk.
    ///
    /// `entries` are contiguous and follow the last one (a fresh log begins at 0 or 1). They can be read at once, and
    /// survive power loss once `done` was told `Ok`, on the writer's thread and in the order of the calls. Errors:
    /// [`WalError::Gap`], [`WalError::TooLarge`] and [`WalError::Closed`] are told before this returns and change nothing;
    /// [`WalError::Full`] is definite; [`WalError::Failed`] is final, and the entries may or may not be found later.
    /// No entries at all make a barrier: `done` is told when everything queued before is durable.
    pub fn append(&self, partition: PartitionId, entries: Vec<WalEntry>, done: Done) {
        let bytes_max = usize::try_from(ENTRY_BYTES_MAX).unwrap_or(usize::MAX);
        if let Some(entry) = entries.iter().find(|entry| entry.body.len() > bytes_max) {
            let bytes = entry.body.len();
            return done(Err(WalError::TooLarge { bytes, bytes_max }));
        }
        self.handle.shared.enqueue(done, |queue, log| {
            let ticket = queue.take_tickets(entries.len());
            log.append(partition, &entries, ticket)?;
            Ok(Op::Append {
                partition,
                entries,
                ticket,
            })
        });
    }

    /// Queues a vote; durable once `done` was told `Ok`. The newest one wins.
    pub fn save_vote(&self, partition: PartitionId, vote: Bytes, done: Done) {
        if vote.len() > SMALL_RECORD_BYTES_MAX {
            return done(Err(too_large(&vote)));
        }
        let shared = &self.handle.shared;
        shared.enqueue(done, |_, _| {
            shared.small(|small| small.entry(partition).or_default().vote = Some(vote.clone()));
            Ok(Op::Vote { partition, vote })
        });
    }

    /// Remembers the committed position, to be written along with the next drain that something else causes, behind
    /// whatever was queued before. A crash may lose it. Over-long ones are ignored.
    pub fn save_committed(&self, partition: PartitionId, committed: Bytes) {
        if committed.len() <= SMALL_RECORD_BYTES_MAX {
            self.handle.shared.save_committed(partition, committed);
        }
    }

    /// Voids the entries after `index` (`None`: all): for readers at once, for good once `done` was told `Ok`.
    pub fn truncate_after(&self, partition: PartitionId, index: Option<u64>, done: Done) {
        self.handle.shared.enqueue(done, |_, log| {
            let unneeded = log.truncate_after(partition, index);
            Ok(Op::Truncate {
                partition,
                index,
                unneeded,
            })
        });
    }

    /// Gives up the entries up to `upto`, which may lie beyond the last one (a snapshot was installed): the log goes on
    /// behind it. For readers at once, for good once `done` was told `Ok`. A lower position than the last changes nothing.
    pub fn purge(&self, partition: PartitionId, upto: LogPosition, done: Done) {
        self.handle.shared.enqueue(done, |_, log| {
            let unneeded = log.purge(partition, upto);
            Ok(Op::Purge {
                partition,
                upto,
                unneeded,
            })
        });
    }

    /// Makes the log of a partition go on behind `at`, the last entry of a snapshot that was put in place: entries up to it go, and
    /// later ones stay only if the log holds that very entry, for else they do not follow it. Blocks until it is durable.
    /// Doing it again changes nothing. Nobody else may use this partition's log meanwhile.
    ///
    /// Errors: the log failed, or is closed; nothing of it may be used before a further call succeeded.
    pub fn restart_behind(&self, partition: PartitionId, at: LogPosition) -> Result<(), WalError> {
        let (index, _, _) = at;
        if self
            .purged(partition)
            .is_some_and(|(purged, _, _)| purged >= index)
        {
            return Ok(());
        }
        let entries = self.read(partition, index..index.saturating_add(1), 1)?;
        let held = entries
            .first()
            .is_some_and(|entry| (entry.index, entry.term, entry.leader) == at);
        if !held {
            let kept = self.purged(partition).map(|(purged, _, _)| purged);
            // Written in order: the purge that follows is not durable before this is.
            self.truncate_after(partition, kept, Box::new(|_| ()));
        }
        let (done, purged) = std::sync::mpsc::channel();
        self.purge(partition, at, Box::new(move |result| _ = done.send(result)));
        purged.recv().unwrap_or(Err(WalError::Closed))
    }

    /// Entries of `range` that exist, from the first on, until `bytes_max` bytes of bodies are reached (at least one).
    /// From memory if they are there, else from disk (blocks) and checked.
    ///
    /// Errors: [`WalError::Purged`] if the range begins with purged entries, [`WalError::Corrupt`], [`WalError::Io`].
    pub fn read(
        &self,
        partition: PartitionId,
        range: Range<u64>,
        bytes_max: u64,
    ) -> Result<Vec<WalEntry>, WalError> {
        self.handle.shared.read(partition, range, bytes_max)
    }

    /// What a group of `partition` that starts now, in this process, goes on from: as [`WalRecovery::partitions`], but of
    /// this moment. What is not durable yet will be so before anything queued from now on.
    pub fn recovered(&self, partition: PartitionId) -> RecoveredPartition {
        let kept = self
            .handle
            .shared
            .small(|small| small.get(&partition).cloned().unwrap_or_default());
        RecoveredPartition {
            purged: self.purged(partition),
            last: self.last(partition),
            ..kept
        }
    }

    /// Why the log has failed for good, if it has.
    pub fn failure(&self) -> Option<WalError> {
        self.handle.shared.queue().failed.clone()
    }

    /// The last entry, or the purge position if there is none.
    pub fn last(&self, partition: PartitionId) -> Option<LogPosition> {
        self.handle
            .shared
            .log_read()
            .partition(partition)
            .and_then(log::PartitionLog::last)
    }

    /// Index of the first entry there is, or would be.
    pub fn first_index(&self, partition: PartitionId) -> u64 {
        self.handle
            .shared
            .log_read()
            .partition(partition)
            .map_or(0, log::PartitionLog::first)
    }

    /// The purge position.
    pub fn purged(&self, partition: PartitionId) -> Option<LogPosition> {
        self.handle
            .shared
            .log_read()
            .partition(partition)
            .and_then(|log| log.purged)
    }

    /// Where an entry is. `None` if it is purged or unknown, or queued and not yet durable: ask after its append is done.
    pub fn locate(&self, partition: PartitionId, index: u64) -> Option<EntryLocation> {
        self.handle.shared.log_read().locate(partition, index)
    }

    /// Bytes of a segment: a slice of a cached body, without a copy, or a read from disk (blocks).
    ///
    /// A record's CRC covers its whole body, so a read from disk is checked if the body is at most 64 KiB or not much
    /// longer than what is wanted. Else the caller must do with what the bytes say of themselves, and whoever copies them to
    /// another file calls [`Wal::verify_segment`] first. Errors: [`WalError::Corrupt`], [`WalError::NoSegment`], [`WalError::Io`].
    pub fn read_at(&self, segment: u64, at: u64, bytes: u32) -> Result<Bytes, WalError> {
        self.handle.shared.read_at(segment, at, bytes)
    }

    /// The slice if it is in memory: never blocks.
    pub fn read_at_cached(&self, segment: u64, at: u64, bytes: u32) -> Option<Bytes> {
        self.handle.shared.read_at_cached(segment, at, bytes)
    }

    /// Reads a segment that is no longer written to, and checks every record of it. Blocks, and needs its length of memory.
    /// One that was found sound is not read again: all partitions copy from it at about the same time.
    ///
    /// Errors: [`WalError::Corrupt`] at the first byte that is not what was written; [`WalError::NoSegment`], [`WalError::Io`].
    pub fn verify_segment(&self, id: u64) -> Result<(), WalError> {
        self.handle.shared.verify_segment(id)
    }

    /// Where the file of a segment is, or would be.
    pub fn segment_path(&self, id: u64) -> PathBuf {
        self.handle.shared.dir.join(shared::segment_name(id))
    }

    /// Whether there is anything of a log in `dir`.
    pub fn exists(vfs: &dyn Vfs, dir: &Path) -> io::Result<bool> {
        recover::exists(vfs, dir)
    }

    /// All segments, oldest first.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        self.handle.shared.log_read().segment_infos()
    }

    /// Gives a segment back; the caller promises that no live payload is left in it. Blocks.
    ///
    /// `Ok(false)`: refused, because the log needs it or it is active. Errors: [`WalError::NoSegment`] (given back
    /// before), [`WalError::Io`] (it is out of the log, its file is found again at the next start).
    pub fn release_segment(&self, id: u64) -> Result<bool, WalError> {
        self.handle.shared.release_segment(id)
    }

    /// Makes sure that a spare segment lies ready, writing one if need be (blocks). `false`: there is no room for one.
    /// What is in the active segment's rest is then all the room there is: take no more pushes.
    pub fn reserve(&self) -> bool {
        self.handle.shared.pool.reserve()
    }

    /// Figures since the start.
    pub fn stats(&self) -> WalStats {
        self.handle.shared.stats()
    }

    /// The log's directory.
    pub fn dir(&self) -> &Path {
        &self.handle.shared.dir
    }

    /// Writes what is queued, ends the threads and waits for them. Whatever comes later is told [`WalError::Closed`].
    pub fn close(&self) {
        self.handle.close();
    }
}

impl Handle {
    fn close(&self) {
        self.shared.close();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let mut joined_all = true;
        for thread in threads {
            // The last handle may be dropped by a callback, on the writer's own thread.
            if thread.thread().id() != std::thread::current().id() {
                // A panic of that thread was reported by the panic hook already.
                let _ = thread.join();
            } else {
                joined_all = false;
            }
        }
        if joined_all {
            self.shared.unlock();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

fn too_large(record: &Bytes) -> WalError {
    WalError::TooLarge {
        bytes: record.len(),
        bytes_max: SMALL_RECORD_BYTES_MAX,
    }
}
