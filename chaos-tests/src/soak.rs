//! Full load on several nodes without any fault: nothing may call for an election.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::cluster::READY_MAX;
use crate::cluster::nodes::Nodes;
use crate::load::{Tally, Target, WORKLOADS, Workload, start_workers};
use crate::peer::Peer;
use crate::sched::SchedulingDelay;
use crate::server::Settings;
use crate::stats::{float, millis, say};

/// Leadership must not move for so long before the watch begins.
const SETTLED: Duration = Duration::from_secs(15);

/// Longest wait for that.
const SETTLE_MAX: Duration = Duration::from_secs(180);

/// Between two looks at the terms.
const LOOK: Duration = Duration::from_secs(1);

/// Between two lines of output.
const SAY: Duration = Duration::from_secs(60);

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `laneway` binary.
    pub binary: PathBuf,
    /// How many nodes.
    pub nodes: u16,
    /// How long.
    pub length: Duration,
    /// Name of the workload, as `load` has them.
    pub workload: String,
    /// Data and logs go here; it must be empty.
    pub dir: PathBuf,
}

/// Runs the load; false when there was an election. Errors: the run could not be done, or a request failed.
pub async fn run(options: &Options) -> anyhow::Result<bool> {
    let workload = WORKLOADS.iter().find(|it| it.name == options.workload);
    let workload = workload.with_context(|| format!("there is no workload {}", options.workload))?;
    let mut nodes = Nodes::new(&options.dir, &options.binary, options.nodes, Settings::Default)?;
    nodes.start_all()?;
    nodes.ready_all(READY_MAX).await?;
    let terms = settle(&nodes).await?;
    say(format_args!(
        "leaders {:?}, terms {terms:?}",
        nodes.leaders().await
    ));
    let delay = SchedulingDelay::start();
    let (elections, tally) = under_load(options, workload, &nodes, terms).await?;
    let mut late = delay.finish();
    let (bad_lines, shown) = nodes.bad_log_lines(5);
    for line in shown {
        say(format_args!("LOG {line}"));
    }
    let seconds = options.length.as_secs_f64();
    say(format_args!(
        "{} for {seconds:.0} s on {} nodes: pushed {:.0} msg/s, acked {:.0} msg/s; a sleeping thread woke late by p50 {:.2} ms, \
         p99 {:.1} ms, worst {:.0} ms; error lines in the logs {bad_lines}",
        workload.name,
        options.nodes,
        float(tally.pushed) / seconds,
        float(tally.acked) / seconds,
        millis(late.percentile(500)),
        millis(late.percentile(990)),
        millis(late.percentile(1000))
    ));
    let word = if elections == 0 { "PASS" } else { "FAIL" };
    say(format_args!(
        "{word} no election that nothing called for ({elections} elections)"
    ));
    nodes.kill(&nodes.all())?;
    Ok(elections == 0)
}

/// Waits until terms and leaders stand still and every group has a leader; gives the terms.
async fn settle(nodes: &Nodes) -> anyhow::Result<BTreeMap<String, u64>> {
    let started = Instant::now();
    let mut since = Instant::now();
    let mut last = (BTreeMap::new(), BTreeMap::new());
    loop {
        let now = (nodes.terms().await, nodes.leaders().await);
        if now != last || now.1.len() != now.0.len() {
            last = now;
            since = Instant::now();
        } else if since.elapsed() > SETTLED {
            return Ok(last.0);
        }
        ensure!(
            started.elapsed() < SETTLE_MAX,
            "leadership did not settle within {SETTLE_MAX:?}: {last:?}"
        );
        tokio::time::sleep(LOOK).await;
    }
}

/// Gives the growth of all terms, and what was done.
async fn under_load(
    options: &Options,
    workload: &Workload,
    nodes: &Nodes,
    before: BTreeMap<String, u64>,
) -> anyhow::Result<(u64, Tally)> {
    let authorities: Vec<_> = nodes.servers().map(crate::server::Server::authority).collect();
    let target = Target::of(authorities, "soak", options.length);
    target
        .prepare(&mut Peer::new(&nodes.addresses()[0].authority))
        .await?;
    let mut workers = start_workers(workload, &Arc::new(target));
    let (started, mut said) = (Instant::now(), Instant::now());
    let mut terms = before.clone();
    while started.elapsed() < options.length {
        tokio::time::sleep(LOOK).await;
        let now = nodes.terms().await;
        for (group, term) in &now {
            let old = terms.get(group).copied().unwrap_or(0);
            if *term > old {
                let at = started.elapsed().as_secs_f64();
                say(format_args!(
                    "at {at:.0} s: group {group} went from term {old} to {term}"
                ));
            }
        }
        terms.extend(now);
        if said.elapsed() > SAY {
            said = Instant::now();
            say(format_args!("{:.0} s gone", started.elapsed().as_secs_f64()));
        }
    }
    let mut tally = Tally::default();
    while let Some(done) = workers.join_next().await {
        tally.merge(done??);
    }
    let grown = terms
        .iter()
        .map(|(group, term)| term.saturating_sub(before.get(group).copied().unwrap_or(0)));
    Ok((grown.sum(), tally))
}
