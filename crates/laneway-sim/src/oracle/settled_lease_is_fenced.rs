//! Invariant 8: after a lease was settled or superseded nothing done with its id has an effect, but a pure repeat gets the
//! old answer.

use std::collections::BTreeMap;

use super::Violation;
use super::evidence::{Evidence, Hold, violation};
use super::history::{Op, Outcome, Reply};

pub(super) fn check(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = acks(evidence);
    violations.extend(extensions(evidence));
    violations
}

fn acks(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for hold in &evidence.holds {
        let Some((dead_from, by)) = dead_from(evidence, hold) else {
            continue;
        };
        for ack in evidence.acks_under(hold.of, Some(hold.lease_id)) {
            let repeats = evidence.repeats_of(ack).next().is_some();
            if ack.known && ack.invoked > dead_from && !ack.all_refused() && !repeats {
                let what = format!("lease {} of {:?} was over at {dead_from}", hold.lease_id, hold.of);
                violations.push(violation(8, &[hold.op, by, ack.op], what));
            }
        }
    }
    violations
}

/// From when a hold is surely over, and the operation that proves it: its settling ack, or another's delivery.
fn dead_from(evidence: &Evidence<'_>, hold: &Hold<'_>) -> Option<(u64, usize)> {
    let settled = evidence
        .acks_under(hold.of, Some(hold.lease_id))
        .filter(|ack| ack.released);
    let settled = settled.map(|ack| (ack.returned, ack.op)).min();
    let superseded = evidence.next_answer(hold.of, hold.from);
    match (settled, superseded) {
        (Some(one), Some(two)) => Some(one.min(two)),
        (one, two) => one.or(two),
    }
}

/// An extension renews nothing once all lanes of its lease are over.
fn extensions(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut holds: BTreeMap<&str, Vec<&Hold<'_>>> = BTreeMap::new();
    for hold in &evidence.holds {
        holds.entry(hold.lease_id).or_default().push(hold);
    }
    let mut violations = Vec::new();
    for (op, operation) in evidence.operations.iter().enumerate() {
        let (Op::Extend { lease_id, .. }, Outcome::Ok(Reply::Extended(1..))) =
            (&operation.op, &operation.outcome)
        else {
            continue;
        };
        let Some(lanes) = holds.get(lease_id.as_str()) else {
            continue;
        };
        let over =
            |hold: &&Hold<'_>| dead_from(evidence, hold).is_some_and(|(from, _)| from < operation.invoked);
        let repeats = operation.request_id.is_some();
        if lanes.iter().all(over) && !repeats {
            let what = format!("lease {lease_id} was extended after its end");
            violations.push(violation(8, &[lanes[0].op, op], what));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::story::{LEASE_US, Story, assert_sound, numbers};

    #[test]
    fn refusals_and_pure_repeats_are_fenced() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push("t1", 1)
            .pop("L1", &[0, 1])
            .fail("L1", &["t0"])
            .ack_refused("L1", &["t1"]);
        story
            .pop("L2", &[0, 1])
            .complete("L2", &["t1"])
            .complete("L2", &["t1"]);
        assert_sound(&story);
    }

    #[test]
    fn another_ack_with_a_settled_lease_must_be_refused() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push("t1", 1)
            .pop("L1", &[0, 1])
            .fail("L1", &["t0"])
            .complete("L1", &["t1"]);
        assert!(numbers(&story).contains(&8));
    }

    #[test]
    fn an_ack_or_extension_with_a_superseded_lease_must_be_refused() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .pop("L1", &[0])
            .wait(LEASE_US)
            .pop("L2", &[0])
            .complete("L1", &["t0"]);
        assert!(numbers(&story).contains(&8));
        let mut story = Story::new();
        story
            .push("t0", 0)
            .pop("L1", &[0])
            .wait(LEASE_US)
            .pop("L2", &[0])
            .extend("L1");
        assert_eq!(numbers(&story), [8]);
    }
}
