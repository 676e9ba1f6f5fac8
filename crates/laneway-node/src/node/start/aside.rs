//! Damaged data of one node of several: it is moved aside, and the node comes back empty to learn everything from the others.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use laneway_storage::vfs::Vfs;
use laneway_storage::wal::WalOpenError;

use super::{LOCK_FILE, StartError};
use crate::options::NodeOptions;
use crate::partition::OpenError;

/// Fewer voters than this, and the others could not do without this node's vote while it learns.
pub(crate) const VOTERS_MIN: usize = 3;

/// How many voters each group had at least, this node among them, when it last ran.
pub(in crate::node) const VOTERS_FILE: &str = "voters";

/// What is moved: all that belongs to the data generation.
const DATA: [&str; 7] = [
    "identity",
    "wal",
    "partitions",
    "catalog",
    "rows",
    VOTERS_FILE,
    super::condemned::FILE,
];

/// Whether the others can give this node its data back: they can if they were enough when it last ran. The cluster file does not
/// tell, as nodes may stand in it before they are added. Blocking.
pub(super) fn can_be_replaced(vfs: &dyn Vfs, options: &NodeOptions, error: &StartError) -> bool {
    if options.peers.is_none() || !is_damage(error) {
        return false;
    }
    let noted = vfs.read(&options.data_dir.join(VOTERS_FILE)).ok();
    let voters = noted.and_then(|text| String::from_utf8(text.to_vec()).ok()?.trim().parse().ok());
    voters.is_some_and(|voters: usize| voters >= VOTERS_MIN)
}

fn is_damage(error: &StartError) -> bool {
    match error {
        StartError::Damaged { .. }
        | StartError::NoIdentity { .. }
        | StartError::NoLog { .. }
        | StartError::MessagesMissing { .. } => true,
        StartError::Partition { damaged, .. } => *damaged,
        StartError::Wal(error) => match error {
            WalOpenError::Damaged { .. }
            | WalOpenError::MissingEntries { .. }
            | WalOpenError::NewestSegmentMissing { .. }
            | WalOpenError::NewestMissing { .. } => true,
            WalOpenError::SegmentBytes { .. }
            | WalOpenError::Locked { .. }
            | WalOpenError::Full { .. }
            | WalOpenError::Io { .. } => false,
        },
        StartError::DataDirInUse { .. }
        | StartError::OtherNode { .. }
        | StartError::PartitionsDiffer { .. }
        | StartError::Option { .. }
        | StartError::Clock
        | StartError::PeerPort { .. }
        | StartError::Io { .. } => false,
    }
}

/// Whether the data is not what was written, as opposed to not being readable now.
pub(super) fn partition_is_damaged(error: &OpenError) -> bool {
    let mut source: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = source {
        if error.downcast_ref::<io::Error>().is_some() {
            return false;
        }
        source = error.source();
    }
    !matches!(error, OpenError::Start(..) | OpenError::OtherIdentity { .. })
}

/// What is damaged, without what else could be done about it: errors say that behind a semicolon.
pub(super) fn without_advice(error: &str) -> &str {
    error.split_once("; ").map_or(error, |(what, _)| what)
}

/// Moves the data into a folder of its own inside the data directory, and says which. Blocking.
pub(super) fn set_aside(vfs: &dyn Vfs, dir: &Path) -> io::Result<PathBuf> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.map_or(0, |since| since.as_secs());
    let _lock = vfs.lock_exclusive(&dir.join(LOCK_FILE))?;
    let aside = dir.join(format!("damaged-{seconds}"));
    vfs.create_dir_all(&aside)?;
    // The identity goes first: a directory with data and no identity is told apart should this be cut short.
    for name in DATA {
        let from = dir.join(name);
        if vfs.exists(&from)? {
            vfs.rename(&from, &aside.join(name))?;
        }
    }
    vfs.sync_dir(&aside)?;
    vfs.sync_dir(dir)?;
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_that_is_repaired_comes_without_advice() {
        let check = |error: &str, wanted: &str| assert_eq!(without_advice(error), wanted);
        check(
            "f is damaged; restore the data directory from a backup, or move it",
            "f is damaged",
        );
        check("f is damaged", "f is damaged");
    }
}
