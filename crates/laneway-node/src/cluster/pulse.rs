//! Which peers answer. A process that is frozen keeps its connections; only its silence tells.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use laneway_raft::Peers;
use tokio::time::Instant;

use crate::leader::Verb;
use crate::node::Node;

/// Between two questions to a peer that answers.
const ASK_EVERY: Duration = Duration::from_millis(300);

/// A peer that has not answered for so long does not run, as far as requests are concerned.
const SILENT_AFTER: Duration = Duration::from_millis(1_500);

/// When each peer last answered.
#[derive(Debug, Default)]
pub(crate) struct Pulses(Mutex<HashMap<u16, Instant>>);

impl Pulses {
    fn heard(&self, peer: u16) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.insert(peer, Instant::now());
    }

    /// Whether the peer has answered of late.
    pub(crate) fn answers(&self, peer: u16) -> bool {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.get(&peer).is_some_and(|at| at.elapsed() < SILENT_AFTER)
    }
}

/// Asks every peer again and again. Runs until the task is aborted.
pub(crate) async fn feel_pulses(node: Node, peers: Peers) {
    let asking = peers.nodes().map(|peer| ask(&node, &peers, peer));
    futures_util::future::join_all(asking).await;
}

async fn ask(node: &Node, peers: &Peers, peer: u16) {
    loop {
        let question = vec![Bytes::from_static(&[Verb::Ping as u8])];
        if peers.call(peer, SILENT_AFTER, question).await.is_ok() {
            node.inner.pulses.heard(peer);
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}
