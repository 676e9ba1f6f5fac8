use super::*;

fn extend(driver: &mut Driver, id: u128, lease_ms: u64) -> Option<Extended> {
    let extend = Extend {
        request: None,
        lease_id: LeaseId(id),
        lease_ms,
    };
    match driver.apply(Command::Extend(extend)) {
        Reply::Extended(extended) => extended,
        reply => panic!("{reply:?}"),
    }
}

fn release(driver: &mut Driver, id: u128, lanes: &[(LaneId, Option<u64>)]) -> u32 {
    let lanes = lanes.iter().map(|(lane, end)| (*lane, end.map(Offset))).collect();
    match driver.apply(Command::ReleaseClaim(ReleaseClaim {
        lease_id: LeaseId(id),
        lanes,
    })) {
        Reply::Released(released) => released,
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn extension_renews_every_lane_and_never_shortens() {
    let mut driver = Driver::new();
    let first = driver.push("a", 1);
    let second = driver.push("b", 1);
    driver.claim(1, 2, 9);
    driver.wait_ms(4_000);
    let extended = extend(&mut driver, 1, 60_000).unwrap();
    assert_eq!(extended.renewed, 2);
    assert_eq!(extended.expires.0, driver.machine.stamps().wall.0 + 60_000_000);
    let extended = extend(&mut driver, 1, 1).unwrap();
    assert_eq!(extended.expires.0, driver.machine.stamps().wall.0 + 60_000_000);
    for lane in [first, second] {
        let lease = driver.machine.group(lane, GROUP).unwrap().lease.unwrap();
        assert_eq!(lease.deadline, LeaseTime(driver.lease_us).plus_ms(60_000));
    }
    driver.wait_ms(59_999);
    driver.apply(Command::Tick);
    assert!(driver.is_leased(first));
    driver.wait_ms(1);
    driver.apply(Command::Tick);
    assert!(!driver.is_leased(first));
}

#[test]
fn expiry_shown_is_the_earliest() {
    let mut driver = Driver::new();
    let first = driver.push("a", 2);
    driver.push("b", 2);
    driver.claim(1, 2, 9);
    driver.ack(first, Some(1), &[(AckStatus::Completed, 1)]);
    driver.push("a", 1);
    driver.claim_with(Claim {
        lease_ms: Some(90_000),
        ..claim_by(1)
    }); // the id once more, with a later deadline
    let extended = extend(&mut driver, 1, 20_000).unwrap();
    assert_eq!(extended.renewed, 2);
    assert_eq!(extended.expires.0, driver.machine.stamps().wall.0 + 20_000_000);
}

#[test]
fn expired_or_unknown_lease_is_not_extended() {
    let mut driver = Driver::with_limits(Limits {
        expire_max: 0,
        ..Limits::default()
    });
    driver.push("a", 1);
    driver.claim(1, 1, 1);
    assert_eq!(extend(&mut driver, 2, 60_000), None);
    driver.wait_ms(10_000);
    assert_eq!(extend(&mut driver, 1, 60_000), None);
}

#[test]
fn lease_of_a_deleted_queue_is_not_extended() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 1);
    driver.claim(1, 1, 1);
    driver.delete_queue(QUEUE);
    assert_eq!(extend(&mut driver, 1, 60_000), None);
    assert_eq!(release(&mut driver, 1, &[(lane, None)]), 0);
    assert_eq!(driver.machine.next_lease_deadline(), None);
}

#[test]
fn absurd_extension_saturates() {
    let mut driver = Driver::new();
    driver.push("a", 1);
    driver.claim(1, 1, 1);
    let extended = extend(&mut driver, 1, u64::MAX).unwrap();
    assert_eq!(extended.expires, WallTime(u64::MAX));
}

#[test]
fn released_claim_is_uncharged_and_uncounted() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 2);
    driver.push("b", 1);
    driver.claim_lane(1, lane);
    assert_eq!(release(&mut driver, 1, &[(lane, None)]), 1);
    assert_eq!(driver.effects, [ready(GROUP, lane)]);
    assert_eq!(driver.state(lane), (0, 0, 0, 0));
    let names: Vec<_> = driver
        .claim(2, 2, 9)
        .into_iter()
        .map(|lane| (lane.0, lane.3))
        .collect();
    assert_eq!(names, [("b".to_owned(), 1), ("a".to_owned(), 1)]); // at the end of the line
}

#[test]
fn release_shortens_only_inside_the_batch() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 5);
    driver.claim(1, 1, 4);
    for end in [0, 4, 5, u64::MAX] {
        assert_eq!(release(&mut driver, 1, &[(lane, Some(end))]), 0, "{end}");
    }
    assert_eq!(release(&mut driver, 1, &[(lane, Some(2))]), 1);
    let lease = driver.machine.group(lane, GROUP).unwrap().lease.unwrap();
    assert_eq!((lease.id, lease.batch_end), (LeaseId(1), Offset(2)));
    assert!(
        driver
            .ack(lane, Some(1), &[(AckStatus::Completed, 1)])
            .lease_released
    );
    assert_eq!(driver.claim(2, 1, 9), [("a".to_owned(), 2, 5, 1)]);
}

#[test]
fn release_of_another_lease_or_lane_does_nothing() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 1);
    driver.push("b", 1);
    driver.claim_lane(1, lane);
    let other = driver.machine.lane_id(QUEUE, "b").unwrap();
    assert_eq!(release(&mut driver, 2, &[(lane, None)]), 0);
    assert_eq!(release(&mut driver, 1, &[(other, None), (LaneId(1), None)]), 0);
    assert_eq!(release(&mut driver, 1, &[(lane, None), (lane, None)]), 1);
}

#[test]
fn lease_of_no_length_never_lives() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 1);
    driver.claim_with(Claim {
        lease_ms: Some(0),
        ..claim_by(1)
    });
    assert!(!driver.is_leased(lane));
    assert_eq!(driver.claim(2, 1, 1), [("a".to_owned(), 0, 1, 2)]);
}
