//! What an ack surely settled, and what it may have settled.

use std::cmp::Reverse;

use super::super::history::{AckItem, AckStatus, AckedItem, Op, Operation, Outcome, Reply};
use super::{Evidence, GroupKey, LaneKey};

/// One item of one attempt to ack.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct ItemFact<'a> {
    pub(in super::super) item: &'a AckItem,
    /// Its answer, when there was one.
    pub(in super::super) answer: Option<&'a AckedItem>,
    /// The message meant, when the history tells.
    pub(in super::super) offset: Option<u64>,
    /// The lowest and the highest that may be meant; `None` when the history has none.
    span: Option<(u64, u64)>,
}

/// The signal that decided, as far as the history tells: its message and its status.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct HeadSignal {
    pub(in super::super) offset: Option<u64>,
    pub(in super::super) status: Option<AckStatus>,
}

/// One attempt to ack, unless it was refused.
#[derive(Clone, Debug)]
pub(in super::super) struct AckFact<'a> {
    pub(in super::super) op: usize,
    pub(in super::super) of: GroupKey<'a>,
    pub(in super::super) lease_id: Option<&'a str>,
    pub(in super::super) request_id: Option<&'a str>,
    pub(in super::super) items: Vec<ItemFact<'a>>,
    /// An answer came.
    pub(in super::super) known: bool,
    /// The answer says that the lease ended.
    pub(in super::super) released: bool,
    /// The answer says that a dead letter was filed.
    pub(in super::super) filed: bool,
    /// The deciding one of the signals that may have been accepted.
    pub(in super::super) head: Option<HeadSignal>,
    /// The cursor is surely at least here afterwards.
    pub(in super::super) settled_at_least: u64,
    /// It cannot have moved the cursor beyond this.
    pub(in super::super) settled_at_most: u64,
    pub(in super::super) invoked: u64,
    pub(in super::super) returned: u64,
}

impl AckFact<'_> {
    /// Whether both asked for the same thing under the same lease. One request may ask for several lanes, each an ack of
    /// its own, of which some are answered and others not.
    pub(in super::super) fn repeats(&self, other: &Self) -> bool {
        let same_request = self.request_id.is_some() && self.request_id == other.request_id;
        let same_items = self
            .items
            .iter()
            .map(|fact| fact.item)
            .eq(other.items.iter().map(|fact| fact.item));
        self.of == other.of && self.lease_id == other.lease_id && (same_request || same_items)
    }

    /// Whether no item was accepted.
    pub(in super::super) fn all_refused(&self) -> bool {
        self.known
            && self
                .items
                .iter()
                .all(|fact| fact.answer.is_some_and(|answer| !answer.success))
    }
}

impl<'a> Evidence<'a> {
    pub(super) fn note_acks(&mut self) {
        for (op, operation) in self.operations.iter().enumerate() {
            if let Some(fact) = self.ack_fact(op, operation) {
                let at = self.acks.len();
                self.acks_of.entry(fact.of).or_default().push(at);
                self.acks_under
                    .entry((fact.of, fact.lease_id))
                    .or_default()
                    .push(at);
                if let Some(first) = fact.items.first() {
                    let key = (fact.of, fact.lease_id, first.item.transaction_id.as_str());
                    self.acks_alike.entry(key).or_default().push(at);
                }
                if let Some(id) = fact.request_id {
                    self.acks_requested.entry(id).or_default().push(at);
                }
                self.acks.push(fact);
            }
        }
    }

    fn ack_fact(&self, op: usize, operation: &'a Operation) -> Option<AckFact<'a>> {
        let Op::Ack {
            queue,
            lane,
            group,
            lease_id,
            items,
            ..
        } = &operation.op
        else {
            return None;
        };
        let answers = match &operation.outcome {
            Outcome::Ok(Reply::Acked(answers)) => Some(answers),
            Outcome::Refused(_) => return None,
            _ => None,
        };
        let of = GroupKey {
            lane: LaneKey { queue, lane },
            group,
        };
        let lease_id = lease_id.as_deref();
        let items = items.iter().enumerate().map(|(at, item)| {
            let span = self.span_meant(of, lease_id, &item.transaction_id);
            let answer = answers.and_then(|answers| answers.get(at));
            let offset = span
                .filter(|(lowest, highest)| lowest == highest)
                .map(|(offset, _)| offset);
            ItemFact {
                item,
                answer,
                offset,
                span,
            }
        });
        let items: Vec<_> = items.collect();
        let any = |test: fn(&AckedItem) -> bool| items.iter().filter_map(|fact| fact.answer).any(test);
        let mut fact = AckFact {
            op,
            of,
            lease_id,
            request_id: operation.request_id.as_deref(),
            known: answers.is_some(),
            released: any(|answer| answer.lease_released),
            filed: any(|answer| answer.dead_lettered),
            head: None,
            settled_at_least: 0,
            settled_at_most: 0,
            invoked: operation.invoked,
            returned: operation.returned,
            items,
        };
        self.derive(&mut fact);
        Some(fact)
    }

    /// The messages that a transaction id may stand for: of the lease's batch, or else of its lane.
    fn span_meant(&self, of: GroupKey<'a>, lease_id: Option<&'a str>, id: &'a str) -> Option<(u64, u64)> {
        let all = self.offsets_of(of.lane, id);
        let whole = (*all.first()?, *all.last()?);
        if whole.0 == whole.1 {
            return Some(whole);
        }
        let Some(batch) = lease_id.and_then(|lease_id| self.deliveries_under.get(&(of, lease_id))) else {
            return Some(whole);
        };
        let same = batch
            .iter()
            .map(|&at| self.deliveries[at].message)
            .filter(|message| message.transaction_id == id);
        let offsets: Vec<u64> = same.map(|message| message.offset).collect();
        Some((offsets.iter().min().copied()?, offsets.iter().max().copied()?))
    }

    fn derive(&self, fact: &mut AckFact<'a>) {
        let keeps = self
            .facts(fact.of.lane.queue)
            .is_none_or(|facts| facts.keeps_dead_letters);
        let accepted = |item: &ItemFact<'_>| item.answer.map_or(!fact.known, |it| it.success && !it.noop);
        let accepted: Vec<ItemFact<'a>> = fact.items.iter().filter(|item| accepted(item)).copied().collect();
        let signals = accepted
            .iter()
            .filter(|fact| fact.item.status != AckStatus::Completed);
        let signals: Vec<&ItemFact<'a>> = signals.collect();
        fact.head = head_of(&signals);
        let limit = signals.iter().filter_map(|signal| Some(signal.span?.0)).min();
        for item in &accepted {
            let completed = item.item.status == AckStatus::Completed;
            let lowest = item.span.map(|(lowest, _)| lowest);
            if completed
                && fact.known
                && limit.is_none_or(|limit| lowest.is_some_and(|lowest| lowest < limit))
            {
                fact.settled_at_least = fact.settled_at_least.max(lowest.map_or(0, |lowest| lowest + 1));
            }
            let may_settle = match item.item.status {
                AckStatus::Completed => true,
                AckStatus::Retry => false,
                AckStatus::Failed => !fact.known || fact.filed || !keeps,
                AckStatus::Dlq => !fact.known || fact.filed,
            };
            if may_settle {
                let after = item
                    .span
                    .map_or(u64::MAX, |(_, highest)| highest.saturating_add(1));
                fact.settled_at_most = fact.settled_at_most.max(after);
            }
        }
        if fact.filed {
            fact.settled_at_least = fact.settled_at_least.max(limit.map_or(0, |lowest| lowest + 1));
        }
    }
}

/// At equal offsets dlq beats failed beats retry.
fn head_of(signals: &[&ItemFact<'_>]) -> Option<HeadSignal> {
    let first = signals.first()?;
    let exact: Option<Vec<(u64, Reverse<AckStatus>)>> = signals
        .iter()
        .map(|signal| Some((signal.offset?, Reverse(signal.item.status))))
        .collect();
    if let Some((offset, Reverse(status))) = exact.and_then(|exact| exact.into_iter().min()) {
        return Some(HeadSignal {
            offset: Some(offset),
            status: Some(status),
        });
    }
    let status = first.item.status;
    let same = signals.iter().all(|signal| signal.item.status == status);
    Some(HeadSignal {
        offset: None,
        status: same.then_some(status),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack<'a>(lane: &'a str, request_id: Option<&'a str>) -> AckFact<'a> {
        AckFact {
            op: 0,
            of: GroupKey {
                lane: LaneKey { queue: "q", lane },
                group: "g",
            },
            lease_id: Some("L1"),
            request_id,
            items: Vec::new(),
            known: true,
            released: true,
            filed: false,
            head: None,
            settled_at_least: 0,
            settled_at_most: 0,
            invoked: 0,
            returned: 1,
        }
    }

    #[test]
    fn lanes_of_one_request_are_no_repeats_of_each_other() {
        assert!(ack("a", Some("r1")).repeats(&ack("a", Some("r1"))));
        assert!(ack("a", None).repeats(&ack("a", Some("r1"))));
        assert!(!ack("a", Some("r1")).repeats(&ack("b", Some("r1"))));
    }
}
