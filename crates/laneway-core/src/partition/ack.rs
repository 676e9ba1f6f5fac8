//! Acks: cursor arithmetic, the retry budget, and what ends a lease.
//!
//! An item is looked up among the messages that the cursor has not passed and retention has not deleted. One that
//! retention has taken out of a leased batch is unresolvable and the rest of the target goes on, but for one case: the
//! lowest signal is on it and asks to file it. Its payload is gone, so nothing moves, the lease stays, and all items are
//! answered [`AckedItem::DeadLetterRejected`]: passing over it would lose a message that somebody wanted kept.
//! Source: wire contract §2.3.1, with §5's choices that only the head message is filed, and what a lost one is answered.

use std::cmp::Reverse;
use std::ops::Range;

use super::PartitionMachine;
use super::dead_letter::Filing;
use super::index::GroupNumber;
use crate::command::{Ack, AckItem, AckStatus};
use crate::ids::Offset;
use crate::reply::{Acked, AckedItem, Effect, Outcome, Reply, StoreChange};
use crate::rows::Lease;

/// Reason of a dead letter whose ack names none.
const REASON_DEFAULT: &str = "Retries exhausted";

/// Where an item's message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// In the window.
    At(Offset),
    /// In the leased batch, but deleted by retention.
    Deleted(Offset),
    /// Before the window.
    Before,
    /// Nowhere, or beyond it.
    Nowhere,
}

impl Found {
    fn in_window(self) -> Option<Offset> {
        match self {
            Self::At(offset) => Some(offset),
            Self::Deleted(_) | Self::Before | Self::Nowhere => None,
        }
    }
}

/// The lowest failed, retry or dead-letter item of a target.
#[derive(Clone, Copy, Debug)]
struct Signal {
    offset: Offset,
    status: AckStatus,
    /// Which item gave it.
    item: usize,
}

/// What a target does to its lane.
struct Verdict {
    cursor: Offset,
    ends_lease: bool,
    retries: Retries,
    files: Option<Signal>,
}

enum Retries {
    Same,
    Charge,
    /// The batch or its head is done with.
    Reset,
    /// Its head was dropped: the budget starts anew, the delivery count stays as telemetry.
    ResetBudget,
}

impl PartitionMachine {
    pub(super) fn ack(&mut self, ack: &Ack) -> Outcome {
        self.answered(ack.request.as_ref(), |machine| machine.ack_target(ack))
    }

    fn ack_target(&mut self, ack: &Ack) -> Outcome {
        let Some(lane) = self.live_lane(ack.lane) else {
            return all(ack, AckedItem::LaneUnknown);
        };
        let Some(&group) = self.index.queues[&lane.queue].by_name.get(&ack.group) else {
            return all(ack, AckedItem::Unresolvable);
        };
        let state = &lane.groups[group.at()];
        let lease = state.live_lease(self.now());
        if let Some(id) = ack.lease_id
            && lease.is_none_or(|lease| lease.id != id)
        {
            let kept = self.settled_answer(ack).cloned();
            return kept.map_or_else(|| all(ack, AckedItem::LeaseInvalid), Outcome::reply);
        }
        let window = state.cursor.max(lane.head)..lease.map_or(lane.tail, |lease| lease.batch_end);
        let deleted = lease.map(|lease| state.cursor..lane.head.min(lease.batch_end));
        let find = |item| find(item, &window, deleted.as_ref());
        let found: Vec<Found> = ack.items.iter().map(find).collect();
        if self.asks_for_the_lost(ack, &found, state.retries_used) {
            return all(ack, AckedItem::DeadLetterRejected);
        }
        let verdict = match lease {
            Some(lease) => self.judge(&ack.items, &found, state.cursor, state.retries_used, lease, ack),
            None => prefix(&ack.items, &found, state.cursor, None),
        };
        let filed = verdict.files.is_some();
        let items = ack
            .items
            .iter()
            .zip(&found)
            .map(|(item, found)| answer(item.status, *found, filed));
        let reply = Reply::Acked(Acked {
            items: items.collect(),
            lease_released: verdict.ends_lease,
        });
        let (changes, effects) = self.carry_out(ack, group, &verdict);
        if verdict.ends_lease {
            self.keep_settled(ack, &reply);
        }
        Outcome {
            reply,
            changes,
            effects,
        }
    }

    /// Whether the lowest signal wants a message filed that retention has deleted under the lease.
    fn asks_for_the_lost(&self, ack: &Ack, found: &[Found], retries_used: u32) -> bool {
        let any_place = |found: Found| match found {
            Found::At(offset) | Found::Deleted(offset) => Some(offset),
            Found::Before | Found::Nowhere => None,
        };
        let Some(signal) = head_signal(&ack.items, found, any_place) else {
            return false;
        };
        if !matches!(found[signal.item], Found::Deleted(_)) {
            return false;
        }
        let settings = &self.tables.queues[&self.tables.lanes[&ack.lane].queue].settings;
        match signal.status {
            AckStatus::Completed | AckStatus::Retry => false,
            AckStatus::Failed => retries_used >= settings.retry_limit && settings.keeps_dead_letters(),
            AckStatus::DeadLetter => true,
        }
    }

    /// The table of the contract's step 5.
    fn judge(
        &self,
        items: &[AckItem],
        found: &[Found],
        cursor: Offset,
        retries_used: u32,
        lease: Lease,
        ack: &Ack,
    ) -> Verdict {
        let Some(signal) = head_signal(items, found, Found::in_window) else {
            let mut verdict = prefix(items, found, cursor, None);
            if verdict.cursor >= lease.batch_end {
                verdict.ends_lease = true;
                verdict.retries = Retries::Reset;
            }
            return verdict;
        };
        let settings = &self.tables.queues[&self.tables.lanes[&ack.lane].queue].settings;
        let before = prefix(items, found, cursor, Some(signal.offset));
        let past = Verdict {
            cursor: signal.offset.plus(1),
            ends_lease: true,
            retries: Retries::Reset,
            files: Some(signal),
        };
        match signal.status {
            AckStatus::Completed | AckStatus::Retry => Verdict {
                ends_lease: true,
                ..before
            },
            AckStatus::DeadLetter => past,
            AckStatus::Failed if retries_used < settings.retry_limit => Verdict {
                ends_lease: true,
                retries: Retries::Charge,
                ..before
            },
            AckStatus::Failed if settings.keeps_dead_letters() => past,
            AckStatus::Failed => Verdict {
                retries: Retries::ResetBudget,
                files: None,
                ..past
            },
        }
    }

    fn carry_out(
        &mut self,
        ack: &Ack,
        group: GroupNumber,
        verdict: &Verdict,
    ) -> (Vec<StoreChange>, Vec<Effect>) {
        let mut changes = Vec::new();
        if let Some(signal) = verdict.files {
            let retries_used = self.tables.lanes[&ack.lane].groups[group.at()].retries_used;
            changes.push(self.file(filing(ack, signal, retries_used)));
        }
        let state = &self.tables.lanes[&ack.lane].groups[group.at()];
        let retired = verdict.cursor.0 - state.cursor.0;
        let mut effects = Vec::new();
        if retired == 0 && !verdict.ends_lease {
            return (changes, effects);
        }
        self.meta_mut().settled += retired;
        let state = &mut self.lane_mut(ack.lane).groups[group.at()];
        state.cursor = verdict.cursor;
        state.consumed += retired;
        match verdict.retries {
            Retries::Same => {}
            Retries::Charge => state.retries_used += 1,
            Retries::ResetBudget => state.retries_used = 0,
            Retries::Reset => {
                state.retries_used = 0;
                state.attempt = 0;
            }
        }
        if verdict.ends_lease {
            self.end_lease(ack.lane, group);
        }
        self.refresh(ack.lane, group, &mut effects);
        (changes, effects)
    }
}

fn all(ack: &Ack, item: AckedItem) -> Outcome {
    Outcome::reply(Reply::Acked(Acked {
        items: vec![item; ack.items.len()],
        lease_released: false,
    }))
}

fn find(item: &AckItem, window: &Range<Offset>, deleted: Option<&Range<Offset>>) -> Found {
    let lowest_in = |range: &Range<Offset>| {
        let inside = item.candidates.iter().filter(|offset| range.contains(offset));
        inside.min().copied()
    };
    if let Some(offset) = lowest_in(window) {
        Found::At(offset)
    } else if let Some(offset) = deleted.and_then(lowest_in) {
        Found::Deleted(offset)
    } else if item.candidates.iter().any(|offset| *offset < window.start) {
        Found::Before
    } else {
        Found::Nowhere
    }
}

/// Of the items that have a `place`. At equal offsets dead-letter beats failed beats retry.
fn head_signal(
    items: &[AckItem],
    found: &[Found],
    place: impl Fn(Found) -> Option<Offset>,
) -> Option<Signal> {
    let mut head: Option<Signal> = None;
    for (item, (ack, found)) in items.iter().zip(found).enumerate() {
        let Some(offset) = place(*found) else { continue };
        let status = ack.status;
        let is_lower =
            head.is_none_or(|head| (offset, Reverse(status)) < (head.offset, Reverse(head.status)));
        if status != AckStatus::Completed && is_lower {
            head = Some(Signal { offset, status, item });
        }
    }
    head
}

/// Everything up to the highest completed item (below `end`) is done with, named or not.
fn prefix(items: &[AckItem], found: &[Found], cursor: Offset, end: Option<Offset>) -> Verdict {
    let mut done_to = cursor;
    for (item, found) in items.iter().zip(found) {
        let Some(offset) = found.in_window() else { continue };
        if item.status == AckStatus::Completed && end.is_none_or(|end| offset < end) {
            done_to = done_to.max(offset.plus(1));
        }
    }
    Verdict {
        cursor: done_to,
        ends_lease: false,
        retries: Retries::Same,
        files: None,
    }
}

fn answer(status: AckStatus, found: Found, filed: bool) -> AckedItem {
    match (found, status) {
        (Found::At(_), AckStatus::Failed | AckStatus::DeadLetter) if filed => AckedItem::DeadLettered,
        (Found::At(_), _) => AckedItem::Done,
        (Found::Deleted(_) | Found::Before, AckStatus::Completed) => AckedItem::Noop,
        (Found::Deleted(_) | Found::Before | Found::Nowhere, _) => AckedItem::Unresolvable,
    }
}

fn filing(ack: &Ack, signal: Signal, retries_used: u32) -> Filing {
    let head = &ack.items[signal.item];
    let other = || ack.items.iter().find_map(|item| item.error.as_deref());
    Filing {
        lane: ack.lane,
        offset: signal.offset,
        group: ack.group.clone(),
        transaction_id: head.transaction_id.clone().unwrap_or_default(),
        reason: head
            .error
            .as_deref()
            .or_else(other)
            .unwrap_or(REASON_DEFAULT)
            .to_owned(),
        retries_used,
    }
}
