use std::collections::BTreeMap;

use super::super::LoadError;
use super::*;
use crate::rows::{Row, RowKey, Standing};

type Rows = BTreeMap<RowKey, Row>;

/// Takes a checkpoint in small steps, runs `between` after each, and adds it to `rows` as storage would.
pub(super) fn cut(
    machine: &mut PartitionMachine,
    full: bool,
    rows_max: usize,
    rows: &mut Rows,
    between: &mut dyn FnMut(&mut PartitionMachine),
) {
    machine.begin_checkpoint(full);
    if full {
        rows.clear();
    }
    loop {
        let step = machine.checkpoint_step(rows_max);
        assert!(step.rows.len() <= rows_max);
        for (key, row) in step.rows {
            match row {
                Some(row) => rows.insert(key, row),
                None => rows.remove(&key),
            };
        }
        if step.done {
            return;
        }
        between(machine);
    }
}

pub(super) fn restore(rows: &Rows, limits: Limits) -> Result<PartitionMachine, LoadError> {
    let mut machine = PartitionMachine::new(PARTITION, limits);
    for (key, row) in rows {
        machine.load_row(*key, Some(row.clone()));
    }
    machine.finish_load()?;
    Ok(machine)
}

fn busy() -> Driver {
    let mut driver = Driver::new();
    driver.register("h", GroupStart::Registration);
    driver.put_queue(2, |settings| settings.delayed_processing_seconds = 5);
    driver.register_at(QueueId(2), GROUP, GroupStart::Beginning, vec![]);
    for at in 0..5 {
        driver.push(&format!("n{at}"), 3);
        let push = push_to(&format!("m{at}"));
        let items = vec![PushItem::Store; 2];
        driver.apply(Command::Push(Push {
            queue: QueueId(2),
            items,
            request: request("r", at),
            ..push
        }));
    }
    driver.claim(1, 2, 5);
    let lane = driver.machine.lane_id(QUEUE, "n0").unwrap();
    driver.ack(lane, Some(1), &[(AckStatus::DeadLetter, 1)]);
    driver.put_queue(3, |_| {});
    let push = Push {
        queue: QueueId(3),
        items: vec![PushItem::Store],
        ..push_to("dead")
    };
    driver.apply(Command::Push(push));
    driver.delete_queue(QueueId(3));
    driver
}

#[test]
fn restored_machine_is_the_same() {
    let mut driver = busy();
    let mut rows = Rows::new();
    cut(&mut driver.machine, true, 1000, &mut rows, &mut |_| {});
    let restored = restore(&rows, Limits::default()).unwrap();
    assert_eq!(restored.digest(), driver.machine.digest());
    assert_eq!(restored.dump(), driver.machine.dump());
    assert_eq!(restored.sweepable(), driver.machine.sweepable());
}

#[test]
fn ready_order_survives() {
    let mut driver = Driver::new();
    for name in ["c", "a", "d", "b"] {
        driver.push(name, 1);
    }
    let mut rows = Rows::new();
    cut(&mut driver.machine, true, 2, &mut rows, &mut |_| {});
    driver.machine = restore(&rows, Limits::default()).unwrap();
    let names: Vec<String> = driver.claim(1, 9, 9).into_iter().map(|lane| lane.0).collect();
    assert_eq!(names, ["c", "a", "d", "b"]);
}

#[test]
fn delta_holds_only_what_changed() {
    let mut driver = busy();
    let mut rows = Rows::new();
    cut(&mut driver.machine, true, 1000, &mut rows, &mut |_| {});
    let lane = driver.push("n3", 1);
    driver.machine.begin_checkpoint(false);
    let step = driver.machine.checkpoint_step(1000);
    let keys: Vec<RowKey> = step.rows.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, [RowKey::Meta, RowKey::Lane(lane)]);
}

#[test]
fn deleted_rows_are_in_the_delta() {
    let mut driver = busy();
    let mut rows = Rows::new();
    cut(&mut driver.machine, true, 1000, &mut rows, &mut |_| {});
    driver.delete_queue(QUEUE);
    driver.apply(Command::Sweep(Sweep { rows_max: 100 }));
    cut(&mut driver.machine, false, 1, &mut rows, &mut |_| {});
    let restored = restore(&rows, Limits::default()).unwrap();
    assert_eq!(restored.digest(), driver.machine.digest());
    assert_eq!(restored.totals().dead_letters, 0);
}

#[test]
fn abandoned_checkpoint_is_made_good_by_the_next() {
    for steps in 0..20 {
        let mut driver = busy();
        let mut rows = Rows::new();
        cut(&mut driver.machine, true, 1000, &mut rows, &mut |_| {});
        driver.push("n3", 1);
        driver.machine.begin_checkpoint(false);
        for _ in 0..steps {
            driver.machine.checkpoint_step(1); // as if its file could not be written
        }
        driver.push("n4", 1);
        driver.machine.abandon_checkpoint();
        cut(&mut driver.machine, false, 1000, &mut rows, &mut |_| {});
        assert_eq!(
            restore(&rows, Limits::default()).unwrap().digest(),
            driver.machine.digest()
        );
    }
}

#[test]
fn loading_nothing_gives_a_new_machine() {
    let machine = restore(&Rows::new(), Limits::default()).unwrap();
    assert_eq!(
        machine.digest(),
        PartitionMachine::new(PARTITION, Limits::default()).digest()
    );
}

/// A change to sound rows must be refused with an error that `is_it`.
#[track_caller]
fn check_refused(change: impl FnOnce(&mut Rows), is_it: impl FnOnce(&LoadError) -> bool) {
    let mut driver = busy();
    let mut rows = Rows::new();
    cut(&mut driver.machine, true, 1000, &mut rows, &mut |_| {});
    change(&mut rows);
    let error = restore(&rows, Limits::default()).unwrap_err();
    assert!(is_it(&error), "{error}");
}

fn change_lanes(change: impl Fn(&mut crate::rows::LaneRow)) -> impl FnOnce(&mut Rows) {
    move |rows| {
        for row in rows.values_mut() {
            if let Row::Lane(lane) = row
                && !lane.groups.is_empty()
            {
                change(lane);
            }
        }
    }
}

#[test]
fn contradictory_rows_are_refused() {
    check_refused(
        |rows| drop(rows.remove(&RowKey::Meta)),
        |error| matches!(error, LoadError::MetaMissing),
    );
    check_refused(
        |rows| {
            let meta = rows[&RowKey::Meta].clone();
            rows.insert(RowKey::Queue(QUEUE), meta);
        },
        |error| {
            matches!(
                error,
                LoadError::Misfit {
                    key: RowKey::Queue(_)
                }
            )
        },
    );
    check_refused(
        |rows| {
            let Some(Row::Meta(meta)) = rows.get_mut(&RowKey::Meta) else {
                panic!()
            };
            meta.partition = PartitionId(9);
        },
        |error| {
            matches!(
                error,
                LoadError::OtherPartition {
                    found: PartitionId(9)
                }
            )
        },
    );
}

#[test]
fn contradictory_lanes_are_refused() {
    let is_lane = |error: &LoadError| matches!(error, LoadError::Lane { .. });
    check_refused(
        |rows| rows.retain(|key, _| !matches!(key, RowKey::Slot(_))),
        is_lane,
    );
    check_refused(change_lanes(|lane| lane.queue = QueueId(77)), is_lane);
    check_refused(change_lanes(|lane| lane.name = "same".into()), is_lane);
    check_refused(change_lanes(|lane| lane.head = Offset(50)), is_lane);
    check_refused(change_lanes(|lane| lane.groups = Box::default()), is_lane);
    check_refused(change_lanes(|lane| lane.groups[0].cursor = Offset(50)), is_lane);
    check_refused(
        change_lanes(|lane| lane.groups[0].standing = Standing::Ready(1 << 40)),
        is_lane,
    );
}

#[test]
fn contradictory_queues_and_counters_are_refused() {
    let is_queue = |error: &LoadError| matches!(error, LoadError::Queue { .. });
    check_refused(|rows| drop(rows.remove(&RowKey::Group(QUEUE, 0))), is_queue);
    check_refused(|rows| drop(rows.remove(&RowKey::Queue(QUEUE))), is_queue);
    check_refused(
        |rows| {
            let row = Row::Tombstone(crate::rows::TombstoneRow {
                version: CatalogVersion(1),
            });
            rows.insert(RowKey::Tombstone(QUEUE), row);
        },
        is_queue,
    );
    let rewind = |rows: &mut Rows, change: &dyn Fn(&mut crate::rows::MetaRow)| {
        let Some(Row::Meta(meta)) = rows.get_mut(&RowKey::Meta) else {
            panic!()
        };
        change(meta);
    };
    check_refused(
        |rows| rewind(rows, &|meta| meta.dead_letter_next = 0),
        |error| matches!(error, LoadError::DeadLetter { .. }),
    );
    check_refused(
        |rows| rewind(rows, &|meta| meta.kept_next = 0),
        |error| matches!(error, LoadError::KeptAnswer { .. }),
    );
}
