//! A small mutation fuzzer for the stable toolchain.
//!
//! `cargo xtask fuzz` starts a release build of itself with the feature `fuzz`, which links the parsers; so the other tasks need
//! not build them. The input at hand is always in a file, so that an abort (stack overflow, out of memory) leaves it behind too.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::repo::{self, cargo};

#[cfg(feature = "fuzz")]
mod engine;
#[cfg(feature = "fuzz")]
mod mutate;
#[cfg(feature = "fuzz")]
mod repair;
#[cfg(feature = "fuzz")]
mod targets;

/// Which parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TargetName {
    /// Bodies and queries of HTTP requests.
    HttpBodies,
    /// The write-ahead log's segments.
    Wal,
    /// Checkpoint files and manifests.
    Checkpoint,
    /// Backlog files.
    Backlog,
    /// Dedup files.
    Dedup,
    /// Bodies of log entries.
    Entry,
    /// Configuration files.
    Config,
    /// What a peer sends.
    Peer,
}

#[derive(Args, Debug)]
pub(crate) struct FuzzArgs {
    /// Which parser.
    target: TargetName,
    /// How long.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Start of the random numbers; the same seed and corpus give the same inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run this one input instead.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Already the release build.
    #[arg(long, hide = true)]
    inner: bool,
}

impl TargetName {
    /// As on the command line.
    pub(crate) fn text(self) -> String {
        let value = self.to_possible_value().expect("no target is hidden");
        value.get_name().to_owned()
    }

    fn work_folder(self) -> PathBuf {
        repo::target_dir().join("fuzz").join(self.text())
    }
}

pub(crate) fn run(args: &FuzzArgs) -> Result<()> {
    if args.inner {
        return inner(args);
    }
    let folder = args.target.work_folder();
    fs::create_dir_all(&folder)?;
    let current = folder.join("current");
    let mut command = cargo();
    command.args([
        "run",
        "--quiet",
        "--release",
        "--package",
        "xtask",
        "--features",
        "fuzz",
        "--",
        "fuzz",
    ]);
    command.arg(args.target.text()).arg("--inner");
    command.args([
        "--seconds",
        &args.seconds.to_string(),
        "--seed",
        &args.seed.to_string(),
    ]);
    if let Some(input) = &args.input {
        command.arg("--input").arg(std::path::absolute(input)?);
    }
    let status = command.status().context("cannot start cargo")?;
    if status.success() {
        return Ok(());
    }
    if status.code() == Some(1) {
        bail!("fuzz {}: failed, see above", args.target.text());
    }
    let kept = keep(&folder, &fs::read(&current).unwrap_or_default(), "abort")?;
    bail!(
        "fuzz {}: {status}; the input is {}",
        args.target.text(),
        kept.display()
    );
}

/// Saves an input that failed.
fn keep(folder: &Path, input: &[u8], kind: &str) -> Result<PathBuf> {
    let path = folder.join(format!("{kind}-{:016x}", hash(input)));
    fs::write(&path, input).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// FNV-1a: names files, nothing else.
fn hash(input: &[u8]) -> u64 {
    input.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(feature = "fuzz")]
fn inner(args: &FuzzArgs) -> Result<()> {
    engine::run(args)
}

#[cfg(not(feature = "fuzz"))]
fn inner(_args: &FuzzArgs) -> Result<()> {
    bail!("this build has no parsers: leave out --inner")
}
