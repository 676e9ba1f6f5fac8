//! Transaction ids of the messages under lease, so that an ack finds its offsets without touching the disk.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use laneway_core::ids::{LaneId, LeaseId, Offset};
use xxhash_rust::xxh3::xxh3_64;

/// The transaction ids of one leased batch, as hashes: offset `first + i` has `hashes[i]`.
#[derive(Debug)]
struct Span {
    first: Offset,
    hashes: Vec<u64>,
}

/// Bounded by messages; the oldest spans go first. Losing one costs a look at the disk, never an answer.
#[derive(Debug)]
pub(crate) struct SpanCache {
    inner: Mutex<Inner>,
    messages_max: usize,
}

#[derive(Debug, Default)]
struct Inner {
    spans: HashMap<(LeaseId, LaneId), Arc<Span>>,
    order: VecDeque<(LeaseId, LaneId)>,
    messages: usize,
}

impl SpanCache {
    pub(crate) fn new(messages_max: usize) -> Self {
        Self {
            inner: Mutex::default(),
            messages_max,
        }
    }

    /// Hash of a transaction id as spans hold it.
    pub(crate) fn hash(transaction_id: &str) -> u64 {
        xxh3_64(transaction_id.as_bytes())
    }

    pub(crate) fn put(&self, lease: LeaseId, lane: LaneId, first: Offset, hashes: Vec<u64>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.messages += hashes.len();
        if let Some(old) = inner
            .spans
            .insert((lease, lane), Arc::new(Span { first, hashes }))
        {
            inner.messages -= old.hashes.len();
        } else {
            inner.order.push_back((lease, lane));
        }
        while inner.messages > self.messages_max {
            let Some(key) = inner.order.pop_front() else { break };
            if let Some(span) = inner.spans.remove(&key) {
                inner.messages -= span.hashes.len();
            }
        }
    }

    /// Every offset of the span with this transaction id, ascending; `None` when the span is not here.
    pub(crate) fn find(&self, lease: LeaseId, lane: LaneId, transaction_id: &str) -> Option<Vec<Offset>> {
        let span = {
            let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(inner.spans.get(&(lease, lane))?)
        };
        let wanted = Self::hash(transaction_id);
        let mut found = Vec::new();
        for (at, hash) in (0u64..).zip(&span.hashes) {
            if *hash == wanted {
                found.push(span.first.plus(at));
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use laneway_core::ids::PartitionId;
    use laneway_core::time::WallTime;

    #[test]
    fn bounded_spans_forget_the_oldest_first() {
        let cache = SpanCache::new(4);
        let lease = |n| LeaseId::new(WallTime(0), PartitionId(0), n);
        let hashes = |names: &[&str]| names.iter().map(|name| SpanCache::hash(name)).collect::<Vec<_>>();
        cache.put(lease(1), LaneId(1), Offset(5), hashes(&["a", "b", "a"]));
        assert_eq!(
            cache.find(lease(1), LaneId(1), "a"),
            Some(vec![Offset(5), Offset(7)])
        );
        assert_eq!(cache.find(lease(1), LaneId(1), "x"), Some(vec![]));
        cache.put(lease(2), LaneId(1), Offset(0), hashes(&["c", "d"]));
        assert_eq!(cache.find(lease(1), LaneId(1), "a"), None);
        assert_eq!(cache.find(lease(2), LaneId(1), "d"), Some(vec![Offset(1)]));
    }
}
