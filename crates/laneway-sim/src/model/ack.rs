//! Ack: the cursor arithmetic of the wire contract §2.3.1.

use laneway_core::command::{Ack, AckItem, AckStatus};
use laneway_core::ids::Offset;
use laneway_core::reply::{Acked, AckedItem, DeadLetter, StoreChange};

use super::{Lease, Model};

/// Where an item points.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// In the window.
    At(Offset),
    /// Below it.
    Before,
    Nowhere,
}

/// The signal that decides: lowest offset first, then the strongest.
struct HeadSignal {
    offset: Offset,
    status: AckStatus,
    item: usize,
}

impl Model {
    pub(super) fn ack(&mut self, ack: Ack) -> Acked {
        let refuse_all = |item| Acked {
            items: ack.items.iter().map(|_| item).collect(),
            lease_released: false,
        };
        let Some(lane_at) = self.lane_at(ack.lane) else {
            return refuse_all(AckedItem::LaneUnknown);
        };
        let lane = &self.lanes[lane_at];
        let Some(group_at) = lane.groups.iter().position(|group| group.name == ack.group) else {
            return refuse_all(AckedItem::Unresolvable);
        };
        let group = &lane.groups[group_at];
        let lease = group.live_lease(self.stamps.lease);
        if let Some(id) = ack.lease_id
            && lease.is_none_or(|lease| lease.id != id)
        {
            let repeat = self.settled_answer(id, ack.lane, ack.items_hash);
            return repeat.unwrap_or_else(|| refuse_all(AckedItem::LeaseInvalid));
        }
        if let Some(lease) = lease
            && self.would_file_a_deleted_message(lane_at, group_at, lease, &ack.items)
        {
            return refuse_all(AckedItem::DeadLetterRejected);
        }
        let window_start = group.cursor.max(lane.head);
        let window_end = lease.map_or_else(|| lane.tail(), |lease| lease.batch_end);
        let found: Vec<Found> = ack
            .items
            .iter()
            .map(|item| resolve(item, window_start, window_end))
            .collect();
        let acked = match lease {
            None => self.settle_without_lease(lane_at, group_at, &ack, &found),
            Some(lease) => self.settle_batch(lane_at, group_at, lease, &ack, &found),
        };
        if acked.lease_released
            && let Some(id) = ack.lease_id
        {
            self.keep_settled(id, ack.lane, ack.items_hash, &acked);
        }
        acked
    }

    /// The row "snapshot loss" of the contract: of the batch's signals the deciding one lies below the head, and filing
    /// is what it asks for.
    fn would_file_a_deleted_message(
        &self,
        lane_at: usize,
        group_at: usize,
        lease: Lease,
        items: &[AckItem],
    ) -> bool {
        let lane = &self.lanes[lane_at];
        let group = &lane.groups[group_at];
        let (batch_start, batch_end) = (group.cursor, lease.batch_end);
        let mut signals = Vec::new();
        for item in items.iter().filter(|item| item.status != AckStatus::Completed) {
            let mut in_batch = item.candidates.clone();
            in_batch.retain(|at| batch_start <= *at && *at < batch_end);
            // A message that is still there is meant rather than one that is not.
            let retained = in_batch.iter().copied().filter(|at| *at >= lane.head).min();
            if let Some(at) = retained.or_else(|| in_batch.into_iter().min()) {
                signals.push((at, item.status));
            }
        }
        let Some(lowest) = signals.iter().map(|(at, _)| *at).min() else {
            return false;
        };
        let on_lowest = signals.iter().filter(|(at, _)| *at == lowest);
        let strongest = on_lowest.map(|(_, status)| *status).max();
        let settings = &self.queue(lane.queue).expect("a live lane").row.settings;
        let spent = group.retries_used >= settings.retry_limit;
        let files = strongest == Some(AckStatus::DeadLetter)
            || strongest == Some(AckStatus::Failed) && spent && settings.keeps_dead_letters();
        lowest < lane.head && files
    }

    fn settle_without_lease(&mut self, lane_at: usize, group_at: usize, ack: &Ack, found: &[Found]) -> Acked {
        if let Some(cursor) = highest_completed(&ack.items, found, None) {
            self.move_cursor(lane_at, group_at, cursor);
            self.update_ready(lane_at, group_at);
        }
        Acked {
            items: answers(&ack.items, found, false),
            lease_released: false,
        }
    }

    fn settle_batch(
        &mut self,
        lane_at: usize,
        group_at: usize,
        lease: Lease,
        ack: &Ack,
        found: &[Found],
    ) -> Acked {
        let head = head_signal(&ack.items, found);
        let completed = highest_completed(&ack.items, found, head.as_ref().map(|head| head.offset));
        let settings = self
            .queue(self.lanes[lane_at].queue)
            .expect("a live lane")
            .row
            .settings
            .clone();
        let retries_used = self.lanes[lane_at].groups[group_at].retries_used;
        let spent = retries_used >= settings.retry_limit;
        let mut files = false;
        let mut released = true;
        match head {
            None => {
                let done = completed.is_some_and(|cursor| cursor >= lease.batch_end);
                if let Some(cursor) = completed {
                    self.move_cursor(lane_at, group_at, cursor);
                }
                if done {
                    let group = &mut self.lanes[lane_at].groups[group_at];
                    (group.retries_used, group.attempt) = (0, 0);
                } else {
                    released = false;
                }
            }
            Some(head)
                if head.status == AckStatus::DeadLetter || head.status == AckStatus::Failed && spent =>
            {
                files = head.status == AckStatus::DeadLetter || settings.keeps_dead_letters();
                if files {
                    self.file(lane_at, group_at, &head, ack);
                }
                self.move_cursor(lane_at, group_at, head.offset.plus(1));
                let group = &mut self.lanes[lane_at].groups[group_at];
                group.retries_used = 0;
                // A dropped message leaves it: the contract's table resets it for a filed one only.
                group.attempt = if files { 0 } else { group.attempt };
            }
            Some(head) => {
                if let Some(cursor) = completed {
                    self.move_cursor(lane_at, group_at, cursor);
                }
                let charge = u32::from(head.status == AckStatus::Failed);
                self.lanes[lane_at].groups[group_at].retries_used += charge;
            }
        }
        if released {
            self.lanes[lane_at].groups[group_at].lease = None;
            self.update_ready(lane_at, group_at);
        }
        Acked {
            items: answers(&ack.items, found, files),
            lease_released: released,
        }
    }

    /// Retires everything below `cursor`.
    fn move_cursor(&mut self, lane_at: usize, group_at: usize, cursor: Offset) {
        let group = &mut self.lanes[lane_at].groups[group_at];
        group.consumed += cursor.0 - group.cursor.0;
        group.cursor = cursor;
    }

    fn file(&mut self, lane_at: usize, group_at: usize, head: &HeadSignal, ack: &Ack) {
        let item = &ack.items[head.item];
        let any_error = ack.items.iter().find_map(|item| item.error.clone());
        let reason = item
            .error
            .clone()
            .or(any_error)
            .unwrap_or_else(|| "Retries exhausted".to_owned());
        let id = self.next_dead_letter_id();
        let lane = &self.lanes[lane_at];
        self.changes.push(StoreChange::Pinned {
            lane: lane.id,
            offset: head.offset,
        });
        self.dead_letters.push(DeadLetter {
            id,
            queue: lane.queue,
            lane: lane.id,
            offset: head.offset,
            group: ack.group.clone(),
            transaction_id: item.transaction_id.clone().unwrap_or_default(),
            reason,
            retries_used: lane.groups[group_at].retries_used,
            filed: self.stamps.wall,
        });
    }
}

fn resolve(item: &AckItem, start: Offset, end: Offset) -> Found {
    let mut inside: Vec<Offset> = item
        .candidates
        .iter()
        .copied()
        .filter(|at| (start..end).contains(at))
        .collect();
    inside.sort();
    match inside.first() {
        Some(offset) => Found::At(*offset),
        None if item.candidates.iter().any(|at| *at < start) => Found::Before,
        None => Found::Nowhere,
    }
}

/// The cursor after the highest completed item, of those below `limit`.
fn highest_completed(items: &[AckItem], found: &[Found], limit: Option<Offset>) -> Option<Offset> {
    let mut highest = None;
    for (item, found) in items.iter().zip(found) {
        if let Found::At(offset) = found
            && item.status == AckStatus::Completed
            && limit.is_none_or(|limit| *offset < limit)
        {
            highest = highest.max(Some(offset.plus(1)));
        }
    }
    highest
}

fn head_signal(items: &[AckItem], found: &[Found]) -> Option<HeadSignal> {
    let mut head: Option<HeadSignal> = None;
    for (at, (item, found)) in items.iter().zip(found).enumerate() {
        let Found::At(offset) = *found else { continue };
        if item.status == AckStatus::Completed {
            continue;
        }
        let decides = match &head {
            None => true,
            Some(head) => offset < head.offset || offset == head.offset && item.status > head.status,
        };
        if decides {
            head = Some(HeadSignal {
                offset,
                status: item.status,
                item: at,
            });
        }
    }
    head
}

fn answers(items: &[AckItem], found: &[Found], filed: bool) -> Vec<AckedItem> {
    let answer = |(item, found): (&AckItem, &Found)| match (found, item.status) {
        (Found::At(_), AckStatus::Failed | AckStatus::DeadLetter) if filed => AckedItem::DeadLettered,
        (Found::At(_), _) => AckedItem::Done,
        (Found::Before, AckStatus::Completed) => AckedItem::Noop,
        (Found::Before | Found::Nowhere, _) => AckedItem::Unresolvable,
    };
    items.iter().zip(found).map(answer).collect()
}
