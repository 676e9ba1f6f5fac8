//! How a cluster comes to be, and how a node without data finds it.
//!
//! Only the node with the lowest number founds, and only once every node of the cluster file has said that it has no data. It
//! writes the voters down, has every node write the cluster's id down, and only then gives the groups their first membership: so
//! a founding that is cut short goes on after a restart, and no second cluster can come to be beside it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use laneway_raft::{NodeIntroduction, PeerView, Peers};
use tokio::sync::watch;

use super::{Node, Standing};
use crate::leader::Verb;

/// Between two looks at peers that have not answered.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Longest wait of the founder for what the other nodes' clocks show.
const CLOCKS_WAIT: Duration = Duration::from_secs(2);

/// Longest wait for a peer to write the cluster's id down.
const ANNOUNCE_WAIT: Duration = Duration::from_secs(5);

/// A wait that gets a line in the log, again and again.
const WAIT_LOGGED_EVERY: Duration = Duration::from_secs(10);

/// What the peers allow.
enum Chance {
    /// There is a cluster: this one.
    Join(u64),
    /// All nodes are empty, and these are their raft ids.
    Found(Vec<u64>),
    /// These nodes have not answered yet; when all have, it is for `founder` to found the cluster.
    Wait { missing: Vec<u16>, founder: u16 },
}

/// Runs once per start, until the node belongs to a cluster whose groups have a membership.
pub(super) async fn found_or_join(node: Node, peers: Peers) {
    let standing = Arc::clone(&node.inner.standing);
    if standing.identity().cluster_id == 0 {
        let Some((cluster_id, voters)) = wait_for_chance(&node, &peers).await else {
            // A peer has told it meanwhile.
            return;
        };
        if let Err(error) = join(&standing, &peers, cluster_id, voters).await {
            tracing::error!(%error, "the identity cannot be written: this node stays out of the cluster");
            return;
        }
    }
    let identity = standing.identity();
    if identity.voters.is_empty() {
        return;
    }
    let announcements = peers
        .nodes()
        .map(|peer| announce(&peers, peer, identity.cluster_id));
    futures_util::future::join_all(announcements).await;
    let voters: std::collections::BTreeSet<u64> = identity.voters.iter().copied().collect();
    for group in node.inner.groups() {
        if let Err(error) = group.initialize(voters.clone()).await {
            tracing::error!(%error, "a group cannot be given its first membership");
        }
    }
}

/// `None`: a peer has said to which cluster this node belongs.
async fn wait_for_chance(node: &Node, peers: &Peers) -> Option<(u64, Vec<u64>)> {
    let views: Vec<(u16, watch::Receiver<PeerView>)> = peers
        .nodes()
        .filter_map(|peer| Some((peer, peers.view(peer)?)))
        .collect();
    let standing = &node.inner.standing;
    let mut last_logged: Option<tokio::time::Instant> = None;
    let mut clocks_by: Option<tokio::time::Instant> = None;
    loop {
        let known: Vec<_> = views
            .iter()
            .map(|(peer, view)| (*peer, view.borrow().peer.clone()))
            .collect();
        match chance(&standing.introduction(), &known) {
            Chance::Join(cluster_id) => return Some((cluster_id, Vec::new())),
            Chance::Found(voters) => {
                // The first stamps follow the clocks of all: one that is wrong must not be the first to lead.
                let now = tokio::time::Instant::now();
                let by = *clocks_by.get_or_insert(now + CLOCKS_WAIT);
                if node.inner.clock.has_heard_all() || now >= by {
                    return Some((rand::random::<u64>().max(1), voters));
                }
            }
            Chance::Wait { missing, founder } => {
                if last_logged.is_none_or(|at| at.elapsed() >= WAIT_LOGGED_EVERY) {
                    last_logged = Some(tokio::time::Instant::now());
                    log_wait(&missing, founder, node.refusals().as_deref());
                }
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
        if standing.identity().cluster_id != 0 {
            return None;
        }
    }
}

fn log_wait(missing: &[u16], founder: u16, refusals: Option<&str>) {
    if let Some(reason) = refusals {
        tracing::info!(
            reason,
            "no data here, and no cluster known: other nodes do not let this one in"
        );
    } else if missing.is_empty() {
        tracing::info!(
            founder,
            "no data here, nor on any other node: waits for the node with the lowest number to found the cluster"
        );
    } else {
        tracing::info!(
            ?missing,
            "no data here, and no cluster known: one is founded when all nodes of the cluster file have answered, waits for those that are missing"
        );
    }
}

fn chance(us: &NodeIntroduction, peers: &[(u16, Option<NodeIntroduction>)]) -> Chance {
    let mut voters = vec![us.raft_id];
    let mut missing = Vec::new();
    for (peer, introduction) in peers {
        match introduction {
            Some(peer) if peer.cluster_id != 0 => return Chance::Join(peer.cluster_id),
            Some(peer) => voters.push(peer.raft_id),
            None => missing.push(*peer),
        }
    }
    let numbers = peers.iter().map(|(peer, _)| *peer);
    let founder = numbers.fold(us.node(), u16::min);
    if founder == us.node() && missing.is_empty() {
        Chance::Found(voters)
    } else {
        Chance::Wait { missing, founder }
    }
}

async fn join(
    standing: &Arc<Standing>,
    peers: &Peers,
    cluster_id: u64,
    voters: Vec<u64>,
) -> Result<(), String> {
    let (standing, peers) = (Arc::clone(standing), peers.clone());
    let joined = tokio::task::spawn_blocking(move || standing.join(&peers, cluster_id, voters)).await;
    match joined {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err("this node belongs to another cluster".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// Has a peer write the cluster's id down, however long it takes to reach it.
async fn announce(peers: &Peers, peer: u16, cluster_id: u64) {
    let body = [&[Verb::Founded as u8][..], &cluster_id.to_le_bytes()].concat();
    let body = Bytes::from(body);
    let mut last = String::new();
    loop {
        match peers.call(peer, ANNOUNCE_WAIT, vec![body.clone()]).await {
            Ok(_) => return,
            Err(error) => {
                let error = error.to_string();
                if error != last {
                    tracing::info!(peer, %error, "the cluster's id is not known there yet");
                    last = error;
                }
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

impl Node {
    /// A peer has founded the cluster, or is of it.
    pub(crate) async fn founded(&self, cluster_id: &[u8]) -> Result<Vec<Bytes>, String> {
        let Some(peers) = &self.inner.peers else {
            return Err("this node has no peers".to_owned());
        };
        let cluster_id: [u8; 8] = cluster_id
            .try_into()
            .map_err(|_| "the cluster's id has 8 bytes".to_owned())?;
        match u64::from_le_bytes(cluster_id) {
            0 => Err("0 is no cluster's id".to_owned()),
            cluster_id => {
                join(&self.inner.standing, peers, cluster_id, Vec::new()).await?;
                Ok(Vec::new())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn introduction(node: u16, cluster_id: u64) -> NodeIntroduction {
        NodeIntroduction {
            cluster: "c".to_owned(),
            cluster_id,
            fingerprint: 0,
            raft_id: laneway_raft::node_id(node, 7),
            process: 0,
            founded: cluster_id != 0,
        }
    }

    fn chance_of(us: u16, peers: &[(u16, Option<u64>)]) -> Chance {
        let peers: Vec<_> = peers
            .iter()
            .map(|(peer, cluster)| (*peer, cluster.map(|cluster| introduction(*peer, cluster))))
            .collect();
        chance(&introduction(us, 0), &peers)
    }

    #[test]
    fn only_the_lowest_of_all_empty_nodes_founds() {
        assert!(matches!(
            chance_of(1, &[(2, Some(0)), (3, Some(0))]),
            Chance::Found(voters) if voters.len() == 3
        ));
        assert!(matches!(
            chance_of(2, &[(1, Some(0)), (3, Some(0))]),
            Chance::Wait { missing, founder: 1 } if missing.is_empty()
        ));
    }

    #[test]
    fn nobody_founds_while_a_node_has_not_answered() {
        assert!(matches!(
            chance_of(1, &[(2, Some(0)), (3, None)]),
            Chance::Wait { missing, founder: 1 } if missing == [3]
        ));
    }

    #[test]
    fn empty_node_joins_the_cluster_of_any_peer() {
        assert!(matches!(
            chance_of(1, &[(2, None), (3, Some(9))]),
            Chance::Join(9)
        ));
    }
}
