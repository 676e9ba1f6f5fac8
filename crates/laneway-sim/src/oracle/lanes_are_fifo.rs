//! Invariant 4: first deliveries per (lane, group) are in offset order; pushes keep their real-time order (with that, the
//! order of each producer); one answer holds a lane's messages without gaps.

use std::collections::BTreeMap;

use super::Violation;
use super::evidence::{Evidence, LaneKey, PushFate, REPLAY_PREFIX, violation};

pub(super) fn check(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = gaps_in_answers(evidence);
    violations.extend(late_first_deliveries(evidence));
    violations.extend(pushes_out_of_order(evidence));
    violations
}

fn gaps_in_answers(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for pair in evidence.deliveries.windows(2) {
        let [first, second] = pair else { continue };
        if (first.op, first.to) == (second.op, second.to) && second.message.offset != first.message.offset + 1
        {
            let (one, two) = (first.message.offset, second.message.offset);
            let what = format!("one answer has {two} of {:?} right after {one}", first.to.lane);
            violations.push(violation(4, &[first.op], what));
        }
    }
    violations
}

/// Nothing is delivered for the first time by a pop that began after one with a later message had returned.
fn late_first_deliveries(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (to, delivered) in &evidence.deliveries_to {
        let mut facts: Vec<_> = delivered.iter().map(|&at| &evidence.deliveries[at]).collect();
        facts.sort_by_key(|fact| fact.returned);
        let mut first: BTreeMap<u64, _> = BTreeMap::new();
        for fact in &facts {
            first.entry(fact.message.offset).or_insert(*fact);
        }
        // From the highest offset down: the earliest return of any delivery above.
        let mut above: BTreeMap<u64, _> = BTreeMap::new();
        for fact in &facts {
            above.entry(fact.message.offset).or_insert(*fact);
        }
        let mut earliest: Option<&super::evidence::DeliveryFact<'_>> = None;
        for (offset, fact) in first.iter().rev() {
            if let Some(later) = earliest
                && later.returned < fact.invoked
            {
                let what = format!(
                    "{to:?} got {} before it got {offset} for the first time",
                    later.message.offset
                );
                violations.push(violation(4, &[later.op, fact.op], what));
            }
            let here = above[offset];
            if earliest.is_none_or(|fact| here.returned < fact.returned) {
                earliest = Some(here);
            }
        }
    }
    violations
}

/// A push that had returned before another began has the lower offset. An unknown one counts once it was delivered.
fn pushes_out_of_order(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut lanes: BTreeMap<LaneKey<'_>, Vec<(u64, u64, u64, usize)>> = BTreeMap::new();
    let mut delivered: BTreeMap<(LaneKey<'_>, u64), u64> = BTreeMap::new();
    for fact in &evidence.deliveries {
        if !fact.message.transaction_id.starts_with(REPLAY_PREFIX) {
            delivered.insert((fact.to.lane, fact.message.payload_hash), fact.message.offset);
        }
    }
    // What is delivered of an unknown push may be the work of any attempt with that payload.
    let mut first: BTreeMap<(LaneKey<'_>, u64), u64> = BTreeMap::new();
    for push in &evidence.pushes {
        let invoked = first
            .entry((push.lane, push.payload_hash))
            .or_insert(push.invoked);
        *invoked = push.invoked.min(*invoked);
    }
    for push in &evidence.pushes {
        let key = (push.lane, push.payload_hash);
        let (offset, invoked, returned) = match push.fate {
            PushFate::Stored { offset, .. } => (offset, push.invoked, push.returned),
            PushFate::Unknown => match delivered.get(&key) {
                Some(offset) => (*offset, first[&key], u64::MAX),
                None => continue,
            },
            PushFate::Duplicate { .. } | PushFate::Refused => continue,
        };
        lanes
            .entry(push.lane)
            .or_default()
            .push((offset, invoked, returned, push.op));
    }
    let mut violations = Vec::new();
    for (lane, mut pushes) in lanes {
        pushes.sort_unstable();
        let mut earliest: Option<(u64, u64, u64, usize)> = None;
        for &(offset, invoked, returned, op) in pushes.iter().rev() {
            if let Some((above, _, above_returned, above_op)) = earliest
                && above_returned < invoked
                && above > offset
            {
                let what = format!("offset {above} of {lane:?} was pushed before {offset} was begun");
                violations.push(violation(4, &[above_op, op], what));
            }
            if earliest.is_none_or(|(_, _, known, _)| returned < known) {
                earliest = Some((offset, invoked, returned, op));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::story::{Story, assert_sound, numbers};

    #[test]
    fn redelivery_from_the_cursor_is_in_order() {
        let mut story = Story::new();
        story.push("t0", 0).push("t1", 1).push("t2", 2);
        story
            .pop("L1", &[0, 1])
            .fail("L1", &["t0"])
            .pop("L2", &[0, 1, 2])
            .complete("L2", &["t2"])
            .drained();
        assert_sound(&story);
    }

    #[test]
    fn a_first_delivery_after_a_later_message_is_out_of_order() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push("t1", 1)
            .pop("L1", &[1])
            .fail("L1", &["t1"])
            .pop("L2", &[0, 1]);
        assert!(numbers(&story).contains(&4));
    }

    #[test]
    fn sequential_pushes_at_falling_offsets_are_out_of_order() {
        let mut story = Story::new();
        story.push("t0", 1).push("t1", 0);
        assert_eq!(numbers(&story), [4]);
    }

    #[test]
    fn an_answer_with_a_gap_is_out_of_order() {
        let mut story = Story::new();
        story.push("t0", 0).push("t1", 1).push("t2", 2).pop("L1", &[0, 2]);
        assert_eq!(numbers(&story), [4]);
    }
}
