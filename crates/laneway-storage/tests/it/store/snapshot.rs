//! Snapshots: what is exported opens elsewhere as the same, whatever interrupts the way.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use laneway_storage::payload::PayloadOptions;
use laneway_storage::snapshot::{Generation, IncomingSnapshot, OutgoingSnapshot};
use laneway_storage::vfs::{Crash, SimVfs, Vfs};
use laneway_storage::wal::{Wal, WalOptions};
use proptest::prelude::*;

use super::payload::{Action, action};
use super::world::{OPTIONS, Op, P, SPILLING, World, cases};

const BASE: &str = "/d/partition";

fn arc(vfs: &SimVfs) -> Arc<dyn Vfs> {
    Arc::new(vfs.clone())
}

/// Copies what is missing, in small chunks, until `chunks` are through or nothing is missing.
fn copy(from: &OutgoingSnapshot, to: &IncomingSnapshot, mut chunks: usize) -> bool {
    for file in 0..to.offer().files.len() {
        loop {
            let at = to.held(file).unwrap();
            if at == to.offer().files[file].bytes {
                break;
            }
            if chunks == 0 {
                return false;
            }
            chunks -= 1;
            let bytes = from.read(file, at, 700).unwrap().unwrap();
            to.write(file, at, &bytes).unwrap();
        }
    }
    true
}

/// Makes the log restart, driving its writer.
fn restart_log(vfs: &SimVfs, at: (u64, u64, u64)) {
    let options = WalOptions {
        segment_bytes: 16 * 1024,
        segments_max: 3,
        tail_cache_bytes: 2048,
    };
    let (wal, _) = Wal::open(arc(vfs), PathBuf::from("/d/wal"), options).unwrap();
    wal.restart_behind(P, at).unwrap();
    wal.restart_behind(P, at).unwrap();
    assert_eq!(wal.last(P), Some(at));
    wal.close();
}

/// Puts what was received in place and opens it.
fn install(vfs: &SimVfs, options: PayloadOptions, ops: Vec<Op>) -> World {
    let vfs_arc = arc(vfs);
    let mut generation = Generation::find(&*vfs_arc, Path::new(BASE)).unwrap();
    if let Some(at) = generation.restart {
        restart_log(vfs, at);
    }
    generation.settle(&vfs_arc, None).unwrap();
    World::within(vfs, options, ops, &generation.dir)
}

fn run(world: &mut World, actions: Vec<Action>) {
    for action in actions {
        match action {
            Action::Log(op) => world.run(op).unwrap(),
            Action::Evacuate { newest_only } => world.evacuate(newest_only).unwrap(),
            Action::Compact => {
                world.store.compact().unwrap();
            }
            Action::Checkpoint { full } => world.checkpoint(full).unwrap(),
            Action::Restart | Action::Crash { .. } | Action::LoseRows | Action::Check => world.check(),
        }
    }
}

/// Runs `before`, hands a snapshot over, and runs `after` on the other side.
fn handed_over(options: PayloadOptions, before: Vec<Action>, after: Vec<Action>, chunks: usize) {
    let mut world = World::new(options);
    world
        .run(Op::Push {
            lane: 0,
            sizes: vec![10, 20],
        })
        .unwrap();
    run(&mut world, before);
    let sent = world.export();
    // What the sender does meanwhile is not in it.
    let ops = world.ops.clone();
    world.checkpoint(true).unwrap();
    world.evacuate(false).unwrap();
    world.store.compact().unwrap();

    let there = SimVfs::new();
    let begin = || IncomingSnapshot::open(arc(&there), PathBuf::from(BASE), sent.offer().clone()).unwrap();
    copy(&sent, &begin(), chunks);
    there.crash(Crash::Process);
    let received = begin();
    assert!(copy(&sent, &received, usize::MAX));
    assert_eq!(received.check().unwrap(), []);
    let offer = sent.offer();
    Generation::switch(&arc(&there), Path::new(BASE), offer.id, offer.applied).unwrap();
    there.crash(Crash::Synced);

    let mut other = install(&there, options, ops);
    assert_eq!(other.twin.applied, offer.applied.0 + 1);
    other.check();
    run(&mut other, after);
    other.check();
    other = other.crash(Crash::Synced);
    other.check();
    other.checkpoint(false).unwrap();
    other.evacuate(false).unwrap();
    other = other.reopen();
    other.check();
    world.check();
    sent.remove().unwrap();
    world.check();
}

proptest! {
    #![proptest_config(cases(30))]

    #[test]
    fn exported_messages_are_the_same_elsewhere(
        before in prop::collection::vec(action(), 0..60),
        after in prop::collection::vec(action(), 0..30),
        chunks in 0usize..60,
    ) {
        handed_over(OPTIONS, before, after, chunks);
    }

    #[test]
    fn exported_messages_in_rows_are_the_same_elsewhere(
        before in prop::collection::vec(action(), 0..60),
        after in prop::collection::vec(action(), 0..30),
        chunks in 0usize..60,
    ) {
        handed_over(SPILLING, before, after, chunks);
    }
}

/// A world with messages in the log and in files, and its snapshot.
fn filled() -> (World, OutgoingSnapshot) {
    let mut world = World::new(OPTIONS);
    for round in 0u8..30 {
        let sizes = vec![300, 300, u16::from(round)];
        world.run(Op::Push { lane: 1, sizes }).unwrap();
        if round == 20 {
            world.checkpoint(true).unwrap();
            world.evacuate(false).unwrap();
        }
    }
    let sent = world.export();
    assert!(sent.offer().files.len() > 2, "log and files: {:?}", sent.offer());
    (world, sent)
}

#[test]
fn damaged_cut_or_missing_files_are_received_again() {
    let (_world, sent) = filled();
    let there = SimVfs::new();
    let received = IncomingSnapshot::open(arc(&there), PathBuf::from(BASE), sent.offer().clone()).unwrap();
    assert!(!received.check().unwrap().is_empty(), "nothing is there");
    assert!(copy(&sent, &received, usize::MAX));
    let dir = PathBuf::from(BASE).join(format!("snapshot-{:016x}", sent.offer().id));
    let path = |file: usize| dir.join(&sent.offer().files[file].name);

    there.corrupt(&path(0), 40, b"x");
    assert_eq!(received.check().unwrap(), [0]);
    assert_eq!(received.held(0).unwrap(), 0);
    assert!(copy(&sent, &received, usize::MAX));
    there.remove(&path(1)).unwrap();
    assert_eq!(received.check().unwrap(), [1]);
    assert!(copy(&sent, &received, usize::MAX));
    let last = sent.offer().files.len() - 1;
    there.open(&path(last)).unwrap().set_len(5).unwrap();
    assert_eq!(received.check().unwrap(), [last]);
    assert!(copy(&sent, &received, usize::MAX));
    assert_eq!(received.check().unwrap(), []);
}

#[test]
fn manifest_of_another_snapshot_is_refused() {
    let (_world, sent) = filled();
    let there = SimVfs::new();
    let mut lie = sent.offer().clone();
    lie.applied.0 += 1;
    let received = IncomingSnapshot::open(arc(&there), PathBuf::from(BASE), lie).unwrap();
    assert!(copy(&sent, &received, usize::MAX));
    let error = received.check().unwrap_err();
    assert!(error.to_string().contains("offered snapshot"), "{error}");
}

#[test]
fn another_offer_replaces_what_was_received_of_the_first() {
    let (world, first) = filled();
    let second = world.export();
    let there = SimVfs::new();
    let base = || PathBuf::from(BASE);
    let one = IncomingSnapshot::open(arc(&there), base(), first.offer().clone()).unwrap();
    copy(&first, &one, 3);
    let two = IncomingSnapshot::open(arc(&there), base(), second.offer().clone()).unwrap();
    assert_eq!(two.held(0).unwrap(), 0);
    let folders = there.list(Path::new(BASE)).unwrap();
    assert_eq!(folders.len(), 1, "{folders:?}");
}

#[test]
fn half_received_snapshot_goes_once_the_replica_is_ahead_of_it() {
    let (_world, sent) = filled();
    let there = SimVfs::new();
    let received = IncomingSnapshot::open(arc(&there), PathBuf::from(BASE), sent.offer().clone()).unwrap();
    copy(&sent, &received, 3);
    let mut generation = Generation::find(&there, Path::new(BASE)).unwrap();
    for (applied, folders) in [
        (None, 1),
        (Some(sent.offer().applied.0 - 1), 1),
        (Some(sent.offer().applied.0), 0),
    ] {
        generation.settle(&arc(&there), applied).unwrap();
        let left = there.list(Path::new(BASE)).unwrap();
        assert_eq!(left.len(), folders, "{applied:?}: {left:?}");
    }
}

#[test]
fn whole_outgoing_snapshot_outlives_a_restart_and_a_half_made_one_does_not() {
    let (world, sent) = filled();
    let vfs = arc(&world.vfs);
    let (_, half) = OutgoingSnapshot::create(&*vfs, Path::new("/d")).unwrap();
    world.vfs.crash(Crash::Synced);
    let found = OutgoingSnapshot::find(&vfs, Path::new("/d"), P).unwrap().unwrap();
    assert_eq!(found.offer(), sent.offer());
    assert_eq!(found.membership(), sent.membership());
    assert!(!vfs.exists(&half).unwrap());
    found.remove().unwrap();
    assert!(
        OutgoingSnapshot::find(&vfs, Path::new("/d"), P)
            .unwrap()
            .is_none()
    );
}

/// A replica with data of its own that received everything of a newer snapshot.
fn ready_to_switch() -> (SimVfs, OutgoingSnapshot, Vec<Op>) {
    let (world, sent) = filled();
    let there = SimVfs::new();
    let mut own = World::within(&there, OPTIONS, Vec::new(), Path::new(BASE));
    for _ in 0..5 {
        let sizes = vec![50];
        own.run(Op::Push { lane: 2, sizes }).unwrap();
    }
    own.checkpoint(true).unwrap();
    let sizes = vec![60];
    own.run(Op::Push { lane: 2, sizes }).unwrap();
    drop(own);
    there.crash(Crash::Process);
    let received = IncomingSnapshot::open(arc(&there), PathBuf::from(BASE), sent.offer().clone()).unwrap();
    assert!(copy(&sent, &received, usize::MAX));
    assert_eq!(received.check().unwrap(), []);
    (there, sent, world.ops.clone())
}

/// Switches and opens, as far as it comes before the power goes off.
fn switch_and_settle(vfs: &SimVfs, offer: &laneway_storage::snapshot::SnapshotOffer) -> Result<(), String> {
    let failed = |error: laneway_storage::FileError| error.to_string();
    let base = Path::new(BASE);
    Generation::switch(&arc(vfs), base, offer.id, offer.applied).map_err(failed)?;
    settle(vfs)
}

fn settle(vfs: &SimVfs) -> Result<(), String> {
    let failed = |error: laneway_storage::FileError| error.to_string();
    let mut generation = Generation::find(vfs, Path::new(BASE)).map_err(failed)?;
    if let Some(at) = generation.restart {
        let options = WalOptions {
            segment_bytes: 16 * 1024,
            segments_max: 3,
            tail_cache_bytes: 2048,
        };
        let (wal, _) =
            Wal::open(arc(vfs), PathBuf::from("/d/wal"), options).map_err(|error| error.to_string())?;
        let restarted = wal.restart_behind(P, at);
        wal.close();
        restarted.map_err(|error| error.to_string())?;
    }
    generation.settle(&arc(vfs), None).map_err(failed)
}

#[test]
fn power_loss_at_any_point_of_the_switch_leaves_one_whole_generation() {
    let (there, sent, ops) = ready_to_switch();
    let start = there.fork();
    let begin = start.operations();
    switch_and_settle(&start, sent.offer()).unwrap();
    let operations = start.operations() - begin;
    assert!(operations > 10, "{operations}");
    let mut olds = 0;
    for at in 0..operations {
        for crash in [Crash::Process, Crash::Synced, Crash::Torn { seed: at }] {
            let vfs = there.fork();
            vfs.power_off_at(vfs.operations() + at);
            assert!(switch_and_settle(&vfs, sent.offer()).is_err());
            vfs.crash(crash);
            let before = Generation::find(&vfs, Path::new(BASE)).unwrap();
            settle(&vfs).unwrap();
            let after = Generation::find(&vfs, Path::new(BASE)).unwrap();
            assert_eq!((after.id, after.restart), (before.id, None));
            let own: Vec<Op> = (0u16..6)
                .map(|round| Op::Push {
                    lane: 2,
                    sizes: vec![if round == 5 { 60 } else { 50 }],
                })
                .collect();
            let world = if after.id == 0 {
                olds += 1;
                World::within(&vfs, OPTIONS, own, &after.dir)
            } else {
                World::within(&vfs, OPTIONS, ops.clone(), &after.dir)
            };
            let applied = if after.id == 0 { 5 } else { sent.offer().applied.0 };
            assert_eq!(world.twin.applied, applied + 1, "operation {at}, {crash:?}");
            world.check();
        }
    }
    assert!(olds > 0, "some of these were before the switch");
}
