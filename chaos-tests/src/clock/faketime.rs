//! libfaketime: found where distributions put it, and told what to do.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

/// The library for processes with threads.
const NAME: &str = "libfaketimeMT.so.1";

/// Folders that hold it, or a folder of the machine's architecture that does.
const FOLDERS: [&str; 4] = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"];

/// The library named, or the one that is installed. Errors: what was looked for, and what to install.
pub fn find(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        ensure!(
            path.is_file(),
            "--libfaketime {}: there is no such file",
            path.display()
        );
        // The loader takes a name without a slash as one to be looked for elsewhere.
        return path.canonicalize().with_context(|| path.display().to_string());
    }
    for folder in FOLDERS.map(Path::new) {
        let below = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let below = below.map(|entry| entry.path());
        for place in std::iter::once(folder.to_owned()).chain(below) {
            let file = place.join("faketime").join(NAME);
            if file.is_file() {
                return Ok(file);
            }
        }
    }
    bail!(
        "libfaketime is needed, and {NAME} was not found in */faketime or */*/faketime of {}: install it (Debian, Ubuntu: \
         apt-get install faketime), or name the file with --libfaketime PATH",
        FOLDERS.join(", ")
    )
}

/// Environment of a process whose time of day is off by so much, as libfaketime writes it (`+1h`). Its monotonic clock is
/// left alone.
pub(super) fn environment(library: &Path, offset: &str) -> Vec<(String, String)> {
    let library = library.display().to_string();
    let pairs = [
        ("LD_PRELOAD", library.as_str()),
        ("FAKETIME", offset),
        // The second name is that of older versions.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("DONT_FAKE_MONOTONIC", "1"),
    ];
    let own = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
    own.into()
}

/// What the library leaves behind for a process that was killed; removed when this is dropped, after the process's end.
#[derive(Debug)]
pub(super) struct Leftovers {
    process: u32,
}

impl Leftovers {
    pub(super) fn of(process: u32) -> Self {
        Self { process }
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        for name in ["faketime_shm", "sem.faketime_sem"] {
            let path = format!("/dev/shm/{name}_{}", self.process);
            let _not_there = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_is_not_there_is_named() {
        let error = find(Some(Path::new("/nowhere/lib.so"))).unwrap_err();
        assert!(error.to_string().contains("/nowhere/lib.so"), "{error}");
    }
}
