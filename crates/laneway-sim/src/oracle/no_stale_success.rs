//! Invariant 25: an answer of success is never older than its request. What a deposed leader might say from memory shows in
//! two answers that other rules do not judge: a pop that found nothing, and a listing without a row.
//!
//! A pop is judged where the history proves that a message was deliverable all the while: its push was answered before the
//! pop began, nothing that may have settled it began before the pop ended, and every lease that could cover it had surely
//! been given up before. A pop over all lanes that delivered something may hold others too: it gathers from several
//! partitions, and its answer does not tell of a claim whose outcome the gateway never learnt.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::evidence::{Evidence, GroupKey, LaneKey, PushFate, violation};
use super::history::{AckStatus, Op, Outcome, Popped, Reply};

/// The violations, and how many empty pops were judged.
pub(super) fn check(evidence: &Evidence<'_>) -> (Vec<Violation>, u64) {
    let mut violations = stale_listings(evidence);
    let (stale, judged) = stale_pops(evidence);
    violations.extend(stale);
    (violations, judged)
}

/// A pop that answered with nothing.
struct EmptyPop<'a> {
    op: usize,
    queue: &'a str,
    group: &'a str,
    lane: Option<&'a str>,
    invoked: u64,
    returned: u64,
}

/// The greatest of the values that count from a moment on.
#[derive(Default)]
struct Greatest {
    /// Sorted by moment; each with the greatest value so far.
    steps: Vec<(u64, u64)>,
}

impl Greatest {
    /// Of (moment, value).
    fn new(mut steps: Vec<(u64, u64)>) -> Self {
        steps.sort_unstable();
        for at in 1..steps.len() {
            steps[at].1 = steps[at].1.max(steps[at - 1].1);
        }
        Self { steps }
    }

    /// Of all that count at `moment`.
    fn at(&self, moment: u64) -> Option<u64> {
        let after = self.steps.partition_point(|(from, _)| *from <= moment);
        Some(self.steps[..after].last()?.1)
    }
}

/// Known pushes of a lane: when they were answered, offset, operation.
type Stored = Vec<(u64, u64, usize)>;

/// A dead letter, by the message that it is.
type Place<'a> = (GroupKey<'a>, u64);

fn stale_pops(evidence: &Evidence<'_>) -> (Vec<Violation>, u64) {
    let lanes = stored_of_lanes(evidence);
    let holds = may_hold(evidence);
    let settled = settled_at_most(evidence);
    let (mut violations, mut judged) = (Vec::new(), 0);
    for pop in empty_pops(evidence) {
        if !evidence
            .drained_of(pop.queue)
            .iter()
            .any(|it| it.group == pop.group)
        {
            continue; // the group may have begun behind the message
        }
        let mut decided = false;
        for (lane, stored) in lanes.get(pop.queue).into_iter().flatten() {
            if pop.lane.is_some_and(|asked| asked != lane.lane) {
                continue;
            }
            let of = GroupKey {
                lane: *lane,
                group: pop.group,
            };
            if holds.cover(of, &pop) {
                continue;
            }
            decided = true;
            let reach = settled.get(&of).and_then(|it| it.at(pop.returned)).unwrap_or(0);
            let deliverable = stored
                .iter()
                .take_while(|(answered, _, _)| *answered < pop.invoked)
                .find(|(_, offset, _)| *offset >= reach);
            if let Some((_, offset, push)) = deliverable {
                let what = format!(
                    "{of:?} had offset {offset} to give and nobody held it, but the pop found nothing"
                );
                violations.push(violation(25, &[*push, pop.op], what));
            }
        }
        judged += u64::from(decided);
    }
    (violations, judged)
}

fn empty_pops<'a>(evidence: &Evidence<'a>) -> Vec<EmptyPop<'a>> {
    let mut pops = Vec::new();
    for (op, operation) in evidence.operations.iter().enumerate() {
        if let Op::Pop {
            queue, group, lane, ..
        } = &operation.op
            && let Outcome::Ok(Reply::Popped(popped)) = &operation.outcome
            && popped.messages.is_empty()
        {
            pops.push(EmptyPop {
                op,
                queue,
                group,
                lane: lane.as_deref(),
                invoked: operation.invoked,
                returned: operation.returned,
            });
        }
    }
    pops
}

/// By queue, then lane; pushes in the order of their answers.
fn stored_of_lanes<'a>(evidence: &Evidence<'a>) -> BTreeMap<&'a str, BTreeMap<LaneKey<'a>, Stored>> {
    let mut lanes: BTreeMap<&str, BTreeMap<LaneKey<'_>, Stored>> = BTreeMap::new();
    for push in &evidence.pushes {
        if let PushFate::Stored { offset, .. } = push.fate {
            let of_queue = lanes.entry(push.lane.queue).or_default();
            let stored = of_queue.entry(push.lane).or_default();
            stored.push((push.returned, offset, push.op));
        }
    }
    for stored in lanes.values_mut().flat_map(BTreeMap::values_mut) {
        stored.sort_unstable();
    }
    lanes
}

/// Pops that may hold a lane: from their begin until their lease was surely given up.
struct Holds<'a> {
    /// Any lane, by queue and group.
    anywhere: BTreeMap<(&'a str, &'a str), Greatest>,
    of_lane: BTreeMap<GroupKey<'a>, Greatest>,
}

impl Holds<'_> {
    /// Whether one of them may have held the lane while the pop ran. An empty answer holds nothing itself.
    fn cover(&self, of: GroupKey<'_>, pop: &EmptyPop<'_>) -> bool {
        let anywhere = self.anywhere.get(&(of.lane.queue, of.group));
        let of_lane = self.of_lane.get(&of);
        let mut until = anywhere
            .into_iter()
            .chain(of_lane)
            .filter_map(|it| it.at(pop.returned));
        until.any(|until| until >= pop.invoked)
    }
}

fn may_hold<'a>(evidence: &Evidence<'a>) -> Holds<'a> {
    let mut anywhere: BTreeMap<(&str, &str), Vec<(u64, u64)>> = BTreeMap::new();
    let mut of_lane: BTreeMap<GroupKey<'_>, Vec<(u64, u64)>> = BTreeMap::new();
    for operation in evidence.operations {
        let Op::Pop {
            queue,
            group,
            lane,
            auto_ack,
            ..
        } = &operation.op
        else {
            continue;
        };
        let from = operation.invoked;
        match (&operation.outcome, lane) {
            (Outcome::Refused(_), _) => {}
            (Outcome::Ok(Reply::Popped(popped)), None) if popped.messages.is_empty() => {}
            (Outcome::Ok(Reply::Popped(_)) | Outcome::Unknown(_), None) => {
                anywhere.entry((queue, group)).or_default().push((from, u64::MAX));
            }
            (Outcome::Unknown(_), Some(lane)) => {
                let lane = LaneKey { queue, lane };
                let of = GroupKey { lane, group };
                of_lane.entry(of).or_default().push((from, u64::MAX));
            }
            (Outcome::Ok(Reply::Popped(popped)), Some(_)) => {
                for lane in lanes_of(popped) {
                    let lane = LaneKey { queue, lane };
                    let of = GroupKey { lane, group };
                    let until = match auto_ack {
                        true => operation.returned,
                        false => given_up(evidence, of, &popped.lease_id),
                    };
                    of_lane.entry(of).or_default().push((from, until));
                }
            }
            (Outcome::Ok(_), _) => {}
        }
    }
    Holds {
        anywhere: greatest(anywhere),
        of_lane: greatest(of_lane),
    }
}

fn greatest<K: Ord>(steps: BTreeMap<K, Vec<(u64, u64)>>) -> BTreeMap<K, Greatest> {
    let all = steps.into_iter();
    all.map(|(key, steps)| (key, Greatest::new(steps))).collect()
}

fn lanes_of(popped: &Popped) -> BTreeSet<&str> {
    popped
        .messages
        .iter()
        .map(|message| message.lane.as_str())
        .collect()
}

/// When the lease was surely released by an ack; never, if the history shows none.
fn given_up<'a>(evidence: &Evidence<'a>, of: GroupKey<'a>, lease_id: &'a str) -> u64 {
    let acks = evidence.acks_under(of, Some(lease_id));
    let released = acks
        .filter(|ack| ack.known && ack.released)
        .map(|ack| ack.returned);
    released.min().unwrap_or(u64::MAX)
}

/// What the group's cursor on the lane cannot have been beyond, by the moment from which on that may be so.
fn settled_at_most<'a>(evidence: &Evidence<'a>) -> BTreeMap<GroupKey<'a>, Greatest> {
    let mut settled: BTreeMap<GroupKey<'_>, Vec<(u64, u64)>> = BTreeMap::new();
    for ack in &evidence.acks {
        let steps = settled.entry(ack.of).or_default();
        steps.push((ack.invoked, ack.settled_at_most));
    }
    for delivery in evidence.deliveries.iter().filter(|it| it.auto_ack) {
        let steps = settled.entry(delivery.to).or_default();
        steps.push((delivery.invoked, delivery.message.offset + 1));
    }
    greatest(settled)
}

/// A listing that began after a dead letter was surely filed shows it, unless somebody tried to move it.
fn stale_listings(evidence: &Evidence<'_>) -> Vec<Violation> {
    let removed: BTreeSet<&str> = evidence.removals.iter().map(|removal| removal.id).collect();
    let mut ids_of: BTreeMap<Place<'_>, BTreeSet<&str>> = BTreeMap::new();
    let mut listed: BTreeSet<(usize, Place<'_>)> = BTreeSet::new();
    for fact in &evidence.rows {
        let row = fact.row;
        let lane = LaneKey {
            queue: &row.queue,
            lane: &row.lane,
        };
        let of = GroupKey {
            lane,
            group: &row.group,
        };
        ids_of.entry((of, row.offset)).or_default().insert(&row.id);
        listed.insert((fact.op, (of, row.offset)));
    }
    let mut filed: BTreeMap<&str, Vec<(u64, Place<'_>, usize)>> = BTreeMap::new();
    for ack in evidence.acks.iter().filter(|ack| ack.known && ack.filed) {
        let Some(head) = ack.head else { continue };
        let Some(offset) = head.offset.filter(|_| head.status != Some(AckStatus::Retry)) else {
            continue;
        };
        let place = (ack.of, offset);
        let ids = ids_of.get(&place);
        if ids.is_some_and(|ids| ids.iter().all(|id| !removed.contains(id))) {
            let of_queue = filed.entry(ack.of.lane.queue).or_default();
            of_queue.push((ack.returned, place, ack.op));
        }
    }
    let mut violations = Vec::new();
    for (op, operation) in evidence.operations.iter().enumerate() {
        let (Op::ListDeadLetters { queue }, Outcome::Ok(Reply::DeadLetters(_))) =
            (&operation.op, &operation.outcome)
        else {
            continue;
        };
        for (returned, place, ack) in filed.get(queue.as_str()).into_iter().flatten() {
            if *returned < operation.invoked && !listed.contains(&(op, *place)) {
                let what = format!("{place:?} was dead-lettered before, but the listing does not show it");
                violations.push(violation(25, &[*ack, op], what));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::story::{LEASE_US, Story, assert_sound, numbers};

    #[test]
    fn nothing_is_found_while_there_is_nothing_or_somebody_may_hold_it() {
        let mut story = Story::new();
        story.pop("", &[]).push("t0", 0).pop("L1", &[0]).pop("", &[]);
        story.wait(LEASE_US).pop("", &[]); // swept late: another rule's matter
        story
            .pop("L2", &[0])
            .complete("L2", &["t0"])
            .pop("", &[])
            .drained();
        assert_sound(&story);
        let mut story = Story::new();
        story.push("t0", 0).pop("L1", &[0]).complete("L1", &["t0"]);
        story.push("t1", 1).pop("", &[]); // the first pop may have claimed another lane as well
        story.pop("L2", &[1]).complete("L2", &["t1"]).drained();
        assert_sound(&story);
        let mut story = Story::new();
        story.push("t0", 0).pop_unknown().pop("", &[]);
        story
            .wait(LEASE_US)
            .pop("L2", &[0])
            .complete("L2", &["t0"])
            .drained();
        assert_sound(&story);
    }

    #[test]
    fn a_stored_message_that_nobody_holds_is_found() {
        let mut story = Story::new();
        story.push("t0", 0).pop_lane("L1", &[0]).complete("L1", &["t0"]);
        story.push("t1", 1).pop("", &[]);
        story.pop("L2", &[1]).complete("L2", &["t1"]).drained();
        assert_eq!(numbers(&story), [25]);
    }

    #[test]
    fn a_filed_dead_letter_is_listed_until_somebody_moves_it() {
        let mut story = Story::new();
        story.push("t0", 0).pop("L1", &[0]).file("L1", &["t0"]);
        story.listing(&[(0, "t0", 0)]).listing(&[]);
        assert!(numbers(&story).contains(&25));
        let mut story = Story::new();
        story.push("t0", 0).pop("L1", &[0]).file("L1", &["t0"]);
        story.listing(&[(0, "t0", 0)]).delete("row-0").listing(&[]);
        assert!(!numbers(&story).contains(&25));
    }
}
