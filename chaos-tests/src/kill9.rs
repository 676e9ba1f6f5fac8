//! `kill -9` under load, again and again; then everything is drained and the history of all clients is judged.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::recorder::Counts;
use crate::server::{Server, ServerOptions, Settings};
use crate::stats::{median, millis, say};

use crate::workload::client::{Address, Phase};
use crate::workload::setup::Fleet;

pub use crate::judge::{Judgement, judge};

/// Longest wait for a broker that was started.
const READY_MAX: Duration = Duration::from_secs(60);

/// Longest wait of a client for an answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// Share of restarts that are killed again before they are ready, in percent.
const KILLED_TWICE_PERCENT: u32 = 20;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `laneway` binary.
    pub binary: PathBuf,
    /// The broker's settings.
    pub settings: Settings,
    /// Kills.
    pub rounds: u32,
    /// The load runs for up to so long before each kill.
    pub seconds_per_round: f64,
    /// Of the clients' choices and of the moments of the kills. The broker's own timing is not repeatable.
    pub seed: u64,
    /// Data, log and history go here; it must be empty.
    pub dir: PathBuf,
}

/// What a run gave.
#[derive(Debug)]
pub struct Report {
    /// Operations by outcome.
    pub counts: Counts,
    /// Kills, those during a start included.
    pub kills: u32,
    /// From starting the process to `/readyz`, once a round.
    pub restarts: Vec<Duration>,
    /// Breaches of the wire contract, the first few.
    pub faults: Vec<String>,
    /// Verdicts of the oracle.
    pub judgement: Judgement,
}

impl Report {
    /// Nothing was violated and nothing left undecided.
    pub fn passed(&self) -> bool {
        self.judgement.passed() && self.counts.faults == 0
    }

    /// Prints figures and verdicts.
    pub fn print(&self) {
        let counts = self.counts;
        let total = counts.ok + counts.refused + counts.unknown;
        say(format_args!(
            "operations {total}: ok {}, refused {}, unknown {}; breaches of the contract {}",
            counts.ok, counts.refused, counts.unknown, counts.faults
        ));
        let restarts: Vec<f64> = self.restarts.iter().copied().map(millis).collect();
        let (least, most) = restarts
            .iter()
            .fold((f64::MAX, 0.0_f64), |(l, m), ms| (l.min(*ms), m.max(*ms)));
        say(format_args!(
            "kills {}; restart to ready in ms: min {least:.0}, median {:.0}, max {most:.0}",
            self.kills,
            median(&restarts)
        ));
        for fault in &self.faults {
            say(format_args!("FAULT {fault}"));
        }
        self.judgement.print();
    }
}

/// Runs load and kills, drains, judges. Errors: the run itself could not be done (which fails it as well).
pub async fn run(options: &Options) -> anyhow::Result<Report> {
    let mut run = Run::start(options).await?;
    let outcome = run.rounds_and_drain(options).await;
    let faults = run.fleet.shared.recorder.finish().context("history")?;
    outcome.with_context(|| format!("history so far: {}", run.fleet.shared.recorder.path().display()))?;
    let judgement = judge(run.fleet.shared.recorder.path())?;
    let counts = run.fleet.shared.recorder.counts();
    Ok(Report {
        counts,
        kills: run.kills,
        restarts: run.restarts,
        faults,
        judgement,
    })
}

struct Run {
    server_options: ServerOptions,
    server: Server,
    fleet: Fleet,
    rng: StdRng,
    kills: u32,
    restarts: Vec<Duration>,
}

impl Run {
    /// Starts the broker and prepares queues and groups.
    async fn start(options: &Options) -> anyhow::Result<Self> {
        let mut server_options = ServerOptions::under(&options.dir, options.binary.clone())?;
        server_options.settings = options.settings;
        let mut server = Server::start(&server_options)?;
        server.ready(READY_MAX).await?;
        let node = Address {
            node: 1,
            authority: server_options.authority(),
        };
        let mut fleet = Fleet::new(&options.dir, vec![node], options.seed, DEADLINE, &[])?;
        fleet.prepare().await?;
        Ok(Self {
            server_options,
            server,
            fleet,
            rng: StdRng::seed_from_u64(options.seed),
            kills: 0,
            restarts: Vec::new(),
        })
    }

    async fn rounds_and_drain(&mut self, options: &Options) -> anyhow::Result<()> {
        self.fleet.start_load();
        for round in 0..options.rounds {
            if round == options.rounds / 2 {
                self.fleet.start_late_groups();
            }
            let before = self.fleet.shared.recorder.counts().ok;
            let share = self.rng.random_range(0.3..1.0);
            tokio::time::sleep(Duration::from_secs_f64(options.seconds_per_round * share)).await;
            let done = self.fleet.shared.recorder.counts().ok - before;
            ensure!(
                done > 0,
                "round {round}: no operation succeeded in {share:.1} of a round"
            );
            self.kill_and_restart(round).await?;
        }
        tokio::time::sleep(Duration::from_secs_f64(options.seconds_per_round * 0.5)).await;
        self.fleet.end_load().await?;
        self.fleet.drain_all(0).await?;
        self.server.kill()
    }

    async fn kill_and_restart(&mut self, round: u32) -> anyhow::Result<()> {
        self.server.kill().with_context(|| format!("round {round}"))?;
        self.fleet.set(Phase::Down);
        self.kills += 1;
        self.fleet.shared.recorder.note(format!("round {round}: killed"));
        let mut server = Server::start(&self.server_options)?;
        if self.rng.random_range(0..100) < KILLED_TWICE_PERCENT {
            let usual = self
                .restarts
                .last()
                .copied()
                .unwrap_or(Duration::from_millis(100));
            tokio::time::sleep(usual.mul_f64(self.rng.random_range(0.0..1.0))).await;
            server
                .kill()
                .with_context(|| format!("round {round}, while it started"))?;
            self.kills += 1;
            self.fleet
                .shared
                .recorder
                .note(format!("round {round}: killed while it started"));
            server = Server::start(&self.server_options)?;
        }
        let took = server
            .ready(READY_MAX)
            .await
            .with_context(|| format!("round {round}"))?;
        self.server = server;
        self.restarts.push(took);
        self.fleet
            .shared
            .recorder
            .note(format!("round {round}: ready after {:.0} ms", millis(took)));
        self.fleet.set(Phase::Up);
        Ok(())
    }
}
