//! The loop: mutate, run, keep what behaves in a new way.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::mutate::{Random, mutated};
use super::targets::{Target, target};
use super::{FuzzArgs, keep};
use crate::repo::{self, say};

/// Inputs held in memory beyond the kept corpus.
const LIVE_MAX: usize = 4_096;

/// Time after which one execution counts as hung.
const EXECUTION_MAX: Duration = Duration::from_secs(20);

/// So many mutated inputs keep their checksums, of which one does not.
const UNREPAIRED_ONE_IN: usize = 8;

/// Memory of the process; beyond it allocation fails and the process aborts.
const MEMORY_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;

/// Executions begun; the watcher looks whether it moves.
static EXECUTIONS: AtomicU64 = AtomicU64::new(0);

pub(super) fn run(args: &FuzzArgs) -> Result<()> {
    let limit = rustix::process::Rlimit {
        current: Some(MEMORY_BYTES_MAX),
        maximum: Some(MEMORY_BYTES_MAX),
    };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).context("cannot limit memory")?;
    let target = target(args.target);
    let folder = args.target.work_folder();
    fs::create_dir_all(&folder)?;
    if let Some(path) = &args.input {
        let input = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        (target.execute)(&input);
        say(format_args!(
            "fuzz {}: {} does not fail",
            args.target.text(),
            path.display()
        ));
        return Ok(());
    }
    let kept = repo::root().join("fuzz").join("corpus").join(args.target.text());
    let corpus = corpus(&kept, &target)?;
    std::thread::spawn(watch);
    let current = File::create(folder.join("current")).context("cannot write the current input")?;
    let mut run = Run {
        target,
        folder: &folder,
        current,
        seen: BTreeSet::new(),
        live: Vec::new(),
    };
    for input in &corpus {
        run.execute(input)?;
    }
    if run.live.is_empty() {
        run.live.push(Vec::new());
    }
    let started = Instant::now();
    let mut random = Random(args.seed);
    while started.elapsed() < Duration::from_secs(args.seconds) {
        let parent = random.below(run.live.len());
        let other = random.below(run.live.len());
        let mut input = mutated(
            &mut random,
            &run.live[parent],
            &run.live[other],
            run.target.tokens,
        );
        if let Some(repair) = run.target.repair.filter(|_| random.below(UNREPAIRED_ONE_IN) > 0) {
            repair(&mut input);
        }
        run.execute(&input)?;
    }
    let executions = EXECUTIONS.load(Ordering::Relaxed);
    let seconds = started.elapsed().as_secs_f64();
    say(format_args!(
        "fuzz {}: {executions} executions in {seconds:.1} s from {} kept inputs, {} behaviours, no failure",
        args.target.text(),
        corpus.len(),
        run.seen.len(),
    ));
    Ok(())
}

struct Run<'a> {
    target: Target,
    folder: &'a Path,
    current: File,
    /// Signatures of behaviour.
    seen: BTreeSet<u64>,
    /// Inputs to mutate.
    live: Vec<Vec<u8>>,
}

impl Run<'_> {
    fn execute(&mut self, input: &[u8]) -> Result<()> {
        self.current.set_len(0)?;
        self.current.write_all_at(input, 0)?;
        EXECUTIONS.fetch_add(1, Ordering::Relaxed);
        let Ok(signature) = panic::catch_unwind(AssertUnwindSafe(|| (self.target.execute)(input))) else {
            let kept = keep(self.folder, input, "panic")?;
            bail!("it panicked; the input is {}", kept.display());
        };
        if self.seen.insert(signature) && self.live.len() < LIVE_MAX {
            self.live.push(input.to_vec());
        }
        Ok(())
    }
}

/// The kept inputs, in the order of their names; the target's own seeds after them.
fn corpus(folder: &Path, target: &Target) -> Result<Vec<Vec<u8>>> {
    let mut paths = Vec::new();
    if folder.is_dir() {
        for entry in fs::read_dir(folder)? {
            paths.push(entry?.path());
        }
    }
    paths.sort();
    let mut inputs = Vec::new();
    for path in paths {
        inputs.push(fs::read(&path)?);
    }
    for seed in target.seeds() {
        check_repair(target, &seed)?;
        inputs.push(seed);
    }
    Ok(inputs)
}

/// A sound file stays as it is; else the repair no longer knows the format and the fuzzer only meets wrong checksums.
fn check_repair(target: &Target, seed: &[u8]) -> Result<()> {
    let mut repaired = seed.to_vec();
    if let Some(repair) = target.repair {
        repair(&mut repaired);
    }
    if repaired != seed {
        bail!("xtask/src/fuzz/repair.rs changes a golden file: bring it up to the format");
    }
    Ok(())
}

/// Ends the process when an execution hangs; the outer process saves its input.
fn watch() {
    let mut last = 0;
    loop {
        std::thread::sleep(EXECUTION_MAX);
        let now = EXECUTIONS.load(Ordering::Relaxed);
        if now == last {
            say("one execution takes too long");
            std::process::abort();
        }
        last = now;
    }
}
