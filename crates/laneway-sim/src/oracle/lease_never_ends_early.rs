//! Invariant 9: while its holder surely has a lease, nobody else gets the lane and the holder's acks are not refused for
//! their lease.

use super::Violation;
use super::evidence::{AckFact, Evidence, Hold, violation};

pub(super) fn check(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for hold in &evidence.holds {
        taken_by_others(evidence, hold, &mut violations);
        for ack in evidence.acks_under(hold.of, Some(hold.lease_id)) {
            if ack.invoked >= hold.from
                && ack.returned <= hold.clock_until
                && ack.invoked <= hold.until
                && refused_for_its_lease(ack)
            {
                let what = format!(
                    "lease {} of {:?} should live until {}",
                    hold.lease_id, hold.of, hold.until
                );
                violations.push(violation(9, &[hold.op, ack.op], what));
            }
        }
    }
    violations
}

fn taken_by_others(evidence: &Evidence<'_>, hold: &Hold<'_>, violations: &mut Vec<Violation>) {
    if let Some((came, op)) = evidence.next_answer(hold.of, hold.from)
        && came < hold.until
    {
        let what = format!(
            "{:?} held under {} until {} was given to another",
            hold.of, hold.lease_id, hold.until
        );
        violations.push(violation(9, &[hold.op, op], what));
    }
}

fn refused_for_its_lease(ack: &AckFact<'_>) -> bool {
    let errors = ack.items.iter().filter_map(|fact| fact.answer?.error.as_deref());
    ack.all_refused() && errors.into_iter().any(|error| error.contains("lease"))
}

#[cfg(test)]
mod tests {
    use super::super::story::{LEASE_US, Story, assert_sound, numbers};

    #[test]
    fn a_lapsed_lease_may_be_refused_and_an_extended_one_lives_on() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .pop("L1", &[0])
            .wait(LEASE_US)
            .ack_refused("L1", &["t0"])
            .pop("L2", &[0]);
        assert_sound(&story);
        let mut story = Story::new();
        story
            .push("t0", 0)
            .pop("L1", &[0])
            .wait(LEASE_US / 2)
            .extend("L1")
            .wait(LEASE_US / 2 + 10);
        story.complete("L1", &["t0"]);
        assert_sound(&story);
    }

    #[test]
    fn an_extended_lease_given_to_another_ended_early() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .pop("L1", &[0])
            .wait(LEASE_US / 2)
            .extend("L1")
            .wait(LEASE_US / 2 + 10);
        story.pop("L2", &[0]);
        assert_eq!(numbers(&story), [7, 9]);
    }

    #[test]
    fn a_live_lease_refused_ended_early() {
        let mut story = Story::new();
        story.push("t0", 0).pop("L1", &[0]).ack_refused("L1", &["t0"]);
        assert_eq!(numbers(&story), [9]);
    }
}
