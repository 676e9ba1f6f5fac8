//! Leases over changes of leadership: a live one survives its leader's death, and none lasts much longer than it should.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::task::JoinSet;

use crate::cluster::nodes::Nodes;
use crate::cluster::probe::{Armed, Lanes, PROBE, whole};
use crate::cluster::{DEADLINE, READY_MAX, replicas};
use crate::held::{self, END_MAX, HELD, Held, POLL};
use crate::judge::{Judgement, judge};
use crate::sched::SchedulingDelay;
use crate::server::{PARTITIONS, Settings};
use crate::stats::{Latencies, millis, say};
use crate::workload::client::{Attempt, Client};
use crate::workload::plan::QueuePlan;
use crate::workload::setup::Fleet;

/// Lease of every claim here.
const LEASE: Duration = Duration::from_secs(10);

/// Between two changes of leadership.
const EVERY: Duration = Duration::from_secs(3);

/// What invariant 11 allows beyond lease and election.
const LATE_MAX: Duration = Duration::from_secs(1);

/// An election counts as this long at least, whatever was measured.
const ELECTION: Duration = Duration::from_millis(300);

/// Attempts of a holder to ack.
const ACKS_MAX: u32 = 400;

/// Longest wait for a leader.
const LEADER_MAX: Duration = Duration::from_secs(20);

const EXTRA: &[QueuePlan] = &[PROBE, HELD];

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `laneway` binary.
    pub binary: PathBuf,
    /// The nodes' settings.
    pub settings: Settings,
    /// How many nodes.
    pub nodes: u16,
    /// How often each part is done.
    pub rounds: u32,
    /// Of the clients' choices.
    pub seed: u64,
    /// Data, logs and history go here; it must be empty.
    pub dir: PathBuf,
}

/// What happens while a lease runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Leadership is handed over.
    Transfer,
    /// The leader's process is killed.
    Kill,
}

/// Runs all parts; false when something did not hold. Errors: the run itself could not be done.
pub async fn run(options: &Options) -> anyhow::Result<bool> {
    let delay = SchedulingDelay::start();
    let mut run = Run::start(options).await?;
    let outcome = run.parts(options).await;
    run.fleet.shared.recorder.finish().context("history")?;
    let path = run.fleet.shared.recorder.path().to_owned();
    outcome.with_context(|| format!("history so far: {}", path.display()))?;
    let (bad_lines, shown) = run.nodes.bad_log_lines(5);
    for line in shown {
        say(format_args!("LOG {line}"));
    }
    say(format_args!("error lines in the logs {bad_lines}"));
    let mut late = delay.finish();
    say(format_args!(
        "failover gaps: p50 {:.0} ms, worst {:.0} ms ({} gaps); a sleeping thread woke late by p50 {:.2} ms, p99 {:.1} ms, \
         worst {:.0} ms",
        millis(run.gaps.percentile(500)),
        millis(run.gaps.percentile(1000)),
        run.gaps.count(),
        millis(late.percentile(500)),
        millis(late.percentile(990)),
        millis(late.percentile(1000))
    ));
    let judgement: Judgement = judge(&path)?;
    judgement.print();
    Ok(run.held && judgement.passed())
}

struct Run {
    nodes: Nodes,
    fleet: Fleet,
    probes: Lanes,
    lanes: Lanes,
    gaps: Latencies,
    turn: usize,
    held: bool,
}

impl Run {
    async fn start(options: &Options) -> anyhow::Result<Self> {
        let mut nodes = Nodes::new(&options.dir, &options.binary, options.nodes, options.settings)?;
        nodes.start_all()?;
        nodes.ready_all(READY_MAX).await?;
        let mut fleet = Fleet::new(&options.dir, nodes.addresses(), options.seed, DEADLINE, EXTRA)?;
        fleet.prepare().await?;
        let probes = Lanes::find(&mut fleet.client(), &PROBE).await?;
        let lanes = Lanes::find(&mut fleet.client(), &HELD).await?;
        Ok(Self {
            nodes,
            fleet,
            probes,
            lanes,
            gaps: Latencies::default(),
            turn: 0,
            held: true,
        })
    }

    async fn parts(&mut self, options: &Options) -> anyhow::Result<()> {
        self.fleet.start_load();
        for round in 0..options.rounds {
            let partition = u16::try_from(round % u32::from(PARTITIONS))?;
            self.survives(partition)
                .await
                .with_context(|| format!("round {round}"))?;
        }
        for change in [Change::Transfer, Change::Kill] {
            for round in 0..options.rounds {
                let partition = u16::try_from(round % u32::from(PARTITIONS))?;
                self.ends(partition, change)
                    .await
                    .with_context(|| format!("{change:?}, round {round}"))?;
            }
        }
        self.fleet.start_late_groups();
        self.fleet.end_load().await?;
        self.nodes.ready_all(READY_MAX).await?;
        self.fleet.drain_all(50).await?;
        match replicas::converge(&self.nodes, &self.fleet.shared.recorder).await {
            Ok(took) => say(format_args!(
                "PASS replicas came to one digest within {:.1} s",
                took.as_secs_f64()
            )),
            Err(why) => self.fail(&why),
        }
        self.nodes.kill(&self.nodes.all())
    }

    fn fail(&mut self, what: &str) {
        self.held = false;
        say(format_args!("FAIL {what}"));
        self.fleet.shared.recorder.note(what);
    }

    /// Pushes a message to a lane of the partition and claims it.
    async fn hold(&mut self, client: &mut Client, partition: u16) -> anyhow::Result<Held> {
        self.turn += 1;
        let lane = self.lanes.of(partition, self.turn).to_owned();
        held::hold(client, &lane, LEASE).await
    }

    /// The leader dies; nobody else gets the span, and its holder's ack succeeds.
    async fn survives(&mut self, partition: u16) -> anyhow::Result<()> {
        let mut holder = self.fleet.client();
        let held = self.hold(&mut holder, partition).await?;
        let victim = self.nodes.leader_of(&partition.to_string(), LEADER_MAX).await?;
        let (stop, mut rivals) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        for _ in 0..3 {
            let rival = self.fleet.client().not_at_node(victim);
            rivals.spawn(contend(rival, held.lane.clone(), Arc::clone(&stop)));
        }
        let at = self.kill_and_measure(victim).await?;
        let acked = self.ack(&mut holder, &held).await;
        let after = at.elapsed();
        stop.store(true, Ordering::Relaxed);
        let (mut taken, mut empty) = (0, 0);
        while let Some(done) = rivals.join_next().await {
            let (of_one, nothing) = done?;
            taken += of_one;
            empty += nothing;
        }
        match acked {
            Ok(()) if taken == 0 => say(format_args!(
                "PASS partition {partition}: held over the death of node {victim}, acked {:.0} ms after it; others asked {empty} times",
                millis(after)
            )),
            Ok(()) => self.fail(&format!(
                "partition {partition}: others got the held span {taken} times"
            )),
            Err(error) => self.fail(&format!(
                "partition {partition}: the holder's ack failed: {error:#}"
            )),
        }
        self.nodes.start(victim)?;
        self.nodes.ready(victim, READY_MAX).await?;
        Ok(())
    }

    /// Attempts of the holder until the outcome is known; it must be a success while the lease surely runs.
    async fn ack(&self, holder: &mut Client, held: &Held) -> anyhow::Result<()> {
        let target = [whole(&held.claim, &held.claim.lanes[0])];
        for _ in 0..ACKS_MAX {
            let group = HELD.groups[0].parameter();
            if let Attempt::Done(items) = holder.ack(HELD.name, group, &target, None).await {
                ensure!(
                    items.iter().all(|item| item.success) || held.asked.elapsed() > LEASE,
                    "refused: {items:?}"
                );
                return Ok(());
            }
            holder.pause(5, 20).await;
        }
        bail!("no outcome was learnt in {ACKS_MAX} attempts")
    }

    async fn kill_and_measure(&mut self, victim: u16) -> anyhow::Result<Instant> {
        let led = self.nodes.led_by(victim).await;
        let survivors = self.nodes.others(victim);
        let armed = Armed::new(&mut self.fleet, &self.probes, &led, &survivors).await;
        self.fleet
            .shared
            .recorder
            .note(format!("kill node {victim}, which led {led:?}"));
        let at = self.nodes.begin_kill(&[victim])?;
        let probing = tokio::spawn(armed.gaps(at));
        tokio::task::block_in_place(|| self.nodes.end_kill(&[victim]))?;
        self.add_gaps(&probing.await?);
        Ok(at)
    }

    fn add_gaps(&mut self, gaps: &BTreeMap<u16, Option<Duration>>) {
        for (partition, gap) in gaps {
            match gap {
                Some(gap) => self.gaps.add(*gap),
                None => self.fail(&format!("partition {partition} acked nothing for half a minute")),
            }
        }
    }

    /// A lease that nobody acks ends in time, however often leadership changes meanwhile.
    async fn ends(&mut self, partition: u16, change: Change) -> anyhow::Result<()> {
        let mut holder = self.fleet.client();
        let held = self.hold(&mut holder, partition).await?;
        let waiting = tokio::spawn(held::wait_for_end(self.fleet.client(), held.lane.clone(), LEASE));
        let mut changes = 0;
        while !waiting.is_finished() && held.got.elapsed() < END_MAX {
            let turn = Instant::now();
            self.change(partition, change).await?;
            changes += 1;
            while turn.elapsed() < EVERY && !waiting.is_finished() {
                tokio::time::sleep(POLL).await;
            }
        }
        let Some((ended, mut next, claim)) = waiting.await? else {
            self.fail(&format!(
                "partition {partition}: a lease of {LEASE:?} never ended"
            ));
            return Ok(());
        };
        let (least, most) = (ended - held.asked, ended - held.got);
        let election = self.gaps.percentile(1000).max(ELECTION);
        let allowed = LEASE + election + LATE_MAX;
        let text = format!(
            "partition {partition}, {change:?} every 3 s ({changes}): a lease of 10 s ended after {:.0} ms (allowed {:.0})",
            millis(most),
            millis(allowed)
        );
        // The broker's clock may be 0.1 % off.
        if least < LEASE - LEASE / 1000 || most > allowed {
            self.fail(&text);
        } else {
            say(format_args!("PASS {text}"));
        }
        let targets: Vec<_> = claim.lanes.iter().map(|lane| whole(&claim, lane)).collect();
        next.ack(HELD.name, HELD.groups[0].parameter(), &targets, None)
            .await;
        Ok(())
    }

    async fn change(&mut self, partition: u16, change: Change) -> anyhow::Result<()> {
        let group = partition.to_string();
        let leader = self.nodes.leader_of(&group, LEADER_MAX).await?;
        match change {
            Change::Kill => {
                self.kill_and_measure(leader).await?;
                self.nodes.start(leader)?;
                self.nodes.ready(leader, READY_MAX).await?;
            }
            Change::Transfer => {
                let others = self.nodes.others(leader);
                let to = others[self.turn % others.len()];
                self.turn += 1;
                if let Err(error) = self.nodes.transfer(leader, &group, to).await {
                    say(format_args!("transfer of {group} to {to} failed: {error:#}"));
                }
            }
        }
        Ok(())
    }
}

/// Asks for the held lane until told to stop; gives how often it got something, and nothing.
async fn contend(mut rival: Client, lane: String, stop: Arc<AtomicBool>) -> (u32, u32) {
    let (mut taken, mut empty) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        if let Attempt::Done(claim) = rival.pop(&held::query(&lane, LEASE)).await {
            // Once the holder has settled it there is nothing left to give.
            taken += u32::from(!claim.lanes.is_empty());
            empty += u32::from(claim.lanes.is_empty());
        }
        rival.pause(5, 20).await;
    }
    (taken, empty)
}
