//! What `.ci/run` runs.

use std::time::Instant;

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::fuzz::TargetName;
use crate::repo::{cargo, run, say};

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
    step("test", &["test", "--workspace"]);
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
        let result = run(cargo().args(args));
        let seconds = started.elapsed().as_secs();
        if let Err(error) = &result {
            say(format_args!("{error:#}"));
            failed.push(name.clone());
        }
        summary.push(format!(
            "{:>6} s  {}  {name}",
            seconds,
            if result.is_ok() { "ok    " } else { "FAILED" }
        ));
    }
    say("=== summary");
    for line in &summary {
        say(line);
    }
    if failed.is_empty() {
        Ok(())
    } else {
        bail!("failed: {}", failed.join(", "))
    }
}
