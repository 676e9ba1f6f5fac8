use super::*;

#[test]
fn claim_leases_the_batch_and_leaves_the_cursor() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 3);
    assert_eq!(driver.claim(7, 1, 2), [("a".to_owned(), 0, 2, 1)]);
    let group = driver.machine.group(lane, GROUP).unwrap();
    let deadline = LeaseTime(driver.lease_us).plus_ms(10_000);
    let lease = crate::rows::Lease {
        id: LeaseId(7),
        batch_end: Offset(2),
        deadline,
    };
    assert_eq!((group.cursor, group.lease), (Offset(0), Some(lease)));
    assert!(!driver.claimable());
    assert_eq!(driver.machine.totals().delivered, 2);
}

#[test]
fn empty_claim_changes_nothing() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 3);
    driver.claim(7, 1, 2);
    let empty = Reply::Claimed(Claimed {
        lease_id: LeaseId(8),
        lanes: vec![],
    });
    for claim in [
        claim_by(8),
        Claim {
            lane: Some(lane),
            ..claim_by(8)
        },
        Claim {
            lane: Some(LaneId(12_345)),
            ..claim_by(8)
        },
        Claim {
            messages_max: 0,
            ..claim_by(8)
        },
        Claim {
            auto_ack: true,
            ..claim_by(8)
        },
    ] {
        assert_eq!(
            driver.apply_idle(Command::Claim(claim.clone())),
            empty,
            "{claim:?}"
        );
    }
}

#[test]
fn claim_of_an_unknown_queue_or_group_is_refused() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 1);
    let unknown = Claim {
        group: "other".to_owned(),
        ..claim_by(1)
    };
    let refused = Reply::Refused(Refusal::GroupUnknown);
    assert_eq!(driver.apply_idle(Command::Claim(unknown)), refused);
    driver.delete_queue(QUEUE);
    let refused = Reply::Refused(Refusal::QueueGone);
    assert_eq!(driver.apply_idle(Command::Claim(claim_by(1))), refused);
    let pinned = Claim {
        lane: Some(lane),
        ..claim_by(1)
    };
    assert_eq!(driver.apply_idle(Command::Claim(pinned)), refused);
}

#[test]
fn lane_of_another_queue_cannot_be_claimed() {
    let mut driver = Driver::new();
    driver.put_queue(2, |_| {});
    driver.register_at(QueueId(2), GROUP, GroupStart::Beginning, vec![]);
    let lane = driver.push("a", 1);
    let claim = Claim {
        queue: QueueId(2),
        lane: Some(lane),
        ..claim_by(1)
    };
    assert_eq!(driver.claim_with(claim), []);
}

#[test]
fn claim_takes_lanes_longest_ready_first_within_its_bounds() {
    let mut driver = Driver::new();
    for name in ["c", "a", "b", "d"] {
        driver.push(name, 2);
    }
    driver.push("c", 1); // keeps its place
    let claimed = driver.claim(1, 3, 6);
    let want = [("c", 0, 3, 1), ("a", 0, 2, 1), ("b", 0, 1, 1)];
    assert_eq!(
        claimed,
        want.map(|(name, first, end, attempt)| (name.to_owned(), first, end, attempt))
    );
    assert_eq!(driver.claim(2, 9, 9), [("d".to_owned(), 0, 2, 1)]);
    assert_eq!(driver.claim(3, 9, 9), []);
}

#[test]
fn released_lane_goes_to_the_end_of_the_line() {
    let mut driver = Driver::new();
    let first = driver.push("a", 2);
    driver.push("b", 2);
    driver.claim(1, 1, 1);
    driver.ack(first, Some(1), &[(AckStatus::Completed, 0)]);
    assert_eq!(driver.effects, [ready(GROUP, first)]);
    let names: Vec<String> = driver.claim(2, 2, 9).into_iter().map(|lane| lane.0).collect();
    assert_eq!(names, ["b", "a"]);
}

#[test]
fn auto_ack_settles_at_once() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 3);
    let lanes = driver.claim_with(Claim {
        auto_ack: true,
        messages_max: 2,
        ..claim_by(1)
    });
    assert_eq!(
        (lanes[0].offset_first, lanes[0].batch_end, lanes[0].attempt),
        (Offset(0), Offset(2), 1)
    );
    assert_eq!(driver.effects, [ready(GROUP, lane)]); // for the rest
    assert_eq!(driver.state(lane), (2, 0, 0, 2));
    assert!(!driver.is_leased(lane));
    assert_eq!(driver.machine.totals().settled, 2);
    assert_eq!(driver.claim(2, 1, 9), [("a".to_owned(), 2, 3, 1)]);
}

#[test]
fn auto_ack_resets_the_budget() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 2);
    driver.claim(1, 1, 9);
    driver.ack(lane, Some(1), &[(AckStatus::Failed, 0)]);
    assert_eq!(driver.state(lane), (0, 1, 1, 0));
    let lanes = driver.claim_with(Claim {
        auto_ack: true,
        messages_max: 1,
        ..claim_by(2)
    });
    assert_eq!(lanes[0].attempt, 2);
    assert_eq!(driver.state(lane), (1, 0, 0, 1));
}

#[test]
fn attempt_grows_while_the_start_stays() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 3);
    for attempt in 1..4 {
        assert_eq!(
            driver.claim(u128::from(attempt), 1, 1 + attempt),
            [("a".to_owned(), 0, 3.min(1 + u64::from(attempt)), attempt)]
        );
        driver.ack(lane, Some(u128::from(attempt)), &[(AckStatus::Retry, 0)]);
    }
    driver.claim(9, 1, 3);
    driver.ack(lane, Some(9), &[(AckStatus::Completed, 0), (AckStatus::Retry, 1)]);
    assert_eq!(driver.claim(10, 1, 3), [("a".to_owned(), 1, 3, 1)]);
}

#[test]
fn lease_length_is_the_claims_or_the_queues() {
    let mut driver = Driver::new();
    driver.put_queue(1, |settings| settings.lease_seconds = 20);
    let lane = driver.push("a", 1);
    for (id, lease_ms, length) in [(1, None, 20_000), (2, Some(5), 5)] {
        driver.claim_with(Claim {
            lease_ms,
            ..claim_by(id)
        });
        let lease = driver.machine.group(lane, GROUP).unwrap().lease.unwrap();
        assert_eq!(lease.deadline, LeaseTime(driver.lease_us).plus_ms(length));
        driver.ack(lane, Some(id), &[(AckStatus::Retry, 0)]);
    }
    driver.claim_with(Claim {
        lease_ms: Some(u64::MAX),
        ..claim_by(3)
    });
    let lease = driver.machine.group(lane, GROUP).unwrap().lease.unwrap();
    assert_eq!(lease.deadline, LeaseTime(u64::MAX));
}

#[test]
fn groups_lease_independently() {
    let mut driver = Driver::new();
    driver.register("h", GroupStart::Beginning);
    driver.push("a", 1);
    assert_eq!(driver.claim(1, 1, 1).len(), 1);
    assert_eq!(
        driver
            .claim_with(Claim {
                group: "h".to_owned(),
                ..claim_by(2)
            })
            .len(),
        1
    );
}

#[test]
fn expired_lease_returns_the_batch_uncharged() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 2);
    driver.claim(1, 1, 2);
    driver.wait_ms(9_999);
    driver.apply(Command::Tick);
    assert!(driver.is_leased(lane));
    driver.wait_ms(1);
    driver.apply(Command::Tick);
    assert_eq!(driver.effects, [ready(GROUP, lane)]);
    assert_eq!(driver.state(lane), (0, 0, 1, 0));
    assert_eq!(driver.claim(2, 1, 9), [("a".to_owned(), 0, 2, 2)]);
    assert_eq!(driver.machine.totals().expired_leases, 1);
}

#[test]
fn expiry_is_bounded_and_goes_by_deadline_lane_and_group() {
    let mut driver = Driver::with_limits(Limits {
        expire_max: 2,
        ..Limits::default()
    });
    driver.register("a group", GroupStart::Beginning);
    let lanes: Vec<LaneId> = ["x", "y"].iter().map(|name| driver.push(name, 1)).collect();
    let (low, high) = (lanes[0].min(lanes[1]), lanes[0].max(lanes[1]));
    driver.claim_with(Claim {
        lanes_max: 9,
        ..claim_by(1)
    });
    let entry = Claim {
        lanes_max: 9,
        group: "a group".to_owned(),
        ..claim_by(2)
    };
    driver.claim_with(entry);
    driver.wait_ms(10_000);
    assert_eq!(driver.begin(), [ready("a group", low), ready(GROUP, low)]);
    assert!(
        driver
            .machine
            .claimable(QUEUE, GROUP, Some(high), driver.machine.stamps())
    );
    assert_eq!(driver.begin(), [ready("a group", high), ready(GROUP, high)]);
}

#[test]
fn lapsed_lease_that_was_not_swept_is_dead_for_a_pinned_claim_only() {
    let mut driver = Driver::with_limits(Limits {
        expire_max: 0,
        ..Limits::default()
    });
    let lane = driver.push("a", 1);
    driver.claim(1, 1, 1);
    driver.wait_ms(10_000);
    assert_eq!(driver.claim(2, 1, 1), []);
    assert!(!driver.claimable());
    assert!(
        driver
            .machine
            .claimable(QUEUE, GROUP, Some(lane), driver.machine.stamps())
    );
    driver.claim_lane(3, lane);
    assert_eq!(
        driver.machine.group(lane, GROUP).unwrap().lease.unwrap().id,
        LeaseId(3)
    );
    assert_eq!(driver.state(lane).2, 2);
    assert_eq!(driver.machine.totals().leases, 1);
}

#[test]
fn claim_passes_over_deleted_messages() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 4);
    let trim = Trim {
        queue: QUEUE,
        completed_only: false,
        lanes: vec![(lane, Offset(2))],
    };
    driver.apply(Command::Trim(trim));
    assert_eq!(driver.state(lane).0, 0);
    assert_eq!(driver.claim(1, 1, 1), [("a".to_owned(), 2, 3, 1)]);
    assert_eq!(driver.state(lane).0, 2);
}
