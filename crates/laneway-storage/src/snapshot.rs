//! Snapshots: what one replica hands to another, as a folder of immutable files.
//!
//! The sender makes a folder `outgoing-<id>` with a checkpoint of its own, links to dedup and backlog files, and copies of the
//! payloads that are only in the log ([`OutgoingSnapshot`]). The links are the pins: what is linked stays readable whatever
//! compaction removes. A folder counts once its file `offer` is there.
//!
//! The receiver gathers the same files in a folder `snapshot-<id>` ([`IncomingSnapshot`]), from where it stopped if it was
//! interrupted. When all are checked, replacing the file `current` by rename makes that folder the replica's
//! ([`Generation::switch`]): that is the one atomic step. Without that file a replica lives in its base folder itself.
//!
//! **States after a crash.** `current` names the old generation, or is not there: the switch did not happen, what was received is
//! gone on with. `current` names the new one and says where its log restarts: the switch happened, the log may still hold
//! entries from before; whoever opens the replica makes it restart there and then calls [`Generation::settle`]. `current` says no
//! such thing: all done, but for old files, which settling removes again. There is no state in which files of two
//! generations are mixed.
//!
//! **Deliberately absent**: the transfer, when to make a snapshot, and how long to keep it.

mod generation;
mod incoming;
mod offer;
mod outgoing;

use std::io;
use std::path::Path;

pub use generation::{Generation, check_current_bytes};
pub use incoming::IncomingSnapshot;
pub use offer::{SNAPSHOT_FILES_MAX, SnapshotFile, SnapshotOffer};
pub use outgoing::OutgoingSnapshot;

use crate::backlog::BACKLOG_ENDING;
use crate::checkpoint::{CHECKPOINT_ENDING, MANIFEST_NAME};
use crate::dedup::DEDUP_ENDING;
use crate::sealed::{FileError, number_of};
use crate::vfs::Vfs;

/// Bytes read or copied at a time.
const STEP_BYTES: usize = 1 << 20;

/// Name of the file that lists what is in a snapshot's folder.
const OFFER_NAME: &str = "offer";

/// Whether a replica's own folder may hold a file of this name: the manifest, or a numbered file.
fn is_replica_file(name: &str) -> bool {
    let numbered = [CHECKPOINT_ENDING, DEDUP_ENDING, BACKLOG_ENDING];
    name == MANIFEST_NAME || numbered.iter().any(|ending| number_of(name, ending).is_some())
}

/// Gives a file a second name in another folder, or copies it where the file system has no such thing.
pub(crate) fn link(vfs: &dyn Vfs, from: &Path, to: &Path) -> Result<(), FileError> {
    match vfs.hard_link(from, to) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied | io::ErrorKind::TooManyLinks
            ) =>
        {
            copy(vfs, from, to)
        }
        other => other.map_err(|error| FileError::io(to, error)),
    }
}

fn copy(vfs: &dyn Vfs, from: &Path, to: &Path) -> Result<(), FileError> {
    let source = vfs.open_read(from).map_err(|error| FileError::io(from, error))?;
    let writing = || -> io::Result<()> {
        let target = vfs.create(to)?;
        let mut buffer = vec![0; STEP_BYTES];
        let mut at = 0;
        loop {
            let read = source.read_at(&mut buffer, at)?;
            if read == 0 {
                return target.sync_data();
            }
            target.write_at(&buffer[..read], at)?;
            at += u64::try_from(read).expect("a length fits u64");
        }
    };
    writing().map_err(|error| FileError::io(to, error))
}

/// Length and xxh3-64 of a file.
fn hash_file(vfs: &dyn Vfs, path: &Path) -> Result<(u64, u64), FileError> {
    let hashing = || -> io::Result<(u64, u64)> {
        let file = vfs.open_read(path)?;
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        let mut buffer = vec![0; STEP_BYTES];
        let mut at = 0;
        loop {
            let read = file.read_at(&mut buffer, at)?;
            if read == 0 {
                return Ok((at, hash.digest()));
            }
            hash.update(&buffer[..read]);
            at += u64::try_from(read).expect("a length fits u64");
        }
    };
    hashing().map_err(|error| FileError::io(path, error))
}
