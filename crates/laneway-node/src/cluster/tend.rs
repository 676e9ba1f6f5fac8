//! What nodes do of their own accord: put new data of a node in the place of its old one, spread the lead over the nodes, give damaged
//! data up.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use laneway_core::ids::PartitionId;
use laneway_raft::{ChangeError, Group, node_number};
use laneway_storage::vfs::Vfs;
use tokio::time::Instant;

use super::change::Change;
use super::mend::Mender;
use crate::node::Node;

/// Between two rounds.
const ROUND: Duration = Duration::from_millis(300);

/// A node gets the lead back when it has been there, and the lead has been here, for so long.
const SPREAD_AFTER: Duration = Duration::from_secs(5);

/// After a failed change of a group's members or lead.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Longest wait for the lead to pass on when the node stops.
const HAND_OVER_WAIT: Duration = Duration::from_secs(2);

/// Between two looks at whether the others still run, while the lead passes on.
const OTHERS_LOOK: Duration = Duration::from_millis(20);

/// What a node remembers of its groups and peers from round to round.
struct Tender {
    node: Node,
    takeover: Duration,
    /// Since when which data runs as each node.
    seen: HashMap<u16, (u64, Instant)>,
    /// Since when this node leads each group.
    led: HashMap<PartitionId, Instant>,
    not_before: HashMap<PartitionId, Instant>,
    vfs: Arc<dyn Vfs>,
    /// Fewest voters of any group, as last noted on disk.
    voters_noted: Option<usize>,
}

/// Runs until the task is aborted.
pub(crate) async fn tend(node: Node, takeover: Duration, vfs: Arc<dyn Vfs>) {
    let mut tender = Tender {
        node,
        takeover,
        seen: HashMap::new(),
        led: HashMap::new(),
        not_before: HashMap::new(),
        vfs,
        voters_noted: None,
    };
    let mut mender = Mender::default();
    let mut rounds = tokio::time::interval(ROUND);
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        tender.look_at_peers();
        tender.note_voters().await;
        mender.look(&tender.node).await;
        let groups: Vec<PartitionId> = tender.node.group_ids().collect();
        for id in groups {
            tender.tend_group(id).await;
        }
    }
}

impl Tender {
    fn look_at_peers(&mut self) {
        let Some(peers) = &self.node.inner.peers else {
            return;
        };
        for peer in peers.nodes() {
            // A process that was frozen kept its connections, but not up with the others.
            let answers = self.node.inner.pulses.answers(peer);
            match self.node.raft_id_of(peer).filter(|_| answers) {
                None => drop(self.seen.remove(&peer)),
                Some(raft_id) => {
                    let seen = self.seen.entry(peer).or_insert_with(|| (raft_id, Instant::now()));
                    if seen.0 != raft_id {
                        *seen = (raft_id, Instant::now());
                    }
                }
            }
        }
    }

    async fn note_voters(&mut self) {
        let us = self.node.inner.standing.identity().raft_id();
        let members = self
            .node
            .group_ids()
            .map(|id| Some(self.node.group(id)?.members().voters));
        let Some(members) = members.collect::<Option<Vec<_>>>() else {
            // A replica is being opened.
            return;
        };
        let votes_in = |voters: &BTreeSet<u64>| if voters.contains(&us) { voters.len() } else { 0 };
        let fewest = members.iter().map(votes_in).min().unwrap_or(0);
        if self.voters_noted == Some(fewest) {
            return;
        }
        let (node, vfs) = (self.node.clone(), Arc::clone(&self.vfs));
        let noted = tokio::task::spawn_blocking(move || node.inner.note_voters(&*vfs, fewest)).await;
        match noted.map_err(std::io::Error::other).and_then(|noted| noted) {
            Ok(()) => self.voters_noted = Some(fewest),
            // A full disk: it is tried again in the next round.
            Err(error) => tracing::debug!(%error, "the number of voters cannot be noted"),
        }
    }

    async fn tend_group(&mut self, id: PartitionId) {
        let group = self.node.group(id).filter(|_| self.node.lack_of(id).is_none());
        let Some(group) = group.filter(|group| group.leadership().is_self) else {
            self.led.remove(&id);
            return;
        };
        self.led.entry(id).or_insert_with(Instant::now);
        if self.not_before.get(&id).is_some_and(|at| Instant::now() < *at) {
            return;
        }
        let mut outcome = self.replace(id, &group).await;
        if outcome.is_ok() && !self.node.is_fit_to_lead() {
            outcome = self.give_away(id, &group).await;
        } else if outcome.is_ok() {
            outcome = self.spread(id, &group).await;
        }
        if let Err(why) = outcome {
            tracing::info!(partition = %id, why, "tending the group's members did not succeed, it is tried again");
            self.not_before.insert(id, Instant::now() + PAUSE_AFTER_FAILURE);
        }
    }

    /// New data of a member's node: first it learns, then it votes in the place of the old one. A change that was cut short
    /// is finished before that.
    async fn replace(&self, id: PartitionId, group: &Group) -> Result<(), String> {
        let members = group.members();
        if members.joint {
            return match group.finish_change().await {
                // In progress: somebody is about it.
                Ok(_) | Err(ChangeError::InProgress) => Ok(()),
                Err(error) => Err(error.to_string()),
            };
        }
        let change = Change {
            node: &self.node,
            id,
            group,
        };
        for voter in &members.voters {
            let Some((now, since)) = self.seen.get(&node_number(*voter)) else {
                continue;
            };
            if now == voter || since.elapsed() < self.takeover {
                continue;
            }
            if !members.learners.contains(now) && !members.voters.contains(now) {
                tracing::info!(partition = %id, node = node_number(*now), "a node is back with new data: it learns");
                return group.add_learner(*now).await.map_err(|error| error.to_string());
            }
            if change.is_caught_up(*now) {
                tracing::info!(partition = %id, node = node_number(*now), "the new data of a node takes its place");
                return change.make_voter(*now).await.map_err(|error| error.message);
            }
        }
        for learner in &members.learners {
            let replaced = self
                .seen
                .get(&node_number(*learner))
                .is_some_and(|(now, since)| now != learner && since.elapsed() >= self.takeover);
            if replaced {
                return group
                    .remove_learner(*learner)
                    .await
                    .map_err(|error| error.to_string());
            }
        }
        Ok(())
    }

    /// Another node leads, if there is one that can do better.
    async fn give_away(&self, id: PartitionId, group: &Group) -> Result<(), String> {
        let mut voters = group.members().voters;
        voters.retain(|voter| self.node.inner.pulses.is_fit(node_number(*voter)));
        if voters.is_empty() {
            return Ok(());
        }
        tracing::info!(partition = %id, "the disk is low or files are damaged: another node is to lead");
        let change = Change {
            node: &self.node,
            id,
            group,
        };
        change.hand_over(&voters).await.map_err(|error| error.message)
    }

    /// The groups' leads go round the voters in the order of their numbers.
    async fn spread(&self, id: PartitionId, group: &Group) -> Result<(), String> {
        let long_led = self
            .led
            .get(&id)
            .is_some_and(|since| since.elapsed() >= SPREAD_AFTER);
        if !long_led {
            return Ok(());
        }
        let members = group.members();
        let place = if id == PartitionId::CATALOG {
            self.node.inner.partitions.len()
        } else {
            usize::from(id.0)
        };
        let Some(wanted) = members.voters.iter().nth(place % members.voters.len().max(1)) else {
            return Ok(());
        };
        let long_there = self
            .seen
            .get(&node_number(*wanted))
            .is_some_and(|(now, since)| now == wanted && since.elapsed() >= SPREAD_AFTER);
        let change = Change {
            node: &self.node,
            id,
            group,
        };
        let is_fit = self.node.inner.pulses.is_fit(node_number(*wanted));
        if !long_there || !is_fit || members.joint || !change.is_caught_up(*wanted) {
            return Ok(());
        }
        tracing::info!(partition = %id, to = node_number(*wanted), "the lead goes to the node whose turn it is");
        group
            .transfer_leader(*wanted)
            .await
            .map_err(|error| error.to_string())
    }
}

impl Node {
    /// Whether requests that come here are served: with a low disk pushes are refused, with damaged files whatever needs them.
    pub(crate) fn is_fit_to_lead(&self) -> bool {
        self.damaged_files().next().is_none() && !self.inner.disk.is_low()
    }

    /// Hands the lead of every group to another node that is there, so that nobody has to notice that this one stops. Returns
    /// within seconds, whatever comes of it; at once when too few others run for any of them to lead.
    pub async fn hand_over(&self) {
        let handing = self.group_ids().filter_map(|id| {
            let group = self.group(id).filter(|group| group.leadership().is_self)?;
            let voters = group.members().voters;
            (voters.len() > 1).then(|| self.hand_group_over(id, group, voters))
        });
        join_all(handing).await;
    }

    async fn hand_group_over(&self, id: PartitionId, group: Group, voters: BTreeSet<u64>) {
        let change = Change {
            node: self,
            id,
            group: &group,
        };
        let handing = tokio::time::timeout(HAND_OVER_WAIT, change.hand_over(&voters));
        // Looked at first, and on and on: they may be stopping, too.
        let others_are_gone = async {
            while self.others_can_lead(&voters) {
                tokio::time::sleep(OTHERS_LOOK).await;
            }
        };
        tokio::select! {
            biased;
            () = others_are_gone => {
                tracing::debug!(partition = %id, "too few other nodes run for one of them to lead: the lead is not handed over");
            }
            handed = handing => match handed {
                Ok(Ok(())) => tracing::info!(partition = %id, "handed the lead over"),
                Ok(Err(error)) => tracing::warn!(
                    partition = %id,
                    %error,
                    "cannot hand the lead over: the others elect another leader once this node is gone"
                ),
                Err(_) => tracing::warn!(
                    partition = %id,
                    "handing the lead over took too long: the others elect another leader once this node is gone"
                ),
            }
        }
    }

    /// Whether the voters but this one would be a quorum, as far as it is connected to them.
    fn others_can_lead(&self, voters: &BTreeSet<u64>) -> bool {
        let us = self.inner.standing.identity().raft_id();
        let others = voters
            .iter()
            .filter(|id| **id != us && self.raft_id_of(node_number(**id)) == Some(**id));
        is_quorum(others.count(), voters.len())
    }
}

fn is_quorum(count: usize, voters: usize) -> bool {
    count > voters / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quorum_is_more_than_half_of_the_voters() {
        let least = |voters| (0..=voters).find(|count| is_quorum(*count, voters)).unwrap();
        assert_eq!([1, 2, 3, 4, 5].map(least), [1, 2, 2, 3, 3]);
    }
}
