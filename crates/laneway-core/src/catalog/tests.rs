use std::collections::BTreeMap;

use super::*;
use crate::settings::GroupStart;
use crate::time::{LeaseTime, WallTime};

type Rows = BTreeMap<CatalogRowKey, CatalogRow>;

fn machine() -> CatalogMachine {
    CatalogMachine::new(CatalogLimits::default())
}

fn apply(machine: &mut CatalogMachine, command: CatalogCommand) -> CatalogReply {
    let wall = WallTime(machine.stamps().wall.0 + 1000);
    machine.begin_entry(Stamps {
        lease: LeaseTime(1),
        wall,
    });
    machine.apply(command)
}

fn create(machine: &mut CatalogMachine, name: &str, listed: bool) -> (QueueRow, bool) {
    match apply(
        machine,
        CatalogCommand::CreateQueue {
            name: name.to_owned(),
            listed,
        },
    ) {
        CatalogReply::Queue { row, changed } => (row, changed),
        reply => panic!("{reply:?}"),
    }
}

fn configure(
    machine: &mut CatalogMachine,
    name: &str,
    patch: SettingsPatch,
    merge: bool,
) -> (QueueRow, bool) {
    match apply(
        machine,
        CatalogCommand::Configure {
            name: name.to_owned(),
            patch,
            merge,
        },
    ) {
        CatalogReply::Queue { row, changed } => (row, changed),
        reply => panic!("{reply:?}"),
    }
}

fn register(machine: &mut CatalogMachine, queue: &str, group: &str, start: GroupStart) -> (GroupRow, bool) {
    let (queue, group) = (queue.to_owned(), group.to_owned());
    match apply(machine, CatalogCommand::RegisterGroup { queue, group, start }) {
        CatalogReply::Group { group, created, .. } => (group, created),
        reply => panic!("{reply:?}"),
    }
}

fn delete(machine: &mut CatalogMachine, name: &str) -> CatalogReply {
    apply(
        machine,
        CatalogCommand::DeleteQueue {
            name: name.to_owned(),
        },
    )
}

#[test]
fn queue_is_born_with_implicit_settings() {
    let mut machine = machine();
    let (row, changed) = create(&mut machine, "shop.orders.eu", true);
    assert!(changed);
    assert_eq!((row.id, row.version), (QueueId(1), CatalogVersion(1)));
    assert_eq!(row.created, machine.stamps().wall);
    assert_eq!(
        (row.settings.namespace.as_str(), row.settings.task.as_str()),
        ("shop", "orders")
    );
    assert_eq!(row.settings.lease_seconds, 60);
    assert_eq!(create(&mut machine, "shop.orders.eu", true), (row.clone(), false));
    assert_eq!(
        create(&mut machine, "shop.orders.eu", false),
        (row.clone(), false)
    );
    assert_eq!(machine.queue("shop.orders.eu"), Some(&row));
    assert_eq!(machine.queue_by_id(row.id), Some(&row));
    assert_eq!(machine.version(), CatalogVersion(1));
}

#[test]
fn unlisted_queue_is_listed_once() {
    let mut machine = machine();
    let (group, created) = register(&mut machine, "q", "g", GroupStart::Registration);
    assert!(created);
    let unlisted = machine.queue("q").unwrap().clone();
    assert!(!unlisted.listed);
    assert_eq!(
        (unlisted.version, group.version),
        (CatalogVersion(1), CatalogVersion(2))
    );
    let (row, changed) = create(&mut machine, "q", true);
    assert!(changed && row.listed);
    assert_eq!((row.id, row.version), (unlisted.id, CatalogVersion(3)));
    assert!(row.created > unlisted.created);
    assert_eq!(machine.group(row.id, "g"), Some(&group));
}

#[test]
fn configure_replaces_or_merges() {
    let mut machine = machine();
    create(&mut machine, "q", true);
    let set = |retry_limit| SettingsPatch {
        retry_limit: Patch::Set(retry_limit),
        ..SettingsPatch::keep()
    };
    let (row, _) = configure(&mut machine, "q", set(7), true);
    assert_eq!((row.settings.retry_limit, row.settings.lease_seconds), (7, 60));
    let (same, changed) = configure(&mut machine, "q", set(7), true);
    assert_eq!((same, changed), (row, false));
    let priority = SettingsPatch {
        priority: Patch::Set(-1),
        ..SettingsPatch::keep()
    };
    let (row, _) = configure(&mut machine, "q", priority.clone(), true);
    assert_eq!((row.settings.retry_limit, row.settings.priority), (7, -1));
    let reset = SettingsPatch {
        retry_limit: Patch::Reset,
        ..priority
    };
    let (row, _) = configure(&mut machine, "q", reset, true);
    assert_eq!((row.settings.retry_limit, row.settings.priority), (3, -1));
    let (row, _) = configure(&mut machine, "q", set(9), false);
    let want = QueueSettings {
        retry_limit: 9,
        ..QueueSettings::configured()
    };
    assert_eq!(row.settings, want);
}

#[test]
fn fresh_name_is_configured_over_the_defaults() {
    for merge in [false, true] {
        let mut machine = machine();
        register(&mut machine, "popped", "g", GroupStart::Beginning);
        for name in ["fresh.name", "popped"] {
            let (row, changed) = configure(&mut machine, name, SettingsPatch::keep(), merge);
            assert!(changed && row.listed);
            assert_eq!(row.settings, QueueSettings::configured());
        }
    }
}

#[test]
fn first_registration_wins() {
    let mut machine = machine();
    let first = register(&mut machine, "q", "g", GroupStart::Beginning);
    let second = register(&mut machine, "q", "g", GroupStart::Registration);
    assert_eq!(second, (first.0, false));
    assert_eq!(machine.version(), CatalogVersion(2));
    let id = machine.queue("q").unwrap().id;
    register(&mut machine, "q", "a", GroupStart::At(WallTime(5)));
    let names: Vec<&str> = machine.groups(id).map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["a", "g"]);
}

#[test]
fn deletion_takes_all_and_a_later_queue_is_another() {
    let mut machine = machine();
    let (row, _) = create(&mut machine, "q", true);
    register(&mut machine, "q", "g", GroupStart::Beginning);
    let deleted = CatalogReply::Deleted {
        existed: true,
        id: Some(row.id),
    };
    assert_eq!(delete(&mut machine, "q"), deleted);
    let nothing = CatalogReply::Deleted {
        existed: false,
        id: None,
    };
    assert_eq!(delete(&mut machine, "q"), nothing);
    assert_eq!((machine.queue("q"), machine.group(row.id, "g")), (None, None));
    let (again, _) = create(&mut machine, "q", true);
    assert_eq!(again.id, QueueId(4));
    register(&mut machine, "unlisted", "g", GroupStart::Beginning);
    let reply = delete(&mut machine, "unlisted");
    assert!(matches!(
        reply,
        CatalogReply::Deleted {
            existed: false,
            id: Some(_)
        }
    ));
}

#[test]
fn changes_are_listed_from_a_version_on() {
    let mut machine = machine();
    create(&mut machine, "a", true); // 1
    register(&mut machine, "a", "g", GroupStart::Beginning); // 2
    create(&mut machine, "b", true); // 3
    delete(&mut machine, "b"); // 4, takes the place of 3
    configure(&mut machine, "a", SettingsPatch::keep(), false); // 5, takes the place of 1
    let changes = machine.changes_since(CatalogVersion(0));
    let versions: Vec<u64> = changes.iter().map(|change| change.version().0).collect();
    assert_eq!(versions, [2, 4, 5]);
    let row = machine.queue("a").unwrap().clone();
    assert!(
        matches!(&changes[0], CatalogChange::RegisterGroup { queue, group } if *queue == row && group.name == "g")
    );
    let gone = DeleteQueue {
        queue: QueueId(3),
        version: CatalogVersion(4),
    };
    assert_eq!(changes[1], CatalogChange::DeleteQueue(gone));
    assert_eq!(
        changes[2],
        CatalogChange::PutQueue(PutQueue {
            row,
            version: CatalogVersion(5)
        })
    );
    assert_eq!(machine.changes_since(CatalogVersion(4)).len(), 1);
    assert_eq!(machine.changes_since(CatalogVersion(5)), []);
    assert_eq!(machine.first_changes_since(CatalogVersion(0), 2), changes[..2]);
    assert_eq!(machine.changes_since(CatalogVersion(u64::MAX)), []);
}

#[test]
fn tombstones_are_forgotten_on_demand() {
    let mut machine = machine();
    create(&mut machine, "a", true);
    create(&mut machine, "b", true);
    delete(&mut machine, "a");
    delete(&mut machine, "b");
    assert_eq!(
        machine.tombstones_up_to(CatalogVersion(3)),
        [(QueueId(1), CatalogVersion(3))]
    );
    let forget = CatalogCommand::ForgetTombstones {
        up_to: CatalogVersion(3),
    };
    assert_eq!(apply(&mut machine, forget), CatalogReply::Done);
    assert_eq!(
        machine.tombstones_up_to(CatalogVersion(9)),
        [(QueueId(2), CatalogVersion(4))]
    );
    assert_eq!(machine.changes_since(CatalogVersion(0)).len(), 1);
    assert_eq!(machine.version(), CatalogVersion(4));
}

#[test]
fn limits_refuse() {
    let mut machine = CatalogMachine::new(CatalogLimits {
        queues_max: 1,
        groups_per_queue_max: 1,
    });
    create(&mut machine, "a", true);
    let full = CatalogReply::Refused(CatalogRefusal::QueuesFull);
    let name = "b".to_owned();
    let fresh = CatalogCommand::CreateQueue {
        name: name.clone(),
        listed: true,
    };
    let configured = CatalogCommand::Configure {
        name,
        patch: SettingsPatch::keep(),
        merge: true,
    };
    let register_at = |queue: &str, group: &str| CatalogCommand::RegisterGroup {
        queue: queue.to_owned(),
        group: group.to_owned(),
        start: GroupStart::Beginning,
    };
    for command in [fresh, configured, register_at("b", "g")] {
        assert_eq!(apply(&mut machine, command), full);
    }
    register(&mut machine, "a", "g", GroupStart::Beginning);
    let full = CatalogReply::Refused(CatalogRefusal::GroupsFull);
    assert_eq!(apply(&mut machine, register_at("a", "h")), full);
    assert!(!register(&mut machine, "a", "g", GroupStart::Beginning).1);
}

#[test]
fn stamps_never_go_back() {
    let mut machine = machine();
    machine.begin_entry(Stamps {
        lease: LeaseTime(9),
        wall: WallTime(9),
    });
    machine.begin_entry(Stamps {
        lease: LeaseTime(1),
        wall: WallTime(1),
    });
    assert_eq!(
        machine.stamps(),
        Stamps {
            lease: LeaseTime(9),
            wall: WallTime(10)
        }
    );
}

#[test]
fn tags_are_as_persisted() {
    let name = String::new();
    let tags = [
        CatalogCommand::CreateQueue {
            name: name.clone(),
            listed: true,
        },
        CatalogCommand::Configure {
            name: name.clone(),
            patch: SettingsPatch::keep(),
            merge: false,
        },
        CatalogCommand::DeleteQueue { name: name.clone() },
        CatalogCommand::RegisterGroup {
            queue: name.clone(),
            group: name,
            start: GroupStart::Beginning,
        },
        CatalogCommand::ForgetTombstones {
            up_to: CatalogVersion(0),
        },
        CatalogCommand::Tick,
    ]
    .map(|command| command.tag());
    assert_eq!(tags, [1, 2, 3, 4, 5, 6]);
}

fn restore(rows: &Rows) -> Result<CatalogMachine, CatalogLoadError> {
    let mut machine = machine();
    for (key, row) in rows {
        machine.load_row(*key, Some(row.clone()));
    }
    machine.finish_load()?;
    Ok(machine)
}

#[test]
fn restored_machine_is_the_same_at_any_step() {
    let mut machine = machine();
    let mut rows = Rows::new();
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..500u32 {
        let mut step = |machine: &mut CatalogMachine| {
            let name = format!("q{}", random(4));
            let command = match random(6) {
                0 => CatalogCommand::CreateQueue {
                    name,
                    listed: random(2) == 0,
                },
                1 => {
                    let retry_limit = Patch::Set(u32::try_from(random(3)).unwrap());
                    let patch = SettingsPatch {
                        retry_limit,
                        ..SettingsPatch::keep()
                    };
                    CatalogCommand::Configure {
                        name,
                        patch,
                        merge: random(2) == 0,
                    }
                }
                2 => CatalogCommand::DeleteQueue { name },
                3 => CatalogCommand::ForgetTombstones {
                    up_to: CatalogVersion(machine.version().0.saturating_sub(random(9))),
                },
                _ => CatalogCommand::RegisterGroup {
                    queue: name,
                    group: format!("g{}", random(3)),
                    start: GroupStart::Registration,
                },
            };
            apply(machine, command);
        };
        step(&mut machine);
        let digest = machine.digest();
        let changes = machine.changes_since(CatalogVersion(0));
        let full = round % 7 == 0;
        machine.begin_checkpoint(full);
        if full {
            rows.clear();
        }
        loop {
            let part = machine.checkpoint_step(2);
            for (key, row) in part.rows {
                match row {
                    Some(row) => rows.insert(key, row),
                    None => rows.remove(&key),
                };
            }
            if part.done {
                break;
            }
            step(&mut machine);
        }
        let restored = restore(&rows).unwrap();
        assert_eq!(restored.digest(), digest, "round {round}");
        assert_eq!(restored.changes_since(CatalogVersion(0)), changes);
    }
}

#[test]
fn contradictory_rows_are_refused() {
    let mut machine = machine();
    create(&mut machine, "a", true);
    create(&mut machine, "b", true);
    register(&mut machine, "a", "g", GroupStart::Beginning);
    machine.begin_checkpoint(true);
    let rows: Rows = machine
        .checkpoint_step(99)
        .rows
        .into_iter()
        .map(|(key, row)| (key, row.unwrap()))
        .collect();
    assert!(restore(&rows).is_ok());
    let check = |change: &dyn Fn(&mut Rows), want: fn(&CatalogLoadError) -> bool| {
        let mut rows = rows.clone();
        change(&mut rows);
        let error = restore(&rows).unwrap_err();
        assert!(want(&error), "{error}");
    };
    check(&|rows| drop(rows.remove(&CatalogRowKey::Meta)), |error| {
        matches!(error, CatalogLoadError::MetaMissing)
    });
    check(
        &|rows| drop(rows.remove(&CatalogRowKey::Queue(QueueId(1)))),
        |error| matches!(error, CatalogLoadError::Queue { .. }),
    );
    let rename = |rows: &mut Rows| {
        let Some(CatalogRow::Queue(row)) = rows.get_mut(&CatalogRowKey::Queue(QueueId(2))) else {
            panic!()
        };
        row.name = "a".to_owned();
    };
    check(&rename, |error| matches!(error, CatalogLoadError::Queue { .. }));
    let misplace = |rows: &mut Rows| {
        let meta = rows[&CatalogRowKey::Meta].clone();
        rows.insert(CatalogRowKey::Queue(QueueId(2)), meta);
    };
    check(&misplace, |error| {
        matches!(error, CatalogLoadError::Misfit { .. })
    });
}
