use super::*;
use crate::rows::RowKey;

#[test]
fn queue_rows_are_taken_once_and_in_order() {
    let mut driver = Driver::empty(Limits::default());
    let put = |version: u64, row_version: u64, retry_limit: u32| {
        let mut row = queue_row(1, CatalogVersion(row_version));
        row.settings.retry_limit = retry_limit;
        Command::PutQueue(PutQueue {
            row,
            version: CatalogVersion(version),
        })
    };
    let limit = |driver: &Driver| driver.machine.queue(QUEUE).unwrap().settings.retry_limit;
    driver.apply(put(5, 5, 10));
    assert_eq!(driver.apply_idle(put(5, 6, 11)), Reply::CatalogTaken);
    assert_eq!(driver.apply_idle(put(4, 6, 11)), Reply::CatalogTaken);
    driver.apply(put(6, 4, 12)); // an older row only moves the version
    assert_eq!(
        (limit(&driver), driver.machine.catalog_version()),
        (10, CatalogVersion(6))
    );
    driver.apply(put(9, 9, 13));
    assert_eq!(
        (limit(&driver), driver.machine.catalog_version()),
        (13, CatalogVersion(9))
    );
}

#[test]
fn settings_apply_from_the_next_command_on() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 1);
    driver.claim_lane(1, lane);
    driver.put_queue(1, |settings| settings.retry_limit = 0);
    assert_eq!(
        driver.ack(lane, Some(1), &[(AckStatus::Failed, 0)]).items,
        [AckedItem::DeadLettered]
    );
}

#[test]
fn groups_start_where_they_say() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 4);
    let other = driver.push("b", 2);
    driver.register("all", GroupStart::Beginning);
    let mut want = [ready("all", lane), ready("all", other)];
    want.sort_by_key(|effect| match effect {
        Effect::LaneReady { lane, .. } => *lane,
        Effect::QueueGone { .. } => panic!(),
    });
    assert_eq!(driver.effects, want);
    driver.register("new", GroupStart::Registration);
    assert_eq!(driver.effects, []);
    let starts = vec![(lane, Offset(3)), (other, Offset(99)), (LaneId(5), Offset(1))];
    driver.register_at(QUEUE, "at", GroupStart::At(WallTime(1)), starts);
    let cursors = |group| [lane, other].map(|lane| driver.machine.group(lane, group).unwrap().cursor.0);
    assert_eq!(
        (cursors("all"), cursors("new"), cursors("at")),
        ([0, 0], [4, 2], [3, 2])
    );
}

#[test]
fn time_start_of_a_lane_not_named_is_its_beginning() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 4);
    driver.register_at(QUEUE, "at", GroupStart::At(WallTime(1)), vec![]);
    assert_eq!(driver.machine.group(lane, "at").unwrap().cursor, Offset(0));
}

#[test]
fn first_registration_wins() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 4);
    driver.register("new", GroupStart::Registration);
    let version = driver.machine.catalog_version();
    driver.register("new", GroupStart::Beginning);
    assert_eq!(driver.machine.group(lane, "new").unwrap().cursor, Offset(4));
    assert_eq!(driver.machine.catalog_version(), CatalogVersion(version.0 + 1));
    let rows: Vec<GroupStart> = driver.machine.groups_of(QUEUE).map(|row| row.start).collect();
    assert_eq!(rows, [GroupStart::Beginning, GroupStart::Registration]);
}

#[test]
fn old_registration_is_ignored() {
    let mut driver = Driver::new();
    let version = driver.machine.catalog_version();
    let group = GroupRow {
        name: "x".into(),
        start: GroupStart::Beginning,
        registered: WallTime(1),
        version,
    };
    let register = RegisterGroup {
        queue: queue_row(7, version),
        group,
        starts: vec![],
    };
    assert_eq!(
        driver.apply_idle(Command::RegisterGroup(register)),
        Reply::CatalogTaken
    );
    assert_eq!(driver.machine.queue(QueueId(7)), None);
}

#[test]
fn registration_brings_an_unknown_queue() {
    let mut driver = Driver::empty(Limits::default());
    driver.register("early", GroupStart::Registration);
    assert!(driver.machine.has_group(QUEUE, "early"));
    let lane = driver.push("a", 1);
    assert_eq!(driver.effects, [ready("early", lane)]);
}

#[test]
fn deleted_queue_is_gone_at_once() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 3);
    driver.claim(1, 1, 1);
    driver.delete_queue(QUEUE);
    assert_eq!(driver.effects, [Effect::QueueGone { queue: QUEUE }]);
    let machine = &driver.machine;
    assert_eq!(
        (
            machine.queue(QUEUE),
            machine.lane(lane),
            machine.group(lane, GROUP)
        ),
        (None, None, None)
    );
    assert_eq!(
        (machine.lane_id(QUEUE, "a"), machine.lanes_of(QUEUE).count()),
        (None, 0)
    );
    assert!(!machine.has_group(QUEUE, GROUP));
    assert!(!machine.claimable(QUEUE, GROUP, None, machine.stamps()));
    assert_eq!(machine.queue_counts(QUEUE), Default::default());
    assert_eq!(machine.lane_counts(lane), Default::default());
    assert_eq!(machine.dump().lanes, []);
    assert!(machine.sweepable());
    assert_eq!(machine.heads().collect::<Vec<_>>(), [(lane, Offset(0))]);
}

fn push_with_rider(rider: QueueRow) -> Command {
    Command::Push(Push {
        queue: rider.id,
        rider: Some(rider),
        items: vec![PushItem::Store],
        ..push_to("a")
    })
}

#[track_caller]
fn has_tombstone(driver: &Driver) -> bool {
    driver.machine.tables.tombstones.contains_key(&QUEUE)
}

#[test]
fn tombstone_stands_until_the_last_row_is_swept() {
    let mut driver = Driver::new();
    driver.push("a", 3);
    driver.push("b", 3);
    driver.delete_queue(QUEUE);
    for more in [true, false] {
        assert!(has_tombstone(&driver));
        assert_eq!(
            driver.apply(Command::Sweep(Sweep { rows_max: 1 })),
            Reply::Swept { more }
        );
    }
    assert!(!has_tombstone(&driver));
    let keys: Vec<_> = driver.machine.tables.keys_after(None).collect();
    let is_slot_or_meta = |key: &RowKey| matches!(key, RowKey::Meta | RowKey::Slot(_));
    assert!(keys.iter().all(is_slot_or_meta), "{keys:?}");
}

#[test]
fn queue_without_rows_leaves_no_tombstone() {
    let mut driver = Driver::new();
    driver.delete_queue(QUEUE);
    assert!(!has_tombstone(&driver));
    driver.delete_queue(QueueId(44)); // never seen here
    assert_eq!(driver.machine.tables.tombstones.len(), 0);
    assert_eq!(driver.machine.catalog_version(), CatalogVersion(4));
}

#[test]
fn late_push_to_a_deleted_queue_is_refused_before_and_after_the_sweep() {
    let mut driver = Driver::new();
    driver.push("a", 1);
    let born = driver.machine.queue(QUEUE).unwrap().clone();
    driver.put_queue(1, |settings| settings.retry_limit = 7);
    let newest = driver.machine.queue(QUEUE).unwrap().clone();
    driver.delete_queue(QUEUE);
    let never_seen = queue_row(5, CatalogVersion(5));
    driver.put_queue(8, |_| {});
    driver.delete_queue(QueueId(5)); // all that this partition ever hears of it
    let refused = Reply::Refused(Refusal::QueueGone);
    for _ in ["before", "after"] {
        for rider in [&born, &newest, &never_seen] {
            assert_eq!(driver.apply_idle(push_with_rider(rider.clone())), refused);
        }
        driver.apply(Command::Sweep(Sweep { rows_max: 9 }));
        assert!(!driver.machine.sweepable());
    }
    assert_eq!(driver.machine.queue_ids().collect::<Vec<_>>(), [QueueId(8)]);
}

#[test]
fn row_of_an_old_queue_that_changed_lately_is_taken() {
    let mut driver = Driver::empty(Limits::default());
    // Queue 1 was born at 1 and changed at 9; of both this partition learns when it is past the birth.
    driver.put_queue(2, |_| {});
    driver.put_queue(3, |_| {});
    let outdated = queue_row(1, CatalogVersion(1));
    assert_eq!(
        driver.apply_idle(push_with_rider(outdated)),
        Reply::Refused(Refusal::QueueGone)
    );
    let newest = queue_row(1, CatalogVersion(9));
    let group = GroupRow {
        name: GROUP.to_owned(),
        start: GroupStart::Beginning,
        registered: WallTime(5),
        version: CatalogVersion(3),
    };
    let register = RegisterGroup {
        queue: newest.clone(),
        group,
        starts: vec![],
    };
    driver.apply(Command::RegisterGroup(register));
    assert!(driver.machine.has_group(QUEUE, GROUP));
    assert!(matches!(driver.apply(push_with_rider(newest)), Reply::Pushed(_)));
}

#[test]
fn lapsing_leases_and_ripening_lanes_of_deleted_queues_are_forgotten() {
    let mut driver = Driver::with_limits(Limits {
        expire_max: 1,
        ..Limits::default()
    });
    driver.put_queue(2, |settings| settings.delayed_processing_seconds = 1);
    let push = Push {
        queue: QueueId(2),
        items: vec![PushItem::Store],
        ..push_to("a")
    };
    driver.register_at(QueueId(2), GROUP, GroupStart::Beginning, vec![]);
    driver.apply(Command::Push(push));
    driver.push("a", 1);
    driver.push("b", 1);
    driver.claim(1, 2, 9);
    driver.delete_queue(QUEUE);
    driver.delete_queue(QueueId(2));
    assert_eq!(
        (
            driver.machine.next_lease_deadline(),
            driver.machine.next_ripening()
        ),
        (None, None)
    );
    driver.wait_ms(20_000);
    assert_eq!(driver.begin(), []);
    assert_eq!(driver.machine.totals().leases, 0);
    assert_eq!(driver.machine.totals().expired_leases, 0);
}

#[test]
fn sweep_drops_so_many_rows_at_a_time() {
    let mut driver = Driver::new();
    let first = driver.push("a", 2);
    let second = driver.push("b", 1);
    driver.claim_lane(1, first);
    driver.ack(first, Some(1), &[(AckStatus::DeadLetter, 0)]);
    driver.claim_lane(2, first);
    driver.put_queue(2, |_| {});
    assert_eq!(
        driver.apply_idle(Command::Sweep(Sweep { rows_max: 9 })),
        Reply::Swept { more: false }
    );
    driver.delete_queue(QUEUE);
    let mut dropped = Vec::new();
    for rows_max in [0, 1, 1, 9] {
        let more = rows_max < 9;
        let reply = driver.apply(Command::Sweep(Sweep { rows_max }));
        assert_eq!(reply, Reply::Swept { more });
        assert!(driver.changes.len() <= usize::try_from(rows_max).unwrap());
        dropped.extend(driver.changes.clone());
    }
    let mut want = [first, second];
    want.sort();
    assert_eq!(dropped, want.map(|lane| StoreChange::LaneDropped { lane }));
    let totals = driver.machine.totals();
    assert_eq!((totals.lanes, totals.leases, totals.dead_letters), (0, 0, 0));
    assert_eq!(driver.machine.pins().count(), 0);
    assert_eq!(driver.machine.queue_ids().collect::<Vec<_>>(), [QueueId(2)]);
}
