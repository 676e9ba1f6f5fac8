//! Invariant 1: no acked push is lost; one with an unknown outcome is there once or not at all.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::Violation;
use super::evidence::{Evidence, GroupKey, LaneKey, PushFate, REPLAY_PREFIX, violation};

pub(super) fn check(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = lost(evidence);
    violations.extend(doubled(evidence));
    violations
}

/// A drained group that read from the beginning has met every message that a push was answered with.
fn lost(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut met: BTreeMap<GroupKey<'_>, HashSet<u64>> = BTreeMap::new();
    for push in &evidence.pushes {
        let (PushFate::Stored { offset, .. } | PushFate::Duplicate { offset, .. }) = push.fate else {
            continue;
        };
        for drained in evidence.drained_of(push.lane.queue) {
            let to = GroupKey {
                lane: push.lane,
                group: drained.group,
            };
            let met = met.entry(to).or_insert_with(|| {
                let delivered = evidence.deliveries_to.get(&to).map_or(&[][..], Vec::as_slice);
                delivered
                    .iter()
                    .map(|&at| evidence.deliveries[at].message.offset)
                    .collect()
            });
            let excused = || evidence.may_have_lost(to) || offset < evidence.bare_acks_reach(to);
            if !met.contains(&offset) && !excused() {
                let what = format!(
                    "group {:?} never got offset {offset} of {:?}",
                    drained.group, push.lane
                );
                violations.push(violation(1, &[push.op, drained.op], what));
            }
        }
    }
    violations
}

/// No payload is stored more often than it was pushed: attempts with one request id count as one push.
fn doubled(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut pushed: BTreeMap<(u64, LaneKey<'_>), (BTreeSet<String>, Vec<usize>)> = BTreeMap::new();
    for push in evidence
        .pushes
        .iter()
        .filter(|push| push.fate != PushFate::Refused)
    {
        let request = evidence.operations[push.op].request_id.as_deref();
        let logical = request.map_or_else(|| format!("operation {}", push.op), |id| format!("request {id}"));
        let (requests, ops) = pushed.entry((push.payload_hash, push.lane)).or_default();
        requests.insert(logical);
        ops.push(push.op);
    }
    let mut seen: BTreeMap<(u64, LaneKey<'_>), BTreeSet<u64>> = BTreeMap::new();
    for delivery in &evidence.deliveries {
        if !delivery.message.transaction_id.starts_with(REPLAY_PREFIX) {
            let key = (delivery.message.payload_hash, delivery.to.lane);
            seen.entry(key).or_default().insert(delivery.message.offset);
        }
    }
    let mut violations = Vec::new();
    for (key, offsets) in seen {
        if let Some((requests, ops)) = pushed.get(&key)
            && offsets.len() > requests.len()
        {
            let what = format!(
                "{} pushes of payload {} are at {offsets:?} of {:?}",
                requests.len(),
                key.0,
                key.1
            );
            violations.push(violation(1, ops, what));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::story::{Story, assert_sound, numbers};

    #[test]
    fn every_acked_push_that_a_drained_group_met_is_kept() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push("t1", 1)
            .pop("L1", &[0, 1])
            .complete("L1", &["t1"])
            .drained();
        assert_sound(&story);
    }

    #[test]
    fn an_acked_push_that_a_drained_group_never_met_is_lost() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push("t1", 1)
            .pop("L1", &[0])
            .complete("L1", &["t0"])
            .drained();
        assert!(numbers(&story).contains(&1));
    }

    #[test]
    fn an_unknown_push_may_be_missing_but_not_twice() {
        let mut story = Story::new();
        story
            .push("t0", 0)
            .push_unknown("t1")
            .pop("L1", &[0])
            .complete("L1", &["t0"])
            .drained();
        assert_sound(&story);
        let mut story = Story::new();
        story
            .push_unknown("t1")
            .deliver("L1", &[(0, "t1", 1), (1, "t1", 1)]);
        assert!(numbers(&story).contains(&1));
    }
}
