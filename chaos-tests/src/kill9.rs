//! `kill -9` under load, again and again; then everything is drained and the history of all clients is judged.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use laneway_sim::oracle::history::QueueFacts;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::http::Call;
use crate::recorder::{Counts, Recorder};
use crate::server::{Server, ServerOptions, Settings};
use crate::stats::{median, millis, say};

use client::{Attempt, Client, Phase, Shared};
use plan::{GroupPlan, QUEUE_LEASE_SECONDS, QUEUES, QueuePlan};

mod client;
mod consumer;
mod drain;
mod janitor;
mod judge;
mod plan;
mod producer;
mod verbs;

pub use judge::{Judgement, judge};

/// Longest wait for a broker that was started.
const READY_MAX: Duration = Duration::from_secs(60);

/// Longest wait for the clients to finish what they are doing when the load ends.
const CLIENTS_END_MAX: Duration = Duration::from_secs(60);

/// Share of restarts that are killed again before they are ready, in percent.
const KILLED_TWICE_PERCENT: u32 = 20;

/// Number of the client that configures, registers groups and lists dead letters at the end.
const SETUP_CLIENT: u32 = 0;

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
    let faults = run.shared.recorder.finish().context("history")?;
    outcome.with_context(|| format!("history so far: {}", run.shared.recorder.path().display()))?;
    let judgement = judge(run.shared.recorder.path())?;
    let counts = run.shared.recorder.counts();
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
    shared: Arc<Shared>,
    phase: watch::Sender<Phase>,
    clients: JoinSet<()>,
    numbers: std::ops::RangeFrom<u32>,
    rng: StdRng,
    kills: u32,
    restarts: Vec<Duration>,
}

impl Run {
    /// Starts the broker and prepares queues and groups.
    async fn start(options: &Options) -> anyhow::Result<Self> {
        let mut server_options = ServerOptions::under(&options.dir, options.binary.clone())?;
        server_options.settings = options.settings;
        let recorder = Recorder::create(&options.dir.join("history.jsonl"))?;
        recorder.note(format!("seed {}", options.seed));
        let mut server = Server::start(&server_options)?;
        server.ready(READY_MAX).await?;
        let (phase, receiver) = watch::channel(Phase::Up);
        let authority = server_options.authority();
        let shared = Arc::new(Shared {
            recorder,
            authority,
            phase: receiver,
            seed: options.seed,
        });
        let mut setup = Client::new(SETUP_CLIENT, Arc::clone(&shared));
        for plan in QUEUES {
            configure(&mut setup, plan).await?;
            for group in plan.groups.iter().filter(|group| !group.late) {
                register(&mut setup, plan, group).await?;
            }
        }
        Ok(Self {
            server_options,
            server,
            shared,
            phase,
            clients: JoinSet::new(),
            numbers: SETUP_CLIENT + 1..,
            rng: StdRng::seed_from_u64(options.seed),
            kills: 0,
            restarts: Vec::new(),
        })
    }

    async fn rounds_and_drain(&mut self, options: &Options) -> anyhow::Result<()> {
        self.start_load();
        for round in 0..options.rounds {
            if round == options.rounds / 2 {
                self.start_late_groups();
            }
            let before = self.shared.recorder.counts().ok;
            let share = self.rng.random_range(0.3..1.0);
            tokio::time::sleep(Duration::from_secs_f64(options.seconds_per_round * share)).await;
            let done = self.shared.recorder.counts().ok - before;
            ensure!(
                done > 0,
                "round {round}: no operation succeeded in {share:.1} of a round"
            );
            self.kill_and_restart(round).await?;
        }
        tokio::time::sleep(Duration::from_secs_f64(options.seconds_per_round * 0.5)).await;
        self.phase.send_replace(Phase::Ending);
        tokio::time::timeout(CLIENTS_END_MAX, async {
            while self.clients.join_next().await.is_some() {}
        })
        .await
        .context("clients did not end")?;
        self.drain_all().await?;
        self.server.kill()
    }

    fn client(&mut self) -> Client {
        let number = self.numbers.next().expect("client numbers do not run out");
        Client::new(number, Arc::clone(&self.shared))
    }

    fn start_load(&mut self) {
        for plan in QUEUES {
            for _ in 0..plan.producers {
                let client = self.client();
                self.clients.spawn(producer::produce(client, plan));
            }
            for group in plan.groups.iter().filter(|group| !group.late) {
                self.start_consumers(plan, group);
            }
            if plan.keeps_dead_letters {
                let client = self.client();
                self.clients.spawn(janitor::tend_dead_letters(client, plan));
            }
        }
    }

    fn start_late_groups(&mut self) {
        for plan in QUEUES {
            for group in plan.groups.iter().filter(|group| group.late) {
                self.start_consumers(plan, group);
            }
        }
    }

    fn start_consumers(&mut self, plan: &'static QueuePlan, group: &'static GroupPlan) {
        for _ in 0..group.consumers {
            let client = self.client();
            self.clients.spawn(consumer::consume(client, plan, group));
        }
    }

    async fn kill_and_restart(&mut self, round: u32) -> anyhow::Result<()> {
        self.server.kill().with_context(|| format!("round {round}"))?;
        self.phase.send_replace(Phase::Down);
        self.kills += 1;
        self.shared.recorder.note(format!("round {round}: killed"));
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
            self.shared
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
        self.shared
            .recorder
            .note(format!("round {round}: ready after {:.0} ms", millis(took)));
        self.phase.send_replace(Phase::Up);
        Ok(())
    }

    /// Drains all groups, each with a client of its own, then lists the dead letters and looks for leaks.
    async fn drain_all(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        self.phase.send_replace(Phase::Up);
        let mut drains = JoinSet::new();
        for plan in QUEUES {
            for group in plan.groups {
                let mut client = self.client();
                drains.spawn(async move { drain::drain(&mut client, plan, group).await });
            }
        }
        while let Some(done) = drains.join_next().await {
            done??;
        }
        let mut client = self.client();
        for plan in QUEUES {
            let listed = client.list_dead_letters(plan.name, true).await;
            ensure!(
                matches!(listed, Attempt::Done(_)),
                "cannot list the dead letters of {}",
                plan.name
            );
            drain::check_no_lease_left(&mut client, plan).await?;
        }
        say(format_args!(
            "drained in {:.1} s",
            started.elapsed().as_secs_f64()
        ));
        Ok(())
    }
}

async fn configure(client: &mut Client, plan: &QueuePlan) -> anyhow::Result<()> {
    let body = serde_json::json!({"queue": plan.name, "options": {
        "leaseTime": QUEUE_LEASE_SECONDS,
        "retryLimit": plan.retry_limit,
        "deadLetterQueue": plan.keeps_dead_letters,
        "dlqAfterMaxRetries": plan.keeps_dead_letters,
        "dedupWindowSeconds": plan.dedup_window_seconds,
        "retentionEnabled": plan.trims,
        "completedRetentionSeconds": u32::from(plan.trims),
    }});
    let call = Call::post("/api/v1/configure", body.to_string(), Duration::from_secs(10));
    let answer = client.raw(call).await?;
    ensure!(
        answer.status == 200,
        "configure of {}: {}",
        plan.name,
        answer.brief()
    );
    client.shared.recorder.queue(QueueFacts {
        name: plan.name.to_owned(),
        retry_limit: plan.retry_limit,
        keeps_dead_letters: plan.keeps_dead_letters,
        dedup_window_seconds: plan.dedup_window_seconds,
    });
    Ok(())
}

/// A group's first pop registers it, here before the first message.
async fn register(client: &mut Client, plan: &QueuePlan, group: &GroupPlan) -> anyhow::Result<()> {
    let query = crate::api::PopQuery {
        queue: plan.name,
        lane: None,
        group: group.parameter(),
        mode: Some("all"),
        batch: 1,
        lanes_max: 1,
        wait_ms: None,
        lease_seconds: None,
        auto_ack: false,
    };
    let claim = client.pop(&query).await;
    ensure!(
        matches!(claim, Attempt::Done(_)),
        "first pop of {} / {}: {claim:?}",
        plan.name,
        group.name
    );
    Ok(())
}
