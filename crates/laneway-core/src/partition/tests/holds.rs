use super::*;

fn held(change: impl FnOnce(&mut QueueSettings)) -> Driver {
    let mut driver = Driver::new();
    driver.put_queue(1, change);
    driver
}

fn delayed(seconds: u64) -> Driver {
    held(|settings| settings.delayed_processing_seconds = seconds)
}

#[test]
fn delayed_message_is_held_until_its_time() {
    let mut driver = delayed(5);
    let lane = driver.push("a", 1);
    assert_eq!(driver.effects, []);
    assert_eq!(driver.claim(1, 1, 9), []);
    let due = driver.machine.lane(lane).unwrap().newest.plus_seconds(5);
    assert_eq!(driver.machine.next_ripening(), Some(due));
    let soon = Stamps {
        wall: WallTime(due.0 - 1),
        ..driver.machine.stamps()
    };
    assert!(!driver.machine.claimable(QUEUE, GROUP, None, soon));
    let then = Stamps { wall: due, ..soon };
    assert!(driver.machine.claimable(QUEUE, GROUP, None, then));
    assert!(driver.machine.claimable(QUEUE, GROUP, Some(lane), then));
    driver.wall_us = due.0;
    assert_eq!(driver.begin(), [ready(GROUP, lane)]);
    assert_eq!(driver.machine.next_ripening(), None);
    assert_eq!(driver.claim(1, 1, 9), [("a".to_owned(), 0, 1, 1)]);
}

#[test]
fn claim_ends_where_delayed_messages_begin() {
    let mut driver = delayed(5);
    let lane = driver.push("a", 2);
    driver.wait_ms(3_000);
    driver.push("a", 2);
    driver.wait_ms(2_000);
    assert_eq!(driver.claim(1, 1, 9), [("a".to_owned(), 0, 2, 1)]);
    driver.ack(lane, Some(1), &[(AckStatus::Completed, 1)]);
    assert_eq!(driver.effects, []);
    driver.wait_ms(3_000);
    assert_eq!(driver.begin(), [ready(GROUP, lane)]);
    assert_eq!(driver.claim(2, 1, 9), [("a".to_owned(), 2, 4, 1)]);
}

#[test]
fn later_pushes_do_not_hold_back_ripe_messages() {
    let mut driver = delayed(5);
    driver.push("a", 1);
    driver.wait_ms(6_000);
    driver.push("a", 1);
    assert_eq!(driver.claim(1, 1, 9), [("a".to_owned(), 0, 1, 1)]);
}

#[test]
fn stamps_are_kept_for_unripe_messages_only() {
    let mut driver = delayed(5);
    let lane = driver.push("a", 1);
    let runs = |driver: &Driver| {
        driver.machine.tables.lanes[&lane]
            .unripe
            .as_ref()
            .unwrap()
            .runs
            .len()
    };
    for _ in 0..20 {
        driver.wait_ms(1_000);
        driver.push("a", 1);
        assert!(runs(&driver) <= 5);
    }
    driver.wait_ms(5_000);
    driver.push("a", 1);
    assert_eq!(runs(&driver), 1);
}

#[test]
fn window_holds_a_lane_until_it_is_quiet() {
    let mut driver = held(|settings| settings.window_buffer_seconds = 5);
    let lane = driver.push("a", 1);
    driver.wait_ms(3_000);
    driver.push("a", 1);
    driver.wait_ms(3_000);
    assert_eq!(driver.claim(1, 1, 9), []);
    driver.wait_ms(2_000);
    assert_eq!(driver.begin(), [ready(GROUP, lane)]);
    driver.push("a", 1); // not quiet any more
    assert_eq!(driver.claim(1, 1, 9), []);
    driver.wait_ms(5_000);
    assert_eq!(driver.claim(1, 1, 9), [("a".to_owned(), 0, 3, 1)]);
}

#[test]
fn longer_of_delay_and_window_decides() {
    for (delay, window) in [(5, 2), (2, 5)] {
        let mut driver = held(|settings| {
            settings.delayed_processing_seconds = delay;
            settings.window_buffer_seconds = window;
        });
        driver.push("a", 1);
        driver.wait_ms(4_999);
        assert_eq!(driver.claim(1, 1, 9), []);
        driver.wait_ms(1);
        assert_eq!(driver.claim(1, 1, 9).len(), 1);
    }
}

#[test]
fn longer_delay_holds_what_was_not_ripe_yet() {
    let mut driver = delayed(5);
    let lane = driver.push("a", 1);
    driver.wait_ms(2_000);
    driver.push("a", 1);
    driver.wait_ms(3_000);
    driver.put_queue(1, |settings| settings.delayed_processing_seconds = 60);
    assert_eq!(driver.machine.deliverable_messages(lane, GROUP), 1);
    driver.wait_ms(57_000);
    driver.apply(Command::Tick);
    assert_eq!(driver.machine.deliverable_messages(lane, GROUP), 2);
}

#[test]
fn shorter_delay_ripens_at_once() {
    let mut driver = delayed(60);
    let lane = driver.push("a", 1);
    driver.wait_ms(5_000);
    driver.put_queue(1, |settings| settings.delayed_processing_seconds = 5);
    assert_eq!(driver.effects, [ready(GROUP, lane)]);
    assert_eq!(driver.claim(1, 1, 9).len(), 1);
}

#[test]
fn delay_switched_on_does_not_hold_older_messages() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 2);
    driver.put_queue(1, |settings| settings.delayed_processing_seconds = 5);
    driver.push("a", 1);
    assert_eq!(driver.machine.deliverable_messages(lane, GROUP), 2);
    driver.put_queue(1, |_| {});
    assert_eq!(driver.machine.deliverable_messages(lane, GROUP), 3);
    driver.put_queue(1, |settings| settings.delayed_processing_seconds = 5);
    assert_eq!(driver.machine.deliverable_messages(lane, GROUP), 3); // their stamps are forgotten
}

#[test]
fn window_switched_on_takes_young_lanes_out_of_the_line() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 1);
    driver.put_queue(1, |settings| settings.window_buffer_seconds = 5);
    assert_eq!(driver.claim(1, 1, 9), []);
    driver.put_queue(1, |_| {});
    assert_eq!(driver.effects, [ready(GROUP, lane)]);
}

#[test]
fn settings_changes_make_lanes_ready_in_lane_order() {
    let mut driver = delayed(60);
    let mut lanes: Vec<LaneId> = (0..9).map(|at| driver.push(&format!("n{at}"), 1)).collect();
    driver.put_queue(1, |_| {});
    lanes.sort();
    let want: Vec<Effect> = lanes.iter().map(|lane| ready(GROUP, *lane)).collect();
    assert_eq!(driver.effects, want);
}

#[test]
fn ripening_is_bounded_and_goes_by_time() {
    let mut driver = Driver::with_limits(Limits {
        expire_max: 1,
        ..Limits::default()
    });
    driver.put_queue(1, |settings| settings.delayed_processing_seconds = 5);
    let first = driver.push("b", 1);
    driver.wait_ms(1);
    let second = driver.push("a", 1);
    driver.wait_ms(6_000);
    assert_eq!(driver.begin(), [ready(GROUP, first)]);
    driver.claim_lane(1, first);
    assert!(driver.claimable() || driver.machine.next_ripening().is_none());
    driver.begin();
    driver.claim_lane(2, second);
}

#[test]
fn ripe_lane_that_was_not_swept_can_be_claimed_by_name_only() {
    let mut driver = Driver::with_limits(Limits {
        expire_max: 0,
        ..Limits::default()
    });
    driver.put_queue(1, |settings| settings.delayed_processing_seconds = 5);
    let lane = driver.push("a", 1);
    driver.wait_ms(5_000);
    assert_eq!(driver.claim(1, 1, 9), []);
    driver.claim_lane(2, lane);
    assert_eq!(driver.machine.next_ripening(), None);
}

#[test]
fn bare_ack_passes_messages_that_are_held() {
    let mut driver = delayed(5);
    let lane = driver.push("a", 2);
    driver.ack(lane, None, &[(AckStatus::Completed, 1)]);
    assert_eq!(driver.state(lane).0, 2);
    assert_eq!(driver.machine.next_ripening(), None);
}

#[test]
fn absurd_delay_holds_for_ever() {
    let mut driver = delayed(u64::MAX);
    driver.push("a", 1);
    driver.wait_ms(1_000_000_000);
    assert_eq!(driver.claim(1, 1, 9), []);
}

#[test]
fn replayed_dead_letter_is_delayed_too() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 1);
    driver.claim_lane(1, lane);
    driver.ack(lane, Some(1), &[(AckStatus::DeadLetter, 0)]);
    driver.put_queue(1, |settings| settings.delayed_processing_seconds = 5);
    let id = driver.machine.dead_letters(None).next().unwrap().id;
    driver.apply(Command::ReplayDeadLetter(ReplayDeadLetter {
        request: None,
        id,
        block: Block::default(),
    }));
    assert_eq!(driver.claim(2, 1, 1), []);
    driver.wait_ms(5_000);
    assert_eq!(driver.claim(2, 1, 1).len(), 1);
}
