//! How many bytes a data directory really takes, by kind of file.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes of one block as `stat` counts them, whatever the file system's own block size.
const STAT_BLOCK_BYTES: u64 = 512;

/// Allocated bytes (as `du` counts them) under one directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// By kind: the first path component under the data directory that names one.
    pub by_kind: BTreeMap<String, u64>,
}

impl DiskUse {
    /// Walks `dir`. Files that vanish meanwhile do not count.
    pub fn of(dir: &Path) -> io::Result<Self> {
        let mut found = Self::default();
        let mut open = vec![dir.to_owned()];
        while let Some(next) = open.pop() {
            let entries = match std::fs::read_dir(&next) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for entry in entries {
                let Ok(metadata) = entry
                    .as_ref()
                    .map_err(io::Error::kind)
                    .and_then(|e| e.path().symlink_metadata().map_err(|error| error.kind()))
                else {
                    continue;
                };
                let path = entry?.path();
                if metadata.is_dir() {
                    open.push(path);
                } else {
                    let kind = kind_of(path.strip_prefix(dir).unwrap_or(&path));
                    *found.by_kind.entry(kind.to_owned()).or_default() +=
                        metadata.blocks() * STAT_BLOCK_BYTES;
                }
            }
        }
        Ok(found)
    }

    /// All kinds together.
    pub fn total(&self) -> u64 {
        self.by_kind.values().sum()
    }

    /// Bytes of one kind.
    pub fn kind(&self, kind: &str) -> u64 {
        self.by_kind.get(kind).copied().unwrap_or(0)
    }
}

/// Kinds in the order of preference; a path belongs to the first whose name a component contains.
const KINDS: [&str; 5] = ["wal", "backlog", "dedup", "checkpoint", "rows"];

fn kind_of(relative: &Path) -> &'static str {
    let text = relative.to_string_lossy();
    KINDS
        .into_iter()
        .find(|kind| text.contains(kind))
        .unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn allocated_bytes_are_summed_by_kind() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for (path, bytes) in [
            ("wal/1.seg", 10_000),
            ("p0/backlog/7", 20_000),
            ("p0/dedup/a/b", 5_000),
            ("identity", 100),
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, vec![1; bytes]).unwrap();
            fs::File::open(&path).unwrap().sync_all().unwrap(); // blocks are allocated late on some file systems
        }
        let found = DiskUse::of(root).unwrap();
        assert!(
            found.kind("wal") >= 10_000 && found.kind("wal") < 40_000,
            "{found:?}"
        );
        assert!(
            found.kind("backlog") >= 20_000 && found.kind("dedup") >= 5_000,
            "{found:?}"
        );
        assert!(found.kind("other") > 0 && found.kind("rows") == 0, "{found:?}");
        assert_eq!(found.total(), found.by_kind.values().sum::<u64>());
        assert_eq!(DiskUse::of(&root.join("missing")).unwrap(), DiskUse::default());
    }
}
