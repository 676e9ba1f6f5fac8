//! A node that falls behind and catches up.

use std::time::Instant;

use super::{READY_MAX, Run, bulk};
use crate::cluster::faults::CATCH_UP_MAX;
use crate::stats::{millis, say};

impl Run {
    /// Kills a follower, pushes much, starts it; kills it `kills` times while it catches up; then lets it lead every group.
    pub(super) async fn lag(&mut self, mib: u32, kills: u32) -> anyhow::Result<()> {
        let victim = self.least_leading().await;
        self.note(format!("kill node {victim}, which is to fall behind"));
        self.nodes.kill(&[victim])?;
        self.tally.kills += 1;
        let took = bulk::push(&mut self.fleet, mib).await?;
        say(format_args!("{mib} MiB pushed in {:.1} s", took.as_secs_f64()));
        for turn in 0..kills {
            self.note(format!("start node {victim}, to kill it again"));
            self.nodes.start(victim)?;
            self.pause(100, 2500).await;
            let behind = self.entries_behind(victim).await;
            self.note(format!("kill node {victim} again, {behind:?} entries behind"));
            say(format_args!(
                "kill {turn} in mid-transfer: {behind:?} entries behind"
            ));
            self.nodes.kill(&[victim])?;
            self.tally.kills += 1;
        }
        self.note(format!("start node {victim}"));
        self.nodes.start(victim)?;
        let started = Instant::now();
        self.wait_caught_up(victim, started).await?;
        let took = started.elapsed();
        self.note(format!("node {victim} caught up after {:.0} ms", millis(took)));
        self.tally.catch_ups.push(took);
        let took = self.nodes.ready(victim, READY_MAX + CATCH_UP_MAX).await?;
        self.tally.restarts.push(took);
        self.make_lead(victim).await
    }

    /// Of all groups; `None` while it does not answer.
    async fn entries_behind(&self, node: u16) -> Option<u64> {
        let own = self.nodes.status(node).await.ok()?;
        let other = *self.nodes.others(node).first()?;
        let other = self.nodes.status(other).await.ok()?;
        let behind = other.groups.iter().map(|group| {
            let own = own.groups.iter().find(|own| own.partition == group.partition);
            group
                .applied_index
                .saturating_sub(own.map_or(0, |own| own.applied_index))
        });
        Some(behind.sum())
    }
}
