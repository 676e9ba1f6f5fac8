//! Invariant 3: an offset of a lane holds one message, for every client, node and time; offsets are dense; a lane has one id.

use std::collections::{BTreeMap, HashMap};

use super::Violation;
use super::evidence::{Evidence, LaneKey, PushFact, PushFate, violation};

/// What was seen of one message; a listing of dead letters shows no message id.
#[derive(Clone, Copy, Debug)]
struct Seen<'a> {
    op: usize,
    payload_hash: Option<u64>,
    transaction_id: &'a str,
    message_id: Option<&'a str>,
}

impl Seen<'_> {
    fn agrees(&self, other: &Self) -> bool {
        let payload = self.payload_hash.is_none()
            || other.payload_hash.is_none()
            || self.payload_hash == other.payload_hash;
        let id =
            self.message_id.is_none() || other.message_id.is_none() || self.message_id == other.message_id;
        payload && id && self.transaction_id == other.transaction_id
    }
}

pub(super) fn check(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = two_values(evidence);
    violations.extend(holes(evidence));
    violations.extend(two_ids(evidence));
    violations
}

fn sightings<'a>(evidence: &Evidence<'a>) -> Vec<(LaneKey<'a>, u64, Seen<'a>)> {
    let mut seen: Vec<_> = evidence.pushes.iter().filter_map(of_push).collect();
    seen.extend(evidence.deliveries.iter().map(|fact| {
        let message = fact.message;
        let (payload_hash, message_id) = (Some(message.payload_hash), Some(message.message_id.as_str()));
        let sight = Seen {
            op: fact.op,
            payload_hash,
            transaction_id: &message.transaction_id,
            message_id,
        };
        (fact.to.lane, message.offset, sight)
    }));
    seen.extend(evidence.rows.iter().map(|fact| {
        let row = fact.row;
        let payload_hash = Some(row.payload_hash);
        let sight = Seen {
            op: fact.op,
            payload_hash,
            transaction_id: &row.transaction_id,
            message_id: None,
        };
        (
            LaneKey {
                queue: &row.queue,
                lane: &row.lane,
            },
            row.offset,
            sight,
        )
    }));
    seen.extend(evidence.removals.iter().filter_map(|removal| {
        let to = removal.replayed?;
        let message_id = Some(to.message_id.as_str());
        let sight = Seen {
            op: removal.op,
            payload_hash: None,
            transaction_id: &to.transaction_id,
            message_id,
        };
        Some((
            LaneKey {
                queue: &to.queue,
                lane: &to.lane,
            },
            to.offset,
            sight,
        ))
    }));
    seen
}

fn of_push<'a>(push: &PushFact<'a>) -> Option<(LaneKey<'a>, u64, Seen<'a>)> {
    let (payload_hash, offset, message_id, transaction_id) = match push.fate {
        PushFate::Stored {
            offset,
            message_id,
            transaction_id,
        } => (Some(push.payload_hash), offset, message_id, transaction_id),
        // A duplicate's own payload may differ from the stored one.
        PushFate::Duplicate {
            offset,
            message_id,
            transaction_id,
        } => (None, offset, message_id, transaction_id),
        PushFate::Refused | PushFate::Unknown => return None,
    };
    let message_id = Some(message_id);
    Some((
        push.lane,
        offset,
        Seen {
            op: push.op,
            payload_hash,
            transaction_id,
            message_id,
        },
    ))
}

fn two_values(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut known: HashMap<(LaneKey<'_>, u64), Vec<Seen<'_>>> = HashMap::new();
    for (lane, offset, sight) in sightings(evidence) {
        let before = known.entry((lane, offset)).or_default();
        if let Some(other) = before.iter().find(|other| !other.agrees(&sight)) {
            let what = format!("offset {offset} of {lane:?} is {other:?} and {sight:?}");
            violations.push(violation(3, &[other.op, sight.op], what));
        }
        // Keep only sightings that say something new.
        let says_less = |other: &Seen<'_>| other.payload_hash.is_some() && other.message_id.is_some();
        if !before.iter().any(says_less) {
            before.push(sight);
        }
    }
    violations
}

/// A drained group that read from the beginning met every offset below the highest one.
fn holes(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (to, delivered) in &evidence.deliveries_to {
        let drained = evidence
            .drained_of(to.lane.queue)
            .iter()
            .find(|drained| drained.group == to.group);
        let Some(drained) = drained.filter(|_| !evidence.may_have_lost(*to)) else {
            continue;
        };
        let facts = delivered.iter().map(|&at| &evidence.deliveries[at]);
        let offsets: BTreeMap<u64, usize> = facts.map(|fact| (fact.message.offset, fact.op)).collect();
        let from = evidence.bare_acks_reach(*to);
        let mut next = 0;
        for (&offset, &op) in &offsets {
            if offset > next && offset > from {
                let what = format!(
                    "group {:?} met {offset} of {:?} but not {next}",
                    to.group, to.lane
                );
                violations.push(violation(3, &[op, drained.op], what));
            }
            next = offset + 1;
        }
    }
    violations
}

fn two_ids(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut id_of: BTreeMap<LaneKey<'_>, (&str, usize)> = BTreeMap::new();
    let mut lane_of: BTreeMap<&str, (LaneKey<'_>, usize)> = BTreeMap::new();
    for delivery in &evidence.deliveries {
        let (lane, id, op) = (delivery.to.lane, delivery.message.lane_id.as_str(), delivery.op);
        let (known, first) = *id_of.entry(lane).or_insert((id, op));
        if known != id {
            violations.push(violation(
                3,
                &[first, op],
                format!("{lane:?} has the ids {known} and {id}"),
            ));
        }
        let (known, first) = *lane_of.entry(id).or_insert((lane, op));
        if known != lane {
            violations.push(violation(
                3,
                &[first, op],
                format!("lane id {id} is {known:?} and {lane:?}"),
            ));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::story::{Story, assert_sound, numbers};

    #[test]
    fn one_message_seen_by_all_alike_is_one_value() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .pop("L1", &[0])
            .fail("L1", &["t0"])
            .pop("L2", &[0])
            .complete("L2", &["t0"])
            .drained();
        assert_sound(&story);
    }

    #[test]
    fn an_offset_with_another_message_than_its_push_said_is_two_values() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push("t1", 1)
            .deliver("L1", &[(0, "t1", 1), (1, "t0", 0)]);
        assert!(numbers(&story).contains(&3));
    }

    #[test]
    fn a_hole_between_delivered_offsets_is_found() {
        let mut story = Story::new();
        story.push("t0", 0).push("t2", 2);
        story
            .pop("L1", &[0])
            .complete("L1", &["t0"])
            .pop("L2", &[2])
            .complete("L2", &["t2"])
            .drained();
        assert_eq!(numbers(&story), [3, 13]);
    }
}
