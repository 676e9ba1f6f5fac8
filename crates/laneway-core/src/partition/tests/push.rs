use super::*;

fn refusal(driver: &mut Driver, push: Push) -> Refusal {
    match driver.apply_idle(Command::Push(push)) {
        Reply::Refused(refusal) => refusal,
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn messages_get_dense_offsets_and_the_entrys_stamp() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 2);
    assert_eq!(lane, LaneId::new(Slot::of(QUEUE, "a"), 0));
    assert_eq!(driver.effects, [ready(GROUP, lane)]);
    let push = Push {
        items: vec![PushItem::Store; 2],
        ..push_to("a")
    };
    let reply = driver.apply(Command::Push(push));
    let wall = driver.machine.stamps().wall;
    let items = [2, 3].map(|offset| PushedItem {
        offset: Offset(offset),
        wall,
        duplicate: false,
    });
    assert_eq!(
        reply,
        Reply::Pushed(Pushed {
            lane,
            items: items.to_vec()
        })
    );
    let block = Block { at: 0, bytes: 9 };
    let stored = StoreChange::Stored {
        queue: QUEUE,
        lane,
        offset_first: Offset(2),
        count: 2,
        block,
        dedup: true,
    };
    assert_eq!(driver.changes, [stored]);
    assert_eq!(driver.effects, []);
    assert_eq!(driver.machine.totals().pushed, 4);
}

#[test]
fn stamps_never_go_back() {
    let mut driver = Driver::new();
    driver.apply(Command::Tick);
    let first = driver.machine.stamps();
    driver.lease_us -= 500;
    driver.wall_us = 1;
    driver.apply(Command::Tick);
    let second = driver.machine.stamps();
    assert_eq!(second.lease, first.lease);
    assert_eq!(second.wall.0, first.wall.0 + 1);
}

#[test]
fn duplicates_name_the_stored_message() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 1);
    let older = WallTime(77);
    let items = vec![
        PushItem::DuplicateOf {
            offset: Offset(0),
            wall: older,
        },
        PushItem::Store,
        PushItem::DuplicateOfItem(1),
        PushItem::DuplicateOfItem(0),
        PushItem::DuplicateOfItem(2),
    ];
    let reply = driver.apply(Command::Push(Push {
        items,
        ..push_to("a")
    }));
    let wall = driver.machine.stamps().wall;
    let item = |offset, wall, duplicate| PushedItem {
        offset: Offset(offset),
        wall,
        duplicate,
    };
    let items = vec![
        item(0, older, true),
        item(1, wall, false),
        item(1, wall, true),
        item(0, older, true),
        item(1, wall, true),
    ];
    assert_eq!(reply, Reply::Pushed(Pushed { lane, items }));
    assert_eq!(driver.machine.lane(lane).unwrap().tail, Offset(2));
}

#[test]
fn push_of_duplicates_only_changes_nothing() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 1);
    let items = vec![PushItem::DuplicateOf {
        offset: Offset(0),
        wall: WallTime(1),
    }];
    let reply = driver.apply_idle(Command::Push(Push {
        items,
        ..push_to("a")
    }));
    let item = PushedItem {
        offset: Offset(0),
        wall: WallTime(1),
        duplicate: true,
    };
    assert_eq!(
        reply,
        Reply::Pushed(Pushed {
            lane,
            items: vec![item]
        })
    );
}

#[test]
fn plan_that_names_a_missing_message_is_outdated() {
    let mut driver = Driver::new();
    driver.push("a", 1);
    let duplicate = |offset| PushItem::DuplicateOf {
        offset: Offset(offset),
        wall: WallTime(1),
    };
    for (lane, items) in [
        ("a", vec![duplicate(1)]),
        ("a", vec![PushItem::Store, duplicate(1)]), // what the same command stores does not count
        ("new", vec![duplicate(0)]),
        ("new", vec![PushItem::Store, duplicate(0)]),
        ("a", vec![PushItem::DuplicateOfItem(0)]),
        ("a", vec![PushItem::Store, PushItem::DuplicateOfItem(1)]),
        ("a", vec![PushItem::DuplicateOfItem(u32::MAX)]),
        ("a", vec![]),
        ("new", vec![]),
    ] {
        let push = Push {
            items: items.clone(),
            ..push_to(lane)
        };
        assert_eq!(
            refusal(&mut driver, push),
            Refusal::PlanOutdated,
            "{lane} {items:?}"
        );
    }
    assert_eq!(driver.machine.lane_id(QUEUE, "new"), None);
}

#[test]
fn push_to_a_queue_that_is_gone_or_unknown_is_refused() {
    let mut driver = Driver::new();
    driver.push("a", 1);
    let unknown = Push {
        queue: QueueId(99),
        items: vec![PushItem::Store],
        ..push_to("a")
    };
    assert_eq!(refusal(&mut driver, unknown), Refusal::QueueGone);
    driver.delete_queue(QUEUE);
    let rider = Some(queue_row(1, CatalogVersion(1000)));
    let gone = Push {
        rider,
        items: vec![PushItem::Store],
        ..push_to("a")
    };
    assert_eq!(refusal(&mut driver, gone), Refusal::QueueGone);
}

#[test]
fn rider_brings_the_queue_but_not_its_catalog_version() {
    let mut driver = Driver::empty(Limits::default());
    let rider = queue_row(1, CatalogVersion(8));
    driver.apply(Command::Push(Push {
        rider: Some(rider.clone()),
        items: vec![PushItem::Store],
        ..push_to("a")
    }));
    assert_eq!(driver.machine.queue(QUEUE), Some(&rider));
    assert_eq!(driver.machine.catalog_version(), CatalogVersion(0));
    let mut older = queue_row(1, CatalogVersion(7));
    older.settings.retry_limit = 99;
    driver.apply(Command::Push(Push {
        rider: Some(older),
        items: vec![PushItem::Store],
        ..push_to("a")
    }));
    assert_eq!(driver.machine.queue(QUEUE), Some(&rider));
}

#[test]
fn dedup_flag_follows_the_queues_window() {
    let mut driver = Driver::new();
    driver.put_queue(1, |settings| settings.dedup_window_seconds = 0);
    driver.push("a", 1);
    assert!(matches!(
        driver.changes[..],
        [StoreChange::Stored { dedup: false, .. }]
    ));
}

#[test]
fn lanes_are_bounded_until_deleted_ones_are_swept() {
    let mut driver = Driver::with_limits(Limits {
        lanes_max: 2,
        ..Limits::default()
    });
    driver.push("a", 1);
    driver.push("b", 1);
    let third = Push {
        items: vec![PushItem::Store],
        ..push_to("c")
    };
    assert_eq!(refusal(&mut driver, third.clone()), Refusal::LanesFull);
    driver.push("a", 1);
    driver.delete_queue(QUEUE);
    driver.put_queue(2, |_| {});
    let other = Push {
        queue: QueueId(2),
        ..third
    };
    assert_eq!(refusal(&mut driver, other.clone()), Refusal::LanesFull);
    driver.apply(Command::Sweep(Sweep { rows_max: 1 }));
    assert!(matches!(driver.apply(Command::Push(other)), Reply::Pushed(_)));
}

#[test]
fn lane_ids_are_not_reused_after_a_sweep() {
    let mut driver = Driver::new();
    let name = |slot| {
        (0..)
            .map(|at| format!("n{at}"))
            .find(|name| Slot::of(QueueId(2), name) == slot)
            .unwrap()
    };
    let first = driver.push("a", 1);
    driver.delete_queue(QUEUE);
    driver.apply(Command::Sweep(Sweep { rows_max: 100 }));
    driver.put_queue(2, |_| {});
    let push = Push {
        queue: QueueId(2),
        items: vec![PushItem::Store],
        ..push_to(&name(first.slot()))
    };
    let Reply::Pushed(pushed) = driver.apply(Command::Push(push)) else {
        panic!()
    };
    assert_eq!(pushed.lane, LaneId::new(first.slot(), 1));
}

#[test]
fn exhausted_slot_refuses_new_lanes() {
    let mut driver = Driver::new();
    let slot = Slot::of(QUEUE, "a");
    driver.machine.tables.slots.insert(
        slot,
        crate::rows::SlotRow {
            lane_next: LANE_SEQUENCE_MAX,
        },
    );
    assert_eq!(driver.push("a", 1), LaneId::new(slot, LANE_SEQUENCE_MAX));
    let name = (0..)
        .map(|at| format!("n{at}"))
        .find(|name| Slot::of(QUEUE, name) == slot)
        .unwrap();
    let push = Push {
        items: vec![PushItem::Store],
        ..push_to(&name)
    };
    assert_eq!(refusal(&mut driver, push), Refusal::LanesFull);
}

#[test]
fn same_name_in_another_queue_is_another_lane() {
    let mut driver = Driver::new();
    driver.put_queue(2, |_| {});
    let first = driver.push("a", 1);
    let push = Push {
        queue: QueueId(2),
        items: vec![PushItem::Store],
        ..push_to("a")
    };
    let Reply::Pushed(pushed) = driver.apply(Command::Push(push)) else {
        panic!()
    };
    assert_ne!(pushed.lane, first);
    assert_eq!(driver.machine.lane_id(QueueId(2), "a"), Some(pushed.lane));
}

#[test]
fn lane_is_born_with_a_cursor_for_each_group() {
    let mut driver = Driver::new();
    driver.register("new", GroupStart::Registration);
    let lane = driver.push("a", 1);
    assert_eq!(driver.effects, [ready(GROUP, lane), ready("new", lane)]);
    assert_eq!(driver.machine.group(lane, "new").unwrap().cursor, Offset(0));
}

#[test]
fn group_of_a_later_start_passes_what_was_pushed_before_it() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 2);
    let start = GroupStart::At(WallTime(driver.wall_us + 5_000_000));
    driver.register_at(QUEUE, "later", start, vec![(lane, Offset(2))]);
    driver.push("a", 1);
    let born = driver.push("b", 1);
    let cursor = |driver: &Driver, lane| driver.machine.group(lane, "later").unwrap().cursor.0;
    assert_eq!((cursor(&driver, lane), cursor(&driver, born)), (3, 1));
    driver.wait_ms(5001);
    driver.push("a", 1);
    driver.push("b", 1);
    assert_eq!((cursor(&driver, lane), cursor(&driver, born)), (3, 1));
    assert_eq!(driver.machine.deliverable_messages(lane, "later"), 1);
}

#[test]
fn group_of_a_later_start_keeps_what_it_has_before_it() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 2);
    driver.register_at(
        QUEUE,
        "later",
        GroupStart::At(WallTime(u64::MAX)),
        vec![(lane, Offset(1))],
    );
    driver.push("a", 1);
    assert_eq!(driver.machine.group(lane, "later").unwrap().cursor, Offset(1));
    assert_eq!(driver.machine.deliverable_messages(lane, "later"), 2);
}
