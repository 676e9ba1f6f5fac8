//! Opens a log: reads all segments, cuts a torn last drain off, refuses what no crash explains.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, RwLock};

use laneway_core::ids::PartitionId;

use super::format::{Facts, RecordKind, SEGMENT_HEADER_BYTES, SegmentHeader};
use super::log::{LogState, PartitionLog, Segment};
use super::newest::{Named, Newest};
use super::pool::{FREE_SUFFIX, FreeFile, Pool, UNFINISHED_SUFFIX};
use super::queue::Queue;
use super::reader::{SegmentScan, scan_segment};
use super::replay::Replay;
use super::roll::{Stop, create_segment, position};
use super::shared::{Shared, segment_id, segment_name};
use super::stats::Counters;
use super::writer::WalWriter;
use super::{
    RecoveredPartition, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, WalOpenError, WalOptions, WalRecovery,
};
use crate::failpoint;
use crate::vfs::{Vfs, VfsFile, VfsLock};

/// No segment is longer: one body of the largest size, and room for the rest.
const FILE_BYTES_MAX: u64 = 2 * SEGMENT_BYTES_MAX;

const LOCK_NAME: &str = "lock";

/// A segment as read.
struct ReadSegment {
    segment: Segment,
    header: SegmentHeader,
    scan: SegmentScan,
    /// Position and length of the entries' bodies.
    bodies: Vec<(u32, u32)>,
}

pub(crate) fn open(
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    options: WalOptions,
) -> Result<(Arc<Shared>, WalWriter, WalRecovery), WalOpenError> {
    let bytes = options.segment_bytes;
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes) {
        return Err(WalOpenError::SegmentBytes { bytes });
    }
    vfs.create_dir_all(&dir)
        .map_err(|source| io_error(&dir, source))?;
    let lock = lock(vfs.as_ref(), &dir)?;
    let names = vfs.list(&dir).map_err(|source| io_error(&dir, source))?;
    let mut replay = Replay::default();
    let mut segments: Vec<ReadSegment> = Vec::new();
    let mut torn_bytes_cut = 0;
    let mut ids: Vec<u64> = names.iter().filter_map(|name| segment_id(name)).collect();
    ids.sort_unstable();
    let newest = Newest::open(vfs.as_ref(), &dir)?;
    check_newest(&dir, newest.as_ref(), &ids)?;
    for (position, &id) in ids.iter().enumerate() {
        let is_last = position + 1 == ids.len();
        let read = read_segment(vfs.as_ref(), &dir, id, is_last, segments.last(), &mut replay)?;
        check_named(&dir, newest.as_ref(), &read)?;
        if is_last {
            torn_bytes_cut = repair_tail(&dir, &read)?;
        }
        segments.push(read);
    }
    replay.check().map_err(|missing| WalOpenError::MissingEntries {
        dir: dir.clone(),
        partition: missing.partition,
        first: missing.first,
        last: missing.last,
    })?;
    vfs.sync_dir(&dir).map_err(|source| io_error(&dir, source))?;
    failpoint::hit("recovery-synced");
    let pool = open_pool(&vfs, &dir, &names, bytes)?;
    let last = segments.last().map(|read| Named::of(&read.segment));
    let newest = name_last(vfs.as_ref(), &dir, newest, last)?;
    let shared = Arc::new(Shared {
        vfs,
        dir,
        options,
        pool,
        newest,
        counters: Counters::default(),
        queue: Mutex::new(Queue::default()),
        wake: Condvar::new(),
        log: RwLock::new(LogState::new(options.tail_cache_bytes)),
        small: Mutex::default(),
        lock: Mutex::new(Some(lock)),
    });
    start(shared, segments, replay, torn_bytes_cut)
}

/// See [`super::Wal::exists`].
pub(crate) fn exists(vfs: &dyn Vfs, dir: &Path) -> io::Result<bool> {
    if !vfs.exists(dir)? {
        return Ok(false);
    }
    let segments = vfs.list(dir)?.iter().any(|name| segment_id(name).is_some());
    Ok(segments || vfs.exists(&Newest::path(dir))?)
}

fn lock(vfs: &dyn Vfs, dir: &Path) -> Result<Box<dyn VfsLock>, WalOpenError> {
    let path = dir.join(LOCK_NAME);
    vfs.lock_exclusive(&path).map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => WalOpenError::Locked { path },
        _ => io_error(&path, source),
    })
}

/// Reads one segment into `replay`, and checks that it belongs where it stands.
fn read_segment(
    vfs: &dyn Vfs,
    dir: &Path,
    id: u64,
    is_last: bool,
    before: Option<&ReadSegment>,
    replay: &mut Replay,
) -> Result<ReadSegment, WalOpenError> {
    let path = dir.join(segment_name(id));
    let damaged = |at: usize, what: &str| WalOpenError::Damaged {
        file: path.clone(),
        at: u64::try_from(at).expect("a length fits u64"),
        what: what.to_owned(),
    };
    let file = vfs.open(&path).map_err(|source| io_error(&path, source))?;
    if file.len().map_err(|source| io_error(&path, source))? > FILE_BYTES_MAX {
        return Err(damaged(0, "the file is longer than any segment"));
    }
    let bytes = read_all(file.as_ref()).map_err(|source| io_error(&path, source))?;
    let header = SegmentHeader::decode(&bytes).ok_or_else(|| damaged(0, "its header cannot be read"))?;
    let number = u32::try_from(id)
        .ok()
        .filter(|&id| id < u32::MAX)
        .ok_or_else(|| damaged(0, "its number is too high"))?;
    if header.segment != id {
        return Err(damaged(0, "it is another segment than its name says"));
    }
    let length = u64::try_from(bytes.len()).expect("a length fits u64");
    if header.file_bytes != length || u32::try_from(length).is_err() {
        return Err(damaged(
            bytes.len(),
            "the file has another length than its header says",
        ));
    }
    if let Some(before) = before {
        check_link(dir, before, &header)?;
    }
    let mut bodies = Vec::new();
    let scan = scan_segment(&bytes, |record, body| {
        if record.kind == RecordKind::Entry {
            bodies.push((position(body.start), record.body_bytes));
        }
        replay.apply(record, &bytes[body.clone()], number, body.start)
    });
    let scan = scan.map_err(|damage| damaged(damage.at, damage.what))?;
    if !is_last && scan.torn_end > scan.end {
        return Err(damaged(scan.end, "bad bytes, and a later segment behind them"));
    }
    let oversize = false;
    let segment = Segment {
        id: number,
        file,
        life: header.life,
        file_bytes: length,
        oversize,
    };
    Ok(ReadSegment {
        segment,
        header,
        scan,
        bodies,
    })
}

/// The segment that was the newest must be there. A newer one may be: the process died while it moved on to that.
fn check_newest(dir: &Path, newest: Option<&Newest>, ids: &[u64]) -> Result<(), WalOpenError> {
    let named = newest.and_then(|newest| newest.found).unwrap_or(Named::NONE);
    if named == Named::NONE || ids.contains(&named.segment) {
        return Ok(());
    }
    Err(WalOpenError::NewestSegmentMissing {
        file: dir.join(segment_name(named.segment)),
        newest: Newest::path(dir),
    })
}

/// What a segment's header and the file `newest` say of each other. Only segments older than that file exist without it.
fn check_named(dir: &Path, newest: Option<&Newest>, read: &ReadSegment) -> Result<(), WalOpenError> {
    let Some(newest) = newest else {
        let path = Newest::path(dir);
        return if read.header.named {
            Err(WalOpenError::NewestMissing { newest: path })
        } else {
            Ok(())
        };
    };
    let own = Named::of(&read.segment);
    match newest.found {
        Some(named) if named.segment == own.segment && named != own => Err(WalOpenError::Damaged {
            file: dir.join(segment_name(own.segment)),
            at: 0,
            what: "it is not the file of this name that was written last".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Brings the file `newest` up to date before anything is written to the `last` segment. It is written even if it says
/// the same, for what it says may never have been synced.
fn name_last(
    vfs: &dyn Vfs,
    dir: &Path,
    newest: Option<Newest>,
    last: Option<Named>,
) -> Result<Newest, WalOpenError> {
    let Some(newest) = newest else {
        return Newest::create(vfs, dir, last);
    };
    if let Some(last) = last {
        newest
            .write(last)
            .map_err(|source| io_error(&newest.path, source))?;
    }
    Ok(newest)
}

/// A segment's header says where the one before it ended: if that was not found there, it lost records.
fn check_link(dir: &Path, before: &ReadSegment, header: &SegmentHeader) -> Result<(), WalOpenError> {
    if header.previous != before.segment.id {
        return Ok(());
    }
    let (end, wanted) = (
        u64::try_from(before.scan.end).expect("a length fits u64"),
        u64::from(header.previous_end),
    );
    if end == wanted && header.first_drain == before.scan.last_drain.wrapping_add(1) {
        return Ok(());
    }
    Err(WalOpenError::Damaged {
        file: dir.join(segment_name(u64::from(before.segment.id))),
        at: end,
        what: format!("its records end here, and should end at {wanted}"),
    })
}

/// Makes what was found of the last segment durable, and nothing else readable: voids the traces of a torn drain, and
/// writes the last whole one again. It may never have been synced, and after a failed sync the pages count as clean, so
/// that a sync alone would not write them.
fn repair_tail(dir: &Path, read: &ReadSegment) -> Result<u64, WalOpenError> {
    let path = dir.join(segment_name(u64::from(read.segment.id)));
    let scan = &read.scan;
    let repair = || -> io::Result<()> {
        let file = read.segment.file.as_ref();
        let first = scan.last_drain_at == SEGMENT_HEADER_BYTES;
        let from = if first { 0 } else { scan.last_drain_at };
        let mut drain = vec![0; scan.end - from];
        let from = u64::try_from(from).expect("a length fits u64");
        let end = u64::try_from(scan.end).expect("a length fits u64");
        file.read_exact_at(&mut drain, from)?;
        file.write_at(&drain, from)?;
        failpoint::hit("recovery-rewritten");
        file.write_zeros(end, u64::try_from(scan.torn_end).expect("a length fits u64"))?;
        failpoint::hit("recovery-zeroed");
        file.sync_data()
    };
    repair().map_err(|source| io_error(&path, source))?;
    Ok(u64::try_from(scan.torn_end - scan.end).expect("a length fits u64"))
}

/// Finds the free files, and removes what a crash left unfinished.
fn open_pool(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    names: &[String],
    segment_bytes: u64,
) -> Result<Pool, WalOpenError> {
    let mut free = Vec::new();
    let mut next_name = 0;
    for name in names {
        let path = dir.join(name);
        let error = |source| io_error(&path, source);
        let unfinished = name.ends_with(UNFINISHED_SUFFIX);
        let Some(stem) = name
            .strip_suffix(FREE_SUFFIX)
            .or_else(|| name.strip_suffix(UNFINISHED_SUFFIX))
        else {
            continue;
        };
        next_name = next_name.max(stem.parse().unwrap_or(0));
        let file = vfs.open(&path).map_err(error)?;
        if unfinished || file.len().map_err(error)? != segment_bytes {
            vfs.remove(&path).map_err(error)?;
        } else {
            free.push(FreeFile { path, file });
        }
    }
    Ok(Pool::new(
        vfs.clone(),
        dir.to_owned(),
        segment_bytes,
        free,
        next_name,
    ))
}

/// Builds the readers' view and the writer; a new log gets its first segment.
fn start(
    shared: Arc<Shared>,
    segments: Vec<ReadSegment>,
    replay: Replay,
    torn_bytes_cut: u64,
) -> Result<(Arc<Shared>, WalWriter, WalRecovery), WalOpenError> {
    let mut recovery = WalRecovery {
        segments: segments.len(),
        torn_bytes_cut,
        ..WalRecovery::default()
    };
    let mut facts: BTreeMap<PartitionId, Facts> = BTreeMap::new();
    let mut tail = None;
    {
        let mut log = shared.log_write();
        for read in segments {
            let segment = Arc::new(read.segment);
            let used = u64::try_from(read.scan.end).expect("a length fits u64");
            log.put_segment(segment.clone(), used, read.bodies);
            tail = Some((segment, read.scan.end, read.scan.last_drain.wrapping_add(1)));
        }
        for (id, partition) in replay.partitions {
            let own = partition.facts.clone();
            let (first, rows) = partition.into_rows();
            let log_of = PartitionLog::recovered(own.purged, first, rows);
            let (vote, committed, purged) = (own.vote.clone(), own.committed.clone(), own.purged);
            recovery.entries += log_of.entries();
            recovery.partitions.insert(
                id,
                RecoveredPartition {
                    vote,
                    committed,
                    purged,
                    last: log_of.last(),
                },
            );
            log.put_recovered(id, log_of);
            facts.insert(id, own);
        }
    }
    let (active, at, number) = match tail {
        Some(tail) => tail,
        None => first_segment(&shared)?,
    };
    shared.pool.reserve();
    let writer = WalWriter::new(shared.clone(), active, at, number, facts);
    Ok((shared, writer, recovery))
}

fn first_segment(shared: &Shared) -> Result<(Arc<Segment>, usize, u64), WalOpenError> {
    let created = create_segment(shared, 1, None, 1, &BTreeMap::new(), None);
    let (segment, at) = created.map_err(|stop| match stop {
        Stop::Full => WalOpenError::Full {
            dir: shared.dir.clone(),
            bytes: shared.options.segment_bytes,
        },
        Stop::Failed(error) => io_error(&shared.dir, io::Error::other(error)),
    })?;
    let segment = Arc::new(segment);
    shared.log_write().put_segment(
        segment.clone(),
        u64::try_from(at).expect("a length fits u64"),
        Vec::new(),
    );
    Ok((segment, at, 2))
}

fn read_all(file: &dyn VfsFile) -> io::Result<Vec<u8>> {
    let bytes = usize::try_from(file.len()?).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut buffer = vec![0; bytes];
    file.read_exact_at(&mut buffer, 0)?;
    Ok(buffer)
}

fn io_error(path: &Path, source: io::Error) -> WalOpenError {
    WalOpenError::Io {
        path: path.to_owned(),
        source,
    }
}
