//! One node of several believes in a wrong time of day: leases, delays and the times of messages stay right.
//!
//! Under the load of [`crate::kill9`], a node is started with a clock that is off, by libfaketime; its monotonic clock is
//! left alone, as no machine's jumps. Then a lease and a delay are timed while that node follows, while it leads, while it
//! dies, and after its death. This process's own clock is the true one.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::cluster::nodes::Nodes;
use crate::cluster::probe::{Armed, Lanes, PROBE, whole};
use crate::cluster::{DEADLINE, READY_MAX, replicas};
use crate::held::{self, HELD, Held};
use crate::judge::judge;
use crate::sched::SchedulingDelay;
use crate::server::{PARTITIONS, Settings};
use crate::stats::{millis, say};
use crate::workload::client::Client;
use crate::workload::plan::QueuePlan;
use crate::workload::setup::Fleet;

use delayed::DELAY;
use faketime::Leftovers;
use report::Report;

pub use faketime::find as find_libfaketime;

mod delayed;
mod faketime;
mod report;

/// The lease that is timed.
const LEASE: Duration = Duration::from_secs(3);

/// The node that dies does so this long after lease and delay began.
const DIES_AFTER: Duration = Duration::from_secs(1);

/// An election counts as this long at least, whatever was measured.
const ELECTION: Duration = Duration::from_millis(300);

/// Longest wait for a leader.
const LEADER_MAX: Duration = Duration::from_secs(20);

/// Attempts to time something while leadership stays where it should.
const ATTEMPTS_MAX: u32 = 10;

/// Between two looks at who leads.
const LOOK: Duration = Duration::from_millis(100);

/// Failures that each drain may meet.
const DRAIN_PATIENCE: u32 = 50;

/// What a node logs whose clock is far from those of the others, with `seconds=` somewhere beside it.
const CLOCK_LINE: &str = "clock is off from those of the other nodes";

const EXTRA: &[QueuePlan] = &[PROBE, HELD];

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `laneway` binary.
    pub binary: PathBuf,
    /// The library.
    pub libfaketime: PathBuf,
    /// The nodes' settings.
    pub settings: Settings,
    /// How many nodes.
    pub nodes: u16,
    /// How often each clock is tried.
    pub rounds: u32,
    /// Of the clients' choices.
    pub seed: u64,
    /// Data, logs and history go here; it must be empty.
    pub dir: PathBuf,
}

/// A wrong time of day.
#[derive(Clone, Copy, Debug)]
struct Wrong {
    /// As libfaketime writes it.
    offset: &'static str,
    /// How far off.
    seconds: u64,
    words: &'static str,
}

const WRONG: [Wrong; 3] = [
    Wrong {
        offset: "+1h",
        seconds: 3600,
        words: "an hour ahead",
    },
    Wrong {
        offset: "-1h",
        seconds: 3600,
        words: "an hour behind",
    },
    Wrong {
        offset: "+1d",
        seconds: 86_400,
        words: "a day ahead",
    },
];

/// How a clock comes to be wrong.
#[derive(Clone, Copy, Debug)]
enum Begin {
    /// It was when the cluster was founded; its node is the founder.
    Founding,
    /// All nodes are killed and started again, this one with a wrong clock: no leader is left whose stamps could be followed.
    AllRestart,
    /// Only the node itself is started again.
    OneRestarts,
}

/// What the node with the wrong clock is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Another one leads the partition in question.
    Follows,
    /// It leads the partition.
    Leads,
    /// It leads and is killed meanwhile.
    Dies,
    /// It is dead; its successor goes on from its stamps.
    Dead,
}

/// How long something took, and what the message says of its push.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// From the last moment at which it may have begun.
    shortest: Duration,
    /// From the first moment at which it may have begun.
    longest: Duration,
    /// Just before the push was sent and just after it was answered, in ms since 1970.
    pushed_ms: (u64, u64),
    /// Of the message.
    created_at_ms: u64,
}

/// One lease and one delay.
#[derive(Clone, Copy, Debug)]
struct Measured {
    lease: Times,
    delay: Times,
    /// Of the partition meanwhile.
    gap: Duration,
}

/// Runs all clocks; false when something did not hold. Errors: the run itself could not be done.
pub async fn run(options: &Options) -> anyhow::Result<bool> {
    let delay = SchedulingDelay::start();
    let mut run = Run::start(options).await?;
    let outcome = run.rounds_and_drain(options).await;
    run.fleet.shared.recorder.finish().context("history")?;
    let path = run.fleet.shared.recorder.path().to_owned();
    let (bad_lines, shown) = run.nodes.bad_log_lines(5);
    for line in shown {
        say(format_args!("LOG {line}"));
    }
    outcome.with_context(|| format!("history so far: {}", path.display()))?;
    let mut late = delay.finish();
    let judgement = judge(&path)?;
    judgement.print();
    run.report.print();
    say(format_args!(
        "error lines in the logs {bad_lines}; a sleeping thread woke late by p50 {:.2} ms, p99 {:.1} ms, worst {:.0} ms",
        millis(late.percentile(500)),
        millis(late.percentile(990)),
        millis(late.percentile(1000))
    ));
    Ok(run.report.passed() && judgement.passed())
}

struct Run {
    library: PathBuf,
    nodes: Nodes,
    /// Dropped after the nodes.
    leftovers: Vec<Leftovers>,
    fleet: Fleet,
    probes: Lanes,
    held: Lanes,
    delayed: Lanes,
    turn: usize,
    report: Report,
}

impl Run {
    async fn start(options: &Options) -> anyhow::Result<Self> {
        let mut nodes = Nodes::new(&options.dir, &options.binary, options.nodes, options.settings)?;
        // Node 1 founds the cluster, and is the first in `WRONG`.
        nodes.set_environment(1, faketime::environment(&options.libfaketime, WRONG[0].offset))?;
        nodes.start_all()?;
        let leftovers = vec![Leftovers::of(nodes.process_id(1)?)];
        nodes.ready_all(READY_MAX).await?;
        let mut fleet = Fleet::new(&options.dir, nodes.addresses(), options.seed, DEADLINE, EXTRA)?;
        fleet.prepare().await?;
        let probes = Lanes::find(&mut fleet.client(), &PROBE).await?;
        let held = Lanes::find(&mut fleet.client(), &HELD).await?;
        let delayed = delayed::prepare(&mut fleet.client()).await?;
        Ok(Self {
            library: options.libfaketime.clone(),
            nodes,
            leftovers,
            fleet,
            probes,
            held,
            delayed,
            turn: 0,
            report: Report::default(),
        })
    }

    async fn rounds_and_drain(&mut self, options: &Options) -> anyhow::Result<()> {
        self.fleet.start_load();
        let turns = options.rounds as usize * WRONG.len();
        let nodes = self.nodes.all();
        let begins = [Begin::Founding, Begin::AllRestart]
            .into_iter()
            .chain(std::iter::repeat(Begin::OneRestarts));
        let clocks = WRONG.iter().cycle().take(turns);
        for ((wrong, odd), begin) in clocks.zip(nodes.into_iter().cycle()).zip(begins) {
            self.round(*wrong, odd, begin)
                .await
                .with_context(|| format!("node {odd} {}, {begin:?}", wrong.words))?;
        }
        self.fleet.start_late_groups();
        self.fleet.end_load().await?;
        self.nodes.ready_all(READY_MAX).await?;
        self.fleet.drain_all(DRAIN_PATIENCE).await?;
        let replicas = replicas::converge(&self.nodes, &self.fleet.shared.recorder).await;
        self.report.replicas(replicas);
        self.nodes.kill(&self.nodes.all())
    }

    /// Sees to it that the node has that clock, times everything in each of its places, and starts it again with the true one.
    async fn round(&mut self, wrong: Wrong, odd: u16, begin: Begin) -> anyhow::Result<()> {
        // One whose lead would go to another node after some seconds: it has led for no longer than it is watched.
        let partition = odd % PARTITIONS;
        let all = self.nodes.all();
        let logs: Vec<_> = all
            .iter()
            .map(|node| match begin {
                Begin::Founding => (*node, 0),
                Begin::AllRestart | Begin::OneRestarts => (*node, self.nodes.log_bytes(*node)),
            })
            .collect();
        let restarted = match begin {
            Begin::Founding => Vec::new(),
            Begin::AllRestart => all,
            Begin::OneRestarts => vec![odd],
        };
        if !restarted.is_empty() {
            self.nodes.kill(&restarted)?;
            let environment = faketime::environment(&self.library, wrong.offset);
            self.nodes.set_environment(odd, environment)?;
            for node in &restarted {
                self.nodes.start(*node)?;
            }
            self.note(format!("{begin:?}: the clock of node {odd} is {}", wrong.words));
            self.leftovers.push(Leftovers::of(self.nodes.process_id(odd)?));
            self.nodes.ready_all(READY_MAX).await?;
        }
        for place in [Place::Follows, Place::Leads, Place::Dies, Place::Dead] {
            let measured = self.measure(place, odd, partition).await;
            let measured = measured.with_context(|| format!("{place:?}, partition {partition}"))?;
            self.report.add(odd, wrong, place, measured);
        }
        for (node, from) in logs {
            let lines = self.nodes.log_lines(node, from, CLOCK_LINE);
            match node == odd {
                true => self.report.named(node, wrong, &lines),
                false => self.report.not_named(node, wrong, &lines),
            }
        }
        self.nodes.set_environment(odd, Vec::new())?;
        self.note(format!("start node {odd} with the right clock"));
        self.nodes.start(odd)?;
        self.nodes.ready(odd, READY_MAX).await?;
        Ok(())
    }

    /// Times a lease and a delay of the partition; again when leadership moved meanwhile.
    async fn measure(&mut self, place: Place, odd: u16, partition: u16) -> anyhow::Result<Measured> {
        let group = partition.to_string();
        for _ in 0..ATTEMPTS_MAX {
            let leader = match place {
                Place::Follows => self.other_leader(&group, odd).await?,
                Place::Leads | Place::Dies => self.make_lead(&group, odd).await?,
                Place::Dead => self.nodes.leader_of(&group, LEADER_MAX).await?,
            };
            self.note(format!("{place:?}: node {leader} leads {group}"));
            let measured = self.measure_once(place, odd, partition).await?;
            let at_end = self.nodes.leader_of(&group, LEADER_MAX).await?;
            match measured {
                Some(measured) if place == Place::Dies || at_end == leader => return Ok(measured),
                _ => self.note(format!("{group} moved from {leader} to {at_end}")),
            }
        }
        anyhow::bail!("leadership of {group} never stood still for so long")
    }

    /// `None` when the node that was to be killed did not lead any more.
    async fn measure_once(
        &mut self,
        place: Place,
        odd: u16,
        partition: u16,
    ) -> anyhow::Result<Option<Measured>> {
        self.turn += 1;
        let lane = self.held.of(partition, self.turn).to_owned();
        let delayed_lane = self.delayed.of(partition, self.turn).to_owned();
        let held = held::hold(&mut self.client(place, odd), &lane, LEASE).await?;
        let waiting = tokio::spawn(held::wait_for_end(self.client(place, odd), lane, LEASE));
        let sleeping = tokio::spawn(delayed::take(self.client(place, odd), delayed_lane));
        let gap = match place {
            Place::Dies => {
                tokio::time::sleep(DIES_AFTER.saturating_sub(held.got.elapsed())).await;
                self.kill(odd, partition).await?
            }
            _ => Some(Duration::ZERO),
        };
        let ended = waiting.await?;
        let (ended, mut next, claim) = ended.with_context(|| format!("a lease of {LEASE:?} never ended"))?;
        let delay = sleeping.await??;
        let targets: Vec<_> = claim.lanes.iter().map(|lane| whole(&claim, lane)).collect();
        next.ack(HELD.name, HELD.groups[0].parameter(), &targets, None)
            .await;
        Ok(gap.map(|gap| Measured {
            lease: times_of_lease(&held, ended),
            delay,
            gap,
        }))
    }

    /// A client that asks any node that lives to the end.
    fn client(&mut self, place: Place, odd: u16) -> Client {
        match place {
            Place::Follows | Place::Leads => self.fleet.client(),
            Place::Dies | Place::Dead => self.fleet.client().not_at_node(odd),
        }
    }

    /// Kills the node if it leads the partition; gives the partition's gap.
    async fn kill(&mut self, odd: u16, partition: u16) -> anyhow::Result<Option<Duration>> {
        let survivors = self.nodes.others(odd);
        let armed = Armed::new(&mut self.fleet, &self.probes, &[partition], &survivors).await;
        if !self.nodes.led_by(odd).await.contains(&partition) {
            return Ok(None);
        }
        self.note(format!("kill node {odd}"));
        let at = self.nodes.begin_kill(&[odd])?;
        let probing = tokio::spawn(armed.gaps(at));
        tokio::task::block_in_place(|| self.nodes.end_kill(&[odd]))?;
        let gap = probing.await?.remove(&partition).flatten();
        let gap = gap.with_context(|| format!("partition {partition} acked nothing for half a minute"))?;
        Ok(Some(gap))
    }

    /// Takes the lead from the node, if it has it; gives the leader.
    async fn other_leader(&mut self, group: &str, odd: u16) -> anyhow::Result<u16> {
        let leader = self.nodes.leader_of(group, LEADER_MAX).await?;
        if leader != odd {
            return Ok(leader);
        }
        let other = self.nodes.others(odd)[0];
        self.make_lead(group, other).await
    }

    /// Hands the lead to the node until it has it.
    async fn make_lead(&mut self, group: &str, node: u16) -> anyhow::Result<u16> {
        let started = Instant::now();
        loop {
            let leader = self.nodes.leader_of(group, LEADER_MAX).await?;
            if leader == node {
                return Ok(node);
            }
            ensure!(
                started.elapsed() < LEADER_MAX,
                "node {node} did not get the lead of {group} within {LEADER_MAX:?}"
            );
            if let Err(error) = self.nodes.transfer(leader, group, node).await {
                self.note(format!("transfer of {group} to {node} failed: {error:#}"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn note(&self, text: String) {
        self.fleet.shared.recorder.note(text);
    }
}

fn times_of_lease(held: &Held, ended: Instant) -> Times {
    // Before it lies the message by which the lane's partition was found.
    let newest = held.claim.lanes[0].messages.last();
    let newest = newest.expect("a claimed lane has messages");
    Times {
        shortest: ended - held.got,
        longest: ended - held.asked,
        pushed_ms: held.pushed_ms,
        created_at_ms: newest.created_at_ms,
    }
}
