use super::*;

fn push_request(id: &str, content: u64) -> Push {
    Push {
        request: request(id, content),
        items: vec![PushItem::Store],
        ..push_to("a")
    }
}

#[test]
fn repeated_request_gets_its_answer_and_changes_nothing() {
    let mut driver = Driver::new();
    let reply = driver.apply(Command::Push(push_request("r", 1)));
    assert_eq!(driver.apply_idle(Command::Push(push_request("r", 1))), reply);
    assert_eq!(
        driver.machine.kept_answer(&request("r", 1).unwrap()),
        Some(&reply)
    );
    let lane = driver.machine.lane_id(QUEUE, "a").unwrap();
    assert_eq!(driver.machine.lane(lane).unwrap().tail, Offset(1));
    let part = RequestKey {
        part: 1,
        ..request("r", 1).unwrap()
    };
    assert_eq!(driver.machine.kept_answer(&part), None);
}

#[test]
fn reused_request_id_is_refused() {
    let mut driver = Driver::new();
    driver.apply(Command::Push(push_request("r", 1)));
    let refused = Reply::Refused(Refusal::RequestIdReused);
    assert_eq!(driver.apply_idle(Command::Push(push_request("r", 2))), refused);
    assert_eq!(
        driver.machine.kept_answer(&request("r", 2).unwrap()),
        Some(&refused)
    );
    let extend = Extend {
        request: request("r", 3),
        lease_id: LeaseId(1),
        lease_ms: 1,
    };
    assert_eq!(driver.apply_idle(Command::Extend(extend)), refused);
}

#[test]
fn refused_request_may_succeed_when_repeated() {
    let mut driver = Driver::new();
    let gone = Push {
        queue: QueueId(9),
        ..push_request("r", 1)
    };
    let refused = Reply::Refused(Refusal::QueueGone);
    assert_eq!(driver.apply_idle(Command::Push(gone.clone())), refused);
    driver.put_queue(9, |_| {});
    let pushed = driver.apply(Command::Push(gone.clone()));
    assert!(matches!(pushed, Reply::Pushed(_)));
    assert_eq!(driver.apply_idle(Command::Push(gone)), pushed);
    let probe = Push {
        items: vec![],
        ..push_request("s", 1)
    };
    let outdated = Reply::Refused(Refusal::PlanOutdated);
    assert_eq!(driver.apply_idle(Command::Push(probe)), outdated);
    assert_eq!(driver.machine.kept_answer(&request("s", 1).unwrap()), None);
}

#[test]
fn answers_of_every_kind_are_kept() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 3);
    driver.claim_lane(1, lane);
    let extend = Extend {
        request: request("extend", 1),
        lease_id: LeaseId(1),
        lease_ms: 90_000,
    };
    let ack = Ack {
        request: request("ack", 1),
        ..ack_of(lane, Some(1), &[(AckStatus::DeadLetter, 0)])
    };
    let dead = DeadLetterId::new(PARTITION, 0);
    let replay = ReplayDeadLetter {
        request: request("replay", 1),
        id: dead,
        block: Block::default(),
    };
    let delete = DeleteDeadLetter {
        request: request("delete", 1),
        id: dead,
    };
    for command in [
        Command::Extend(extend),
        Command::Ack(ack),
        Command::ReplayDeadLetter(replay),
        Command::DeleteDeadLetter(delete),
    ] {
        let reply = driver.apply(command.clone());
        driver.wait_ms(1);
        assert_eq!(driver.apply_idle(command), reply);
    }
}

#[test]
fn answers_go_after_their_time() {
    let mut driver = Driver::with_limits(Limits {
        kept_answer_ms: 1_000,
        ..Limits::default()
    });
    driver.apply(Command::Push(push_request("r", 1)));
    let lane = driver.machine.lane_id(QUEUE, "a").unwrap();
    driver.claim_lane(1, lane);
    let ack = ack_of(lane, Some(1), &[(AckStatus::Retry, 0)]);
    let acked = driver.ack_with(ack.clone());
    driver.wait_ms(999);
    assert_eq!(driver.ack_with(ack.clone()), acked);
    assert_eq!(driver.machine.totals().kept_answers, 2);
    driver.wait_ms(1);
    assert_eq!(driver.ack_with(ack).items, [AckedItem::LeaseInvalid]);
    assert_eq!(driver.machine.kept_answer(&request("r", 1).unwrap()), None);
    assert_eq!(driver.machine.totals().kept_answers, 0);
}

#[test]
fn oldest_answers_make_room() {
    let mut driver = Driver::with_limits(Limits {
        kept_answers_max: 2,
        ..Limits::default()
    });
    for id in ["1", "2", "3"] {
        driver.apply(Command::Push(push_request(id, 1)));
    }
    let kept = ["1", "2", "3"].map(|id| driver.machine.kept_answer(&request(id, 1).unwrap()).is_some());
    assert_eq!(kept, [false, true, true]);
    let lane = driver.machine.lane_id(QUEUE, "a").unwrap();
    for id in 1..=3 {
        driver.claim_lane(id, lane);
        driver.ack(lane, Some(id), &[(AckStatus::Retry, 0)]);
    }
    let answers = [1, 2, 3].map(|id| driver.ack(lane, Some(id), &[(AckStatus::Retry, 0)]).items[0]);
    assert_eq!(
        answers,
        [AckedItem::LeaseInvalid, AckedItem::Done, AckedItem::Done]
    );
}

#[test]
fn ack_that_keeps_its_lease_is_not_kept_for_it() {
    let mut driver = Driver::new();
    let lane = driver.push("a", 3);
    driver.claim_lane(1, lane);
    assert_eq!(
        driver.ack(lane, Some(1), &[(AckStatus::Completed, 0)]).items,
        [AckedItem::Done]
    );
    assert_eq!(
        driver.ack(lane, Some(1), &[(AckStatus::Completed, 0)]).items,
        [AckedItem::Noop]
    );
    assert_eq!(driver.machine.totals().kept_answers, 0);
}
