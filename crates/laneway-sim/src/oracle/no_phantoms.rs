//! Invariant 2: what is read was pushed, to that lane and before it was read; what was refused never appears.

use std::collections::HashMap;

use super::Violation;
use super::evidence::{Evidence, LaneKey, PushFact, PushFate, REPLAY_PREFIX, violation};

pub(super) fn check(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut pushed: HashMap<(u64, LaneKey<'_>), Vec<&PushFact<'_>>> = HashMap::new();
    for push in &evidence.pushes {
        pushed
            .entry((push.payload_hash, push.lane))
            .or_default()
            .push(push);
    }
    let mut violations = Vec::new();
    let mut judge = |op: usize, lane: LaneKey<'_>, transaction_id: &str, payload_hash: u64, returned: u64| {
        let pushes = pushed.get(&(payload_hash, lane)).map_or(&[][..], Vec::as_slice);
        let explains = |push: &&&PushFact<'_>| {
            let named = push.transaction_id.is_none_or(|id| id == transaction_id);
            let named = named || transaction_id.starts_with(REPLAY_PREFIX);
            push.fate != PushFate::Refused && push.invoked < returned && named
        };
        if !pushes.iter().any(|push| explains(&push)) {
            let mut operations = vec![op];
            operations.extend(pushes.iter().map(|push| push.op));
            let what = format!("payload {payload_hash} of {transaction_id:?} in {lane:?} was not pushed");
            violations.push(violation(2, &operations, what));
        }
    };
    for delivery in &evidence.deliveries {
        let message = delivery.message;
        judge(
            delivery.op,
            delivery.to.lane,
            &message.transaction_id,
            message.payload_hash,
            delivery.returned,
        );
    }
    for fact in &evidence.rows {
        let lane = LaneKey {
            queue: &fact.row.queue,
            lane: &fact.row.lane,
        };
        judge(
            fact.op,
            lane,
            &fact.row.transaction_id,
            fact.row.payload_hash,
            fact.returned,
        );
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::story::{Story, assert_sound, numbers};

    #[test]
    fn what_an_unknown_push_sent_may_be_read() {
        let mut story = Story::new();
        story.push_unknown("t0").deliver("L1", &[(0, "t0", 0)]);
        assert_sound(&story);
    }

    #[test]
    fn what_was_refused_or_never_pushed_is_a_phantom() {
        let mut story = Story::new();
        story.push_refused("t0").deliver("L1", &[(0, "t0", 0)]);
        assert_eq!(numbers(&story), [2]);
        let mut story = Story::new();
        story.push("t0", 0).deliver("L1", &[(0, "t0", 0), (1, "t1", 99)]);
        assert_eq!(numbers(&story), [2]);
    }

    #[test]
    fn what_is_read_before_it_was_pushed_is_a_phantom() {
        let mut story = Story::new();
        story.deliver("L1", &[(0, "t0", 0)]).push("t0", 0);
        assert_eq!(numbers(&story), [2]);
    }
}
