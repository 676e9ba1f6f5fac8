//! What `.ci/run` runs.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::fuzz::TargetName;
use crate::repo::{cargo, say};

/// Last lines of a failed step that are shown once more at the end, where a long log is still read.
const TAIL_LINES_MAX: usize = 40;

/// Lines that name a failure, shown once more likewise.
const TELLING_LINES_MAX: usize = 60;

/// A telling line and so many after it: a panic's message is on the next.
const FOLLOWING_LINES: usize = 3;

/// Runs every step, also after one failed, prints how long each took, and fails when one did.
pub(crate) fn run_all(fuzz_seconds: u64) -> Result<()> {
    let mut steps: Vec<(String, Vec<String>)> = Vec::new();
    let mut step = |name: &str, args: &[&str]| {
        steps.push((name.to_owned(), args.iter().map(ToString::to_string).collect()));
    };
    step("format", &["fmt", "--all", "--check", "--", "--files-with-diff"]);
    step(
        "clippy",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-D",
            "warnings",
        ],
    );
    step("test", &["test", "--workspace", "--no-fail-fast"]);
    step("tidy", &["xtask", "tidy"]);
    step("release build", &["build", "--release"]);
    step("walk-through", &["xtask", "walkthrough"]);
    for target in TargetName::value_variants() {
        let seconds = fuzz_seconds.to_string();
        step(
            &format!("fuzz {}", target.text()),
            &["xtask", "fuzz", &target.text(), "--seconds", &seconds],
        );
    }
    let mut failed = Vec::new();
    let mut summary = Vec::new();
    for (name, args) in &steps {
        say(format_args!("=== {name}: cargo {}", args.join(" ")));
        let started = Instant::now();
        let result = run_step(cargo().args(args));
        let seconds = started.elapsed().as_secs();
        let word = if result.is_ok() { "ok    " } else { "FAILED" };
        summary.push(format!("{seconds:>6} s  {word}  {name}"));
        if let Err(failure) = result {
            failed.push((name.as_str(), failure));
        }
    }
    for (name, failure) in &failed {
        say(format_args!("=== again, of the failed step {name}"));
        failure.lines().for_each(say);
    }
    say("=== summary");
    summary.iter().for_each(say);
    if failed.is_empty() {
        Ok(())
    } else {
        let names: Vec<_> = failed.iter().map(|(name, _)| *name).collect();
        bail!("failed: {}", names.join(", "))
    }
}

/// What a failed step printed, as far as it tells why.
struct StepFailure {
    telling: Vec<String>,
    tail: VecDeque<String>,
    end: String,
}

impl StepFailure {
    fn lines(&self) -> impl Iterator<Item = &String> {
        self.telling.iter().chain(&self.tail).chain([&self.end])
    }
}

/// Runs a step to its end and prints what it prints.
fn run_step(command: &mut Command) -> Result<(), StepFailure> {
    let (mut telling, mut tail) = (Vec::new(), VecDeque::new());
    let end = match piped(command, &mut telling, &mut tail) {
        Ok(()) => return Ok(()),
        Err(error) => format!("{error:#}"),
    };
    say(&end);
    Err(StepFailure { telling, tail, end })
}

fn piped(command: &mut Command, telling: &mut Vec<String>, tail: &mut VecDeque<String>) -> Result<()> {
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    let stderr = writer.try_clone().context("cannot make a pipe")?;
    command.stdin(Stdio::null()).stdout(writer).stderr(stderr);
    let mut child = command.spawn().context("cannot start cargo")?;
    // The command holds the pipe's writing ends; while it does, reading does not end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut follows = 0;
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line.context("cannot read what the step prints")?).into_owned();
        say(&line);
        if is_telling(&line) {
            follows = FOLLOWING_LINES;
        }
        if follows > 0 && telling.len() < TELLING_LINES_MAX {
            follows -= 1;
            telling.push(line.clone());
        }
        if tail.len() == TAIL_LINES_MAX {
            tail.pop_front();
        }
        tail.push_back(line);
    }
    let status = child.wait().context("cannot wait for cargo")?;
    if !status.success() {
        bail!("cargo: {status}");
    }
    Ok(())
}

fn is_telling(line: &str) -> bool {
    line.contains("FAILED") || line.contains("panicked at") || line.starts_with("error")
}
