use AckStatus::{Completed, DeadLetter as Dead, Failed, Retry};
use AckedItem::{DeadLettered, Done, LaneUnknown, LeaseInvalid, Noop, Unresolvable};

use super::*;

/// A lane of five messages, all of them leased under id 1.
fn leased() -> (Driver, LaneId) {
    let mut driver = Driver::new();
    let lane = driver.push("a", 5);
    driver.claim_lane(1, lane);
    (driver, lane)
}

/// One ack under lease 1 on a batch of five; state afterwards is (cursor, retries used, attempt, consumed).
#[track_caller]
fn check(
    items: &[(AckStatus, u64)],
    answers: &[AckedItem],
    state: (u64, u32, u32, u64),
    lease_released: bool,
    filed: &[u64],
) {
    let (mut driver, lane) = leased();
    let acked = driver.ack(lane, Some(1), items);
    assert_eq!(
        acked,
        Acked {
            items: answers.to_vec(),
            lease_released
        },
        "{items:?}"
    );
    assert_eq!(driver.state(lane), state, "{items:?}");
    assert_eq!(driver.is_leased(lane), !lease_released, "{items:?}");
    let rows: Vec<u64> = driver
        .machine
        .dead_letters(None)
        .map(|row| row.offset.0)
        .collect();
    assert_eq!(rows, filed, "{items:?}");
    let pinned: Vec<StoreChange> = filed
        .iter()
        .map(|offset| StoreChange::Pinned {
            lane,
            offset: Offset(*offset),
        })
        .collect();
    assert_eq!(driver.changes, pinned);
    assert_eq!(driver.claimable(), lease_released && state.0 < 5, "{items:?}");
    assert_eq!(driver.machine.totals().settled, state.3);
}

#[test]
fn completed_prefix_commits() {
    check(&[(Completed, 1)], &[Done], (2, 0, 1, 2), false, &[]);
    check(
        &[(Completed, 1), (Completed, 0)],
        &[Done, Done],
        (2, 0, 1, 2),
        false,
        &[],
    );
    check(&[(Completed, 4)], &[Done], (5, 0, 0, 5), true, &[]);
}

#[test]
fn lowest_signal_wins_and_completions_above_it_do_not_count() {
    check(
        &[(Completed, 3), (Retry, 1)],
        &[Done, Done],
        (0, 0, 1, 0),
        true,
        &[],
    );
    check(
        &[(Completed, 0), (Retry, 2), (Failed, 3)],
        &[Done; 3],
        (1, 0, 1, 1),
        true,
        &[],
    );
    check(
        &[(Failed, 2), (Completed, 4), (Completed, 1)],
        &[Done; 3],
        (2, 1, 1, 2),
        true,
        &[],
    );
}

#[test]
fn failures_of_one_call_charge_once() {
    check(
        &[(Failed, 0), (Failed, 1), (Failed, 2)],
        &[Done; 3],
        (0, 1, 1, 0),
        true,
        &[],
    );
}

#[test]
fn at_equal_offset_dead_letter_beats_failed_beats_retry() {
    check(&[(Retry, 1), (Failed, 1)], &[Done, Done], (0, 1, 1, 0), true, &[]);
    check(
        &[(Retry, 1), (Failed, 1), (Dead, 1)],
        &[Done, DeadLettered, DeadLettered],
        (2, 0, 0, 2),
        true,
        &[1],
    );
    check(
        &[(Completed, 1), (Failed, 1)],
        &[Done, Done],
        (0, 1, 1, 0),
        true,
        &[],
    );
}

#[test]
fn dead_letter_signal_files_the_head_only() {
    check(
        &[(Dead, 2), (Dead, 3), (Failed, 4), (Completed, 0), (Retry, 4)],
        &[DeadLettered, DeadLettered, DeadLettered, Done, Done],
        (3, 0, 0, 3),
        true,
        &[2],
    );
    check(&[(Dead, 4)], &[DeadLettered], (5, 0, 0, 5), true, &[4]);
}

#[test]
fn items_that_are_not_found_leave_the_rest_alone() {
    check(
        &[(Completed, 9), (Completed, 1)],
        &[Unresolvable, Done],
        (2, 0, 1, 2),
        false,
        &[],
    );
    check(
        &[(Failed, 9), (Completed, 1)],
        &[Unresolvable, Done],
        (2, 0, 1, 2),
        false,
        &[],
    );
    check(&[(Completed, 9)], &[Unresolvable], (0, 0, 1, 0), false, &[]);
}

#[test]
fn messages_beyond_the_batch_are_unresolvable() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 5);
    driver.claim(1, 1, 2);
    let acked = driver.ack(lane, None, &[(Completed, 2), (Failed, 3)]);
    assert_eq!(acked.items, [Unresolvable, Unresolvable]);
    assert_eq!(driver.state(lane), (0, 0, 1, 0));
}

#[test]
fn settled_messages_are_noops_or_refused() {
    let (mut driver, lane) = leased();
    driver.ack(lane, Some(1), &[(Completed, 1)]);
    let acked = driver.ack(
        lane,
        Some(1),
        &[(Completed, 0), (Failed, 1), (Retry, 0), (Dead, 0)],
    );
    assert_eq!(acked.items, [Noop, Unresolvable, Unresolvable, Unresolvable]);
    assert!(!acked.lease_released);
    assert_eq!(driver.state(lane), (2, 0, 1, 2));
}

#[test]
fn lowest_candidate_in_the_window_is_meant() {
    let (mut driver, lane) = leased();
    driver.ack(lane, Some(1), &[(Completed, 0)]);
    let item = ack_item(Completed, &[0, 2, 4]);
    let acked = driver.ack_with(Ack {
        items: vec![item],
        ..ack_of(lane, Some(1), &[])
    });
    assert_eq!(acked.items, [Done]);
    assert_eq!(driver.state(lane).0, 3);
    let unknown = ack_item(Completed, &[]);
    let acked = driver.ack_with(Ack {
        items: vec![unknown],
        ..ack_of(lane, Some(1), &[])
    });
    assert_eq!(acked.items, [Unresolvable]);
}

#[test]
fn budget_allows_so_many_failures_and_then_files_the_head() {
    let mut driver = Driver::new();
    driver.put_queue(1, |settings| settings.retry_limit = 2);
    let lane = driver.push("a", 2);
    for used in 1..=2 {
        driver.claim_lane(u128::from(used), lane);
        let acked = driver.ack(lane, Some(used.into()), &[(Failed, 0)]);
        assert_eq!(
            acked,
            Acked {
                items: vec![Done],
                lease_released: true
            }
        );
        assert_eq!(driver.state(lane), (0, used, used, 0));
    }
    driver.claim_lane(3, lane);
    let acked = driver.ack(lane, Some(3), &[(Failed, 0), (Failed, 1)]);
    assert_eq!(
        acked,
        Acked {
            items: vec![DeadLettered; 2],
            lease_released: true
        }
    );
    assert_eq!(driver.state(lane), (1, 0, 0, 1));
    assert_eq!(driver.effects, [ready(GROUP, lane)]);
    let row = driver.machine.dead_letters(None).next().unwrap();
    let want = DeadLetter {
        id: DeadLetterId::new(PARTITION, 0),
        queue: QUEUE,
        lane,
        offset: Offset(0),
        group: GROUP.to_owned(),
        transaction_id: "t0".to_owned(),
        reason: "Retries exhausted".to_owned(),
        retries_used: 2,
        filed: driver.machine.stamps().wall,
    };
    assert_eq!(*row, want);
    assert_eq!(driver.machine.totals().dead_lettered, 1);
}

#[test]
fn budget_of_zero_files_at_the_first_failure() {
    let mut driver = Driver::new();
    driver.put_queue(1, |settings| settings.retry_limit = 0);
    let lane = driver.push("a", 1);
    driver.claim_lane(1, lane);
    assert_eq!(driver.ack(lane, Some(1), &[(Failed, 0)]).items, [DeadLettered]);
}

#[test]
fn spent_budget_without_dead_letters_drops_the_head() {
    let mut driver = Driver::new();
    driver.put_queue(1, |settings| {
        settings.retry_limit = 0;
        settings.dead_letter_queue = false;
        settings.dlq_after_max_retries = false;
    });
    let lane = driver.push("a", 3);
    driver.claim_lane(1, lane);
    let acked = driver.ack(lane, Some(1), &[(Completed, 0), (Failed, 1)]);
    assert_eq!(
        acked,
        Acked {
            items: vec![Done; 2],
            lease_released: true
        }
    );
    assert_eq!(driver.state(lane), (2, 0, 1, 2));
    assert_eq!(driver.machine.dead_letters(None).count(), 0);
    assert_eq!(driver.changes, []);
    driver.claim_lane(2, lane); // an explicit dead letter is kept all the same
    assert_eq!(driver.ack(lane, Some(2), &[(Dead, 2)]).items, [DeadLettered]);
}

#[test]
fn either_switch_keeps_dead_letters() {
    for (first, second) in [(true, false), (false, true)] {
        let mut driver = Driver::new();
        driver.put_queue(1, |settings| {
            settings.retry_limit = 0;
            settings.dead_letter_queue = first;
            settings.dlq_after_max_retries = second;
        });
        let lane = driver.push("a", 1);
        driver.claim_lane(1, lane);
        assert_eq!(driver.ack(lane, Some(1), &[(Failed, 0)]).items, [DeadLettered]);
    }
}

#[test]
fn reason_is_the_heads_error_else_the_first_other() {
    let error = |status, offset, error: Option<&str>| AckItem {
        error: error.map(str::to_owned),
        ..ack_item(status, &[offset])
    };
    for (items, reason) in [
        (
            vec![error(Completed, 0, Some("other")), error(Dead, 1, Some("own"))],
            "own",
        ),
        (
            vec![
                error(Failed, 3, Some("third")),
                error(Dead, 1, None),
                error(Retry, 2, Some("x")),
            ],
            "third",
        ),
        (vec![error(Dead, 1, None)], "Retries exhausted"),
        (vec![error(Dead, 1, Some(""))], ""),
    ] {
        let (mut driver, lane) = leased();
        driver.ack_with(Ack {
            items,
            ..ack_of(lane, Some(1), &[])
        });
        assert_eq!(driver.machine.dead_letters(None).next().unwrap().reason, reason);
    }
}

#[test]
fn only_a_completed_batch_or_a_filing_resets_the_budget() {
    let (mut driver, lane) = leased();
    driver.ack(lane, Some(1), &[(Failed, 0)]);
    driver.claim_lane(2, lane);
    driver.ack(lane, Some(2), &[(Completed, 0)]);
    assert_eq!(driver.state(lane), (1, 1, 2, 1));
    driver.ack(lane, Some(2), &[(Completed, 1), (Retry, 2)]);
    assert_eq!(driver.state(lane), (2, 1, 2, 2));
    driver.claim_lane(3, lane);
    driver.ack(lane, Some(3), &[(Completed, 4)]);
    assert_eq!(driver.state(lane), (5, 0, 0, 5));
}

#[test]
fn stale_lease_changes_nothing() {
    let (mut driver, lane) = leased();
    let invalid = Reply::Acked(Acked {
        items: vec![LeaseInvalid; 2],
        lease_released: false,
    });
    let stale = Command::Ack(ack_of(lane, Some(9), &[(Completed, 0), (Failed, 1)]));
    assert_eq!(driver.apply_idle(stale), invalid);
    let lapsed = Command::Ack(ack_of(lane, Some(1), &[(Completed, 0), (Failed, 1)]));
    driver.wait_ms(10_000);
    assert_eq!(driver.apply_idle(lapsed), invalid);
}

#[test]
fn ack_after_a_nack_of_the_same_lease_is_stale() {
    let (mut driver, lane) = leased();
    driver.ack(lane, Some(1), &[(Failed, 0)]);
    assert_eq!(driver.ack(lane, Some(1), &[(Completed, 1)]).items, [LeaseInvalid]);
    driver.claim_lane(2, lane);
    assert_eq!(driver.ack(lane, Some(1), &[(Completed, 1)]).items, [LeaseInvalid]);
    assert_eq!(driver.state(lane).0, 0);
}

#[test]
fn repeat_of_the_ack_that_ended_a_lease_gets_its_answer() {
    for items in [&[(Completed, 4)][..], &[(Failed, 0)], &[(Dead, 1)]] {
        let (mut driver, lane) = leased();
        let first = driver.ack(lane, Some(1), items);
        assert!(first.lease_released);
        let ack = ack_of(lane, Some(1), items);
        assert_eq!(
            driver.apply_idle(Command::Ack(ack.clone())),
            Reply::Acked(first.clone())
        );
        driver.push("a", 1);
        driver.claim_lane(2, lane); // also when somebody else holds the lane
        assert_eq!(driver.apply_idle(Command::Ack(ack.clone())), Reply::Acked(first));
        let other = Ack { items_hash: 5, ..ack };
        assert_eq!(driver.ack_with(other).items, [LeaseInvalid]);
    }
}

#[test]
fn bare_ack_works_without_a_lease() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 5);
    let acked = driver.ack(
        lane,
        None,
        &[(Completed, 1), (Failed, 0), (Dead, 3), (Completed, 9)],
    );
    assert_eq!(
        acked,
        Acked {
            items: vec![Done, Done, Done, Unresolvable],
            lease_released: false
        }
    );
    assert_eq!(driver.state(lane), (2, 0, 0, 2));
    assert!(driver.claimable());
    driver.ack(lane, None, &[(Completed, 4)]);
    assert!(!driver.claimable());
    assert_eq!(driver.machine.dead_letters(None).count(), 0);
}

#[test]
fn bare_ack_works_after_the_lease_lapsed() {
    let (mut driver, lane) = leased();
    driver.ack(lane, Some(1), &[(Failed, 0)]);
    driver.claim_lane(2, lane);
    driver.wait_ms(10_000);
    assert_eq!(driver.ack(lane, None, &[(Completed, 2)]).items, [Done]);
    assert_eq!(driver.state(lane), (3, 1, 2, 3));
}

#[test]
fn bare_ack_beyond_a_lapsed_lease_that_was_not_swept() {
    let mut driver = Driver::with_limits(Limits {
        expire_max: 0,
        ..Limits::default()
    });
    let lane = driver.push("a", 5);
    driver.claim(1, 1, 2);
    driver.wait_ms(10_000);
    assert_eq!(
        driver.ack(lane, None, &[(Completed, 3), (Failed, 0)]).items,
        [Done, Done]
    );
    assert_eq!(driver.state(lane), (4, 0, 1, 4));
    driver.claim_lane(2, lane);
    assert_eq!(driver.machine.group(lane, GROUP).unwrap().attempt, 1);
}

#[test]
fn bare_signal_applies_to_the_leased_batch() {
    let (mut driver, lane) = leased();
    let acked = driver.ack(lane, None, &[(Completed, 0), (Failed, 1)]);
    assert_eq!(
        acked,
        Acked {
            items: vec![Done; 2],
            lease_released: true
        }
    );
    assert_eq!(driver.state(lane), (1, 1, 1, 1));
    let repeat = driver.ack(lane, Some(1), &[(Completed, 0), (Failed, 1)]);
    assert_eq!(repeat.items, [LeaseInvalid; 2]); // nothing was kept under the lease's id
}

#[test]
fn unknown_lane_group_and_deleted_queue() {
    let (mut driver, lane) = leased();
    let answer = |item| {
        Reply::Acked(Acked {
            items: vec![item],
            lease_released: false,
        })
    };
    let unknown = ack_of(LaneId(1), Some(1), &[(Completed, 0)]);
    assert_eq!(driver.apply_idle(Command::Ack(unknown)), answer(LaneUnknown));
    let ack = ack_of(lane, Some(1), &[(Completed, 0)]);
    let stranger = Ack {
        group: "other".to_owned(),
        ..ack.clone()
    };
    assert_eq!(driver.apply_idle(Command::Ack(stranger)), answer(Unresolvable));
    driver.delete_queue(QUEUE);
    assert_eq!(driver.apply_idle(Command::Ack(ack)), answer(LaneUnknown));
}

#[test]
fn nack_in_a_lease_over_several_lanes_releases_its_own_only() {
    let mut driver = Driver::new();
    let first = driver.push("a", 1);
    let second = driver.push("b", 1);
    driver.claim(1, 2, 9);
    driver.ack(first, Some(1), &[(Failed, 0)]);
    assert!(!driver.is_leased(first));
    assert!(driver.is_leased(second));
    assert!(driver.ack(second, Some(1), &[(Completed, 0)]).lease_released);
}

#[test]
fn groups_settle_independently() {
    let (mut driver, lane) = leased();
    driver.register("h", GroupStart::Beginning);
    driver.ack(lane, Some(1), &[(Completed, 4)]);
    assert_eq!(driver.machine.group(lane, "h").unwrap().cursor, Offset(0));
    assert_eq!(driver.machine.deliverable_messages(lane, "h"), 5);
}
