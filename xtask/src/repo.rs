//! Where the repository is and what is in it; running other programs.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Folders that hold no source of ours.
const SKIPPED_FOLDERS: [&str; 5] = ["target", ".git", "laneway-data", "laneway-node-1", "__pycache__"];

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask
        .parent()
        .expect("xtask lies in the repository's root")
        .to_path_buf()
}

/// The target folder, as cargo sees it.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Files under the root whose name ends in `.extension`, relative to the root, sorted.
pub(crate) fn files(extension: &str) -> Result<Vec<PathBuf>> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                let name = entry.file_name();
                if !SKIPPED_FOLDERS
                    .iter()
                    .any(|skipped| name.to_str() == Some(skipped))
                {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(
                    path.strip_prefix(&root)
                        .expect("found below the root")
                        .to_path_buf(),
                );
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Text of a file given relative to the root.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(root().join(path)).with_context(|| format!("cannot read {}", path.display()))
}

/// The cargo that runs this task.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs a program to its end; fails when it does.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    let status = command
        .status()
        .with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Builds the broker's release binary and returns its path.
pub(crate) fn release_binary() -> Result<PathBuf> {
    run(cargo().args(["build", "--release", "--package", "laneway-server"]))?;
    Ok(target_dir().join("release").join("laneway"))
}

/// Prints one line.
pub(crate) fn say(line: impl std::fmt::Display) {
    // A closed pipe (`| head`) ends the output, not the task.
    let _ = writeln!(io::stdout(), "{line}");
}

fn shown(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}
