//! Invariant 15: the retry counter equals the charged failures since it was last reset; with unknown outcomes it lies
//! between the known ones and the known and unknown ones.

use std::collections::HashMap;

use super::Violation;
use super::evidence::{AckFact, Evidence, GroupKey, violation};
use super::history::{AckStatus, QueueFacts};

/// What the counter can be.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    least: u32,
    most: u32,
}

/// Violations, and the number of (lane, group)s that could not be followed.
pub(super) fn check(evidence: &Evidence<'_>) -> (Vec<Violation>, u64) {
    let mut violations = Vec::new();
    let mut unjudged = 0;
    for (of, order) in &evidence.acks_of {
        let Some(facts) = evidence.facts(of.lane.queue) else {
            continue;
        };
        let followed = follow(evidence, *of, order, facts, &mut violations);
        unjudged += u64::from(!followed);
    }
    for fact in &evidence.rows {
        let limit = evidence
            .facts(&fact.row.queue)
            .map_or(u32::MAX, |facts| facts.retry_limit);
        if fact.row.retries_used > limit {
            let what = format!(
                "row {} shows {} retries of {limit}",
                fact.row.id, fact.row.retries_used
            );
            violations.push(violation(15, &[fact.op], what));
        }
    }
    (violations, unjudged)
}

/// Spans of time in which something may have touched the counter that no lease puts in order: bare acks, pops under
/// `auto_ack`, acks whose lease has no sure place.
#[derive(Default)]
struct Fog {
    /// Start, and the latest end of this and all earlier ones.
    spans: Vec<(u64, u64)>,
}

impl Fog {
    fn new(mut spans: Vec<(u64, u64)>) -> Self {
        spans.sort_unstable();
        for at in 1..spans.len() {
            spans[at].1 = spans[at].1.max(spans[at - 1].1);
        }
        Self { spans }
    }

    fn meets(&self, from: u64, to: u64) -> bool {
        let begun = self.spans.partition_point(|(start, _)| *start <= to);
        begun
            .checked_sub(1)
            .is_some_and(|last| self.spans[last].1 >= from)
    }
}

fn follow<'a>(
    evidence: &'a Evidence<'a>,
    of: GroupKey<'a>,
    acks: &[usize],
    facts: &QueueFacts,
    violations: &mut Vec<Violation>,
) -> bool {
    let Some((ordered, mut loose)) = in_order(evidence, of, acks) else {
        return false;
    };
    loose.extend(evidence.acks_under(of, None).filter(|ack| !ack.all_refused()));
    let span = |ack: &&AckFact<'_>| (ack.invoked, if ack.known { ack.returned } else { u64::MAX });
    let charges = |ack: &&&AckFact<'_>| ack.items.iter().any(|fact| fact.item.status == AckStatus::Failed);
    let charging = Fog::new(loose.iter().filter(charges).map(span).collect());
    let mut touching: Vec<(u64, u64)> = loose.iter().map(span).collect();
    let delivered = evidence.deliveries_to.get(&of).map_or(&[][..], Vec::as_slice);
    let auto = delivered
        .iter()
        .map(|&at| &evidence.deliveries[at])
        .filter(|fact| fact.auto_ack);
    touching.extend(auto.map(|fact| (fact.invoked, fact.returned)));
    if evidence.may_have_lost(of) {
        touching.push((0, u64::MAX));
    }
    let touching = Fog::new(touching);
    let mut counter = Counter::default();
    let mut before = 0;
    for ack in ordered {
        let (from, to) = (ack.invoked.min(before), ack.returned.max(before));
        if touching.meets(from, to) {
            counter.least = 0;
        }
        if charging.meets(from, to) {
            counter.most = (counter.most + 1).min(facts.retry_limit);
        }
        before = ack.invoked;
        counter = step(counter, ack, facts, violations);
    }
    true
}

type Acks<'a> = Vec<&'a AckFact<'a>>;

/// The acks under leases that may have had an effect: in the order of the leases, and those that have no sure place in
/// it. `None` when an ack was accepted under a lease that no answer showed.
fn in_order<'a>(
    evidence: &'a Evidence<'a>,
    of: GroupKey<'a>,
    acks: &[usize],
) -> Option<(Acks<'a>, Acks<'a>)> {
    let rank = ranks(evidence, of);
    let mut ordered: Vec<((usize, u64), &AckFact<'_>)> = Vec::new();
    let mut loose = Vec::new();
    for &at in acks {
        let ack = &evidence.acks[at];
        let Some(lease_id) = ack.lease_id else { continue };
        let earlier_known = |other: &AckFact<'_>| other.known && (!ack.known || other.invoked < ack.invoked);
        // Attempts at one thing count once, as the answer that came first says.
        if ack.all_refused() || evidence.repeats_of(ack).any(earlier_known) {
            continue;
        }
        match rank.get(lease_id) {
            Some(rank) => ordered.push(((*rank, ack.invoked), ack)),
            None if ack.known => return None,
            None => loose.push(ack),
        }
    }
    ordered.sort_by_key(|(at, _)| *at);
    Some((ordered.into_iter().map(|(_, ack)| ack).collect(), loose))
}

/// The place of each lease in the order of the claims, which is that of the answers, but for those that may have been
/// claimed before an earlier answer's.
fn ranks<'a>(evidence: &Evidence<'a>, of: GroupKey<'a>) -> HashMap<&'a str, usize> {
    let holds = evidence.holds_of.get(&of).map_or(&[][..], Vec::as_slice);
    let mut ranks = HashMap::new();
    let mut earlier: Option<u64> = None;
    for (rank, hold) in holds.iter().map(|&at| &evidence.holds[at]).enumerate() {
        // Claimed before the earlier one, it would have ended before that was claimed: then no ack of it was accepted.
        let accepted = || {
            let mut acks = evidence.acks_under(of, Some(hold.lease_id));
            acks.any(|ack| ack.known && !ack.all_refused())
        };
        let after = earlier.is_none_or(|from| hold.invoked >= from || hold.clock_until > from);
        if after || accepted() {
            ranks.insert(hold.lease_id, rank);
        }
        earlier = Some(hold.from);
    }
    ranks
}

fn step(counter: Counter, ack: &AckFact<'_>, facts: &QueueFacts, violations: &mut Vec<Violation>) -> Counter {
    let limit = facts.retry_limit;
    let one_more = Counter {
        least: (counter.least + 1).min(limit),
        most: (counter.most + 1).min(limit),
    };
    let Some(head) = ack.head else {
        // Only a whole batch resets.
        return match (ack.known, ack.released) {
            (true, true) => Counter::default(),
            (true, false) => counter,
            (false, _) => Counter { least: 0, ..counter },
        };
    };
    let failed = head.status == Some(AckStatus::Failed);
    let may_fail = failed || head.status.is_none();
    if !ack.known || head.status.is_none() {
        // It may have completed or filed, charged, or done nothing.
        let only_charges = failed && counter.most < limit;
        let least = if only_charges { counter.least } else { 0 };
        return Counter {
            least,
            most: if may_fail { one_more.most } else { counter.most },
        };
    }
    if ack.filed {
        if failed && counter.most < limit {
            let what = format!(
                "{:?} was filed after at most {} charges of {limit}",
                ack.of, counter.most
            );
            violations.push(violation(15, &[ack.op], what));
        }
        return Counter::default();
    }
    if !failed || !ack.released {
        return counter;
    }
    if facts.keeps_dead_letters && counter.least >= limit {
        let what = format!(
            "{:?} was not filed after {} charges of {limit}",
            ack.of, counter.least
        );
        violations.push(violation(15, &[ack.op], what));
    }
    // A spent budget without dead letters drops the message, and starts anew.
    let may_drop = !facts.keeps_dead_letters && counter.most >= limit;
    Counter {
        least: if may_drop { 0 } else { one_more.least },
        ..one_more
    }
}

#[cfg(test)]
mod tests {
    use super::super::story::{LEASE_US, Story, assert_sound, numbers};

    // Stories have a retry limit of 1.

    #[test]
    fn the_second_failure_files_and_an_expiry_charges_nothing() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .pop("L1", &[0])
            .fail("L1", &["t0"])
            .pop("L2", &[0])
            .wait(LEASE_US)
            .pop("L3", &[0]);
        story
            .file("L3", &["t0"])
            .listing(&[(0, "t0", 0)])
            .drained()
            .listing(&[(0, "t0", 0)]);
        assert_sound(&story);
    }

    #[test]
    fn an_unknown_failure_may_have_been_charged_or_not() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .pop("L1", &[0])
            .fail_unknown("L1", &["t0"])
            .wait(LEASE_US);
        story.pop("L2", &[0]).file("L2", &["t0"]);
        assert_sound(&story);
        let mut story = Story::new();
        story
            .push("t0", 0)
            .pop("L1", &[0])
            .fail_unknown("L1", &["t0"])
            .wait(LEASE_US);
        story
            .pop("L2", &[0])
            .fail("L2", &["t0"])
            .pop("L3", &[0])
            .file("L3", &["t0"]);
        assert_sound(&story);
    }

    #[test]
    fn filing_too_early_or_too_late_is_found() {
        let mut story = Story::new();
        story.push("t0", 0).pop("L1", &[0]).file("L1", &["t0"]);
        assert_eq!(numbers(&story), [15]);
        let mut story = Story::new();
        story
            .push("t0", 0)
            .pop("L1", &[0])
            .fail("L1", &["t0"])
            .pop("L2", &[0])
            .fail("L2", &["t0"]);
        assert_eq!(numbers(&story), [15]);
    }

    #[test]
    fn a_completed_batch_resets_the_counter() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push("t1", 1)
            .pop("L1", &[0])
            .fail("L1", &["t0"]);
        story
            .pop("L2", &[0])
            .complete("L2", &["t0"])
            .pop("L3", &[1])
            .file("L3", &["t1"]);
        assert_eq!(numbers(&story), [15]);
    }
}
