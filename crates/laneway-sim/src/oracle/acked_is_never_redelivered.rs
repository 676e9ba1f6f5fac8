//! Invariants 12 to 14: cursors move forward only; what was settled is never delivered to that group again; a cursor never
//! passes what nobody settled.

use super::Violation;
use super::evidence::{DeliveryFact, Evidence, GroupKey, QUEUE_MODE, violation};

/// From `at` on the cursor is bounded by `offset`.
#[derive(Clone, Copy, Debug)]
struct Bound {
    at: u64,
    offset: u64,
    op: usize,
}

/// Up to each moment: the highest bound, and the highest of those by other operations.
struct Rising(Vec<(u64, Bound, Option<Bound>)>);

impl Rising {
    fn new(mut bounds: Vec<Bound>) -> Self {
        bounds.sort_by_key(|bound| bound.at);
        let mut rising: Vec<(u64, Bound, Option<Bound>)> = Vec::new();
        for bound in bounds {
            let next = match rising.last() {
                None => (bound.at, bound, None),
                Some((_, best, other)) if bound.op == best.op => (
                    bound.at,
                    if bound.offset > best.offset { bound } else { *best },
                    *other,
                ),
                Some((_, best, _)) if bound.offset > best.offset => (bound.at, bound, Some(*best)),
                Some((_, best, other)) => {
                    let other = other
                        .filter(|other| other.offset >= bound.offset)
                        .unwrap_or(bound);
                    (bound.at, *best, Some(other))
                }
            };
            rising.push(next);
        }
        Self(rising)
    }

    /// The highest bound before `moment`, but for those by the operation `op`.
    fn before(&self, moment: u64, op: usize) -> Option<Bound> {
        let count = self.0.partition_point(|(at, ..)| *at < moment);
        let (_, best, other) = self.0.get(count.checked_sub(1)?)?;
        if best.op == op { *other } else { Some(*best) }
    }
}

pub(super) fn check(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (to, delivered) in &evidence.deliveries_to {
        let facts: Vec<&DeliveryFact<'_>> = delivered.iter().map(|&at| &evidence.deliveries[at]).collect();
        redelivered(evidence, *to, &facts, &mut violations);
        passed(evidence, *to, &facts, &mut violations);
    }
    violations
}

fn redelivered(
    evidence: &Evidence<'_>,
    to: GroupKey<'_>,
    facts: &[&DeliveryFact<'_>],
    violations: &mut Vec<Violation>,
) {
    let acks = evidence
        .acks_of
        .get(&to)
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .map(|&at| &evidence.acks[at]);
    let acks = acks.filter(|ack| ack.settled_at_least > 0);
    let mut settled: Vec<Bound> = acks
        .map(|ack| Bound {
            at: ack.returned,
            offset: ack.settled_at_least,
            op: ack.op,
        })
        .collect();
    let auto = facts.iter().filter(|fact| fact.auto_ack);
    settled.extend(auto.map(|fact| Bound {
        at: fact.returned,
        offset: fact.message.offset + 1,
        op: fact.op,
    }));
    let settled = Rising::new(settled);
    for fact in facts {
        if let Some(bound) = settled.before(fact.invoked, fact.op)
            && fact.message.offset < bound.offset
        {
            let what = format!(
                "{to:?} got {} again, settled up to {}",
                fact.message.offset, bound.offset
            );
            violations.push(violation(14, &[bound.op, fact.op], what));
        }
    }
}

fn passed(
    evidence: &Evidence<'_>,
    to: GroupKey<'_>,
    facts: &[&DeliveryFact<'_>],
    violations: &mut Vec<Violation>,
) {
    if evidence.may_have_lost(to) {
        return;
    }
    let drained = evidence
        .drained_of(to.lane.queue)
        .iter()
        .any(|drained| drained.group == to.group);
    let from_beginning = to.group == QUEUE_MODE || drained;
    let lowest = facts
        .iter()
        .map(|fact| fact.message.offset)
        .min()
        .unwrap_or_default();
    let start = if from_beginning { 0 } else { lowest };
    let acks = evidence
        .acks_of
        .get(&to)
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .map(|&at| &evidence.acks[at]);
    let mut possible: Vec<Bound> = acks
        .map(|ack| Bound {
            at: ack.invoked,
            offset: ack.settled_at_most,
            op: ack.op,
        })
        .collect();
    let auto = facts.iter().filter(|fact| fact.auto_ack);
    possible.extend(auto.map(|fact| Bound {
        at: fact.invoked,
        offset: fact.message.offset + 1,
        op: fact.op,
    }));
    let possible = Rising::new(possible);
    let mut last_op = None;
    for fact in facts {
        // Only the first message of each answer stands at the cursor.
        if last_op == Some(fact.op) {
            continue;
        }
        last_op = Some(fact.op);
        let limit = possible
            .before(fact.returned, fact.op)
            .map_or(start, |bound| bound.offset.max(start));
        if fact.message.offset > limit {
            let what = format!(
                "{to:?} went on at {}, but nobody settled {limit}",
                fact.message.offset
            );
            violations.push(violation(13, &[fact.op], what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::story::{Story, assert_sound, numbers};

    #[test]
    fn each_batch_begins_at_the_first_unsettled_message() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push("t1", 1)
            .push("t2", 2)
            .pop("L1", &[0, 1, 2])
            .complete_some("L1", &["t0"]);
        story
            .fail("L1", &["t1"])
            .pop("L2", &[1, 2])
            .ack_unknown("L2", &["t1"])
            .wait(super::super::story::LEASE_US);
        story.pop("L3", &[2]).complete("L3", &["t2"]).drained();
        assert_sound(&story);
    }

    #[test]
    fn a_settled_message_delivered_again_is_found() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push("t1", 1)
            .pop("L1", &[0, 1])
            .complete("L1", &["t1"])
            .pop("L2", &[1]);
        assert_eq!(numbers(&story), [14]);
    }

    #[test]
    fn a_message_that_nobody_settled_is_not_passed() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push("t1", 1)
            .pop("L1", &[0])
            .fail("L1", &["t0"])
            .pop("L2", &[1]);
        story.complete("L2", &["t1"]).drained();
        assert!(numbers(&story).contains(&13));
    }

    #[test]
    fn auto_ack_settles_at_once() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push("t1", 1)
            .auto_pop(&[0])
            .auto_pop(&[1])
            .drained();
        assert_sound(&story);
        let mut story = Story::new();
        story.push("t0", 0).auto_pop(&[0]).auto_pop(&[0]);
        assert_eq!(numbers(&story), [14]);
    }
}
