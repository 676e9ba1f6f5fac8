//! Each persisted format has golden files: bytes that every later version must still read.

use std::path::Path;

use anyhow::Result;

use crate::Breach;
use crate::repo;

/// Folder of the golden files.
const FOLDER: &str = "crates/laneway-storage/tests/golden";

/// Every file that was ever written by a released or merged version. Only ever added to.
const FILES: [&str; 11] = [
    "backlog-v1.bin",
    "catalog-entry-v1.bin",
    "checkpoint-v1.bin",
    "dedup-v1.bin",
    "entry-v1.bin",
    "manifest-v1.bin",
    "wal-newest-v1.bin",
    "wal-segment-v1-1.bin",
    "wal-segment-v1-2.bin",
    "wal-segment-v2-1.bin",
    "wal-segment-v2-2.bin",
];

pub(super) fn check() -> Result<Vec<Breach>> {
    let present: Vec<String> = repo::files("bin")?
        .iter()
        .filter(|path| path.parent() == Some(Path::new(FOLDER)))
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .collect();
    Ok(compare(&present))
}

fn compare(present: &[String]) -> Vec<Breach> {
    let breach = |name: &str, text: &str| Breach {
        path: Path::new(FOLDER).join(name),
        line: 0,
        text: text.to_owned(),
    };
    let missing = FILES
        .iter()
        .filter(|name| !present.iter().any(|one| one == *name));
    let mut found: Vec<Breach> = missing
        .map(|name| breach(name, "a golden file is missing"))
        .collect();
    let unknown = present.iter().filter(|name| !FILES.contains(&name.as_str()));
    found.extend(unknown.map(|name| breach(name, "add it to the list of xtask/src/tidy/golden.rs")));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_files_must_stay_and_be_listed() {
        let mut present: Vec<String> = FILES.map(str::to_owned).to_vec();
        assert_eq!(compare(&present), []);
        present.push("new-v1.bin".to_owned());
        present.remove(0);
        assert_eq!(compare(&present).len(), 2);
    }
}
