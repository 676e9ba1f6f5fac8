//! A node that has no part in the cluster, or not yet: how it finds out, and what it says.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use laneway_core::ids::PartitionId;
use laneway_raft::Peers;

use super::DescribeGroup;
use crate::api::{ErrorClass, RequestError};
use crate::node::Node;

/// Between two looks at whether the others count on this node.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// While nothing points to the contrary they are asked only so often: who was removed still knows the leaders of that time.
const CALM_LOOKS: u32 = 10;

/// Longest wait for a peer's word.
const WORD_WAIT: Duration = Duration::from_millis(500);

/// Why this node is a member of no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outside {
    /// It was one, by what its data says.
    Removed,
    /// It has yet to be added.
    NotAdded,
}

impl Outside {
    fn told(self, node: u16) -> String {
        match self {
            Self::Removed => format!(
                "node {node} is no member of the cluster any more, it was removed: stop it, or take it in again with laneway ctl cluster add-node {node} at another node"
            ),
            Self::NotAdded => format!(
                "node {node} is no member of the cluster yet: laneway ctl cluster add-node {node} at another node takes it in"
            ),
        }
    }
}

/// Runs until the task is aborted.
pub(super) async fn watch(node: &Node, peers: &Peers) {
    let mut calm = 0;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let before = node.inner.pulses.outside();
        let hears_of_all = node.group_ids().all(|group| node.hears_of_leader(group));
        calm = if hears_of_all && before.is_none() {
            calm + 1
        } else {
            0
        };
        let now = if node.group_ids().any(|group| node.leads(group)) {
            None
        } else if calm % CALM_LOOKS != 0 {
            continue;
        } else {
            // Where nobody knows, it is as it was.
            ask(node, peers).await.unwrap_or(before)
        };
        if now == before {
            continue;
        }
        node.inner.pulses.set_outside(now);
        match now {
            Some(outside) => {
                let reason = outside.told(node.inner.standing.identity().node);
                tracing::warn!(reason, "this node has no part in the cluster");
            }
            None => tracing::info!("this node has a part in the cluster"),
        }
    }
}

/// What the leaders say; `None` when none was reached.
async fn ask(node: &Node, peers: &Peers) -> Option<Option<Outside>> {
    let us = node.inner.standing.identity().node;
    let mut answered = false;
    for group in node.group_ids() {
        let asked = peers
            .nodes()
            .map(|peer| node.ask_peer(peer, group, DescribeGroup, WORD_WAIT));
        for described in join_all(asked).await.into_iter().flatten() {
            // Other data of this node counts: the leader puts this one in its place by itself.
            if described.members.iter().any(|member| member.node == us) {
                return Some(None);
            }
            answered = true;
        }
    }
    let has_log = node
        .group(PartitionId::CATALOG)
        .is_some_and(|group| group.metrics().last_index.is_some());
    let outside = if has_log {
        Outside::Removed
    } else {
        Outside::NotAdded
    };
    answered.then_some(Some(outside))
}

impl Node {
    /// Why this node has no part in the cluster, if it has none.
    pub(crate) fn apart(&self) -> Option<String> {
        let us = self.inner.standing.identity();
        if us.cluster_id != 0 {
            return self.inner.pulses.outside().map(|outside| outside.told(us.node));
        }
        if let Some(refused) = self.refusals() {
            return Some(refused);
        }
        let mut why =
            "not founded yet: all nodes of the cluster file must run and reach each other".to_owned();
        let missing: Vec<String> = self.silent_peers().iter().map(u16::to_string).collect();
        if !missing.is_empty() {
            why.push_str(&format!("; no answer yet from {}", numbered(&missing)));
        }
        Some(why)
    }

    /// The error of a request that came to a node without any part in the cluster: no wait will help.
    pub(crate) fn outsider_refusal(&self) -> Option<RequestError> {
        let outside = self.inner.pulses.outside()?;
        let us = self.inner.standing.identity().node;
        let message = format!("{}; send requests to the other nodes", outside.told(us));
        Some(RequestError::new(ErrorClass::Unavailable, "no_leader", message))
    }

    /// Who does not let this node in, and why, in their words.
    pub(crate) fn refusals(&self) -> Option<String> {
        let peers = self.inner.peers.as_ref()?;
        let refusals = peers.nodes().filter_map(|peer| {
            let refusal = peers.view(peer)?.borrow().refusal.clone()?;
            Some((peer, refusal))
        });
        told_refusals(refusals)
    }

    fn silent_peers(&self) -> Vec<u16> {
        let peers = self.inner.peers.iter().flat_map(Peers::nodes);
        peers.filter(|peer| self.raft_id_of(*peer).is_none()).collect()
    }

    /// Why a node does not count as connected.
    pub(super) fn trouble_with(&self, node: u16) -> Option<String> {
        let peers = self.inner.peers.as_ref()?;
        let view = peers.view(node)?.borrow().clone();
        if let Some(refusal) = view.refusal {
            return Some(format!("refuses this node: {refusal}"));
        }
        let Some(peer) = view.peer else {
            let why = if view.gone {
                "nothing listens at its address: start it"
            } else {
                "cannot be reached"
            };
            return Some(why.to_owned());
        };
        if peers.keeps_out(peer.raft_id) {
            let why = "runs with new data, which takes the place of its earlier data once nothing was heard of that for generation_takeover_ms";
            return Some(why.to_owned());
        }
        let silent = !self.inner.pulses.answers(node);
        silent.then(|| "is connected and does not answer".to_owned())
    }
}

/// Those who say the same in one sentence.
fn told_refusals(refusals: impl Iterator<Item = (u16, String)>) -> Option<String> {
    let mut by_words: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (peer, words) in refusals {
        by_words.entry(words).or_default().push(peer.to_string());
    }
    let told = by_words.into_iter().map(|(words, nodes)| {
        let (refuse, their) = if nodes.len() == 1 {
            ("refuses", "its")
        } else {
            ("refuse", "their")
        };
        format!(
            "{} {refuse} this node, in {their} words: {words}",
            numbered(&nodes)
        )
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| told.join("; "))
}

fn numbered(nodes: &[String]) -> String {
    let s = if nodes.len() == 1 { "" } else { "s" };
    format!("node{s} {}", nodes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_the_same_words_are_told_once() {
        let told = |refusals: &[(u16, &str)]| {
            told_refusals(refusals.iter().map(|(peer, words)| (*peer, (*words).to_owned())))
        };
        assert_eq!(told(&[]), None);
        assert_eq!(
            told(&[(1, "wait"), (2, "wait")]).as_deref(),
            Some("nodes 1, 2 refuse this node, in their words: wait")
        );
        assert_eq!(
            told(&[(1, "b"), (2, "a")]).as_deref(),
            Some("node 2 refuses this node, in its words: a; node 1 refuses this node, in its words: b")
        );
    }

    #[test]
    fn outsider_is_told_what_to_do() {
        let removed = Outside::Removed.told(3);
        assert!(removed.contains("was removed: stop it") && removed.contains("add-node 3"));
        assert!(Outside::NotAdded.told(4).contains("add-node 4 at another node"));
    }
}
