use super::*;

#[test]
fn counts_follow_the_lowest_named_group() {
    let mut driver = Driver::empty(Limits::default());
    driver.put_queue(1, |_| {});
    let lane = driver.push("a", 10);
    let counts = |driver: &Driver| {
        let counts = driver.machine.lane_counts(lane);
        (counts.total, counts.pending, counts.processing, counts.completed)
    };
    assert_eq!(counts(&driver), (10, 10, 0, 0));
    driver.register(QUEUE_MODE_GROUP, GroupStart::Beginning);
    let ack = |group: &str, offset| Ack {
        group: group.to_owned(),
        ..ack_of(lane, None, &[(AckStatus::Completed, offset)])
    };
    driver.ack_with(ack(QUEUE_MODE_GROUP, 3));
    assert_eq!(counts(&driver), (10, 6, 0, 4));
    driver.register(GROUP, GroupStart::Beginning);
    driver.register("h", GroupStart::Registration);
    assert_eq!(counts(&driver), (10, 10, 0, 0));
    driver.ack_with(ack(GROUP, 0));
    assert_eq!(counts(&driver), (10, 9, 0, 1));
    driver.claim(1, 1, 3);
    driver.claim_with(Claim {
        group: QUEUE_MODE_GROUP.to_owned(),
        messages_max: 2,
        ..claim_by(2)
    });
    assert_eq!(counts(&driver), (10, 4, 5, 1));
    let trim = Trim {
        queue: QUEUE,
        completed_only: false,
        lanes: vec![(lane, Offset(2))],
    };
    driver.apply(Command::Trim(trim));
    assert_eq!(counts(&driver), (8, 4, 4, 0));
    assert_eq!(driver.machine.lane_counts(lane).consumed, 5);
    let sum = driver.machine.queue_counts(QUEUE);
    assert_eq!((sum.lanes, sum.total, sum.pending, sum.processing), (1, 8, 4, 4));
    assert_eq!(sum.ready_messages, 6); // of the slowest group: the leases of others take nothing from it
    assert_eq!(
        (sum.ready_lanes, sum.leased_lanes, sum.leased_messages),
        (0, 1, 4)
    );
}

#[test]
fn lapsed_lease_is_not_counted_before_it_is_swept() {
    let mut driver = Driver::with_limits(Limits {
        expire_max: 0,
        ..Limits::default()
    });
    let lane = driver.push("a", 2);
    driver.claim(1, 1, 1);
    assert_eq!(driver.machine.lane_counts(lane).processing, 1);
    driver.wait_ms(10_000);
    driver.apply(Command::Tick);
    assert_eq!(driver.machine.lane_counts(lane).processing, 0);
    assert_eq!(driver.machine.queue_counts(QUEUE).leased_lanes, 1); // a sum, until it is swept
    assert_eq!(driver.machine.dump().lanes[0].groups[0].lease, None);
}

#[test]
fn claimable_foresees_expiry() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 2);
    driver.claim(1, 1, 2);
    let now = driver.machine.stamps();
    let deadline = driver.machine.next_lease_deadline().unwrap();
    let at = |lease| Stamps {
        lease: LeaseTime(lease),
        ..now
    };
    for lane in [None, Some(lane)] {
        assert!(!driver.machine.claimable(QUEUE, GROUP, lane, at(deadline.0 - 1)));
        assert!(driver.machine.claimable(QUEUE, GROUP, lane, at(deadline.0)));
        assert!(!driver.machine.claimable(QUEUE, "other", lane, at(deadline.0)));
        assert!(!driver.machine.claimable(QueueId(9), GROUP, lane, at(deadline.0)));
    }
}

#[test]
fn dump_shows_queues_lanes_and_groups_in_order() {
    let mut driver = Driver::new();
    driver.register("a before g", GroupStart::Beginning);
    let lane = driver.push("a", 2);
    driver.claim(1, 1, 1);
    let dump = driver.machine.dump();
    let names: Vec<&str> = dump.queues[0]
        .groups
        .iter()
        .map(|row| row.name.as_str())
        .collect();
    assert_eq!(names, ["a before g", GROUP]);
    let shown = &dump.lanes[0];
    assert_eq!((shown.id, shown.queue, shown.name.as_str()), (lane, QUEUE, "a"));
    assert_eq!((shown.head, shown.tail), (Offset(0), Offset(2)));
    let names: Vec<&str> = shown.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["a before g", GROUP]);
    assert_eq!(
        shown.groups[1].lease.as_ref().map(|lease| lease.id),
        Some(LeaseId(1))
    );
    assert_eq!(dump.catalog_version, driver.machine.catalog_version());
}

#[test]
fn lanes_are_listed_by_id_with_their_views() {
    let mut driver = Driver::new();
    for name in ["x", "y", "z"] {
        driver.push(name, 1);
    }
    let lanes: Vec<_> = driver.machine.lanes_of(QUEUE).collect();
    assert!(lanes.is_sorted_by_key(|lane| lane.0));
    assert_eq!(lanes.len(), 3);
    for (id, view) in lanes {
        assert_eq!(driver.machine.lane_id(QUEUE, view.name), Some(id));
        assert_eq!(driver.machine.lane(id), Some(view));
    }
}
