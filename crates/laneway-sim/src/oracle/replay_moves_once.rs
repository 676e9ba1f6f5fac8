//! Invariant 19: a replay moves exactly once: the message appears once, its row is gone, a repeat changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::Violation;
use super::evidence::{Evidence, GroupKey, LaneKey, REPLAY_PREFIX, RowFact, violation};

pub(super) fn check(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = appears_twice(evidence);
    violations.extend(removed_twice(evidence));
    violations.extend(row_stays(evidence));
    violations.extend(changed_or_lost(evidence));
    violations
}

fn appears_twice(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut places: BTreeMap<&str, (LaneKey<'_>, u64, usize)> = BTreeMap::new();
    let delivered = evidence
        .deliveries
        .iter()
        .filter(|fact| fact.message.transaction_id.starts_with(REPLAY_PREFIX));
    let delivered = delivered.map(|fact| {
        (
            fact.message.transaction_id.as_str(),
            (fact.to.lane, fact.message.offset, fact.op),
        )
    });
    let answered = evidence.removals.iter().filter_map(|removal| {
        let to = removal.replayed?;
        let lane = LaneKey {
            queue: &to.queue,
            lane: &to.lane,
        };
        Some((to.transaction_id.as_str(), (lane, to.offset, removal.op)))
    });
    for (transaction_id, place) in delivered.chain(answered) {
        let known = *places.entry(transaction_id).or_insert(place);
        if (known.0, known.1) != (place.0, place.1) {
            let what = format!("replay {transaction_id:?} is at {known:?} and at {place:?}");
            violations.push(violation(19, &[known.2, place.2], what));
        }
    }
    violations
}

/// Of all known replays and deletions of a row only one took effect; its repeats have its request id.
fn removed_twice(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, removal) in evidence
        .removals
        .iter()
        .enumerate()
        .filter(|(_, removal)| removal.known)
    {
        let known = &evidence.removals[*first.entry(removal.id).or_insert(at)];
        let repeat = removal.request_id.is_some() && removal.request_id == known.request_id;
        if known.op != removal.op && !repeat {
            let what = format!("row {} was removed twice", removal.id);
            violations.push(violation(19, &[known.op, removal.op], what));
        }
    }
    violations
}

/// No listing that began after a known removal has the row, and none that began after its message was seen replayed.
fn row_stays(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut gone: BTreeMap<String, (u64, usize)> = BTreeMap::new();
    let removed = evidence.removals.iter().filter(|removal| removal.known);
    let removed = removed.map(|removal| (removal.id, removal.returned, removal.op));
    let seen = evidence.deliveries.iter().filter_map(|fact| {
        Some((
            fact.message.transaction_id.strip_prefix(REPLAY_PREFIX)?,
            fact.returned,
            fact.op,
        ))
    });
    for (id, at, op) in removed.chain(seen) {
        let known = gone.entry(id.to_owned()).or_insert((at, op));
        *known = (at, op).min(*known);
    }
    for fact in &evidence.rows {
        if let Some((at, op)) = gone.get(&fact.row.id)
            && *at < fact.invoked
        {
            let what = format!("row {} was removed, but is listed", fact.row.id);
            violations.push(violation(19, &[*op, fact.op], what));
        }
    }
    violations
}

/// A replayed message goes to the lane of its row with the row's payload, and every drained group has met it.
fn changed_or_lost(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let rows: BTreeMap<&str, &RowFact<'_>> = evidence
        .rows
        .iter()
        .map(|fact| (fact.row.id.as_str(), fact))
        .collect();
    let asked: BTreeSet<&str> = evidence
        .removals
        .iter()
        .filter(|removal| removal.replay)
        .map(|removal| removal.id)
        .collect();
    for fact in &evidence.deliveries {
        let Some(id) = fact.message.transaction_id.strip_prefix(REPLAY_PREFIX) else {
            continue;
        };
        let Some(row) = rows.get(id) else { continue };
        let same = row.row.payload_hash == fact.message.payload_hash;
        if !same || (row.row.queue.as_str(), row.row.lane.as_str()) != (fact.to.lane.queue, fact.to.lane.lane)
        {
            let what = format!("row {id} came back with another payload or in another lane");
            violations.push(violation(19, &[row.op, fact.op], what));
        }
        if !asked.contains(id) {
            violations.push(violation(
                19,
                &[row.op, fact.op],
                format!("nobody asked to replay row {id}"),
            ));
        }
    }
    let met: HashSet<(GroupKey<'_>, u64)> = evidence
        .deliveries
        .iter()
        .map(|fact| (fact.to, fact.message.offset))
        .collect();
    for removal in &evidence.removals {
        let Some(replayed) = removal.replayed else {
            continue;
        };
        let lane = LaneKey {
            queue: &replayed.queue,
            lane: &replayed.lane,
        };
        let drained = evidence.drained_of(lane.queue).iter();
        for drained in drained.filter(|drained| removal.returned <= drained.invoked) {
            let to = GroupKey {
                lane,
                group: drained.group,
            };
            let excused = || evidence.may_have_lost(to) || replayed.offset < evidence.bare_acks_reach(to);
            if !met.contains(&(to, replayed.offset)) && !excused() {
                let what = format!("{to:?} never met the replay of row {}", removal.id);
                violations.push(violation(19, &[removal.op, drained.op], what));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::story::{Story, assert_sound, numbers};

    fn filed() -> Story {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .pop("L1", &[0])
            .fail("L1", &["t0"])
            .pop("L2", &[0])
            .file("L2", &["t0"]);
        story.listing(&[(0, "t0", 0)]);
        story
    }

    #[test]
    fn a_replay_moves_its_row_to_the_tail() {
        let mut story = filed();
        story
            .replay("row-0", 1)
            .listing(&[])
            .deliver("L3", &[(1, "dlq:row-0", 0)]);
        story.complete("L3", &["dlq:row-0"]).drained().listing(&[]);
        assert_sound(&story);
    }

    #[test]
    fn a_row_that_stays_after_its_replay_is_found() {
        let mut story = filed();
        story.replay("row-0", 1).listing(&[(0, "t0", 0)]);
        assert_eq!(numbers(&story), [19]);
    }

    #[test]
    fn a_second_replay_is_found() {
        let mut story = filed();
        story.replay("row-0", 1).replay("row-0", 2);
        assert_eq!(numbers(&story), [19]);
        let mut story = filed();
        story.replay("row-0", 1).delete("row-0");
        assert_eq!(numbers(&story), [19]);
    }

    #[test]
    fn a_replay_that_a_drained_group_never_met_is_found() {
        let mut story = filed();
        story.replay("row-0", 1).drained().listing(&[]);
        assert_eq!(numbers(&story), [19]);
    }

    #[test]
    fn a_replay_with_another_payload_is_found() {
        let mut story = filed();
        story
            .push("t7", 7)
            .replay("row-0", 1)
            .deliver("L3", &[(1, "dlq:row-0", 7)]);
        assert!(numbers(&story).contains(&19));
    }
}
