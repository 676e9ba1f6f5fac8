//! Where the payloads of one partition are, and how to read them.
//!
//! A payload is written once, in its log entry; the store only remembers where. Before a WAL segment is recycled, what
//! is still alive in it is copied to a backlog file ([`PayloadStore::evacuate`]); files that are mostly dead are written
//! anew ([`PayloadStore::compact`]). What is alive the partition's machine says: everything from a lane's head on, and
//! pinned messages (those of dead letters) wherever they are.
//!
//! **In memory**: one run of 32 bytes per push that is still in the WAL, and per block of up to 64 KiB in backlog files.
//! Beyond [`PayloadOptions::runs_in_memory_max`] the runs of whole backlog files go to the row store, oldest first; they
//! can be rebuilt from the files' own indexes.
//!
//! **Invariants.** A location changes only after its new file and that file's name are durable; an old file goes only
//! after every location has changed. A reader that overlaps such a change notices and looks up again.
//!
//! **Deliberately absent**: any knowledge of queues, groups or cursors, and durable state of its own beside the backlog
//! files: locations in the WAL are part of the partition's checkpoint ([`PayloadCut`]), and later ones come again when
//! the log is replayed.

mod cut;
mod evacuate;
mod export;
mod index;
mod measure;
mod read;
mod restore;
mod runs;
mod scrub;
mod spill;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use laneway_core::ids::{LaneId, Offset, PartitionId};
use laneway_core::time::WallTime;

use crate::backlog::{BACKLOG_ENDING, BacklogFile};
use crate::damage::Damage;
use crate::rows::{RowStore, RowStoreError};
use crate::sealed::{self, FileError, number_of};
use crate::vfs::Vfs;
use crate::wal::{Wal, WalError};

pub use cut::PayloadCut;
pub(crate) use cut::{CutRun, CutSection, WalPosition};
pub use evacuate::{CompactReport, EvacuateReport};
pub use export::ExportReport;
use index::{Index, PlaceKind};
use read::OpenFiles;

/// Limits of a payload store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadOptions {
    /// Runs of backlog files kept in memory, beyond which those of whole files go to the row store. Default 500 000 (about
    /// 20 MB). Runs that are still in the WAL are always in memory; their number is bounded by its size.
    pub runs_in_memory_max: usize,
    /// Most bytes of frames that are gathered into one block of a backlog file; a longer message has one alone. Default 64 KiB.
    pub block_bytes_max: usize,
    /// Compaction gathers no more than this into one file, in bytes. Default 64 MiB.
    pub backlog_file_bytes_max: u64,
}

impl Default for PayloadOptions {
    fn default() -> Self {
        Self {
            runs_in_memory_max: 500_000,
            block_bytes_max: 64 * 1024,
            backlog_file_bytes_max: 64 * 1024 * 1024,
        }
    }
}

/// A block of frames inside a WAL segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalBlock {
    /// The segment.
    pub segment: u64,
    /// Position of the block's first byte in it; below 4 GiB.
    pub at: u64,
    /// Length in bytes.
    pub bytes: u32,
}

/// A message as it was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// Its offset.
    pub offset: Offset,
    /// Its wall stamp.
    pub wall: WallTime,
    /// Its transaction id; empty if the client gave none.
    pub transaction_id: String,
    /// Its payload, a slice of the block that it lies in.
    pub payload: Bytes,
}

/// What identifies a stored message, without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredHeader {
    /// Its offset.
    pub offset: Offset,
    /// Its wall stamp.
    pub wall: WallTime,
    /// Its transaction id; empty if the client gave none.
    pub transaction_id: String,
}

/// What a store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayloadStats {
    /// Backlog files.
    pub backlog_files: u64,
    /// Their length in bytes.
    pub backlog_bytes: u64,
    /// Bytes of them that are alive, by whole blocks.
    pub backlog_live_bytes: u64,
    /// Live bytes in WAL segments.
    pub wal_live_bytes: u64,
    /// Lanes with runs in memory.
    pub lanes_in_memory: u64,
    /// Runs in memory.
    pub runs_in_memory: u64,
    /// Runs in the row store.
    pub runs_in_rows: u64,
}

/// A payload could not be read, or files could not be written.
#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    /// A backlog file failed or is damaged.
    #[error(transparent)]
    File(#[from] FileError),
    /// The WAL could not be read.
    #[error("a payload could not be read from the log: {0}")]
    Wal(#[from] WalError),
    /// The row store failed; its rows are rebuilt with the next evacuation or compaction.
    #[error(transparent)]
    Rows(#[from] RowStoreError),
    /// The row store lost rows; they are rebuilt with the next evacuation or compaction.
    #[error("payload locations of lane {lane} are missing from offset {offset} on, until they are rebuilt")]
    RowsMissing {
        /// The lane.
        lane: LaneId,
        /// The first offset without a location.
        offset: Offset,
    },
    /// A WAL segment does not hold the frames that were stored there.
    #[error(
        "segment {segment} is damaged at byte {at}: the payloads of lane {lane} from offset {offset} on are malformed"
    )]
    Damaged {
        /// The segment.
        segment: u64,
        /// Position in it.
        at: u64,
        /// The lane.
        lane: LaneId,
        /// The first message of the run.
        offset: Offset,
    },
    /// [`PayloadStore::restore`] must come first.
    #[error("the payload store has files of an earlier run and was not told yet what of them is alive")]
    NotRestored,
}

/// A payload store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PayloadOpenError {
    /// A file failed or is damaged.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The payloads of one partition. A cheap handle; calls block.
///
/// [`stored`](Self::stored), [`head_moved`](Self::head_moved), [`pinned`](Self::pinned), [`unpinned`](Self::unpinned) and
/// [`lane_dropped`](Self::lane_dropped) touch memory only and are meant for the thread that applies entries, in log
/// order. [`evacuate`](Self::evacuate) and [`compact`](Self::compact) are for one maintenance thread; reads for any.
#[derive(Clone)]
pub struct PayloadStore {
    shared: Arc<Shared>,
}

struct Shared {
    vfs: Arc<dyn Vfs>,
    wal: Wal,
    rows: Arc<dyn RowStore>,
    dir: PathBuf,
    partition: PartitionId,
    options: PayloadOptions,
    index: Mutex<Index>,
    maintenance: Mutex<Maintenance>,
    /// Generation of the row store in which this partition's rows were written.
    rows_generation: AtomicU64,
    open_files: OpenFiles,
    damage: Damage,
}

/// What only the maintenance thread needs. Its lock is taken before the index's, never after.
#[derive(Debug)]
struct Maintenance {
    /// Number of the next backlog file.
    next_file: u64,
    restored: bool,
    rows: spill::RowsState,
}

impl fmt::Debug for PayloadStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadStore")
            .field("partition", &self.shared.partition)
            .field("dir", &self.shared.dir)
            .finish_non_exhaustive()
    }
}

impl PayloadStore {
    /// Opens the store of `partition` in `dir`, which is made if missing and belongs to it: no other store may work on
    /// it at the same time.
    ///
    /// Interrupted and replaced files are deleted. If complete ones are found, [`PayloadStore::restore`] must be called
    /// before anything else. `rows` is shared by all partitions of the node; rows of this partition in it are dropped.
    /// Errors: a file under its final name is not whole, or the file system refused.
    pub fn open(
        vfs: Arc<dyn Vfs>,
        wal: Wal,
        rows: Arc<dyn RowStore>,
        dir: PathBuf,
        partition: PartitionId,
        options: PayloadOptions,
    ) -> Result<Self, PayloadOpenError> {
        vfs.create_dir_all(&dir)
            .map_err(|error| FileError::io(&dir, error))?;
        let files = find_files(&*vfs, &dir, partition)?;
        let mut index = Index::default();
        for file in &files {
            index.slot_of(PlaceKind::File(file.number), file.bytes);
        }
        let maintenance = Maintenance {
            next_file: files.last().map_or(1, |file| file.number + 1),
            restored: files.is_empty(),
            rows: spill::RowsState::default(),
        };
        let shared = Shared {
            vfs,
            wal,
            rows_generation: AtomicU64::new(rows.generation()),
            rows,
            dir,
            partition,
            options,
            index: Mutex::new(index),
            maintenance: Mutex::new(maintenance),
            open_files: OpenFiles::default(),
            damage: Damage::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Notes that `count` messages from `offset_first` on, all stamped `wall`, are the frames of `block`.
    ///
    /// Doing it again, as a replay of the log does, changes nothing. Durability: none; the log has it.
    pub fn stored(&self, lane: LaneId, offset_first: Offset, count: u32, wall: WallTime, block: WalBlock) {
        self.index().stored(lane, offset_first, count, wall, block);
    }

    /// Notes that messages below `head` are deleted, but for pinned ones.
    pub fn head_moved(&self, lane: LaneId, head: Offset) {
        self.index().head_moved(lane, head);
    }

    /// Notes that a dead letter holds a message that is still there: it outlives the lane's head.
    pub fn pinned(&self, lane: LaneId, offset: Offset) {
        self.index().pinned(lane, offset);
    }

    /// Notes that no dead letter holds the message any more.
    pub fn unpinned(&self, lane: LaneId, offset: Offset) {
        self.index().unpinned(lane, offset);
    }

    /// Notes that the lane is gone with all its messages, pinned ones too.
    pub fn lane_dropped(&self, lane: LaneId) {
        self.index().lane_dropped(lane);
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.shared
            .index
            .lock()
            .expect("the index is consistent: nobody panicked while changing it")
    }

    fn maintenance(&self) -> MutexGuard<'_, Maintenance> {
        self.shared
            .maintenance
            .lock()
            .expect("nobody panicked during maintenance")
    }

    fn path_of(&self, file: u64) -> PathBuf {
        self.shared.dir.join(sealed::numbered_name(file, BACKLOG_ENDING))
    }
}

/// A complete backlog file.
#[derive(Clone, Copy, Debug)]
struct FoundFile {
    number: u64,
    bytes: u64,
}

/// Finds all complete backlog files, by number; deletes interrupted ones and those that a complete one replaces.
fn find_files(vfs: &dyn Vfs, dir: &Path, partition: PartitionId) -> Result<Vec<FoundFile>, FileError> {
    let mut files = Vec::new();
    let mut replaced = BTreeSet::new();
    for name in sealed::list_sealed(vfs, dir)? {
        if let Some(number) = number_of(&name, BACKLOG_ENDING) {
            let file = BacklogFile::open(vfs, &dir.join(&name), partition, number)?;
            files.push(FoundFile {
                number,
                bytes: file.bytes,
            });
            replaced.extend(file.replaces);
        }
    }
    for file in files.iter().filter(|file| replaced.contains(&file.number)) {
        sealed::remove(vfs, &dir.join(sealed::numbered_name(file.number, BACKLOG_ENDING)))?;
    }
    files.retain(|file| !replaced.contains(&file.number));
    Ok(files)
}
