//! The payload store against its twin: random histories of pushes, deletions, pins, evacuations, compactions,
//! checkpoints and restarts.

use laneway_core::ids::{LaneId, Offset};
use laneway_core::time::WallTime;
use laneway_storage::payload::PayloadOptions;
use laneway_storage::vfs::Crash;
use proptest::prelude::*;

use super::world::{OPTIONS, Op, SPILLING, World, cases, rows_of};

/// What happens next.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Log(Op),
    Evacuate {
        newest_only: bool,
    },
    Compact,
    Checkpoint {
        full: bool,
    },
    Restart,
    Crash {
        seed: u64,
    },
    /// Somebody else empties the row store.
    LoseRows,
    Check,
}

pub(crate) fn action() -> impl Strategy<Value = Action> {
    let lane = 0u8..4;
    let sizes = prop_oneof![
        4 => prop::collection::vec(0u16..400, 1..4),
        3 => prop::collection::vec(0u16..60, 1..40),
        1 => prop::collection::vec(1000u16..3000, 1..4),
    ];
    prop_oneof![
        12 => (lane.clone(), sizes).prop_map(|(lane, sizes)| Action::Log(Op::Push { lane, sizes })),
        5 => (lane.clone(), 1u8..40).prop_map(|(lane, count)| Action::Log(Op::Trim { lane, count })),
        3 => (lane.clone(), 0u8..8).prop_map(|(lane, ahead)| Action::Log(Op::Pin { lane, ahead })),
        2 => (0u8..6).prop_map(|which| Action::Log(Op::Unpin { which })),
        1 => lane.prop_map(|lane| Action::Log(Op::Drop { lane })),
        4 => any::<bool>().prop_map(|newest_only| Action::Evacuate { newest_only }),
        3 => Just(Action::Compact),
        3 => any::<bool>().prop_map(|full| Action::Checkpoint { full }),
        1 => Just(Action::Restart),
        1 => any::<u64>().prop_map(|seed| Action::Crash { seed }),
        1 => Just(Action::LoseRows),
        2 => Just(Action::Check),
    ]
}

fn run(mut world: World, actions: Vec<Action>) -> World {
    for action in actions {
        match action {
            Action::Log(op) => world.run(op).unwrap(),
            Action::Evacuate { newest_only } => world.evacuate(newest_only).unwrap(),
            Action::Compact => {
                world.store.compact().unwrap();
            }
            Action::Checkpoint { full } => world.checkpoint(full).unwrap(),
            Action::Restart => world = world.reopen(),
            Action::Crash { seed } => world = world.crash(Crash::Torn { seed }),
            Action::LoseRows => {
                world.rows.clear().unwrap();
                world.store.compact().unwrap();
            }
            Action::Check => world.check(),
        }
    }
    world.check();
    world
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn store_agrees_with_its_twin(actions in prop::collection::vec(action(), 1..120)) {
        run(World::new(OPTIONS), actions);
    }

    #[test]
    fn store_with_runs_in_rows_agrees_with_its_twin(actions in prop::collection::vec(action(), 1..120)) {
        run(World::new(SPILLING), actions);
    }
}

proptest! {
    #![proptest_config(cases(15))]

    #[test]
    fn store_with_runs_in_sled_agrees_with_its_twin(actions in prop::collection::vec(action(), 40..120)) {
        run(World::with_sled(SPILLING), actions);
    }
}

fn push(lane: u8, count: usize, bytes: u16) -> Op {
    Op::Push {
        lane,
        sizes: vec![bytes; count],
    }
}

/// A world whose lanes were pushed to in turn and evacuated.
fn evacuated(options: PayloadOptions, pushes: usize) -> World {
    let mut world = World::new(options);
    for push_number in 0..pushes {
        world.run(push(push_number as u8 % 3, 1, 256)).unwrap();
    }
    world.checkpoint(true).unwrap();
    world.evacuate(false).unwrap();
    world
}

#[test]
fn single_pushes_collapse_into_blocks_when_evacuated() {
    let world = evacuated(
        PayloadOptions {
            block_bytes_max: 64 * 1024,
            ..OPTIONS
        },
        400,
    );
    world.check();
    let stats = world.store.stats();
    let in_log = world.twin.applied - stats.runs_in_memory;
    assert!(
        stats.backlog_files >= 5 && stats.runs_in_memory < 100,
        "{stats:?} {in_log}"
    );
}

#[test]
fn consumed_backlog_gives_its_disk_back() {
    let mut world = evacuated(OPTIONS, 600);
    for lane in 0..3 {
        world.run(Op::Trim { lane, count: 150 }).unwrap();
    }
    let before = world.store.stats();
    let report = world.store.compact().unwrap();
    let after = world.store.stats();
    assert!(report.files_removed > 0 && report.bytes_removed > report.bytes_written);
    assert!(
        after.backlog_bytes < before.backlog_bytes / 2,
        "{before:?} {after:?}"
    );
    world.check();
    for lane in 0..3 {
        world.run(Op::Trim { lane, count: 250 }).unwrap();
    }
    world.store.compact().unwrap();
    let stats = world.store.stats();
    assert_eq!(
        (stats.backlog_files, stats.backlog_bytes, stats.runs_in_memory),
        (0, 0, 0)
    );
    assert_eq!(world.store.retained_bytes_total(), 0);
    world.check();
}

#[test]
fn compacted_files_are_more_than_half_alive() {
    let mut world = evacuated(OPTIONS, 900);
    for round in 0..12 {
        for lane in 0..2 {
            world
                .run(Op::Trim {
                    lane,
                    count: 20 + round,
                })
                .unwrap();
        }
        while world.store.compact().unwrap().files_written > 0 {}
        let stats = world.store.stats();
        assert!(stats.backlog_live_bytes * 2 >= stats.backlog_bytes, "{stats:?}");
        let blocks = 600 * 2 * stats.backlog_files;
        assert!(
            stats.backlog_bytes <= world.twin.live_bytes() * 2 + blocks,
            "{stats:?}"
        );
        world.check();
    }
}

#[test]
fn pinned_message_outlives_everything_around_it() {
    let mut world = World::new(OPTIONS);
    world.run(push(0, 30, 100)).unwrap();
    world.run(Op::Pin { lane: 0, ahead: 7 }).unwrap();
    world.run(Op::Pin { lane: 0, ahead: 8 }).unwrap();
    world.run(Op::Trim { lane: 0, count: 30 }).unwrap();
    world.check();
    for _ in 0..200 {
        world.run(push(1, 1, 256)).unwrap();
    }
    world.checkpoint(false).unwrap();
    world.evacuate(false).unwrap();
    world.check();
    world.run(Op::Trim { lane: 1, count: 200 }).unwrap();
    world.store.compact().unwrap();
    world.check();
    let mut world = world.reopen();
    world.check();
    assert!(world.store.stats().backlog_bytes < 1000);
    world.run(Op::Unpin { which: 0 }).unwrap();
    world.run(Op::Unpin { which: 0 }).unwrap();
    world.store.compact().unwrap();
    assert_eq!(world.store.stats().backlog_files, 0);
}

#[test]
fn dropped_lane_gives_everything_back() {
    let mut world = evacuated(SPILLING, 300);
    world.run(Op::Pin { lane: 0, ahead: 3 }).unwrap();
    world.run(Op::Trim { lane: 0, count: 10 }).unwrap();
    for lane in 0..3 {
        world.run(Op::Drop { lane }).unwrap();
    }
    world.store.compact().unwrap();
    let stats = world.store.stats();
    assert_eq!(
        (stats.backlog_files, stats.wal_live_bytes, stats.runs_in_rows),
        (0, 0, 0)
    );
    assert_eq!(rows_of(&world), 0);
}

#[test]
fn runs_beyond_the_memory_bound_go_to_rows() {
    let world = evacuated(SPILLING, 400);
    let stats = world.store.stats();
    assert!(stats.runs_in_rows > 100, "{stats:?}");
    // What is still in the log cannot go; whole files go.
    assert!(stats.runs_in_memory < 60, "{stats:?}");
    assert_eq!(rows_of(&world) as u64, stats.runs_in_rows);
    world.check();
    let world = world.reopen();
    assert!(world.store.stats().runs_in_rows > 100);
    world.check();
}

#[test]
fn lost_rows_are_noticed_and_rebuilt() {
    let world = evacuated(SPILLING, 400);
    let lane = LaneId(0);
    world.rows.clear().unwrap();
    assert!(
        world.store.read(lane, Offset(0), Offset(5), 1000).is_err(),
        "not taken for deleted"
    );
    assert!(world.store.offset_at(lane, WallTime(0), Offset(5)).is_err());
    assert_eq!(world.store.older_than(lane, WallTime(1_010_000)), None);
    world.store.compact().unwrap();
    world.check();
    // Rows that vanish without a word are not taken for deleted either.
    let rows = world.rows.range(&[], &[0xff; 20], 3).unwrap();
    world.rows.put_batch(&[(rows[0].0.clone(), None)]).unwrap();
    assert!(world.store.read(lane, Offset(0), Offset(50), u64::MAX).is_err());
}

#[test]
fn failing_row_store_does_not_stop_evacuation() {
    let mut world = World::new(SPILLING);
    for _ in 0..300 {
        world.run(push(0, 1, 256)).unwrap();
    }
    world.checkpoint(true).unwrap();
    let room = world.vfs.used_bytes();
    world.evacuate(false).unwrap();
    assert!(world.store.stats().runs_in_rows > 0);
    world.vfs.set_disk_bytes(Some(room / 2));
    world.run(Op::Trim { lane: 0, count: 3 }).unwrap_or(());
    assert!(
        world
            .rows
            .put_batch(&[(b"x".to_vec(), Some(vec![0; 1 << 20]))])
            .is_err()
    );
    world.vfs.set_disk_bytes(None);
    world.store.compact().unwrap();
    world.store.compact().unwrap();
    world.check();
}

#[test]
fn replayed_push_changes_nothing() {
    let mut world = World::new(OPTIONS);
    world.run(push(0, 4, 100)).unwrap();
    world.run(push(0, 4, 100)).unwrap();
    let before = (world.store.stats(), world.store.retained_bytes_total());
    let location = world.wal.locate(super::world::P, 0).unwrap();
    let block = laneway_storage::payload::WalBlock {
        segment: location.segment,
        at: location.body_at + 4,
        bytes: location.body_bytes - 4,
    };
    world
        .store
        .stored(LaneId(0), Offset(0), 4, WallTime(1_000_000), block);
    assert_eq!((world.store.stats(), world.store.retained_bytes_total()), before);
    world.check();
}
