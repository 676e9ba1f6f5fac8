//! Load figures of one broker, or of several nodes, on this machine: closed loops over keep-alive connections, medians of several runs.
//!
//! Broker and generator share the machine's cores, so the generator's own CPU is printed beside the broker's.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::task::JoinSet;

use crate::peer::Peer;
use crate::server::{Server, ServerOptions, Settings, Usage, process_usage};
use crate::stats::{float, median, millis, say};
use crate::sync_rate::sync_rate;

use nodes::{NodeFigures, NodeMark};
use worker::{Room, Worker};

pub(crate) use worker::{Tally, Target};

mod nodes;
mod worker;

/// Longest wait for a broker that was started.
const READY_MAX: Duration = Duration::from_secs(60);

/// Time for leadership to spread over the nodes.
const SPREAD_PAUSE: Duration = Duration::from_secs(5);

/// Samples of the raw sync rate.
const SYNC_RATE_RUNS: u32 = 3;

/// Length of one such sample.
const SYNC_RATE_SPAN: Duration = Duration::from_secs(2);

/// Length of the sample before each run: the disk of a shared machine is not the same from minute to minute.
const RAW_BEFORE_RUN: Duration = Duration::from_secs(1);

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `laneway` binary.
    pub binary: PathBuf,
    /// How many nodes; the clients are spread over them.
    pub nodes: u16,
    /// Runs of each workload.
    pub runs: u32,
    /// Not measured.
    pub warm_up: Duration,
    /// Measured.
    pub window: Duration,
    /// Lanes of a run's queue.
    pub lanes: u32,
    /// Messages carry a transaction id each.
    pub transaction_ids: bool,
    /// Only the workloads whose name contains this.
    pub only: Option<String>,
    /// Data and logs go here; it must be empty.
    pub dir: PathBuf,
}

/// One workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// Messages of one push.
    batch: u32,
    /// Pushes that wait for their answer.
    in_flight: u32,
    /// Consumers that pop and ack.
    consumers: u32,
    /// Messages of one pop.
    pop_batch: u32,
    /// Most messages between push and ack; 0 when nothing consumes.
    open_max: u32,
}

pub(crate) const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "push-batch-100",
        batch: 100,
        in_flight: 8,
        consumers: 0,
        pop_batch: 0,
        open_max: 0,
    },
    Workload {
        name: "push-single-64",
        batch: 1,
        in_flight: 64,
        consumers: 0,
        pop_batch: 0,
        open_max: 0,
    },
    Workload {
        name: "cycle-single-64",
        batch: 1,
        in_flight: 64,
        consumers: 16,
        pop_batch: 64,
        open_max: 2_000,
    },
    Workload {
        name: "cycle-batch-100",
        batch: 100,
        in_flight: 8,
        consumers: 8,
        pop_batch: 1000,
        open_max: 40_000,
    },
];

/// Figures of one measured window.
#[derive(Debug)]
struct Figures {
    /// Pushed, or acked where something consumes.
    messages_per_second: f64,
    /// Of a push call; from push call to receipt where something consumes.
    p50: Duration,
    p99: Duration,
    server_cpu_per_million: f64,
    client_cpu_per_million: f64,
    server_cores: f64,
    client_cores: f64,
    /// Of the largest node.
    rss_bytes: u64,
    nodes: Vec<NodeFigures>,
    /// Messages for each sync of the node that synced most.
    messages_per_sync: f64,
    /// What the disk alone did a moment before.
    raw_syncs_per_second: f64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let syncs: Vec<f64> = self.nodes.iter().map(|node| node.syncs_per_second).collect();
        write!(
            f,
            "{:>9.0} msg/s  p50 {:>7.2} ms  p99 {:>7.2} ms  server {:>6.2} CPU-s/M ({:.2} cores)  generator {:>6.2} \
             CPU-s/M ({:.2} cores)  RSS {:>4} MiB  {:>5.0?} syncs/s  {:>7.1} msg/sync  raw {:>6.0} syncs/s",
            self.messages_per_second,
            millis(self.p50),
            millis(self.p99),
            self.server_cpu_per_million,
            self.server_cores,
            self.client_cpu_per_million,
            self.client_cores,
            self.rss_bytes >> 20,
            syncs,
            self.messages_per_sync,
            self.raw_syncs_per_second
        )
    }
}

/// Runs the workloads and prints their figures.
pub async fn run(options: &Options) -> anyhow::Result<()> {
    print_sync_rate(&options.dir)?;
    let wanted = |workload: &&Workload| {
        options
            .only
            .as_ref()
            .is_none_or(|only| workload.name.contains(only.as_str()))
    };
    for workload in WORKLOADS.iter().filter(wanted) {
        let dir = options.dir.join(workload.name);
        std::fs::create_dir_all(&dir)?;
        run_workload(options, workload, &dir)
            .await
            .with_context(|| workload.name)?;
    }
    print_sync_rate(&options.dir)
}

fn print_sync_rate(dir: &Path) -> anyhow::Result<()> {
    let rates: Vec<f64> = (0..SYNC_RATE_RUNS)
        .map(|_| sync_rate(dir, SYNC_RATE_SPAN))
        .collect::<Result<_, _>>()?;
    say(format_args!(
        "raw: {:.0} 4 KiB write + fdatasync/s on a preallocated file (median of {SYNC_RATE_RUNS}: {rates:.0?})",
        median(&rates)
    ));
    Ok(())
}

/// Nodes of its own, a queue of its own for each run.
async fn run_workload(options: &Options, workload: &Workload, dir: &Path) -> anyhow::Result<()> {
    let mut servers = start_servers(options, dir).await?;
    let mut all = Vec::new();
    for run in 0..options.runs {
        let raw_syncs_per_second = sync_rate(dir, RAW_BEFORE_RUN)?;
        let figures = one_run(options, workload, &servers, run)
            .await
            .with_context(|| format!("run {run}"))?;
        let figures = Figures {
            raw_syncs_per_second,
            ..figures
        };
        say(format_args!("{:<15} run {run}: {figures}", workload.name));
        all.push(figures);
    }
    let median = median_figures(&all);
    say(format_args!("{:<15} median: {median}", workload.name));
    for (node, figures) in (1..).zip(&median.nodes) {
        say(format_args!("{:<15} node {node}: {figures}", workload.name));
    }
    servers.iter_mut().try_for_each(Server::kill)
}

async fn start_servers(options: &Options, dir: &Path) -> anyhow::Result<Vec<Server>> {
    let each = match options.nodes {
        1 => vec![ServerOptions::under(dir, options.binary.clone())?],
        nodes => ServerOptions::cluster(dir, &options.binary, nodes, Settings::Default)?,
    };
    let mut servers: Vec<Server> = each.iter().map(Server::start).collect::<Result<_, _>>()?;
    for server in &mut servers {
        server.ready(READY_MAX).await?;
    }
    if options.nodes > 1 {
        // Leadership is spread over the nodes after a start.
        tokio::time::sleep(SPREAD_PAUSE).await;
    }
    Ok(servers)
}

fn median_figures(all: &[Figures]) -> Figures {
    let of = |field: fn(&Figures) -> f64| median(&all.iter().map(field).collect::<Vec<_>>());
    Figures {
        messages_per_second: of(|figures| figures.messages_per_second),
        p50: Duration::from_secs_f64(of(|figures| figures.p50.as_secs_f64())),
        p99: Duration::from_secs_f64(of(|figures| figures.p99.as_secs_f64())),
        server_cpu_per_million: of(|figures| figures.server_cpu_per_million),
        client_cpu_per_million: of(|figures| figures.client_cpu_per_million),
        server_cores: of(|figures| figures.server_cores),
        client_cores: of(|figures| figures.client_cores),
        rss_bytes: all.iter().map(|figures| figures.rss_bytes).max().unwrap_or(0),
        nodes: nodes::medians(all.iter().map(|figures| figures.nodes.as_slice())),
        messages_per_sync: of(|figures| figures.messages_per_sync),
        raw_syncs_per_second: of(|figures| figures.raw_syncs_per_second),
    }
}

/// State of the nodes and the generator at one moment.
struct Mark {
    at: Instant,
    nodes: Vec<NodeMark>,
    client: Usage,
}

impl Mark {
    async fn now(servers: &[Server]) -> anyhow::Result<Self> {
        let mut nodes = Vec::new();
        for server in servers {
            nodes.push(NodeMark::of(server).await?);
        }
        Ok(Self {
            at: Instant::now(),
            nodes,
            client: process_usage(std::process::id())?,
        })
    }

    /// Of all nodes.
    fn server_seconds(&self) -> f64 {
        self.nodes.iter().map(|node| node.usage.cpu_seconds()).sum()
    }
}

async fn one_run(
    options: &Options,
    workload: &Workload,
    servers: &[Server],
    run: u32,
) -> anyhow::Result<Figures> {
    let target = Target {
        authorities: servers.iter().map(Server::authority).collect(),
        queue: format!("{}-{run}", workload.name),
        lanes: options.lanes,
        transaction_ids: options.transaction_ids,
        epoch: Instant::now(),
        measured: Duration::MAX..Duration::MAX,
    };
    target.prepare(&mut Peer::new(&target.authorities[0])).await?;
    let started = Instant::now();
    let from = options.warm_up;
    let target = Target {
        epoch: started,
        measured: from..from + options.window,
        ..target
    };
    let mut workers = start_workers(workload, &Arc::new(target));
    tokio::time::sleep_until((started + options.warm_up).into()).await;
    let before = Mark::now(servers).await?;
    tokio::time::sleep_until((started + options.warm_up + options.window).into()).await;
    let after = Mark::now(servers).await?;
    let mut tally = Tally::default();
    while let Some(done) = workers.join_next().await {
        tally.merge(done??);
    }
    Ok(figures(workload, &before, &after, options.window, tally))
}

pub(crate) fn start_workers(workload: &Workload, target: &Arc<Target>) -> JoinSet<anyhow::Result<Tally>> {
    let room = (workload.consumers > 0).then(|| Arc::new(Room::new(workload.open_max)));
    let mut workers = JoinSet::new();
    for number in 0..workload.in_flight {
        let worker = Worker::new(number, target, room.clone());
        workers.spawn(worker.produce(workload.batch, workload.consumers == 0));
    }
    for number in 0..workload.consumers {
        let worker = Worker::new(number, target, room.clone());
        workers.spawn(worker.consume(workload.pop_batch));
    }
    workers
}

fn figures(workload: &Workload, before: &Mark, after: &Mark, window: Duration, tally: Tally) -> Figures {
    let Tally {
        pushed,
        acked,
        mut latencies,
    } = tally;
    let messages = float(if workload.consumers > 0 { acked } else { pushed });
    let rate = messages / window.as_secs_f64();
    // CPU and syncs were read at moments a little off the window's ends: as rates they compare all the same.
    let span = after.at.duration_since(before.at);
    let seconds = span.as_secs_f64();
    let server_cores = (after.server_seconds() - before.server_seconds()) / seconds;
    let client_cores = (after.client.cpu_seconds() - before.client.cpu_seconds()) / seconds;
    let pairs = before.nodes.iter().zip(&after.nodes);
    let nodes: Vec<_> = pairs
        .map(|(before, after)| NodeFigures::between(before, after, span, rate))
        .collect();
    let most_syncs = nodes.iter().map(|node| node.syncs_per_second).fold(0.0, f64::max);
    let rss_bytes = after.nodes.iter().map(|node| node.usage.rss_bytes).max();
    Figures {
        messages_per_second: rate,
        p50: latencies.percentile(500),
        p99: latencies.percentile(990),
        server_cpu_per_million: server_cores / rate * 1e6,
        client_cpu_per_million: client_cores / rate * 1e6,
        server_cores,
        client_cores,
        rss_bytes: rss_bytes.unwrap_or(0),
        nodes,
        messages_per_sync: rate / most_syncs,
        raw_syncs_per_second: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_rates_of_the_window() {
        let used = |user_seconds| Usage {
            user_seconds,
            ..Usage::default()
        };
        let mark = |at, server, client, syncs: [u64; 2]| {
            let node = |syncs| NodeMark {
                usage: used(server),
                syncs,
                ..NodeMark::default()
            };
            Mark {
                at,
                nodes: syncs.map(node).to_vec(),
                client: used(client),
            }
        };
        let start = Instant::now();
        let mut tally = Tally {
            pushed: 2_000_000,
            ..Tally::default()
        };
        tally.latencies.add(Duration::from_millis(3));
        let before = mark(start, 1.0, 0.0, [100, 0]);
        let after = mark(start + Duration::from_secs(2), 4.0, 1.0, [300, 20]);
        let figures = figures(&WORKLOADS[0], &before, &after, Duration::from_secs(2), tally);
        assert!((figures.messages_per_second - 1e6).abs() < 1.0);
        assert!((figures.server_cpu_per_million - 3.0).abs() < 1e-9, "two nodes");
        assert!((figures.client_cores - 0.5).abs() < 1e-9);
        assert!((figures.messages_per_sync - 10_000.0).abs() < 1e-6);
        assert!((figures.nodes[1].syncs_per_second - 10.0).abs() < 1e-6);
        assert_eq!(figures.p50, Duration::from_millis(3));
    }
}
