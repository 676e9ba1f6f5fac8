//! Acks of messages that retention deleted under a live lease.

use AckStatus::{Completed, DeadLetter as Dead, Failed, Retry};
use AckedItem::{DeadLetterRejected, DeadLettered, Done, Noop, Unresolvable};

use super::*;

/// Retention takes the first three messages of a leased batch of five.
fn leased_then_trimmed(change: impl FnOnce(&mut QueueSettings)) -> (Driver, LaneId) {
    let mut driver = Driver::new();
    let lane = driver.push("a", 5);
    driver.claim_lane(1, lane);
    driver.put_queue(1, change);
    let trim = Trim {
        queue: QUEUE,
        completed_only: false,
        lanes: vec![(lane, Offset(3))],
    };
    driver.apply(Command::Trim(trim));
    (driver, lane)
}

#[track_caller]
fn check_trimmed(
    change: impl FnOnce(&mut QueueSettings),
    items: &[(AckStatus, u64)],
    answers: &[AckedItem],
    cursor: u64,
    lease_released: bool,
) {
    let (mut driver, lane) = leased_then_trimmed(change);
    let acked = driver.ack(lane, Some(1), items);
    assert_eq!(
        acked,
        Acked {
            items: answers.to_vec(),
            lease_released
        },
        "{items:?}"
    );
    assert_eq!(driver.state(lane).0, cursor, "{items:?}");
    assert_eq!(driver.is_leased(lane), !lease_released, "{items:?}");
}

#[test]
fn message_deleted_while_leased_is_unresolvable_but_the_rest_goes_on() {
    let keep = |_: &mut QueueSettings| {};
    check_trimmed(
        keep,
        &[(Failed, 1), (Completed, 0)],
        &[Unresolvable, Noop],
        0,
        false,
    );
    check_trimmed(
        keep,
        &[(Retry, 1), (Completed, 3)],
        &[Unresolvable, Done],
        4,
        false,
    );
    check_trimmed(
        keep,
        &[(Failed, 2), (Completed, 4)],
        &[Unresolvable, Done],
        5,
        true,
    );
    // The lowest signal decides, and it files nothing.
    check_trimmed(
        keep,
        &[(Failed, 1), (Dead, 2), (Dead, 4)],
        &[Unresolvable, Unresolvable, DeadLettered],
        5,
        true,
    );
    let drops = |settings: &mut QueueSettings| {
        (settings.retry_limit, settings.dead_letter_queue) = (0, false);
        settings.dlq_after_max_retries = false;
    };
    check_trimmed(
        drops,
        &[(Failed, 1), (Completed, 3)],
        &[Unresolvable, Done],
        4,
        false,
    );
}

#[test]
fn message_deleted_while_leased_cannot_be_filed_so_nothing_moves() {
    let files = |settings: &mut QueueSettings| {
        (settings.retry_limit, settings.dead_letter_queue) = (0, true);
    };
    check_trimmed(|_| {}, &[(Dead, 2)], &[DeadLetterRejected], 0, false);
    check_trimmed(files, &[(Failed, 0)], &[DeadLetterRejected], 0, false);
    let all = [DeadLetterRejected; 4];
    check_trimmed(
        files,
        &[(Completed, 4), (Failed, 1), (Retry, 2), (Dead, 9)],
        &all,
        0,
        false,
    );
    // At equal offsets the strongest counts.
    check_trimmed(|_| {}, &[(Failed, 1), (Dead, 1)], &all[..2], 0, false);
    // What is filed is still there.
    check_trimmed(files, &[(Failed, 3), (Dead, 4)], &[DeadLettered; 2], 4, true);
}

#[test]
fn a_rejected_filing_is_a_refusal_that_changes_nothing() {
    let (mut driver, lane) = leased_then_trimmed(|_| {});
    let rejected = Reply::Acked(Acked {
        items: vec![DeadLetterRejected],
        lease_released: false,
    });
    let ack = |lease| Command::Ack(ack_of(lane, lease, &[(Dead, 1)]));
    assert_eq!(driver.apply_idle(ack(Some(1))), rejected);
    assert_eq!(driver.apply_idle(ack(None)), rejected);
    assert_eq!(driver.machine.dead_letters(None).count(), 0);
    // A candidate that is still there is meant before one that is not.
    let either = Ack {
        items: vec![ack_item(Dead, &[1, 3])],
        ..ack_of(lane, Some(1), &[])
    };
    assert_eq!(driver.ack_with(either).items, [DeadLettered]);
    assert_eq!(driver.state(lane).0, 4);
}

#[test]
fn signal_on_a_deleted_message_outside_a_live_batch_is_unresolvable() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 5);
    driver.claim(1, 1, 2);
    let trim = Trim {
        queue: QUEUE,
        completed_only: false,
        lanes: vec![(lane, Offset(4))],
    };
    driver.apply(Command::Trim(trim));
    assert_eq!(driver.ack(lane, Some(1), &[(Dead, 2)]).items, [Unresolvable]);
    assert_eq!(
        driver.ack(lane, Some(1), &[(Dead, 1)]).items,
        [DeadLetterRejected]
    );
    driver.wait_ms(20_000);
    assert_eq!(driver.ack(lane, None, &[(Dead, 1)]).items, [Unresolvable]);
}
