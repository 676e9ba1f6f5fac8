//! Push: one command per lane and request, answers in request order.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use laneway_core::command::RequestKey;
use laneway_core::ids::{MessageId, PartitionId, Slot};
use laneway_core::reply::{Pushed as LanePushed, Refusal, Reply};
use laneway_core::settings::QueueRow;
use laneway_storage::codec;
use laneway_storage::dedup::DedupStore;

use super::names::check_request_id;
use super::whole::whole_refusal;
use super::{STALE_RETRIES_MAX, content_hash, refused, unexpected};
use crate::api::{ErrorClass, PushItem, PushReply, PushRequest, Pushed, RequestError, RequestId};
use crate::leader::{AtLeader, Verb};
use crate::node::Node;
use crate::partition::{Ask, PushAsk, PushAskItem};

/// The items of one request that go to one lane.
struct LanePart {
    queue: Arc<str>,
    lane: Arc<str>,
    /// Their places in the request.
    places: Vec<usize>,
    frames: Bytes,
    frame_bytes: Vec<u32>,
    same_as: Vec<Option<u32>>,
}

impl Node {
    /// Stores messages durably, in request order per lane.
    ///
    /// Durability: an item answered `Queued` or `Duplicate` is on stable storage of a quorum. Errors: when at least one
    /// lane's part is stored, the items of the others are answered `Refused`, each with its reason; the whole call fails
    /// only when no part is known to be stored. `OutcomeUnknown`, of an item or the call, means that it may be stored:
    /// repeat it with the same transaction ids. Cancel safety: dropping the future withdraws nothing.
    pub async fn push(&self, request: PushRequest) -> Result<Vec<PushReply>, RequestError> {
        check_request_id(request.request_id.as_ref())?;
        for item in &request.items {
            self.check_names(&item.queue, &[&item.lane])?;
            self.check_transaction_id(&item.transaction_id)?;
        }
        if request.items.is_empty() {
            return Ok(Vec::new());
        }
        self.check_disk()?;
        let queues = self.queues_for_push(&request.items).await?;
        let parts = split(&request.items);
        let pushes = (0u32..).zip(&parts).map(|(number, part)| {
            let row = Arc::clone(&queues[&part.queue]);
            let pushed = self.push_part(part, number, row, &request);
            async move { pushed.await.map_err(with_push_remedy) }
        });
        let outcomes = join_all(pushes).await;
        self.put_together(request.items.len(), &parts, outcomes)
    }

    /// The rows of all queues named, created where there is none; new ones share the catalog's entries.
    async fn queues_for_push(
        &self,
        items: &[PushItem],
    ) -> Result<HashMap<Arc<str>, Arc<QueueRow>>, RequestError> {
        let names: HashSet<&Arc<str>> = items.iter().map(|item| &item.queue).collect();
        let rows = names
            .into_iter()
            .map(|name| async move { Ok((Arc::clone(name), self.queue_for_push(name).await?)) });
        join_all(rows).await.into_iter().collect()
    }

    fn put_together(
        &self,
        count: usize,
        parts: &[LanePart],
        outcomes: Vec<Result<LanePushed, RequestError>>,
    ) -> Result<Vec<PushReply>, RequestError> {
        if let Some(error) = whole_refusal(&outcomes) {
            return Err(error.clone());
        }
        let mut replies: Vec<Option<PushReply>> = vec![None; count];
        let mut duplicates = 0;
        for (part, outcome) in parts.iter().zip(outcomes) {
            for (at, place) in part.places.iter().enumerate() {
                replies[*place] = Some(match &outcome {
                    Err(error) => PushReply::Refused(error.clone()),
                    Ok(pushed) => {
                        let item = pushed.items[at];
                        let message_id = MessageId::new(item.wall, pushed.lane, item.offset);
                        let position = Pushed {
                            message_id,
                            lane: pushed.lane,
                            offset: item.offset,
                        };
                        if item.duplicate {
                            duplicates += 1;
                            PushReply::Duplicate(position)
                        } else {
                            PushReply::Queued(position)
                        }
                    }
                });
            }
        }
        self.inner
            .counters
            .duplicates
            .fetch_add(duplicates, Ordering::Relaxed);
        Ok(replies
            .into_iter()
            .map(|reply| reply.expect("each item is in one part"))
            .collect())
    }

    async fn push_part(
        &self,
        part: &LanePart,
        number: u32,
        mut row: Arc<QueueRow>,
        request: &PushRequest,
    ) -> Result<LanePushed, RequestError> {
        let key = request
            .request_id
            .as_ref()
            .map(|id| request_key(id, number, part));
        let mut tries = 0;
        loop {
            let transaction_ids = part
                .places
                .iter()
                .map(|place| &*request.items[*place].transaction_id);
            let ask = push_ask(part, key.clone(), Arc::clone(&row), transaction_ids);
            let partition = self.partition_of_slot(Slot::of(row.id, &part.lane)).id;
            let answer = self.at_leader(partition, ask).await?;
            tries += 1;
            match answer {
                Reply::Pushed(pushed) if pushed.items.len() == part.places.len() => return Ok(pushed),
                Reply::Refused(Refusal::QueueGone) if tries <= STALE_RETRIES_MAX => {
                    // Deleted meanwhile: a push makes the queue anew.
                    self.catalog_up_to_date().await?;
                    row = self.queue_for_push(&part.queue).await?;
                }
                Reply::Refused(Refusal::PlanOutdated) if tries <= STALE_RETRIES_MAX => {}
                Reply::Refused(refusal) => return Err(refused(refusal)),
                reply => return Err(unexpected(&reply)),
            }
        }
    }
}

impl AtLeader for PushAsk {
    const VERB: Verb = Verb::Push;
    const WRITES: bool = true;
    type Answer = Reply;

    async fn run(self, node: Node, group: PartitionId) -> Result<Reply, RequestError> {
        node.check_disk()?;
        let partition = node.own_partition(group)?;
        let bytes = self.block.len();
        partition.ask(Ask::Push(self), bytes).await
    }

    fn take_payload(&mut self) -> Vec<Bytes> {
        vec![std::mem::take(&mut self.block)]
    }

    /// Every replica will read these frames as it applies the entry, so they are proven first.
    fn set_payload(&mut self, payload: Bytes) -> bool {
        let mut frames = codec::frames(&payload);
        let fit = self.items.iter().all(|item| {
            let frame = frames.next();
            matches!(frame, Some(Ok(frame)) if frame.bytes == item.frame_bytes)
        });
        let fit = fit && frames.next().is_none();
        self.block = payload;
        fit
    }
}

fn push_ask<'a>(
    part: &LanePart,
    request: Option<RequestKey>,
    queue: Arc<QueueRow>,
    transaction_ids: impl Iterator<Item = &'a str>,
) -> PushAsk {
    let items = transaction_ids
        .enumerate()
        .map(|(at, transaction_id)| PushAskItem {
            key: (!transaction_id.is_empty()).then(|| DedupStore::key(queue.id, &part.lane, transaction_id)),
            same_as: part.same_as[at],
            frame_bytes: part.frame_bytes[at],
        });
    let items = items.collect();
    PushAsk {
        request,
        queue,
        lane: Arc::clone(&part.lane),
        items,
        block: part.frames.clone(),
    }
}

fn request_key(id: &RequestId, part: u32, lane: &LanePart) -> RequestKey {
    let content = content_hash(&[lane.queue.as_bytes(), lane.lane.as_bytes(), &lane.frames]);
    RequestKey {
        id: id.0.to_string(),
        part,
        content,
    }
}

/// Groups items by (queue, lane), keeping their order, and frames their payloads.
fn split(items: &[PushItem]) -> Vec<LanePart> {
    let mut places: Vec<(&PushItem, Vec<usize>)> = Vec::new();
    let mut known: HashMap<(&str, &str), usize> = HashMap::new();
    for (place, item) in items.iter().enumerate() {
        let at = *known.entry((&item.queue, &item.lane)).or_insert_with(|| {
            places.push((item, Vec::new()));
            places.len() - 1
        });
        places[at].1.push(place);
    }
    places
        .into_iter()
        .map(|(first, places)| lane_part(first, places, items))
        .collect()
}

fn lane_part(first: &PushItem, places: Vec<usize>, items: &[PushItem]) -> LanePart {
    let bytes = places
        .iter()
        .map(|place| items[*place].payload.len() + items[*place].transaction_id.len() + 16)
        .sum();
    let mut frames = BytesMut::with_capacity(bytes);
    let mut frame_bytes = Vec::with_capacity(places.len());
    let mut same_as = Vec::with_capacity(places.len());
    let mut seen: HashMap<&str, u32> = HashMap::new();
    for (at, place) in (0u32..).zip(&places) {
        let item = &items[*place];
        let before = frames.len();
        codec::push_frame(&mut frames, &item.transaction_id, &item.payload);
        frame_bytes.push(u32::try_from(frames.len() - before).expect("a request body is far below 4 GiB"));
        let mut earlier = None;
        if !item.transaction_id.is_empty() && places.len() > 1 {
            earlier = seen.get(&*item.transaction_id).copied();
            seen.entry(&item.transaction_id).or_insert(at);
        }
        same_as.push(earlier);
    }
    LanePart {
        queue: Arc::clone(&first.queue),
        lane: Arc::clone(&first.lane),
        places,
        frames: frames.freeze(),
        frame_bytes,
        same_as,
    }
}

/// Few producers send request ids; of a push the transaction ids do as well.
fn with_push_remedy(mut error: RequestError) -> RequestError {
    if error.class == ErrorClass::OutcomeUnknown {
        error
            .message
            .push_str(", or push with the same transaction ids; with neither it may be stored twice");
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maybe_stored_part_names_the_transaction_ids() {
        let message = |class| with_push_remedy(RequestError::new(class, "retry", "why")).message;
        assert!(message(ErrorClass::OutcomeUnknown).contains("same transaction ids"));
        assert_eq!(message(ErrorClass::Overloaded), "why");
    }
}
