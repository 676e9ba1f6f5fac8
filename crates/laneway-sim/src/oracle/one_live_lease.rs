//! Invariant 7: what two clients surely hold of one (lane, group) never overlaps in time; lease ids are unique.

use std::collections::BTreeMap;

use super::Violation;
use super::evidence::{Evidence, violation};

pub(super) fn check(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (of, order) in &evidence.holds_of {
        let mut longest: Option<usize> = None;
        for &at in order {
            let hold = &evidence.holds[at];
            if let Some(earlier) = longest.map(|at| &evidence.holds[at])
                && hold.from < earlier.until
                && hold.from < hold.until
                && hold.op != earlier.op
            {
                let what = format!(
                    "{of:?} is held under {} until {} and under {} from {}",
                    earlier.lease_id, earlier.until, hold.lease_id, hold.from
                );
                violations.push(violation(7, &[earlier.op, hold.op], what));
            }
            if longest.is_none_or(|longest| hold.until > evidence.holds[longest].until) {
                longest = Some(at);
            }
        }
    }
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for hold in &evidence.holds {
        let op = *first.entry(hold.lease_id).or_insert(hold.op);
        if op != hold.op {
            let what = format!("lease id {} was given out twice", hold.lease_id);
            violations.push(violation(7, &[op, hold.op], what));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::story::{LEASE_US, Story, assert_sound, numbers};

    #[test]
    fn a_lease_after_the_other_ended_is_the_only_one() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push("t1", 1)
            .pop("L1", &[0, 1])
            .fail("L1", &["t0"])
            .pop("L2", &[0, 1]);
        story.wait(LEASE_US).pop("L3", &[0, 1]);
        assert_sound(&story);
    }

    #[test]
    fn two_overlapping_leases_are_two() {
        let mut story = Story::new();
        story.push("t0", 0).pop("L1", &[0]).pop("L2", &[0]);
        assert_eq!(numbers(&story), [7, 9]);
    }

    #[test]
    fn a_lease_id_given_out_twice_is_found() {
        let mut story = Story::new();
        story.push("t0", 0).pop("L1", &[0]).wait(LEASE_US).pop("L1", &[0]);
        assert_eq!(numbers(&story), [7]);
    }
}
