//! Invariant 17: a message is dead-lettered once per group, only when its failures or a demand justify it, and its row has
//! its payload and reason.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::evidence::{AckFact, Evidence, GroupKey, LaneKey, PushFate, RowFact, violation};
use super::history::AckStatus;

/// A message for one group.
type Letter<'a> = (GroupKey<'a>, u64);

pub(super) fn check(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = filed_twice(evidence);
    violations.extend(rows_missing(evidence));
    let mut payloads: BTreeMap<(LaneKey<'_>, u64), u64> = BTreeMap::new();
    for push in &evidence.pushes {
        if let PushFate::Stored { offset, .. } = push.fate {
            payloads.insert((push.lane, offset), push.payload_hash);
        }
    }
    let mut judged: BTreeSet<(&str, &str)> = BTreeSet::new();
    for fact in &evidence.rows {
        let lane = key_of(fact).0.lane;
        let pushed = payloads.get(&(lane, fact.row.offset));
        if pushed.is_some_and(|payload| *payload != fact.row.payload_hash) {
            let what = format!("row {} shows another payload than was pushed", fact.row.id);
            violations.push(violation(17, &[fact.op], what));
        }
        // The first listing that has it is the strictest.
        if judged.insert((&fact.row.id, &fact.row.reason)) {
            unjustified(evidence, fact, &mut violations);
        }
    }
    violations
}

fn key_of<'a>(fact: &RowFact<'a>) -> Letter<'a> {
    let lane = LaneKey {
        queue: &fact.row.queue,
        lane: &fact.row.lane,
    };
    (
        GroupKey {
            lane,
            group: &fact.row.group,
        },
        fact.row.offset,
    )
}

fn filed_twice(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut ids: BTreeMap<Letter<'_>, (&str, usize)> = BTreeMap::new();
    let mut letters: BTreeMap<&str, (Letter<'_>, usize)> = BTreeMap::new();
    for fact in &evidence.rows {
        let key = key_of(fact);
        let (id, op) = *ids.entry(key).or_insert((&fact.row.id, fact.op));
        if id != fact.row.id {
            let what = format!("{key:?} has the rows {id} and {}", fact.row.id);
            violations.push(violation(17, &[op, fact.op], what));
        }
        let (known, op) = *letters.entry(&fact.row.id).or_insert((key, fact.op));
        if known != key {
            let what = format!("row {id} is {known:?} and {key:?}");
            violations.push(violation(17, &[op, fact.op], what));
        }
    }
    let mut filings: BTreeMap<Letter<'_>, &AckFact<'_>> = BTreeMap::new();
    for ack in evidence.acks.iter().filter(|ack| ack.filed) {
        let Some(offset) = ack.head.and_then(|head| head.offset) else {
            continue;
        };
        let first = *filings.entry((ack.of, offset)).or_insert(ack);
        if first.op != ack.op && !first.repeats(ack) {
            let what = format!("{offset} of {:?} was filed by two acks", ack.of);
            violations.push(violation(17, &[first.op, ack.op], what));
        }
    }
    violations
}

/// A filed message is in every later listing until somebody replays or deletes its row.
fn rows_missing(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let removed_ids: BTreeSet<&str> = evidence.removals.iter().map(|removal| removal.id).collect();
    let mut rows: BTreeMap<Letter<'_>, Vec<&RowFact<'_>>> = BTreeMap::new();
    for fact in &evidence.rows {
        rows.entry(key_of(fact)).or_default().push(fact);
    }
    for ack in evidence.acks.iter().filter(|ack| ack.filed) {
        let Some(offset) = ack.head.and_then(|head| head.offset) else {
            continue;
        };
        let Some(listing) = evidence.last_listing(ack.of.lane.queue, ack.returned) else {
            continue;
        };
        let seen = rows.get(&(ack.of, offset)).map_or(&[][..], Vec::as_slice);
        let listed = seen.iter().any(|fact| fact.op == listing);
        // A row that no listing showed cannot have been asked for by its id, but for ids that a client guessed.
        let removed = seen.iter().any(|fact| removed_ids.contains(fact.row.id.as_str()));
        if !listed && !removed {
            let what = format!("{offset} of {:?} was filed, but its row is not listed", ack.of);
            violations.push(violation(17, &[ack.op, listing], what));
        }
    }
    violations
}

/// Enough failures, or a demand, and one of their reasons.
fn unjustified(evidence: &Evidence<'_>, fact: &RowFact<'_>, violations: &mut Vec<Violation>) {
    let (of, offset) = key_of(fact);
    let acks = evidence
        .acks_of
        .get(&of)
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .map(|&at| &evidence.acks[at]);
    let acks: Vec<&AckFact<'_>> = acks
        .filter(|ack| ack.invoked < fact.returned && !ack.all_refused())
        .collect();
    let signals = |ack: &AckFact<'_>, status: AckStatus, here: bool| {
        let meant = |at: Option<u64>| !here || at.is_none_or(|at| at == offset);
        ack.items
            .iter()
            .any(|item| item.item.status == status && meant(item.offset))
    };
    let may_file = |ack: &&&AckFact<'_>| ack.filed || !ack.known;
    let demanded = acks
        .iter()
        .filter(may_file)
        .any(|ack| signals(ack, AckStatus::Dlq, true));
    let failures = acks
        .iter()
        .filter(|ack| signals(ack, AckStatus::Failed, false))
        .count();
    let limit = evidence.facts(of.lane.queue).map_or(0, |facts| facts.retry_limit);
    let failed = acks
        .iter()
        .filter(may_file)
        .any(|ack| signals(ack, AckStatus::Failed, true));
    let spent = failed && failures > usize::try_from(limit).unwrap_or(usize::MAX);
    if !demanded && !spent {
        let what = format!(
            "row {} of {of:?} after {failures} failures of {limit}",
            fact.row.id
        );
        violations.push(violation(17, &[fact.op], what));
        return;
    }
    let filing = acks
        .iter()
        .filter(may_file)
        .filter(|ack| signals(ack, AckStatus::Failed, true) || signals(ack, AckStatus::Dlq, true));
    let explains = |ack: &&AckFact<'_>| {
        let mut errors = ack
            .items
            .iter()
            .filter_map(|item| item.item.error.as_deref())
            .peekable();
        let none = errors.peek().is_none();
        none && fact.row.reason == "Retries exhausted" || errors.any(|error| error == fact.row.reason)
    };
    if !filing.into_iter().any(explains) {
        let what = format!(
            "row {} has the reason {:?}, which no ack gave",
            fact.row.id, fact.row.reason
        );
        violations.push(violation(17, &[fact.op], what));
    }
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
        story
    }

    #[test]
    fn a_filed_message_has_one_row_with_its_payload_until_it_is_removed() {
        let mut story = filed();
        story
            .listing(&[(0, "t0", 0)])
            .drained()
            .listing(&[(0, "t0", 0)])
            .delete("row-0")
            .listing(&[]);
        assert_sound(&story);
    }

    #[test]
    fn a_filed_message_without_a_row_is_found() {
        let mut story = filed();
        story.listing(&[]);
        assert_eq!(numbers(&story), [17]);
    }

    #[test]
    fn a_row_with_another_payload_or_a_second_row_is_found() {
        let mut story = filed();
        story.push("t9", 1).listing(&[(0, "t0", 1)]);
        assert!(numbers(&story).contains(&17));
        let mut story = filed();
        story
            .listing(&[(0, "t0", 0)])
            .listing_as("other", &[(0, "t0", 0)]);
        assert_eq!(numbers(&story), [17]);
    }

    #[test]
    fn a_row_that_no_failure_justifies_is_found() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .pop("L1", &[0])
            .fail("L1", &["t0"])
            .listing(&[(0, "t0", 0)]);
        assert_eq!(numbers(&story), [17]);
    }
}
