//! From transaction ids to offsets. What an offset holds never changes, so this needs no lock and no log position.

use std::collections::HashMap;
use std::sync::Arc;

use laneway_core::ids::{LaneId, LeaseId, MessageId, Offset, QueueId};
use laneway_core::time::WallTime;
use laneway_storage::dedup::DedupStore;
use laneway_storage::payload::StoredHeader;

use super::pop::unreadable;
use crate::api::RequestError;
use crate::node::Node;
use crate::partition::{PartitionHandle, Stores};

/// A lane and a group's stand on it, at the time of asking.
#[derive(Clone, Debug)]
pub(super) struct LaneContext {
    queue: QueueId,
    name: Arc<str>,
    head: Offset,
    tail: Offset,
    /// First offset that the group has not settled; the head when it has no state here.
    cursor: Offset,
    batch_end: Option<Offset>,
}

impl Node {
    /// Every offset known to carry each of `transaction_ids`, ascending; empty when none was found.
    ///
    /// Looks into the leased spans in memory, then at dedup rows, the headers of the leased batch, and at most
    /// `resolve_scan_max` headers on either side of the cursor.
    pub(super) async fn resolve(
        &self,
        partition: &Arc<PartitionHandle>,
        lane: LaneId,
        group: &Arc<str>,
        lease: Option<LeaseId>,
        transaction_ids: &[Arc<str>],
    ) -> Result<Vec<Vec<Offset>>, RequestError> {
        let stores = partition.stores()?;
        let mut found: Vec<Vec<Offset>> = transaction_ids
            .iter()
            .map(|id| {
                lease
                    .and_then(|lease| stores.spans.find(lease, lane, id))
                    .unwrap_or_default()
            })
            .collect();
        if found.iter().all(|offsets| !offsets.is_empty()) {
            return Ok(found);
        }
        let Some(context) = lane_context(partition, lane, Arc::clone(group)).await? else {
            return Ok(found);
        };
        let missing: Vec<(usize, Arc<str>)> = (0..)
            .zip(transaction_ids)
            .filter(|(at, _)| found[*at].is_empty())
            .map(|(at, id)| (at, Arc::clone(id)))
            .collect();
        let scan_max = u64::from(self.inner.limits.resolve_scan_max);
        let search = Search {
            lane,
            context,
            stores,
            scan_max,
        };
        let resolved = tokio::task::spawn_blocking(move || search.run(&missing))
            .await
            .map_err(|error| unreadable(&error))?
            .map_err(|error| unreadable(&error))?;
        for (at, offsets) in resolved {
            found[at] = offsets;
        }
        Ok(found)
    }
}

async fn lane_context(
    partition: &Arc<PartitionHandle>,
    lane: LaneId,
    group: Arc<str>,
) -> Result<Option<LaneContext>, RequestError> {
    partition
        .look(move |running| {
            let view = running.machine.lane(lane)?;
            let group = running.machine.group(lane, &group);
            let live = group.as_ref().and_then(|group| group.lease.as_ref());
            Some(LaneContext {
                queue: view.queue,
                name: view.name.into(),
                head: view.head,
                tail: view.tail,
                cursor: group
                    .as_ref()
                    .map_or(view.head, |group| group.cursor.max(view.head)),
                batch_end: live
                    .filter(|lease| running.now().lease < lease.deadline)
                    .map(|lease| lease.batch_end),
            })
        })
        .await
}

/// A search on disk for some transaction ids of one lane.
struct Search {
    lane: LaneId,
    context: LaneContext,
    stores: Arc<Stores>,
    scan_max: u64,
}

#[derive(Debug, thiserror::Error)]
enum SearchError {
    #[error(transparent)]
    Payload(#[from] laneway_storage::payload::PayloadError),
    #[error(transparent)]
    Dedup(#[from] laneway_storage::dedup::DedupError),
}

impl Search {
    fn run(&self, missing: &[(usize, Arc<str>)]) -> Result<Vec<(usize, Vec<Offset>)>, SearchError> {
        let context = &self.context;
        let mut found: HashMap<&str, Vec<Offset>> = HashMap::new();
        for (_, id) in missing {
            let mut offsets = self.by_message_id(id)?;
            let key = DedupStore::key(context.queue, &context.name, id);
            if let Some((offset, _)) = self.stores.dedup.get(key, WallTime(0))? {
                offsets.push(offset);
            }
            found.insert(id, offsets);
        }
        if let Some(end) = context.batch_end {
            self.scan(context.cursor, end, &mut found)?;
        }
        if found.values().any(Vec::is_empty) {
            self.scan(
                context.cursor,
                context.tail.min(context.cursor.plus(self.scan_max)),
                &mut found,
            )?;
        }
        if found.values().any(Vec::is_empty) {
            let from = Offset(context.cursor.0.saturating_sub(self.scan_max)).max(context.head);
            self.scan(from, context.cursor, &mut found)?;
        }
        let mut resolved = Vec::with_capacity(missing.len());
        for (at, id) in missing {
            let mut offsets = found.get(&**id).cloned().unwrap_or_default();
            offsets.sort_unstable();
            offsets.dedup();
            resolved.push((*at, offsets));
        }
        Ok(resolved)
    }

    /// A message pushed without a transaction id goes by its message id, which says where it is.
    fn by_message_id(&self, id: &str) -> Result<Vec<Offset>, SearchError> {
        let Ok(message) = id.parse::<MessageId>() else {
            return Ok(Vec::new());
        };
        let (lane, offset) = message.position();
        if lane != self.lane || offset >= self.context.tail {
            return Ok(Vec::new());
        }
        let headers = self.stores.payloads.headers(lane, offset, offset.plus(1), 1)?;
        let is_it = |header: &StoredHeader| {
            header.transaction_id.is_empty() && MessageId::new(header.wall, lane, header.offset) == message
        };
        Ok(headers
            .iter()
            .filter(|header| is_it(header))
            .map(|header| header.offset)
            .collect())
    }

    fn scan(
        &self,
        from: Offset,
        to: Offset,
        found: &mut HashMap<&str, Vec<Offset>>,
    ) -> Result<(), SearchError> {
        if from >= to {
            return Ok(());
        }
        let messages_max = usize::try_from(to.0 - from.0).unwrap_or(usize::MAX);
        for header in self.stores.payloads.headers(self.lane, from, to, messages_max)? {
            if let Some(offsets) = found.get_mut(header.transaction_id.as_str()) {
                offsets.push(header.offset);
            }
        }
        Ok(())
    }
}
