//! Pops that wait for a message. One lane that becomes claimable wakes one of them.

mod remote;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use laneway_core::ids::{PartitionId, QueueId};
use laneway_raft::Peers;
use tokio::sync::Notify;

use remote::Interests;
pub(crate) use remote::tell_interests;

/// Where a waiter waits: a queue's incarnation and a group.
pub(crate) type ParkingKey = (QueueId, Arc<str>);

/// All parked pops of a node.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    inner: Mutex<Inner>,
    parked: AtomicU64,
    peers: Option<Peers>,
    interests: Interests,
    /// Something is waited for that leaders elsewhere do not know of.
    news: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    by_key: HashMap<ParkingKey, VecDeque<Arc<Waiter>>>,
    /// Keys that leaders elsewhere have not been told.
    untold: HashSet<ParkingKey>,
    /// Discovery pops: they also wait for queues that do not exist yet.
    discovery: Vec<Arc<Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    /// Only this lane of the queue.
    lane: Option<Arc<str>>,
    slot: Mutex<Slot>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct Slot {
    hint: Option<Hint>,
    /// Another hint came while this one was held; it may have found nobody else.
    missed: bool,
}

/// Why a waiter was woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hint {
    /// A lane of this partition can be claimed.
    Lane {
        key: ParkingKey,
        partition: PartitionId,
        lane: Arc<str>,
    },
    /// A queue it waits for is gone.
    QueueGone,
    /// Anything may have changed.
    LookAgain,
}

/// One parked pop. Dropping it takes it off the lists and passes an unused hint on.
#[derive(Debug)]
pub(crate) struct Parked {
    parking: Arc<Parking>,
    keys: Vec<ParkingKey>,
    waiter: Arc<Waiter>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Parking {
    /// With the way to other gateways, if there are any.
    pub(crate) fn new(peers: Option<Peers>) -> Arc<Self> {
        Arc::new(Self {
            peers,
            ..Self::default()
        })
    }

    /// Parks under each of `keys`; `discovery` also waits for new queues. From now on no hint is missed.
    pub(crate) fn park(
        self: &Arc<Self>,
        keys: Vec<ParkingKey>,
        lane: Option<Arc<str>>,
        discovery: bool,
    ) -> Parked {
        let waiter = Arc::new(Waiter {
            lane,
            slot: Mutex::default(),
            notify: Notify::new(),
        });
        let mut inner = locked(&self.inner);
        for key in &keys {
            inner
                .by_key
                .entry(key.clone())
                .or_default()
                .push_back(Arc::clone(&waiter));
        }
        if self.peers.is_some() {
            // Told every time: a lane that became claimable before leaders knew is found by the look that follows.
            inner.untold.extend(keys.iter().cloned());
            self.news.notify_one();
        }
        if discovery {
            inner.discovery.push(Arc::clone(&waiter));
        }
        drop(inner);
        self.parked.fetch_add(1, Ordering::Relaxed);
        Parked {
            parking: Arc::clone(self),
            keys,
            waiter,
        }
    }

    /// What is waited for here.
    fn keys(&self) -> Vec<ParkingKey> {
        let mut inner = locked(&self.inner);
        inner.untold.clear();
        inner.by_key.keys().cloned().collect()
    }

    /// What leaders elsewhere have not been told.
    fn take_news(&self) -> Vec<ParkingKey> {
        std::mem::take(&mut locked(&self.inner).untold)
            .into_iter()
            .collect()
    }

    /// Another node leads a partition: it knows nothing of what is waited for here.
    pub(crate) fn another_leads(&self) {
        if self.peers.is_some() {
            let mut inner = locked(&self.inner);
            inner.untold = inner.by_key.keys().cloned().collect();
            self.news.notify_one();
        }
    }

    /// Wakes everyone who waits for `key`.
    fn look_again(&self, key: &ParkingKey) {
        for waiter in locked(&self.inner).by_key.get(key).into_iter().flatten() {
            waiter.offer(Hint::LookAgain);
        }
    }

    /// A lane became claimable: wakes the pop that has waited longest here and may take it; false when there is none.
    fn lane_ready(&self, key: &ParkingKey, partition: PartitionId, lane: &Arc<str>) -> bool {
        let inner = locked(&self.inner);
        let Some(waiters) = inner.by_key.get(key) else {
            return false;
        };
        for waiter in waiters {
            if waiter.lane.as_ref().is_some_and(|wanted| wanted != lane) {
                continue;
            }
            let hint = Hint::Lane {
                key: key.clone(),
                partition,
                lane: Arc::clone(lane),
            };
            if waiter.offer(hint) {
                return true;
            }
        }
        false
    }

    /// The queue is gone: wakes everyone who waits for it.
    pub(crate) fn queue_gone(&self, queue: QueueId) {
        let inner = locked(&self.inner);
        for ((id, _), waiters) in &inner.by_key {
            if *id == queue {
                for waiter in waiters {
                    waiter.force(Hint::QueueGone);
                }
            }
        }
    }

    /// Queues came or changed: wakes discovery pops.
    pub(crate) fn catalog_changed(&self) {
        for waiter in &locked(&self.inner).discovery {
            waiter.offer(Hint::LookAgain);
        }
    }

    /// A partition began to serve here: hints may have been lost, so everyone looks again.
    pub(crate) fn partition_serves(&self) {
        for waiter in locked(&self.inner).by_key.values().flatten() {
            waiter.offer(Hint::LookAgain);
        }
    }

    /// How many pops are parked.
    pub(crate) fn parked(&self) -> u64 {
        self.parked.load(Ordering::Relaxed)
    }
}

impl Waiter {
    /// Gives a hint to a waiter that has none; false when it has one.
    fn offer(&self, hint: Hint) -> bool {
        let mut slot = locked(&self.slot);
        if slot.hint.is_some() {
            slot.missed = true;
            return false;
        }
        slot.hint = Some(hint);
        self.notify.notify_one();
        true
    }

    fn force(&self, hint: Hint) {
        locked(&self.slot).hint = Some(hint);
        self.notify.notify_one();
    }
}

impl Parked {
    /// Waits for a hint; it stays held until [`Self::hint_used`]. Cancel safe: a hint still held is passed on when
    /// `self` is dropped.
    pub(crate) async fn hint(&self) -> Hint {
        loop {
            if let Some(hint) = &locked(&self.waiter.slot).hint {
                return hint.clone();
            }
            self.waiter.notify.notified().await;
        }
    }

    /// The hint held was followed. True: another one came meanwhile and may be lost, so look everywhere.
    pub(crate) fn hint_used(&self) -> bool {
        let slot = std::mem::take(&mut *locked(&self.waiter.slot));
        slot.missed
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        let mut inner = locked(&self.parking.inner);
        for key in &self.keys {
            if let Some(waiters) = inner.by_key.get_mut(key) {
                waiters.retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
                if waiters.is_empty() {
                    inner.by_key.remove(key);
                }
            }
        }
        inner
            .discovery
            .retain(|waiter| !Arc::ptr_eq(waiter, &self.waiter));
        drop(inner);
        self.parking.parked.fetch_sub(1, Ordering::Relaxed);
        let slot = std::mem::take(&mut *locked(&self.waiter.slot));
        if let Some(Hint::Lane { key, partition, lane }) = slot.hint {
            self.parking.lane_ready(&key, partition, &lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(pop: &Parked) -> Option<Hint> {
        locked(&pop.waiter.slot).hint.clone()
    }

    fn key(queue: u64) -> ParkingKey {
        (QueueId(queue), Arc::from("g"))
    }

    fn lane(name: &str) -> Arc<str> {
        Arc::from(name)
    }

    #[test]
    fn one_lane_wakes_one_pop_in_order() {
        let parking = Arc::new(Parking::default());
        let first = parking.park(vec![key(1)], None, false);
        let second = parking.park(vec![key(1)], None, false);
        parking.lane_ready(&key(1), PartitionId(3), &lane("a"));
        assert!(matches!(
            held(&first),
            Some(Hint::Lane {
                partition: PartitionId(3),
                ..
            })
        ));
        assert_eq!(held(&second), None);
        assert_eq!(parking.parked(), 2);
    }

    #[test]
    fn unused_hint_goes_to_the_next() {
        let parking = Arc::new(Parking::default());
        let first = parking.park(vec![key(1)], None, false);
        let second = parking.park(vec![key(1)], None, false);
        parking.lane_ready(&key(1), PartitionId(0), &lane("a"));
        drop(first);
        assert!(held(&second).is_some());
        drop(second);
        assert_eq!(parking.parked(), 0);
        assert!(locked(&parking.inner).by_key.is_empty());
    }

    #[test]
    fn pinned_pop_ignores_other_lanes() {
        let parking = Arc::new(Parking::default());
        let pinned = parking.park(vec![key(1)], Some(lane("b")), false);
        parking.lane_ready(&key(1), PartitionId(0), &lane("a"));
        assert_eq!(held(&pinned), None);
        parking.lane_ready(&key(1), PartitionId(0), &lane("b"));
        assert!(held(&pinned).is_some());
    }

    #[test]
    fn deletion_wakes_all_and_beats_other_hints() {
        let parking = Arc::new(Parking::default());
        let pops = [
            parking.park(vec![key(1), key(2)], None, true),
            parking.park(vec![key(2)], None, false),
        ];
        parking.catalog_changed();
        parking.queue_gone(QueueId(2));
        for pop in &pops {
            assert_eq!(held(pop), Some(Hint::QueueGone));
        }
    }
}
