//! Which peers answer. A process that is frozen keeps its connections; only its silence tells.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use laneway_raft::Peers;
use tokio::time::Instant;

use super::outside::{self, Outside};
use crate::clock::Clock;
use crate::leader::Verb;
use crate::node::Node;

/// Between two questions to a peer that answers.
const ASK_EVERY: Duration = Duration::from_millis(300);

/// The same to one that does not: its first answer is waited for.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// A peer that has not answered for so long does not run, as far as requests are concerned.
const SILENT_AFTER: Duration = Duration::from_millis(1_500);

/// What the others tell.
#[derive(Debug, Default)]
pub(crate) struct Pulses {
    /// When each peer last answered, and whether it was fit to lead then.
    heard: Mutex<HashMap<u16, (Instant, bool)>>,
    /// This node takes no part in the cluster.
    outside: Mutex<Option<Outside>>,
}

impl Pulses {
    fn heard(&self, peer: u16, fit: bool) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.insert(peer, (Instant::now(), fit));
    }

    fn last(&self, peer: u16) -> Option<(Instant, bool)> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.get(&peer).copied()
    }

    /// Why this node is a member of no group, if it is none.
    pub(super) fn outside(&self) -> Option<Outside> {
        *self.outside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_outside(&self, outside: Option<Outside>) {
        *self.outside.lock().unwrap_or_else(PoisonError::into_inner) = outside;
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

/// Asks every peer again and again, also whether they count on this node. Runs until the task is aborted.
pub(crate) async fn feel_pulses(node: Node, peers: Peers) {
    let asking = peers.nodes().map(|peer| ask(&node, &peers, peer));
    let asking = futures_util::future::join_all(asking);
    futures_util::future::join(asking, outside::watch(&node, &peers)).await;
}

async fn ask(node: &Node, peers: &Peers, peer: u16) {
    let clock = &node.inner.clock;
    loop {
        let question = vec![Bytes::from_static(&[Verb::Ping as u8])];
        let asked = clock.monotonic_us();
        let answered = peers.call_small(peer, SILENT_AFTER, question).await;
        let Some(pong) = answered.ok().and_then(|answer| Pong::decode(&answer)) else {
            tokio::time::sleep(TRY_EVERY).await;
            continue;
        };
        clock.heard(peer, pong.wall_us, asked);
        node.inner.pulses.heard(peer, pong.fit);
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// The answer to a ping: `unfit u8 ‖ wall clock in µs, u64 LE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pong {
    fit: bool,
    /// What the machine believes.
    wall_us: u64,
}

impl Pong {
    pub(crate) fn of(node: &Node) -> Self {
        Self {
            fit: node.is_fit_to_lead(),
            wall_us: node.inner.clock.own_wall_us(),
        }
    }

    pub(crate) fn encode(self) -> Bytes {
        let mut bytes = vec![u8::from(!self.fit)];
        bytes.extend_from_slice(&self.wall_us.to_le_bytes());
        bytes.into()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (unfit, wall_us) = bytes.split_first()?;
        Some(Self {
            fit: *unfit == 0,
            wall_us: u64::from_le_bytes(wall_us.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pong_is_golden_and_cut_ones_are_refused() {
        let pong = Pong {
            fit: false,
            wall_us: 0x0102_0304_0506_0708,
        };
        let bytes = pong.encode();
        assert_eq!(&bytes[..], [1, 8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(Pong::decode(&bytes), Some(pong));
        for end in 0..bytes.len() {
            assert_eq!(Pong::decode(&bytes[..end]), None);
        }
        assert_eq!(Pong::decode(&[&bytes[..], &[0]].concat()), None);
    }
}
