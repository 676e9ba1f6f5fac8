use super::*;

/// A lane of two messages whose first is a dead letter, of one or two groups.
fn filed(groups: &[&str]) -> (Driver, LaneId) {
    let mut driver = Driver::new();
    let lane = driver.push("a", 2);
    for (id, group) in (1..).zip(groups) {
        if *group != GROUP {
            driver.register(group, GroupStart::Beginning);
        }
        driver.claim_with(Claim {
            group: (*group).to_owned(),
            messages_max: 1,
            ..claim_by(id)
        });
        let ack = ack_of(lane, Some(id), &[(AckStatus::DeadLetter, 0)]);
        driver.ack_with(Ack {
            group: (*group).to_owned(),
            ..ack
        });
    }
    (driver, lane)
}

fn replay(id: DeadLetterId) -> ReplayDeadLetter {
    ReplayDeadLetter {
        request: None,
        id,
        block: Block { at: 4, bytes: 5 },
    }
}

#[test]
fn replay_moves_the_message_to_the_tail() {
    let (mut driver, lane) = filed(&[GROUP]);
    driver.claim(9, 1, 9);
    driver.ack(lane, Some(9), &[(AckStatus::Completed, 1)]);
    let row = driver.machine.dead_letters(None).next().unwrap().clone();
    let reply = driver.apply(Command::ReplayDeadLetter(replay(row.id)));
    let wall = driver.machine.stamps().wall;
    assert_eq!(
        reply,
        Reply::Replayed(Replayed {
            lane,
            offset: Offset(2),
            wall,
            dead_letter: row.clone()
        })
    );
    let block = Block { at: 4, bytes: 5 };
    assert_eq!(
        driver.changes,
        [
            StoreChange::Stored {
                queue: QUEUE,
                lane,
                offset_first: Offset(2),
                count: 1,
                block,
                dedup: false
            },
            StoreChange::Unpinned {
                lane,
                offset: Offset(0)
            },
        ]
    );
    assert_eq!(driver.effects, [ready(GROUP, lane)]);
    assert_eq!(driver.machine.dead_letter(row.id), None);
    assert_eq!(driver.claim(10, 1, 9), [("a".to_owned(), 2, 3, 1)]);
    let again = driver.apply_idle(Command::ReplayDeadLetter(replay(row.id)));
    assert_eq!(again, Reply::Refused(Refusal::DeadLetterGone));
}

#[test]
fn message_stays_pinned_while_another_group_holds_it() {
    let (mut driver, lane) = filed(&[GROUP, "h"]);
    let ids: Vec<DeadLetterId> = driver.machine.dead_letters(None).map(|row| row.id).collect();
    assert_eq!(
        ids,
        [DeadLetterId::new(PARTITION, 0), DeadLetterId::new(PARTITION, 1)]
    );
    let delete = |id| Command::DeleteDeadLetter(DeleteDeadLetter { request: None, id });
    assert_eq!(driver.apply(delete(ids[0])), Reply::DeadLetterDeleted);
    assert_eq!(driver.changes, []);
    assert_eq!(driver.apply(delete(ids[1])), Reply::DeadLetterDeleted);
    assert_eq!(
        driver.changes,
        [StoreChange::Unpinned {
            lane,
            offset: Offset(0)
        }]
    );
    assert_eq!(
        driver.apply_idle(delete(ids[1])),
        Reply::Refused(Refusal::DeadLetterGone)
    );
}

#[test]
fn ids_are_not_reused() {
    let (mut driver, lane) = filed(&[GROUP]);
    let first = driver.machine.dead_letters(None).next().unwrap().id;
    driver.apply(Command::DeleteDeadLetter(DeleteDeadLetter {
        request: None,
        id: first,
    }));
    driver.claim_lane(5, lane);
    driver.ack(lane, Some(5), &[(AckStatus::DeadLetter, 1)]);
    let second = driver.machine.dead_letters(None).next().unwrap().id;
    assert_eq!(second, DeadLetterId::new(PARTITION, 1));
}

#[test]
fn dead_letters_are_listed_by_queue_and_lane() {
    let (mut driver, lane) = filed(&[GROUP, "h"]);
    driver.claim_lane(5, lane);
    driver.ack(lane, Some(5), &[(AckStatus::DeadLetter, 1)]);
    let offsets = |rows: Vec<&DeadLetter>| rows.iter().map(|row| row.offset.0).collect::<Vec<_>>();
    assert_eq!(
        offsets(driver.machine.dead_letters(Some(QUEUE)).collect()),
        [0, 0, 1]
    );
    assert_eq!(
        offsets(driver.machine.dead_letters(None).rev().collect()),
        [1, 0, 0]
    );
    assert_eq!(
        offsets(driver.machine.dead_letters_of_lane(lane).collect()),
        [0, 0, 1]
    );
    assert_eq!(driver.machine.dead_letters(Some(QueueId(2))).count(), 0);
    assert_eq!(driver.machine.dead_letters_of_lane(LaneId(1)).count(), 0);
    assert_eq!(driver.machine.lane_counts(lane).dead_letters, 3);
    assert_eq!(driver.machine.queue_counts(QUEUE).dead_letters, 3);
    assert_eq!(driver.machine.pins().count(), 3);
}

#[test]
fn dead_letters_go_with_their_queue() {
    let (mut driver, _) = filed(&[GROUP]);
    let id = driver.machine.dead_letters(None).next().unwrap().id;
    driver.delete_queue(QUEUE);
    assert_eq!(driver.machine.dead_letter(id), None);
    assert_eq!(driver.machine.dead_letters(None).count(), 0);
    let refused = Reply::Refused(Refusal::DeadLetterGone);
    assert_eq!(driver.apply_idle(Command::ReplayDeadLetter(replay(id))), refused);
    let delete = DeleteDeadLetter { request: None, id };
    assert_eq!(driver.apply_idle(Command::DeleteDeadLetter(delete)), refused);
}

#[test]
fn dead_letter_survives_retention() {
    let (mut driver, lane) = filed(&[GROUP]);
    let trim = Trim {
        queue: QUEUE,
        completed_only: false,
        lanes: vec![(lane, Offset(2))],
    };
    driver.apply(Command::Trim(trim));
    assert_eq!(
        driver.changes,
        [StoreChange::HeadMoved {
            lane,
            head: Offset(2)
        }]
    );
    let id = driver.machine.dead_letters(None).next().unwrap().id;
    assert!(matches!(
        driver.apply(Command::ReplayDeadLetter(replay(id))),
        Reply::Replayed(_)
    ));
    assert_eq!(driver.claim(7, 1, 9), [("a".to_owned(), 2, 3, 1)]);
}
