//! Repository tasks: `cargo xtask --help`.
//!
//! The scripts of this repository are written in Rust, so that they need only the pinned toolchain and are checked like all
//! other code. Nothing shipped depends on this crate.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod broker;
mod ci;
mod clients;
mod cluster;
mod config_reference;
mod fuzz;
mod repo;
mod tidy;
mod walkthrough;

/// Repository tasks of Laneway.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Checks what no compiler checks: format, dependency arrows, golden files, doc links, log-message style, the
    /// configuration reference. Lists the largest files. Seconds.
    Tidy,
    /// Feeds mutated inputs to one parser until the time is up. Runs a release build of itself.
    ///
    /// Starts from the corpus in `fuzz/corpus/TARGET/`. A panic, a hang or an abort ends the run with exit code 1; the input
    /// is then in `fuzz/failures/TARGET/`, and `--input FILE` runs it again.
    Fuzz(fuzz::FuzzArgs),
    /// Runs the published Python client (PyPI `queen-mq` 2.6.0) against a release build: one node, each node of three, and
    /// with the addresses of all three while each of them is killed once.
    ///
    /// Needs `python3` with `venv` and, the first time, the package index. The virtual environment stays under `target/`.
    Clients(clients::ClientsArgs),
    /// Runs the `sh` blocks of README.md, verbatim, in a fresh directory and compares what they print.
    ///
    /// A block after `<!-- walkthrough: skip -->` is left out. A `json` or `text` block after an `sh` block is the expected
    /// output; ids and times in it are placeholders. Needs bash, curl, and the ports 6632 to 6634 and 7632 to 7634.
    Walkthrough {
        /// Print what each block printed.
        #[arg(long)]
        show: bool,
    },
    /// Writes docs/configuration.md from the doc comments of the configuration keys.
    ConfigReference,
    /// Everything that `.ci/run` runs: format, clippy, tests, tidy, a short fuzz run of each target, the walk-through.
    Ci {
        /// Seconds for each fuzz target.
        #[arg(long, default_value_t = 5)]
        fuzz_seconds: u64,
    },
}

fn main() -> ExitCode {
    let result = match Args::parse().task {
        Task::Tidy => tidy::run(),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Clients(args) => clients::run_all(&args),
        Task::Walkthrough { show } => walkthrough::run_all(show),
        Task::ConfigReference => config_reference::write(),
        Task::Ci { fuzz_seconds } => ci::run_all(fuzz_seconds),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One breach of a rule, as `path:line: what is wrong`.
#[derive(Debug, PartialEq, Eq)]
struct Breach {
    path: PathBuf,
    /// From 1; 0 = the file as a whole.
    line: usize,
    text: String,
}

impl std::fmt::Display for Breach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path.display())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": {}", self.text)
    }
}
