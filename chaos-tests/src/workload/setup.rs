//! All clients of a run: prepared, let loose, stopped, drained.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use laneway_sim::oracle::history::QueueFacts;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::client::{Address, Attempt, Client, Phase, Shared};
use super::plan::{GroupPlan, QUEUE_LEASE_SECONDS, QUEUES, QueuePlan};
use super::{consumer, drain, janitor, producer};
use crate::api::PopQuery;
use crate::http::Call;
use crate::recorder::Recorder;
use crate::stats::say;

/// Longest wait for the clients to finish what they are doing when the load ends.
const CLIENTS_END_MAX: Duration = Duration::from_secs(90);

/// Longest wait for one answer to the setup.
const SETUP_DEADLINE: Duration = Duration::from_secs(10);

/// Longest time for a group's first pop to succeed.
const REGISTER_MAX: Duration = Duration::from_secs(30);

/// The clients of a run.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) shared: Arc<Shared>,
    phase: watch::Sender<Phase>,
    clients: JoinSet<()>,
    numbers: std::ops::RangeFrom<u32>,
    /// Besides [`QUEUES`].
    extra: &'static [QueuePlan],
}

impl Fleet {
    /// Begins a history in `dir`; the nodes need not answer yet.
    pub(crate) fn new(
        dir: &Path,
        nodes: Vec<Address>,
        seed: u64,
        deadline: Duration,
        extra: &'static [QueuePlan],
    ) -> anyhow::Result<Self> {
        let recorder = Recorder::create(&dir.join("history.jsonl"))?;
        recorder.note(format!("seed {seed}"));
        let (phase, receiver) = watch::channel(Phase::Up);
        let shared = Arc::new(Shared {
            recorder,
            nodes,
            phase: receiver,
            seed,
            deadline,
        });
        Ok(Self {
            shared,
            phase,
            clients: JoinSet::new(),
            numbers: 0..,
            extra,
        })
    }

    /// A client with a number of its own.
    pub(crate) fn client(&mut self) -> Client {
        let number = self.numbers.next().expect("client numbers do not run out");
        Client::new(number, Arc::clone(&self.shared))
    }

    /// Tells the clients whether the broker should answer.
    pub(crate) fn set(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    fn plans(&self) -> impl Iterator<Item = &'static QueuePlan> + use<> {
        QUEUES.iter().chain(self.extra)
    }

    /// Makes queues and groups; no fault may be going on.
    pub(crate) async fn prepare(&mut self) -> anyhow::Result<()> {
        let mut client = self.client();
        for plan in self.plans() {
            configure(&mut client, plan).await?;
            for group in plan.groups.iter().filter(|group| !group.late) {
                register(&mut client, plan, group).await?;
            }
        }
        Ok(())
    }

    pub(crate) fn start_load(&mut self) {
        for plan in self.plans() {
            for _ in 0..plan.producers {
                let client = self.client();
                self.clients.spawn(producer::produce(client, plan));
            }
            for group in plan.groups.iter().filter(|group| !group.late) {
                self.start_consumers(plan, group);
            }
            if plan.keeps_dead_letters && plan.producers > 0 {
                let client = self.client();
                self.clients.spawn(janitor::tend_dead_letters(client, plan));
            }
        }
    }

    pub(crate) fn start_late_groups(&mut self) {
        for plan in self.plans() {
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

    /// Ends the load.
    pub(crate) async fn end_load(&mut self) -> anyhow::Result<()> {
        self.set(Phase::Ending);
        tokio::time::timeout(CLIENTS_END_MAX, async {
            while self.clients.join_next().await.is_some() {}
        })
        .await
        .context("clients did not end")
    }

    /// Drains all groups, each with a client of its own, then lists the dead letters and looks for leaks. `patience` is how
    /// often each drain may meet a failure.
    pub(crate) async fn drain_all(&mut self, patience: u32) -> anyhow::Result<()> {
        let started = Instant::now();
        self.set(Phase::Up);
        let mut drains = JoinSet::new();
        for plan in self.plans() {
            for group in plan.groups {
                let mut client = self.client();
                drains.spawn(async move { drain::drain(&mut client, plan, group, patience).await });
            }
        }
        let mut met = 0;
        while let Some(done) = drains.join_next().await {
            met += done??;
        }
        let mut client = self.client();
        for plan in self.plans() {
            drain::list_dead_letters(&mut client, plan, patience).await?;
            drain::check_no_lease_left(&mut client, plan).await?;
        }
        say(format_args!(
            "drained in {:.1} s; failures met meanwhile: {met}",
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
    let call = Call::post("/api/v1/configure", body.to_string(), SETUP_DEADLINE);
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
    let query = PopQuery {
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
    let started = Instant::now();
    loop {
        match client.pop(&query).await {
            Attempt::Done(_) => return Ok(()),
            // Leadership is still being spread, or the disk is slow. There is nothing yet that could have been claimed.
            Attempt::Refused | Attempt::Unknown if started.elapsed() < REGISTER_MAX => {
                client.pause(5, 20).await
            }
            other => bail!("first pop of {} / {}: {other:?}", plan.name, group.name),
        }
    }
}
