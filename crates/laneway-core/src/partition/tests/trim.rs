use super::*;

fn trim(driver: &mut Driver, completed_only: bool, lanes: &[(LaneId, u64)]) -> Vec<StoreChange> {
    let lanes = lanes.iter().map(|(lane, to)| (*lane, Offset(*to))).collect();
    let reply = driver.apply(Command::Trim(Trim {
        queue: QUEUE,
        completed_only,
        lanes,
    }));
    assert_eq!(reply, Reply::Trimmed);
    driver.changes.clone()
}

fn moved(lane: LaneId, head: u64) -> StoreChange {
    StoreChange::HeadMoved {
        lane,
        head: Offset(head),
    }
}

#[test]
fn head_only_grows_and_stays_within_the_lane() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 5);
    assert_eq!(trim(&mut driver, false, &[(lane, 3)]), [moved(lane, 3)]);
    assert_eq!(trim(&mut driver, false, &[(lane, 3), (lane, 1)]), []);
    assert_eq!(trim(&mut driver, false, &[(lane, 99)]), [moved(lane, 5)]);
    assert_eq!(driver.state(lane).0, 0);
}

#[test]
fn completed_messages_only_go_below_every_cursor() {
    let mut driver = Driver::new();
    driver.register("h", GroupStart::Beginning);
    let lane = driver.push("a", 5);
    driver.ack(lane, None, &[(AckStatus::Completed, 3)]);
    assert_eq!(trim(&mut driver, true, &[(lane, 5)]), []);
    let ack = ack_of(lane, None, &[(AckStatus::Completed, 1)]);
    driver.ack_with(Ack {
        group: "h".to_owned(),
        ..ack
    });
    assert_eq!(trim(&mut driver, true, &[(lane, 5)]), [moved(lane, 2)]);
}

#[test]
fn without_groups_nothing_is_completed() {
    let mut driver = Driver::empty(Limits::default());
    driver.put_queue(1, |_| {});
    let lane = driver.push("a", 5);
    assert_eq!(trim(&mut driver, true, &[(lane, 5)]), []);
    assert_eq!(trim(&mut driver, false, &[(lane, 5)]), [moved(lane, 5)]);
}

#[test]
fn emptied_lane_leaves_the_line() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 2);
    trim(&mut driver, false, &[(lane, 1)]);
    assert!(driver.claimable());
    trim(&mut driver, false, &[(lane, 2)]);
    assert!(!driver.claimable());
    driver.push("a", 1);
    assert_eq!(driver.effects, [ready(GROUP, lane)]);
    assert_eq!(driver.claim(1, 1, 9), [("a".to_owned(), 2, 3, 1)]);
}

#[test]
fn lane_left_with_delayed_messages_waits_for_them() {
    let mut driver = Driver::new();
    driver.put_queue(1, |settings| settings.delayed_processing_seconds = 5);
    let lane = driver.push("a", 1);
    driver.wait_ms(4_000);
    driver.push("a", 1);
    driver.wait_ms(1_000);
    driver.apply(Command::Tick);
    assert!(driver.claimable());
    trim(&mut driver, false, &[(lane, 1)]);
    assert!(!driver.claimable());
    driver.wait_ms(4_000);
    assert_eq!(driver.claim(1, 1, 9), [("a".to_owned(), 1, 2, 1)]);
}

#[test]
fn other_lanes_and_queues_are_left_alone() {
    let mut driver = Driver::new();
    driver.put_queue(2, |_| {});
    let push = Push {
        queue: QueueId(2),
        items: vec![PushItem::Store],
        ..push_to("a")
    };
    let Reply::Pushed(other) = driver.apply(Command::Push(push)) else {
        panic!()
    };
    assert_eq!(trim(&mut driver, false, &[(other.lane, 1), (LaneId(5), 1)]), []);
    let lane = driver.push("a", 1);
    driver.delete_queue(QUEUE);
    assert_eq!(trim(&mut driver, false, &[(lane, 1)]), []);
}
