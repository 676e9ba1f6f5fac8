//! One round of each fault.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use rand::Rng;

use super::nodes::{CATALOG, Nodes};
use super::probe::Armed;
use super::thaw::Thawed;
use super::{Fault, Options, READY_MAX, Run};
use crate::server::PARTITIONS;
use crate::stats::{millis, say};

/// Longest wait for a leader while a quorum is alive.
pub(super) const LEADER_MAX: Duration = Duration::from_secs(20);

/// Longest wait for a node without data to be a voter again, or for one that is behind to have caught up.
pub(super) const CATCH_UP_MAX: Duration = Duration::from_secs(180);

/// Between two transfers of leadership.
const TRANSFER_PAUSE: Duration = Duration::from_secs(3);

/// How long before the thaw the frozen node is asked: its socket takes the questions.
const ASKED_BEFORE_THAW: Duration = Duration::from_millis(20);

/// Between two looks at a node.
const POLL: Duration = Duration::from_millis(50);

impl Run {
    pub(super) async fn fault(&mut self, options: &Options, round: u32) -> anyhow::Result<()> {
        let partition = u16::try_from(round % u32::from(PARTITIONS))?;
        match options.fault {
            Fault::KillLeader => {
                let victim = self.nodes.leader_of(&partition.to_string(), LEADER_MAX).await?;
                self.kill_one(victim).await
            }
            Fault::KillAll => self.kill_all().await,
            Fault::StopLeader => self.stop_leader(partition, round, options.stop_seconds).await,
            Fault::Wipe => self.wipe_one().await,
            Fault::Lag => self.lag(options.lag_mib, 0).await,
            Fault::LagKill => self.lag(options.lag_mib, 5).await,
            Fault::Transfer => self.transfer(partition).await,
            Fault::Mix => self.any_fault(partition, round).await,
        }
    }

    async fn any_fault(&mut self, partition: u16, round: u32) -> anyhow::Result<()> {
        let all = self.nodes.all();
        let any = all[self.rng.random_range(0..all.len())];
        match self.rng.random_range(0..100) {
            0..35 => self.kill_one(any).await,
            35..50 => {
                let victim = self.nodes.leader_of(&partition.to_string(), LEADER_MAX).await?;
                self.kill_one(victim).await
            }
            50..62 => {
                let seconds = self.rng.random_range(0.2..4.0);
                self.stop_leader(partition, round, seconds).await
            }
            62..70 => self.kill_all().await,
            70..80 => self.kill_two(any).await,
            80..92 => self.transfer(partition).await,
            _ => self.wipe_one().await,
        }
    }

    /// Kills, measures the gap of what it led, restarts after a while.
    pub(super) async fn kill_one(&mut self, victim: u16) -> anyhow::Result<()> {
        let led = self.nodes.led_by(victim).await;
        let survivors = self.nodes.others(victim);
        let armed = Armed::new(&mut self.fleet, &self.probes, &led, &survivors).await;
        self.note(format!("kill node {victim}, which led {led:?}"));
        self.kill_and_measure(&[victim], armed).await?;
        self.pause(100, 2000).await;
        self.restart(victim).await
    }

    /// Kills these at once and waits for acked pushes.
    async fn kill_and_measure(&mut self, victims: &[u16], armed: Armed) -> anyhow::Result<()> {
        let at = self.nodes.begin_kill(victims)?;
        let probing = tokio::spawn(armed.gaps(at));
        tokio::task::block_in_place(|| self.nodes.end_kill(victims))?;
        self.tally.kills += u32::try_from(victims.len())?;
        self.add_gaps(&probing.await?);
        Ok(())
    }

    fn add_gaps(&mut self, gaps: &BTreeMap<u16, Option<Duration>>) {
        for (partition, gap) in gaps {
            match gap {
                Some(gap) => {
                    self.tally.gaps.add(*gap);
                    self.note(format!("partition {partition}: gap {:.0} ms", millis(*gap)));
                }
                None => {
                    self.tally.gaps_endless += 1;
                    say(format_args!(
                        "partition {partition} acked nothing for half a minute"
                    ));
                    self.note(format!("partition {partition}: no end of the gap"));
                }
            }
        }
    }

    pub(super) async fn restart(&mut self, node: u16) -> anyhow::Result<()> {
        self.note(format!("start node {node}"));
        self.nodes.start(node)?;
        let took = self.nodes.ready(node, READY_MAX).await?;
        self.tally.restarts.push(took);
        self.note(format!("node {node} ready after {:.0} ms", millis(took)));
        Ok(())
    }

    async fn kill_all(&mut self) -> anyhow::Result<()> {
        let all = self.nodes.all();
        let partitions: Vec<u16> = (0..PARTITIONS).collect();
        let armed = Armed::new(&mut self.fleet, &self.probes, &partitions, &all).await;
        self.note("kill all".to_owned());
        let at = self.nodes.begin_kill(&all)?;
        let probing = tokio::spawn(armed.gaps(at));
        tokio::task::block_in_place(|| self.nodes.end_kill(&all))?;
        self.nodes.start_all()?;
        self.tally.kills += u32::try_from(all.len())?;
        self.add_gaps(&probing.await?);
        let took = self.nodes.ready_all(READY_MAX).await?;
        self.tally.restarts.push(took);
        self.note(format!("all ready after {:.0} ms", millis(took)));
        Ok(())
    }

    /// Nobody has a quorum for a while.
    async fn kill_two(&mut self, first: u16) -> anyhow::Result<()> {
        let second = self.nodes.others(first)[0];
        self.note(format!("kill nodes {first} and {second}"));
        let victims = [first, second];
        self.nodes.begin_kill(&victims)?;
        tokio::task::block_in_place(|| self.nodes.end_kill(&victims))?;
        self.tally.kills += 2;
        self.pause(200, 3000).await;
        self.note("start both".to_owned());
        self.nodes.start_all()?;
        for node in victims {
            let took = self.nodes.ready(node, READY_MAX).await?;
            self.tally.restarts.push(took);
        }
        Ok(())
    }

    /// Freezes the leader, lets another one take over, asks the old one for what has changed as it thaws.
    async fn stop_leader(&mut self, partition: u16, round: u32, seconds: f64) -> anyhow::Result<()> {
        let victim = self.nodes.leader_of(&partition.to_string(), LEADER_MAX).await?;
        let led = self.nodes.led_by(victim).await;
        let survivors = self.nodes.others(victim);
        let armed = Armed::new(&mut self.fleet, &self.probes, &led, &survivors).await;
        let mut thawed = Vec::new();
        for partition in &led {
            let lane = self.stale.of(*partition, usize::try_from(round)?).to_owned();
            thawed.extend(Thawed::before(&mut self.fleet, victim, lane).await);
        }
        self.note(format!("freeze node {victim}, which led {led:?}"));
        let at = self.nodes.freeze(victim)?;
        let gaps = tokio::spawn(armed.gaps(at)).await?;
        self.add_gaps(&gaps);
        for lane in &mut thawed {
            lane.meanwhile().await;
        }
        let length = Duration::from_secs_f64(seconds);
        tokio::time::sleep(length.saturating_sub(at.elapsed())).await;
        let asked: Vec<_> = thawed
            .into_iter()
            .map(|lane| tokio::spawn(lane.ask(&mut self.fleet)))
            .collect();
        tokio::time::sleep(ASKED_BEFORE_THAW).await;
        self.note(format!("thaw node {victim}"));
        self.nodes.thaw(victim)?;
        for answers in asked {
            for (sum, count) in self.tally.at_thaw.iter_mut().zip(answers.await?) {
                *sum += count;
            }
        }
        self.nodes.ready(victim, READY_MAX).await?;
        self.note(format!("node {victim} is ready again"));
        Ok(())
    }

    /// The node that leads the fewest groups loses its data.
    async fn wipe_one(&mut self) -> anyhow::Result<()> {
        let victim = self.least_leading().await;
        let led = self.nodes.led_by(victim).await;
        let survivors = self.nodes.others(victim);
        let old = generations(&self.nodes, survivors[0], victim).await?;
        let armed = Armed::new(&mut self.fleet, &self.probes, &led, &survivors).await;
        self.note(format!("kill node {victim} and remove its data"));
        self.kill_and_measure(&[victim], armed).await?;
        self.nodes.wipe(victim)?;
        self.pause(100, 1500).await;
        self.note(format!("start node {victim}"));
        self.nodes.start(victim)?;
        let started = Instant::now();
        loop {
            if let Ok(now) = generations(&self.nodes, survivors[0], victim).await
                && now.len() == old.len()
                && now.iter().all(|(group, generation)| {
                    old.get(group)
                        .is_some_and(|old| generation.is_some() && old != generation)
                })
            {
                break;
            }
            ensure!(
                started.elapsed() < CATCH_UP_MAX,
                "node {victim} was not a voter of all groups {CATCH_UP_MAX:?} after its data was removed"
            );
            tokio::time::sleep(POLL).await;
        }
        let took = started.elapsed();
        self.note(format!("node {victim} is a voter after {:.0} ms", millis(took)));
        self.tally.catch_ups.push(took);
        let took = self.nodes.ready(victim, READY_MAX + CATCH_UP_MAX).await?;
        self.tally.restarts.push(took);
        self.wait_caught_up(victim, Instant::now()).await
    }

    pub(super) async fn least_leading(&self) -> u16 {
        let leaders = self.nodes.leaders().await;
        let led = |node: u16| leaders.values().filter(|leader| **leader == node).count();
        let all = self.nodes.all();
        all.iter().copied().min_by_key(|node| led(*node)).unwrap_or(1)
    }

    /// Waits until the node has applied all that any node has committed by now.
    pub(super) async fn wait_caught_up(&self, node: u16, since: Instant) -> anyhow::Result<()> {
        let mut wanted: BTreeMap<String, u64> = BTreeMap::new();
        for other in self.nodes.others(node) {
            for group in self.nodes.status(other).await?.groups {
                let commit = wanted.entry(group.partition).or_default();
                *commit = group.commit_index.max(*commit);
            }
        }
        loop {
            if let Ok(status) = self.nodes.status(node).await {
                let behind = status
                    .groups
                    .iter()
                    .filter(|group| {
                        wanted
                            .get(&group.partition)
                            .is_some_and(|wanted| group.applied_index < *wanted)
                    })
                    .count();
                if behind == 0 && status.groups.len() == wanted.len() {
                    return Ok(());
                }
            }
            ensure!(
                since.elapsed() < CATCH_UP_MAX,
                "node {node} had not caught up after {CATCH_UP_MAX:?}"
            );
            tokio::time::sleep(POLL).await;
        }
    }

    async fn transfer(&mut self, partition: u16) -> anyhow::Result<()> {
        let group = partition.to_string();
        let leader = self.nodes.leader_of(&group, LEADER_MAX).await?;
        let all = self.nodes.all();
        let others = self.nodes.others(leader);
        let to = others[self.rng.random_range(0..others.len())];
        let asked = all[self.rng.random_range(0..all.len())];
        let armed = Armed::new(&mut self.fleet, &self.probes, &[partition], &all).await;
        self.note(format!(
            "transfer {group} from {leader} to {to}, asked of {asked}"
        ));
        let at = Instant::now();
        let probing = tokio::spawn(armed.gaps(at));
        let transferred = self.nodes.transfer(asked, &group, to).await;
        self.add_gaps(&probing.await?);
        if let Err(error) = transferred {
            self.tally.transfers_failed += 1;
            self.note(format!("transfer failed: {error:#}"));
            say(format_args!("transfer failed: {error:#}"));
        }
        tokio::time::sleep(TRANSFER_PAUSE.saturating_sub(at.elapsed())).await;
        let leads = self.nodes.leader_of(&group, LEADER_MAX).await?;
        if leads != to {
            self.note(format!("{group} is led by {leads}, not by {to}"));
        }
        Ok(())
    }

    /// Kills leaders of partitions, catalog included, until `node` has led each once.
    pub(super) async fn make_lead(&mut self, node: u16) -> anyhow::Result<()> {
        const KILLS_MAX: u32 = 60;
        let mut missing: Vec<String> = (0..PARTITIONS).map(|partition| partition.to_string()).collect();
        missing.push(CATALOG.to_owned());
        for _ in 0..KILLS_MAX {
            let leaders = self.nodes.leaders().await;
            missing.retain(|group| leaders.get(group) != Some(&node));
            let Some(group) = missing.first() else {
                return Ok(());
            };
            let leader = self.nodes.leader_of(group, LEADER_MAX).await?;
            if leader == node {
                continue;
            }
            self.kill_one(leader).await?;
        }
        anyhow::bail!("node {node} never led {missing:?}")
    }
}

/// Generation under which the node votes in each group, by what `at` says; `None` where it does not vote.
async fn generations(nodes: &Nodes, at: u16, node: u16) -> anyhow::Result<BTreeMap<String, Option<String>>> {
    let view = nodes.view(at).await?;
    let of_group = view.groups.into_iter().map(|group| {
        let mut members = group.members.into_iter();
        let own = members.find(|member| member.node == node && member.voter);
        (group.partition, own.map(|own| own.generation))
    });
    Ok(of_group.collect())
}
