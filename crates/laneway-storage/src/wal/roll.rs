//! New segments.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;
use laneway_core::ids::PartitionId;

use super::WalError;
use super::format::{
    Facts, RECORD_HEADER_BYTES, RecordHeader, RecordKind, SEGMENT_HEADER_BYTES, SegmentHeader, encode_state,
};
use super::log::Segment;
use super::newest::Named;
use super::pool::{FreeFile, UNFINISHED_SUFFIX};
use super::shared::Shared;
use crate::failpoint;
use crate::vfs::is_full;

/// Room at the end of each segment that only small records may use, so that votes, truncations and purges go on when
/// the disk is full.
const RESERVE_BYTES_MAX: u64 = 256 * 1024;

/// Why placing an item ended early.
pub(crate) enum Stop {
    /// There is no room for another segment.
    Full,
    Failed(WalError),
}

/// Makes segment `id` from a free file, or from one of its own size for a record of `oversize` bytes. Its header and state
/// record are synced before it gets its name, the name before the file `newest` says so, and that before it is used.
/// Returns it and where records go on.
pub(crate) fn create_segment(
    shared: &Shared,
    id: u32,
    previous: Option<(u32, usize)>,
    number: u64,
    facts: &BTreeMap<PartitionId, Facts>,
    oversize: Option<usize>,
) -> Result<(Segment, usize), Stop> {
    let state = Bytes::from(encode_state(facts.iter()));
    let end = SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES + state.len();
    let reserve = reserve_bytes(shared.options.segment_bytes);
    let wanted = u64::from(position(end + oversize.unwrap_or(0))) + reserve;
    let oversize = oversize.is_some() || wanted > shared.options.segment_bytes;
    let full = |error: io::Error| {
        if is_full(&error) {
            Stop::Full
        } else {
            Stop::Failed(failed(&error.to_string()))
        }
    };
    let free = match shared.pool.take() {
        _ if oversize => create_oversize(shared, wanted).map_err(full)?,
        Some(free) => free,
        None => shared.pool.create().map_err(full)?,
    };
    let file_bytes = if oversize {
        wanted
    } else {
        shared.options.segment_bytes
    };
    // Odd, so that no search for it begins in zeros.
    let life = shared.vfs.nonce() | 1;
    let header = SegmentHeader {
        segment: u64::from(id),
        life,
        file_bytes,
        first_drain: number,
        previous: previous.map_or(u32::MAX, |(id, _)| id),
        previous_end: previous.map_or(0, |(_, end)| position(end)),
        named: true,
    };
    let record = RecordHeader::new(RecordKind::State, PartitionId(0), &state);
    let record = RecordHeader {
        life,
        drain: number,
        drain_at: position(SEGMENT_HEADER_BYTES),
        ..record
    };
    let segment = Segment {
        id,
        file: free.file.clone(),
        life,
        file_bytes,
        oversize,
    };
    let named = name_segment(
        shared,
        &segment,
        &free,
        &[&header.encode(), &record.encode(), &state],
    );
    named.map_err(|error| match error {
        NameError::Before(error) if is_full(&error) => {
            if !oversize {
                shared.pool.put(free);
            }
            Stop::Full
        }
        NameError::Before(error) | NameError::Sync(error) => {
            Stop::Failed(failed(&format!("start of log segment {id}: {error}")))
        }
    })?;
    shared.count_drain(end, 0);
    Ok((segment, end))
}

enum NameError {
    /// Nothing is lost: the file is still a free one.
    Before(io::Error),
    /// A sync failed: final.
    Sync(io::Error),
}

fn name_segment(
    shared: &Shared,
    segment: &Segment,
    free: &FreeFile,
    head: &[&[u8]],
) -> Result<(), NameError> {
    segment
        .file
        .write_vectored_at(head, 0)
        .map_err(NameError::Before)?;
    failpoint::hit("segment-header-written");
    shared.sync(segment).map_err(NameError::Sync)?;
    failpoint::hit("segment-header-synced");
    shared
        .vfs
        .rename(&free.path, &shared.segment_path(segment.id))
        .map_err(NameError::Before)?;
    failpoint::hit("segment-renamed");
    shared.vfs.sync_dir(&shared.dir).map_err(NameError::Sync)?;
    failpoint::hit("segment-dir-synced");
    // Not before: what it names must be there.
    shared.newest.write(Named::of(segment)).map_err(NameError::Sync)
}

/// A file of its own size under an unfinished name: if the process dies, the next start removes it.
fn create_oversize(shared: &Shared, bytes: u64) -> io::Result<FreeFile> {
    let path = shared.pool.new_path().with_extension(&UNFINISHED_SUFFIX[1..]);
    let file = shared.vfs.create(&path)?;
    if let Err(error) = file.preallocate(bytes) {
        // Gives the space back; if that fails too, the next start does it.
        let _ = shared.vfs.remove(&path);
        return Err(error);
    }
    Ok(FreeFile { path, file })
}

/// Length of the part of a segment that only small records may use.
pub(crate) fn reserve_bytes(segment_bytes: u64) -> u64 {
    (segment_bytes / 16).min(RESERVE_BYTES_MAX)
}

/// Where the file of a segment ends.
pub(crate) fn file_end(segment: &Segment) -> usize {
    usize::try_from(segment.file_bytes).expect("segments are at most 1 GiB")
}

/// A file position in a segment: they all fit, as no segment is larger than its bounds allow.
pub(crate) fn position(at: usize) -> u32 {
    u32::try_from(at).expect("segments are at most 1 GiB")
}

/// The final error.
pub(crate) fn failed(reason: &str) -> WalError {
    WalError::Failed {
        reason: reason.into(),
    }
}
