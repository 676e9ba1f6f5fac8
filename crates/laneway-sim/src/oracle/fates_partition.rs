//! Invariant 18: after the drain each acked push is settled or dead for a drained group: not both, not neither.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::evidence::{Evidence, GroupKey, LaneKey, PushFate, violation};
use super::history::AckStatus;

pub(super) fn check(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut dead: BTreeMap<(GroupKey<'_>, u64), usize> = BTreeMap::new();
    for fact in &evidence.rows {
        let lane = LaneKey {
            queue: &fact.row.queue,
            lane: &fact.row.lane,
        };
        dead.insert(
            (
                GroupKey {
                    lane,
                    group: &fact.row.group,
                },
                fact.row.offset,
            ),
            fact.op,
        );
    }
    for ack in evidence.acks.iter().filter(|ack| ack.filed) {
        if let Some(offset) = ack.head.and_then(|head| head.offset) {
            dead.insert((ack.of, offset), ack.op);
        }
    }
    let mut violations = both(evidence, &dead);
    violations.extend(neither(evidence, &dead));
    violations
}

/// A message named in an accepted completion that counted was not dead-lettered for that group.
fn both(evidence: &Evidence<'_>, dead: &BTreeMap<(GroupKey<'_>, u64), usize>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for ack in evidence.acks.iter().filter(|ack| ack.known) {
        for fact in &ack.items {
            let accepted = fact.answer.is_some_and(|answer| answer.success && !answer.noop);
            if let Some(offset) = fact.offset
                && fact.item.status == AckStatus::Completed
                && accepted
                && offset < ack.settled_at_least
                && let Some(op) = dead.get(&(ack.of, offset))
            {
                let what = format!("{offset} of {:?} is both settled and dead", ack.of);
                violations.push(violation(18, &[ack.op, *op], what));
            }
        }
    }
    for fact in evidence.deliveries.iter().filter(|fact| fact.auto_ack) {
        if let Some(op) = dead.get(&(fact.to, fact.message.offset)) {
            let what = format!(
                "{} of {:?} is both settled and dead",
                fact.message.offset, fact.to
            );
            violations.push(violation(18, &[fact.op, *op], what));
        }
    }
    violations
}

/// Something must have settled what is not dead.
fn neither(evidence: &Evidence<'_>, dead: &BTreeMap<(GroupKey<'_>, u64), usize>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut lanes: BTreeMap<LaneKey<'_>, BTreeSet<(u64, usize)>> = BTreeMap::new();
    for push in &evidence.pushes {
        if let PushFate::Stored { offset, .. } = push.fate {
            lanes.entry(push.lane).or_default().insert((offset, push.op));
        }
    }
    for (lane, pushed) in lanes {
        for drained in evidence.drained_of(lane.queue) {
            let of = GroupKey {
                lane,
                group: drained.group,
            };
            if evidence.may_have_lost(of) {
                continue;
            }
            let settled = settled_at_most(evidence, of);
            for (offset, op) in &pushed {
                if *offset >= settled && !dead.contains_key(&(of, *offset)) {
                    let what = format!("{offset} of {of:?} is neither settled nor dead after the drain");
                    violations.push(violation(18, &[*op, drained.op], what));
                }
            }
        }
    }
    violations
}

fn settled_at_most(evidence: &Evidence<'_>, of: GroupKey<'_>) -> u64 {
    let acks = evidence.acks_of.get(&of).map_or(&[][..], Vec::as_slice);
    let acked = acks.iter().map(|&at| evidence.acks[at].settled_at_most);
    let delivered = evidence.deliveries_to.get(&of).map_or(&[][..], Vec::as_slice);
    let auto = delivered
        .iter()
        .map(|&at| &evidence.deliveries[at])
        .filter(|fact| fact.auto_ack);
    acked
        .chain(auto.map(|fact| fact.message.offset + 1))
        .max()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::story::{Story, assert_sound, numbers};

    #[test]
    fn settled_and_dead_messages_partition() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push("t1", 1)
            .pop("L1", &[0, 1])
            .fail("L1", &["t0"])
            .pop("L2", &[0, 1]);
        story
            .file("L2", &["t0"])
            .pop("L3", &[1])
            .complete("L3", &["t1"])
            .drained()
            .listing(&[(0, "t0", 0)]);
        assert_sound(&story);
    }

    #[test]
    fn a_message_that_is_both_settled_and_dead_is_found() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .pop("L1", &[0])
            .fail("L1", &["t0"])
            .pop("L2", &[0])
            .fail_unknown("L2", &["t0"]);
        story
            .wait(super::super::story::LEASE_US)
            .pop("L3", &[0])
            .complete("L3", &["t0"]);
        story.listing(&[(0, "t0", 0)]);
        assert_eq!(numbers(&story), [18]);
    }

    #[test]
    fn a_message_that_is_neither_is_found() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push("t1", 1)
            .pop("L1", &[0, 1])
            .complete_some("L1", &["t0"])
            .drained();
        assert_eq!(numbers(&story), [18]);
    }
}
