//! A backlog of unread messages, a stuck lane and very many lanes: what they cost in disk, memory and restart time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::peer::Peer;
use crate::server::{Server, ServerOptions, Settings};
use crate::stats::{float, millis, say};

use flow::{Flow, Traffic};
use watch::{DiskWatch, Ledger};

mod flow;
mod watch;

/// Messages of the unread backlog at scale 1.
const UNREAD: u64 = 2_000_000;

/// Messages that pass the stuck lane at scale 1.
const PASSING: u64 = 1_000_000;

/// Messages in the stuck lane at scale 1.
const STUCK: u64 = 10_000;

/// Lanes with one message each at scale 1.
const LANES: u64 = 300_000;

/// Lanes of the unread backlog.
const BACKLOG_LANES: u64 = 16;

/// Most messages between push and ack while messages pass the stuck lane.
const PASSING_OPEN_MAX: u64 = 20_000;

/// Longest wait for a broker that was started.
const READY_MAX: Duration = Duration::from_secs(300);

/// Longest wait until deleted data has left the disk.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `laneway` binary.
    pub binary: PathBuf,
    /// Factor on all counts of messages and lanes.
    pub scale: f64,
    /// The broker's settings.
    pub settings: Settings,
    /// Data and log go here; it must be empty.
    pub dir: PathBuf,
}

impl Options {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive count below 2^53"
    )]
    fn scaled(&self, count: u64) -> u64 {
        (float(count) * self.scale).max(1.0) as u64
    }
}

/// Runs all parts; true when every check passed.
pub async fn run(options: &Options) -> anyhow::Result<bool> {
    let mut server_options = ServerOptions::under(&options.dir, options.binary.clone())?;
    server_options.settings = options.settings;
    let server = Server::start(&server_options)?;
    let ledger = Arc::new(Ledger::default());
    let disk = DiskWatch::start(
        server_options.data.clone(),
        Arc::clone(&ledger),
        options.settings.wal_pool_bytes(),
    );
    let mut run = Run {
        options,
        server_options,
        server,
        ledger,
        disk,
        passed: true,
    };
    run.server.ready(READY_MAX).await?;
    run.unread_backlog().await?;
    run.stuck_lane().await?;
    run.many_lanes().await?;
    run.server.kill()?;
    Ok(run.passed)
}

struct Run<'a> {
    options: &'a Options,
    server_options: ServerOptions,
    server: Server,
    ledger: Arc<Ledger>,
    disk: DiskWatch,
    passed: bool,
}

impl Run<'_> {
    async fn unread_backlog(&mut self) -> anyhow::Result<()> {
        let count = self.options.scaled(UNREAD);
        let traffic = self.traffic("backlog", BACKLOG_LANES).await?;
        let flow = Flow::new(traffic, Arc::clone(&self.ledger));

        let started = Instant::now();
        flow.push_all(count).await.context("push of the backlog")?;
        self.rate("pushed, unread", count, started);
        self.check_disk("backlog while pushed").await;
        self.check_settled("backlog unread, at rest").await;
        self.restart("backlog unread").await?;

        let started = Instant::now();
        flow.drain(count).await.context("drain of the backlog")?;
        self.rate("drained, every message once and in order", count, started);
        self.check_disk("backlog while drained").await;
        self.check_settled("backlog drained, at rest").await;
        self.memory("backlog drained")
    }

    async fn stuck_lane(&mut self) -> anyhow::Result<()> {
        let (stuck, passing) = (self.options.scaled(STUCK), self.options.scaled(PASSING));
        let traffic = self.traffic("stuck", 1).await?;
        let held = Flow::new(
            Traffic {
                lane_prefix: "stuck",
                ..traffic.clone()
            },
            Arc::clone(&self.ledger),
        );
        held.push_all(stuck).await.context("push to the stuck lane")?;

        let busy = Flow::new(
            Traffic {
                lane_prefix: "busy",
                pinned: true,
                ..traffic
            },
            Arc::clone(&self.ledger),
        );
        let started = Instant::now();
        busy.pass_through(passing, PASSING_OPEN_MAX)
            .await
            .context("messages past the stuck lane")?;
        self.rate("passed a stuck lane", passing, started);
        self.check_disk("stuck lane while others pass").await;
        self.check_settled("stuck lane, at rest").await;
        self.memory("stuck lane")
    }

    async fn many_lanes(&mut self) -> anyhow::Result<()> {
        let lanes = self.options.scaled(LANES);
        let before = self.server.usage()?.rss_bytes;
        let traffic = self.traffic("many", lanes).await?;
        let flow = Flow::new(traffic, Arc::clone(&self.ledger));
        let started = Instant::now();
        flow.push_all(lanes)
            .await
            .context("push of one message to each lane")?;
        self.rate("lanes made by one message each", lanes, started);
        let after = self.server.usage()?.rss_bytes;
        let per_lane = float(after.saturating_sub(before)) / float(lanes);
        say(format_args!(
            "memory for lanes: RSS {} -> {} MiB, {per_lane:.0} B per lane",
            mib(before),
            mib(after)
        ));
        self.check_settled("many lanes, at rest").await;
        self.restart("many lanes").await?;
        let found = self.counts("many").await?;
        self.verdict(
            found == (lanes, lanes),
            format_args!("lanes and messages after the restart {found:?} of {lanes}"),
        );
        Ok(())
    }

    /// A queue that forgets settled messages after a second, with one group that reads it from the beginning.
    async fn traffic(&self, queue: &'static str, lanes: u64) -> anyhow::Result<Traffic> {
        let mut peer = Peer::new(&self.server.authority());
        let options =
            serde_json::json!({"retentionEnabled": true, "completedRetentionSeconds": 1, "leaseTime": 60});
        peer.configure(queue, options).await?;
        let authority = self.server.authority();
        let traffic = Traffic {
            authority,
            queue,
            lane_prefix: "lane",
            lanes,
            pinned: false,
        };
        peer.pop(&traffic.query(1, None))
            .await
            .context("first pop registers the group")?;
        Ok(traffic)
    }

    /// Kills the broker and starts it again.
    async fn restart(&mut self, what: &str) -> anyhow::Result<()> {
        self.server.kill()?;
        self.server = Server::start(&self.server_options)?;
        let took = self.server.ready(READY_MAX).await?;
        let usage = self.server.usage()?;
        say(format_args!(
            "restart after kill -9, {what}: ready in {:.0} ms, RSS {} MiB (peak {})",
            millis(took),
            mib(usage.rss_bytes),
            mib(usage.rss_bytes_peak)
        ));
        Ok(())
    }

    /// (lanes, messages) of a queue by its own listing.
    async fn counts(&self, queue: &str) -> anyhow::Result<(u64, u64)> {
        let listing = Peer::new(&self.server.authority())
            .get_json("/api/v1/resources/queues")
            .await?;
        let rows = listing["queues"].as_array().context("no queues in the listing")?;
        let row = rows
            .iter()
            .find(|row| row["name"] == queue)
            .context("queue not listed")?;
        let count = |value: &serde_json::Value| value.as_u64().context("not a count");
        Ok((count(&row["partitions"])?, count(&row["messages"]["total"])?))
    }

    /// Every sample since the last check must be within the bound.
    async fn check_disk(&mut self, what: &str) {
        let worst = self.disk.worst_since_last().await;
        let passed = worst.as_ref().is_some_and(|worst| worst.within);
        match worst {
            Some(worst) => self.verdict(passed, format_args!("disk, {what}: worst sample {worst}")),
            None => self.verdict(false, format_args!("disk, {what}: no sample")),
        }
    }

    /// What is at rest, its time of grace over, must get within the bound and may take a moment for it.
    async fn check_settled(&mut self, what: &str) {
        let started = Instant::now();
        tokio::time::sleep(watch::GRACE).await;
        loop {
            let sample = self.disk.sample_now().await;
            let late = started.elapsed() > SETTLE_MAX;
            if sample.within || late {
                let after = started.elapsed().as_secs_f64();
                self.verdict(
                    sample.within,
                    format_args!("disk, {what}, after {after:.1} s: {sample}"),
                );
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    fn memory(&self, what: &str) -> anyhow::Result<()> {
        let usage = self.server.usage()?;
        say(format_args!(
            "memory, {what}: RSS {} MiB (peak {})",
            mib(usage.rss_bytes),
            mib(usage.rss_bytes_peak)
        ));
        Ok(())
    }

    #[expect(clippy::unused_self, reason = "reads as the other lines of a run")]
    fn rate(&self, what: &str, count: u64, started: Instant) {
        let seconds = started.elapsed().as_secs_f64();
        say(format_args!(
            "{what}: {count} in {seconds:.1} s, {:.0}/s",
            float(count) / seconds
        ));
    }

    fn verdict(&mut self, passed: bool, text: std::fmt::Arguments<'_>) {
        self.passed &= passed;
        say(format_args!("{} {text}", if passed { "PASS" } else { "FAIL" }));
    }
}

/// Whole MiB, for people.
fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

/// Checks what a caller may ask for.
pub fn check_scale(scale: f64) -> anyhow::Result<()> {
    ensure!(
        scale.is_finite() && scale > 0.0 && scale <= 10.0,
        "scale must be above 0 and at most 10"
    );
    Ok(())
}
