//! Faults against several nodes under load: leaders killed, all killed, leaders frozen, data wiped, followers left behind.
//!
//! The load is that of [`crate::kill9`], spread over all nodes. Beside it probes measure the time from each fault to the next
//! acked push. At the end everything is drained, the replicas' digests are compared, and the history is judged.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::judge::judge;
use crate::sched::SchedulingDelay;
use crate::server::Settings;
use crate::stats::{millis, say};
use crate::workload::setup::Fleet;

use bulk::BULK;
use nodes::Nodes;
use probe::{Lanes, PROBE};
use thaw::STALE;

pub use report::{Report, Tally};

mod bulk;
mod faults;
mod lag;
pub(crate) mod nodes;
pub(crate) mod probe;
pub(crate) mod replicas;
mod report;
mod thaw;

/// Longest wait for nodes that were started.
pub(crate) const READY_MAX: Duration = Duration::from_secs(60);

/// Longest wait of a client for an answer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(3);

/// Longest wait for a success between two faults.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Between two looks for one.
const SILENCE_POLL: Duration = Duration::from_millis(20);

/// Failures that each drain may meet: leadership may still move while it is spread.
const DRAIN_PATIENCE: u32 = 50;

/// Queues besides those of the load.
const EXTRA: &[crate::workload::plan::QueuePlan] = &[PROBE, STALE, BULK];

/// What is done to the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Fault {
    /// kill -9 of the node that leads a partition, each partition in turn.
    KillLeader,
    /// kill -9 of all nodes at once.
    KillAll,
    /// SIGSTOP of the node that leads a partition, SIGCONT later, questions to it at that moment.
    StopLeader,
    /// kill -9 of a node, and its data directory is removed.
    Wipe,
    /// A node is down while much is pushed.
    Lag,
    /// The same, and it is killed again and again while it catches up.
    LagKill,
    /// Leadership of a partition is handed to another node.
    Transfer,
    /// All but the lags, at random; now and then two nodes at once.
    Mix,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `laneway` binary.
    pub binary: PathBuf,
    /// The nodes' settings.
    pub settings: Settings,
    /// How many nodes.
    pub nodes: u16,
    /// What is done to them.
    pub fault: Fault,
    /// How often.
    pub rounds: u32,
    /// The load runs for up to so long before each fault.
    pub seconds_per_round: f64,
    /// A frozen node stays so for so long.
    pub stop_seconds: f64,
    /// Pushed while a node is down, in MiB.
    pub lag_mib: u32,
    /// Of the clients' choices and of the moments of the faults.
    pub seed: u64,
    /// Data, logs and history go here; it must be empty.
    pub dir: PathBuf,
}

/// Runs load and faults, drains, compares, judges. Errors: the run itself could not be done (which fails it as well).
pub async fn run(options: &Options) -> anyhow::Result<Report> {
    let delay = SchedulingDelay::start();
    let mut run = Run::start(options).await?;
    let outcome = run.rounds_and_drain(options).await;
    let faults = run.fleet.shared.recorder.finish().context("history")?;
    let path = run.fleet.shared.recorder.path().to_owned();
    let (bad_lines, bad_lines_shown) = run.nodes.bad_log_lines(5);
    for line in &bad_lines_shown {
        say(format_args!("LOG {line}"));
    }
    let replicas = outcome.with_context(|| format!("history so far: {}", path.display()))?;
    // The oracle must not wait behind the broker, nor count as its scheduling delay.
    let scheduling = delay.finish();
    Ok(Report {
        fault: options.fault,
        counts: run.fleet.shared.recorder.counts(),
        tally: run.tally,
        replicas,
        faults,
        bad_lines,
        scheduling,
        judgement: judge(&path)?,
    })
}

struct Run {
    nodes: Nodes,
    fleet: Fleet,
    probes: Lanes,
    stale: Lanes,
    rng: StdRng,
    tally: Tally,
}

impl Run {
    /// Starts the nodes and prepares queues, groups and lanes.
    async fn start(options: &Options) -> anyhow::Result<Self> {
        let mut nodes = Nodes::new(&options.dir, &options.binary, options.nodes, options.settings)?;
        nodes.start_all()?;
        let took = nodes.ready_all(READY_MAX).await?;
        say(format_args!(
            "{} nodes ready after {:.0} ms",
            options.nodes,
            millis(took)
        ));
        let mut fleet = Fleet::new(&options.dir, nodes.addresses(), options.seed, DEADLINE, EXTRA)?;
        fleet.prepare().await?;
        let probes = Lanes::find(&mut fleet.client(), &PROBE).await?;
        let stale = Lanes::find(&mut fleet.client(), &STALE).await?;
        Ok(Self {
            nodes,
            fleet,
            probes,
            stale,
            rng: StdRng::seed_from_u64(options.seed),
            tally: Tally::default(),
        })
    }

    /// Gives what the comparison of the replicas found.
    async fn rounds_and_drain(&mut self, options: &Options) -> anyhow::Result<Result<Duration, String>> {
        self.fleet.start_load();
        let terms = self.nodes.terms().await;
        for round in 0..options.rounds {
            if round == options.rounds / 2 {
                self.fleet.start_late_groups();
            }
            let share = self.rng.random_range(0.3..1.0);
            self.work(Duration::from_secs_f64(options.seconds_per_round * share))
                .await
                .with_context(|| format!("round {round}"))?;
            self.fault(options, round)
                .await
                .with_context(|| format!("round {round}"))?;
            replicas::sample(&self.nodes, &self.fleet.shared.recorder).await;
            self.tally.rounds += 1;
        }
        tokio::time::sleep(Duration::from_secs_f64(options.seconds_per_round * 0.5)).await;
        let now = self.nodes.terms().await;
        self.tally.elections = now
            .iter()
            .map(|(group, term)| term - terms.get(group).unwrap_or(&0))
            .sum();
        // Clients that finish what they are doing are silent too, but no fault of the nodes.
        self.tally.silence = Duration::from_micros(self.fleet.shared.recorder.counts().silence_max);
        self.fleet.end_load().await?;
        self.nodes.ready_all(READY_MAX).await?;
        self.fleet.drain_all(DRAIN_PATIENCE).await?;
        let replicas = replicas::converge(&self.nodes, &self.fleet.shared.recorder).await;
        self.nodes.kill(&self.nodes.all())?;
        Ok(replicas)
    }

    /// Lets the clients work for so long, and longer until something succeeded.
    async fn work(&self, length: Duration) -> anyhow::Result<()> {
        let before = self.fleet.shared.recorder.counts().ok;
        let started = Instant::now();
        tokio::time::sleep(length).await;
        while self.fleet.shared.recorder.counts().ok == before {
            ensure!(
                started.elapsed() < length + SILENCE_MAX,
                "no operation succeeded in {:.1} s with no fault going on",
                started.elapsed().as_secs_f64()
            );
            tokio::time::sleep(SILENCE_POLL).await;
        }
        Ok(())
    }

    fn note(&self, text: String) {
        self.fleet.shared.recorder.note(text);
    }

    async fn pause(&mut self, from_ms: u64, to_ms: u64) {
        let ms = self.rng.random_range(from_ms..=to_ms);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}
