//! Invariant 21: within the window a (lane, transaction id) has at most one message, and every duplicate answer names it.

use std::collections::BTreeMap;

use super::Violation;
use super::evidence::{Evidence, LaneKey, PushFact, PushFate, violation};

pub(super) fn check(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut keys: BTreeMap<(LaneKey<'_>, &str), Vec<&PushFact<'_>>> = BTreeMap::new();
    for push in &evidence.pushes {
        if let Some(id) = push.transaction_id.filter(|id| !id.is_empty()) {
            keys.entry((push.lane, id)).or_default().push(push);
        }
    }
    let mut violations = Vec::new();
    for ((lane, id), pushes) in keys {
        named_otherwise(lane, id, &pushes, &mut violations);
        stored_twice(evidence, lane, id, &pushes, &mut violations);
    }
    violations
}

/// The answer of a duplicate names a message with that transaction id: one that was seen at that offset.
fn named_otherwise(lane: LaneKey<'_>, id: &str, pushes: &[&PushFact<'_>], violations: &mut Vec<Violation>) {
    let mut messages: BTreeMap<u64, (&str, usize)> = BTreeMap::new();
    for push in pushes {
        let (PushFate::Stored {
            offset,
            message_id,
            transaction_id,
        }
        | PushFate::Duplicate {
            offset,
            message_id,
            transaction_id,
        }) = push.fate
        else {
            continue;
        };
        let (known, op) = *messages.entry(offset).or_insert((message_id, push.op));
        if known != message_id || transaction_id != id {
            let what = format!(
                "{id:?} at {offset} of {lane:?} is named {known} and {message_id} ({transaction_id:?})"
            );
            violations.push(violation(21, &[op, push.op], what));
        }
    }
    // A duplicate that was answered before any push of its id had begun to store it names nothing.
    for push in pushes {
        let PushFate::Duplicate { offset, .. } = push.fate else {
            continue;
        };
        let explains = |other: &&&PushFact<'_>| {
            let stores = match other.fate {
                PushFate::Stored { offset: at, .. } => at == offset,
                PushFate::Unknown => true,
                PushFate::Duplicate { .. } | PushFate::Refused => false,
            };
            stores && other.invoked < push.returned
        };
        if !pushes.iter().any(|other| explains(&other)) {
            let what = format!("a duplicate of {id:?} in {lane:?} names {offset}, which no push stored");
            violations.push(violation(21, &[push.op], what));
        }
    }
}

/// Two messages with one id are further apart than the window.
fn stored_twice(
    evidence: &Evidence<'_>,
    lane: LaneKey<'_>,
    id: &str,
    pushes: &[&PushFact<'_>],
    violations: &mut Vec<Violation>,
) {
    let window_seconds = evidence
        .facts(lane.queue)
        .map_or(0, |facts| facts.dedup_window_seconds);
    if window_seconds == 0 {
        return;
    }
    // The broker's wall time may run 5 % fast.
    let window = window_seconds.saturating_mul(950_000);
    let mut stored: Vec<(u64, u64, u64, usize)> = Vec::new();
    for push in pushes {
        if let PushFate::Stored { offset, .. } = push.fate {
            stored.push((offset, push.invoked, push.returned, push.op));
        }
    }
    stored.sort_unstable();
    for pair in stored.windows(2) {
        let [(one, one_invoked, _, one_op), (two, _, two_returned, two_op)] = pair else {
            continue;
        };
        if one != two && two_returned.saturating_sub(*one_invoked) < window {
            let what = format!("{id:?} was stored at {one} and at {two} of {lane:?} within its window");
            violations.push(violation(21, &[*one_op, *two_op], what));
        }
    }
    // Also what nobody was told of, if all pushes of the id lie within one window.
    let (Some(first), Some(last)) = (
        pushes.iter().map(|push| push.invoked).min(),
        pushes.iter().map(|push| push.returned).max(),
    ) else {
        return;
    };
    let offsets = evidence.offsets_of(lane, id);
    let all_known = pushes.iter().all(|push| push.fate != PushFate::Unknown);
    if offsets.len() > 1 && last.saturating_sub(first) < window && all_known {
        let operations: Vec<usize> = pushes.iter().map(|push| push.op).collect();
        let what = format!("{id:?} was seen at {offsets:?} of {lane:?} within its window");
        violations.push(violation(21, &operations, what));
    }
}

#[cfg(test)]
mod tests {
    use super::super::story::{Story, assert_sound, numbers};

    #[test]
    fn duplicates_within_the_window_name_the_first() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push_duplicate("t0", 0)
            .push("t1", 1)
            .push_duplicate("t0", 0);
        assert_sound(&story);
        let mut story = Story::new();
        story.push("t0", 0).wait(61_000_000).push("t0", 1);
        assert_sound(&story);
    }

    #[test]
    fn an_id_stored_twice_within_the_window_is_found() {
        let mut story = Story::new();
        story.push("t0", 0).push("t0", 1);
        assert!(numbers(&story).contains(&21));
    }

    #[test]
    fn a_duplicate_that_names_no_message_of_its_id_is_found() {
        let mut story = Story::new();
        story.push("t0", 0).push("t1", 1).push_duplicate("t1", 0);
        assert!(numbers(&story).contains(&21));
    }
}
