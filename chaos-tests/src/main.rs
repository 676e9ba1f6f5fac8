//! The command line. Exit codes: 0 all checks passed, 1 one failed or the run could not be done, 2 wrong usage.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use chaos_tests::server::Settings;
use chaos_tests::stats::say;
use chaos_tests::{backlog, clock, cluster, kill9, leases, load, soak};
use clap::{Args, Parser, Subcommand, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

/// Worker threads of the generator in `kill9` and `backlog`.
const THREADS: usize = 2;

/// Laneway under fault and under load: starts, kills and measures real processes on loopback.
#[derive(Debug, Parser)]
#[command(name = "chaos", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Kills a broker under load, drains it, judges the history of its clients.
    Kill9(Kill9Args),
    /// Does a fault to several nodes under load again and again, drains them, compares their states, judges the history.
    Cluster(ClusterArgs),
    /// Watches leases over deaths and changes of leaders.
    LeaseOverFailover(LeaseArgs),
    /// Times leases, delays and `createdAt` while the wall clock of one node is an hour or a day off. Needs libfaketime.
    Clock(ClockArgs),
    /// Puts full load on several nodes and counts elections: there must be none.
    Soak(SoakArgs),
    /// Weighs disk, memory and restart of an unread backlog, a stuck lane and very many lanes.
    Backlog(BacklogArgs),
    /// Measures throughput and latency of pushes and of push, pop and ack.
    Load(LoadArgs),
    /// Judges a history again.
    Judge {
        /// A `history.jsonl`.
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
struct Common {
    /// The `laneway` binary, a release build.
    #[arg(long, default_value = "target/release/laneway")]
    binary: PathBuf,
    /// Where data, logs and histories go: a new folder below it, removed after success. Must be on the disk in question.
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// Keep that folder also after success.
    #[arg(long)]
    keep: bool,
}

#[derive(Clone, Copy, Debug, Args)]
struct StorageArgs {
    /// Run the broker with tiny WAL segments, checkpoints every 300 ms and little memory for indexes.
    #[arg(long)]
    tight_storage: bool,
}

impl StorageArgs {
    /// As it was given.
    fn flag(self) -> &'static str {
        if self.tight_storage {
            " --tight-storage"
        } else {
            ""
        }
    }

    fn settings(self) -> Settings {
        if self.tight_storage {
            Settings::TightStorage
        } else {
            Settings::Default
        }
    }
}

#[derive(Debug, Args)]
struct Kill9Args {
    #[command(flatten)]
    common: Common,
    /// Kills.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// The load runs for up to so long before each kill.
    #[arg(long, default_value_t = 4.0)]
    seconds_per_round: f64,
    /// Of the clients' choices and the moments of the kills [default: a random one, printed].
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    storage: StorageArgs,
}

#[derive(Debug, Args)]
struct ClusterArgs {
    #[command(flatten)]
    common: Common,
    /// What is done to the nodes.
    #[arg(long, value_enum)]
    fault: cluster::Fault,
    /// How often.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// The load runs for up to so long before each fault.
    #[arg(long, default_value_t = 3.0)]
    seconds_per_round: f64,
    #[command(flatten)]
    nodes: NodesArg,
    /// How long a node is frozen by stop-leader.
    #[arg(long, default_value_t = 10.0)]
    stop_seconds: f64,
    /// Pushed while a node is down, in MiB, by lag and lag-kill.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    lag_mib: u32,
    /// Of the clients' choices and the moments of the faults [default: a random one, printed].
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    storage: StorageArgs,
}

#[derive(Clone, Copy, Debug, Args)]
struct NodesArg {
    /// Nodes of the cluster.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(3..=7))]
    nodes: u16,
}

#[derive(Debug, Args)]
struct LeaseArgs {
    #[command(flatten)]
    common: Common,
    /// How often each part is done.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    #[command(flatten)]
    nodes: NodesArg,
    /// Of the clients' choices [default: a random one, printed].
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    storage: StorageArgs,
}

#[derive(Debug, Args)]
struct ClockArgs {
    #[command(flatten)]
    common: Common,
    /// libfaketimeMT.so.1 [default: where distributions put it].
    #[arg(long, value_name = "PATH")]
    libfaketime: Option<PathBuf>,
    /// How often each wrong clock is tried.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    #[command(flatten)]
    nodes: NodesArg,
    /// Of the clients' choices [default: a random one, printed].
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    storage: StorageArgs,
}

#[derive(Debug, Args)]
struct SoakArgs {
    #[command(flatten)]
    common: Common,
    /// How long.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    #[command(flatten)]
    nodes: NodesArg,
    /// Which of the workloads of `load`.
    #[arg(long, default_value = "cycle-batch-100")]
    workload: String,
    /// Worker threads of the generator.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    generator_threads: u8,
}

#[derive(Debug, Args)]
struct BacklogArgs {
    #[command(flatten)]
    common: Common,
    /// Factor on all counts of messages and lanes.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    #[command(flatten)]
    storage: StorageArgs,
}

#[derive(Debug, Args)]
struct LoadArgs {
    #[command(flatten)]
    common: Common,
    /// Nodes; with several the clients are spread over them.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=7))]
    nodes: u16,
    /// Runs of each workload.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Seconds before the measured window.
    #[arg(long, default_value_t = 1.5)]
    warm_up: f64,
    /// Seconds of the measured window.
    #[arg(long, default_value_t = 6.0)]
    window: f64,
    /// Lanes of each run's queue.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    lanes: u32,
    /// Send a transaction id with each message, as the published clients do.
    #[arg(long)]
    transaction_ids: bool,
    /// Only the workloads whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Worker threads of the generator.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    generator_threads: u8,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(format_args!("FAILED: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<bool> {
    match cli.command {
        Command::Kill9(args) => run_kill9(args),
        Command::Cluster(args) => run_cluster(&args),
        Command::LeaseOverFailover(args) => run_leases(&args),
        Command::Clock(args) => run_clock(&args),
        Command::Soak(args) => run_soak(args),
        Command::Backlog(args) => run_backlog(&args),
        Command::Load(args) => run_load(args),
        Command::Judge { file } => {
            let judgement = kill9::judge(&file)?;
            judgement.print();
            Ok(judgement.passed())
        }
    }
}

fn run_kill9(args: Kill9Args) -> anyhow::Result<bool> {
    seconds(args.seconds_per_round)?;
    let seed = args.seed.unwrap_or_else(rand::random);
    let (rounds, seconds, flag) = (args.rounds, args.seconds_per_round, args.storage.flag());
    say(format_args!(
        "kill9 --rounds {rounds} --seconds-per-round {seconds} --seed {seed}{flag}"
    ));
    in_folder(&args.common, |dir, binary| {
        let options = kill9::Options {
            binary,
            settings: args.storage.settings(),
            rounds: args.rounds,
            seconds_per_round: args.seconds_per_round,
            seed,
            dir: dir.to_owned(),
        };
        let report = until_stopped(THREADS, kill9::run(&options))?;
        report.print();
        Ok(report.passed())
    })
}

fn run_cluster(args: &ClusterArgs) -> anyhow::Result<bool> {
    seconds(args.seconds_per_round)?;
    seconds(args.stop_seconds)?;
    let seed = args.seed.unwrap_or_else(rand::random);
    let (rounds, seconds, flag) = (args.rounds, args.seconds_per_round, args.storage.flag());
    let fault = args.fault.to_possible_value();
    let fault = fault.as_ref().map_or("", |value| value.get_name());
    say(format_args!(
        "cluster --fault {fault} --rounds {rounds} --seconds-per-round {seconds} --seed {seed}{flag}"
    ));
    in_folder(&args.common, |dir, binary| {
        let options = cluster::Options {
            binary,
            settings: args.storage.settings(),
            nodes: args.nodes.nodes,
            fault: args.fault,
            rounds,
            seconds_per_round: seconds,
            stop_seconds: args.stop_seconds,
            lag_mib: args.lag_mib,
            seed,
            dir: dir.to_owned(),
        };
        let mut report = until_stopped(THREADS, cluster::run(&options))?;
        report.print();
        Ok(report.passed())
    })
}

fn run_leases(args: &LeaseArgs) -> anyhow::Result<bool> {
    let seed = args.seed.unwrap_or_else(rand::random);
    let (rounds, flag) = (args.rounds, args.storage.flag());
    say(format_args!(
        "lease-over-failover --rounds {rounds} --seed {seed}{flag}"
    ));
    in_folder(&args.common, |dir, binary| {
        let options = leases::Options {
            binary,
            settings: args.storage.settings(),
            nodes: args.nodes.nodes,
            rounds,
            seed,
            dir: dir.to_owned(),
        };
        until_stopped(THREADS, leases::run(&options))
    })
}

fn run_clock(args: &ClockArgs) -> anyhow::Result<bool> {
    let seed = args.seed.unwrap_or_else(rand::random);
    let (rounds, flag) = (args.rounds, args.storage.flag());
    let libfaketime = clock::find_libfaketime(args.libfaketime.as_deref())?;
    let library = libfaketime.display();
    say(format_args!(
        "clock --rounds {rounds} --libfaketime {library} --seed {seed}{flag}"
    ));
    in_folder(&args.common, |dir, binary| {
        let options = clock::Options {
            binary,
            libfaketime,
            settings: args.storage.settings(),
            nodes: args.nodes.nodes,
            rounds,
            seed,
            dir: dir.to_owned(),
        };
        until_stopped(THREADS, clock::run(&options))
    })
}

fn run_soak(args: SoakArgs) -> anyhow::Result<bool> {
    let length = seconds(args.minutes * 60.0)?;
    in_folder(&args.common, |dir, binary| {
        let options = soak::Options {
            binary,
            nodes: args.nodes.nodes,
            length,
            workload: args.workload,
            dir: dir.to_owned(),
        };
        until_stopped(args.generator_threads.into(), soak::run(&options))
    })
}

fn run_backlog(args: &BacklogArgs) -> anyhow::Result<bool> {
    backlog::check_scale(args.scale)?;
    in_folder(&args.common, |dir, binary| {
        let options = backlog::Options {
            binary,
            scale: args.scale,
            settings: args.storage.settings(),
            dir: dir.to_owned(),
        };
        until_stopped(THREADS, backlog::run(&options))
    })
}

fn run_load(args: LoadArgs) -> anyhow::Result<bool> {
    let (warm_up, window) = (seconds(args.warm_up)?, seconds(args.window)?);
    in_folder(&args.common, |dir, binary| {
        let options = load::Options {
            binary,
            nodes: args.nodes,
            runs: args.runs,
            warm_up,
            window,
            lanes: args.lanes,
            transaction_ids: args.transaction_ids,
            only: args.only,
            dir: dir.to_owned(),
        };
        until_stopped(args.generator_threads.into(), load::run(&options))?;
        Ok(true)
    })
}

/// Runs in a new folder; after a failure, and with `--keep`, it stays and is named.
fn in_folder(
    common: &Common,
    work: impl FnOnce(&Path, PathBuf) -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    let parent = common.work_dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::Builder::new()
        .prefix("laneway-chaos-")
        .tempdir_in(&parent);
    let mut folder = folder.with_context(|| format!("cannot make a folder in {}", parent.display()))?;
    let binary = common
        .binary
        .canonicalize()
        .with_context(|| format!("no binary {}", common.binary.display()))?;
    let outcome = work(folder.path(), binary);
    if common.keep || !matches!(outcome, Ok(true)) {
        folder.disable_cleanup(true);
        say(format_args!("kept: {}", folder.path().display()));
    }
    outcome
}

fn runtime(threads: usize) -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
}

/// Runs to its end, or until SIGINT or SIGTERM: then the processes that were started are ended all the same.
fn until_stopped<T>(threads: usize, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    runtime(threads)?.block_on(async {
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            outcome = work => outcome,
            _ = terminated.recv() => bail!("stopped by SIGTERM"),
            _ = tokio::signal::ctrl_c() => bail!("stopped by SIGINT"),
        }
    })
}

fn seconds(value: f64) -> anyhow::Result<Duration> {
    ensure!(
        value.is_finite() && (0.1..=3600.0).contains(&value),
        "seconds must be from 0.1 to 3600"
    );
    Ok(Duration::from_secs_f64(value))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
