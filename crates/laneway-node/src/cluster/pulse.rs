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

/// When each peer last answered, and whether it was fit to lead then.
#[derive(Debug, Default)]
pub(crate) struct Pulses(Mutex<HashMap<u16, (Instant, bool)>>);

impl Pulses {
    fn heard(&self, peer: u16, fit: bool) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.insert(peer, (Instant::now(), fit));
    }

    fn last(&self, peer: u16) -> Option<(Instant, bool)> {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.get(&peer).copied()
    }

    /// Whether the peer has answered of late.
    pub(crate) fn answers(&self, peer: u16) -> bool {
        self.last(peer).is_some_and(|(at, _)| at.elapsed() < SILENT_AFTER)
    }

    /// Whether the peer answers and says that it is [fit to lead](Node::is_fit_to_lead).
    pub(super) fn is_fit(&self, peer: u16) -> bool {
        self.last(peer)
            .is_some_and(|(at, fit)| at.elapsed() < SILENT_AFTER && fit)
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
        if let Ok(answer) = peers.call_small(peer, SILENT_AFTER, question).await {
            node.inner.pulses.heard(peer, answer.first() == Some(&0));
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}
