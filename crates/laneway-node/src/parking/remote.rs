//! Parked pops of other gateways: what they wait for, and the hints that go to them.
//!
//! Once a second, and at once for what is new, a gateway tells every node that leads a partition which (queue, group) pairs its
//! parked pops wait for. The leader hints at a lane that becomes claimable; what is claimable when it hears of the interest is
//! hinted at then, so a lost hint costs a second and no more.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use laneway_core::ids::PartitionId;
use laneway_raft::{Peers, node_number};
use laneway_storage::codec;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{Parking, ParkingKey, locked};
use crate::leader::Verb;
use crate::node::Node;

/// Between two tellings of everything that is waited for.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What is new is gathered for so long before it is told.
const GATHER: Duration = Duration::from_millis(2);

/// An interest that was not told again for so long is over.
const INTEREST_LASTS: Duration = Duration::from_millis(3_500);

/// Longest wait for a peer to take interests or a hint.
const TELL_WAIT: Duration = Duration::from_secs(1);

/// Interests kept of all peers together; further ones are served by the next telling at best.
const INTERESTS_MAX: usize = 1_000_000;

/// What the pops parked at other gateways wait for.
#[derive(Debug, Default)]
pub(super) struct Interests {
    by_key: Mutex<HashMap<ParkingKey, Vec<(u16, Instant)>>>,
    turn: AtomicUsize,
}

impl Interests {
    fn note(&self, node: u16, keys: &[ParkingKey]) {
        let until = Instant::now() + INTEREST_LASTS;
        let mut by_key = locked(&self.by_key);
        for key in keys {
            if by_key.len() >= INTERESTS_MAX && !by_key.contains_key(key) {
                continue;
            }
            let nodes = by_key.entry(key.clone()).or_default();
            match nodes.iter_mut().find(|(known, _)| *known == node) {
                Some((_, known_until)) => *known_until = until,
                None => nodes.push((node, until)),
            }
        }
    }

    fn forget_old(&self) {
        let now = Instant::now();
        locked(&self.by_key).retain(|_, nodes| {
            nodes.retain(|(_, until)| *until > now);
            !nodes.is_empty()
        });
    }

    /// Who waits for `key`, beginning with whose turn it is; `None` is this node's own turn.
    fn in_turn(&self, key: &ParkingKey) -> Vec<Option<u16>> {
        let now = Instant::now();
        let mut all = vec![None];
        if let Some(nodes) = locked(&self.by_key).get(key) {
            all.extend(
                nodes
                    .iter()
                    .filter(|(_, until)| *until > now)
                    .map(|(node, _)| Some(*node)),
            );
        }
        if all.len() > 1 {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let first = turn % all.len();
            all.rotate_left(first);
        }
        all
    }
}

/// A hint on its way to a gateway. Without a lane: look at the partition.
#[derive(Debug, Serialize, Deserialize)]
struct ReadyFrame {
    key: ParkingKey,
    partition: PartitionId,
    lane: Option<Arc<str>>,
}

impl Parking {
    /// A lane became claimable: one pop that waits for it, here or at another gateway, is woken.
    pub(crate) fn ready(self: &Arc<Self>, key: &ParkingKey, partition: PartitionId, lane: &Arc<str>) {
        let mut in_turn = self.interests.in_turn(key).into_iter();
        loop {
            match in_turn.next() {
                None => return,
                Some(None) => {
                    if self.lane_ready(key, partition, lane) {
                        return;
                    }
                }
                Some(Some(node)) => {
                    let rest = std::iter::once(Some(node)).chain(in_turn).collect();
                    let (parking, key, lane) = (Arc::clone(self), key.clone(), Arc::clone(lane));
                    tokio::spawn(async move { parking.offer_round(rest, key, partition, lane).await });
                    return;
                }
            }
        }
    }

    async fn offer_round(
        self: Arc<Self>,
        gateways: Vec<Option<u16>>,
        key: ParkingKey,
        partition: PartitionId,
        lane: Arc<str>,
    ) {
        for gateway in gateways {
            let taken = match gateway {
                None => self.lane_ready(&key, partition, &lane),
                Some(node) => self.hint(node, &key, partition, Some(&lane)).await,
            };
            if taken {
                return;
            }
        }
    }

    /// True: a pop there was woken.
    async fn hint(
        &self,
        node: u16,
        key: &ParkingKey,
        partition: PartitionId,
        lane: Option<&Arc<str>>,
    ) -> bool {
        let Some(peers) = &self.peers else { return false };
        let frame = ReadyFrame {
            key: key.clone(),
            partition,
            lane: lane.cloned(),
        };
        let answer = tell(peers, node, Verb::Ready, &frame).await;
        answer.is_some_and(|answer| answer.first() == Some(&1))
    }
}

async fn tell(peers: &Peers, node: u16, verb: Verb, frame: &impl Serialize) -> Option<Bytes> {
    let body = vec![Bytes::from(vec![verb as u8]), codec::encode(frame).into()];
    // What is lost is told again.
    peers.call(node, TELL_WAIT, body).await.ok()
}

/// Tells leaders on other nodes what the pops parked here wait for. Runs until the task is aborted.
pub(crate) async fn tell_interests(node: Node, peers: Peers) {
    let parking = Arc::clone(&node.inner.parking);
    let mut ticks = tokio::time::interval(TELL_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let keys = tokio::select! {
            _ = ticks.tick() => {
                parking.interests.forget_old();
                parking.keys()
            }
            () = parking.news.notified() => {
                tokio::time::sleep(GATHER).await;
                parking.take_news()
            }
        };
        if keys.is_empty() {
            continue;
        }
        for leader in leaders_elsewhere(&node) {
            let (peers, keys) = (peers.clone(), keys.clone());
            tokio::spawn(async move { tell(&peers, leader, Verb::Interests, &keys).await });
        }
    }
}

/// Nodes that lead a partition and are not this one.
fn leaders_elsewhere(node: &Node) -> BTreeSet<u16> {
    let partitions = node.inner.partitions.iter();
    let seen = partitions.map(|partition| *partition.leadership.borrow());
    seen.filter(|seen| !seen.is_self)
        .filter_map(|seen| seen.leader.map(node_number))
        .collect()
}

impl Node {
    /// A gateway says what its parked pops wait for: what is claimable already is hinted at now.
    pub(crate) async fn interests_of(&self, gateway: u16, frame: &[u8]) -> Result<Vec<Bytes>, String> {
        let keys: Vec<ParkingKey> = codec::decode(frame).map_err(|error| error.to_string())?;
        let parking = &self.inner.parking;
        parking.interests.note(gateway, &keys);
        let keys = Arc::new(keys);
        for partition in &self.inner.partitions {
            if !partition.serving.load(Ordering::Acquire) {
                continue;
            }
            let asked = Arc::clone(&keys);
            let claimable = partition.look(move |running| {
                let now = running.now();
                let machine = &running.machine;
                let claimable = |(queue, group): &&ParkingKey| machine.claimable(*queue, group, None, now);
                asked.iter().filter(claimable).cloned().collect::<Vec<_>>()
            });
            let Ok(claimable) = claimable.await else { continue };
            for key in claimable {
                let (parking, partition) = (Arc::clone(parking), partition.id);
                tokio::spawn(async move { parking.hint(gateway, &key, partition, None).await });
            }
        }
        Ok(Vec::new())
    }

    /// A leader says that there is something for a pop parked here.
    pub(crate) fn ready_hint(&self, frame: &[u8]) -> Result<Vec<Bytes>, String> {
        let ReadyFrame { key, partition, lane } = codec::decode(frame).map_err(|error| error.to_string())?;
        let parking = &self.inner.parking;
        let taken = match lane {
            Some(lane) => parking.lane_ready(&key, partition, &lane),
            None => {
                parking.look_again(&key);
                true
            }
        };
        Ok(vec![Bytes::from(vec![u8::from(taken)])])
    }
}
