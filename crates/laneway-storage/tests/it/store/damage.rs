//! Bad bytes on the disk are an error that names the file; they are never served.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use laneway_core::ids::{LaneId, Offset};
use laneway_storage::payload::{PayloadCut, PayloadError, PayloadStore};
use laneway_storage::vfs::{SimVfs, Vfs};

use super::world::{OPTIONS, Op, P, World};

const DIR: &str = "/d/backlog";

/// A world with backlog files; returns the path and content of one.
fn world() -> (World, PathBuf, Vec<u8>) {
    let mut world = World::new(OPTIONS);
    for step in 0..40u8 {
        world
            .run(Op::Push {
                lane: step % 2,
                sizes: vec![200, 300],
            })
            .unwrap();
    }
    world.checkpoint(true).unwrap();
    world.evacuate(false).unwrap();
    let names = world.vfs.list(Path::new(DIR)).unwrap();
    let path = Path::new(DIR).join(&names[0]);
    let bytes = world.vfs.read(&path).unwrap();
    (world, path, bytes)
}

/// Opens the store anew over a disk, restores and reads all: the payloads are the twin's, or there is an error.
fn read_all(world: &World, vfs: &SimVfs) -> Result<(), String> {
    let open = || {
        PayloadStore::open(
            Arc::new(vfs.clone()),
            world.wal.clone(),
            world.rows.clone(),
            PathBuf::from(DIR),
            P,
            OPTIONS,
        )
    };
    let store = open().map_err(|error| error.to_string())?;
    let heads = world.twin.lanes.iter().map(|(id, lane)| (*id, Offset(lane.head)));
    let restored = store.restore(&world.store.cut(), heads, std::iter::empty());
    restored.map_err(|error| error.to_string())?;
    for (id, lane) in &world.twin.lanes {
        let found = store
            .read(*id, Offset(0), Offset(lane.tail()), u64::MAX)
            .map_err(|error| error.to_string())?;
        let payloads = found.iter().map(|message| &message.payload);
        assert!(payloads.eq(lane.messages.iter().map(|message| &message.2)));
    }
    Ok(())
}

#[test]
fn changed_bytes_are_never_served() {
    let (world, path, bytes) = world();
    read_all(&world, &world.vfs.fork()).unwrap();
    for at in (0..bytes.len()).step_by(7) {
        let copy = world.vfs.fork();
        copy.corrupt(&path, at, &[bytes[at] ^ 1]);
        let error = read_all(&world, &copy).unwrap_err();
        assert!(error.contains(path.to_str().unwrap()), "byte {at}: {error}");
    }
}

#[test]
fn truncated_file_is_refused() {
    let (world, path, bytes) = world();
    for keep in [0, 1, 20, bytes.len() / 2, bytes.len() - 1] {
        let copy = world.vfs.fork();
        copy.open(&path).unwrap().set_len(keep as u64).unwrap();
        let error = read_all(&world, &copy).unwrap_err();
        assert!(error.contains("restore the data directory"), "{error}");
    }
}

#[test]
fn unfinished_file_is_ignored_and_removed() {
    let (world, path, bytes) = world();
    let copy = world.vfs.fork();
    let leftover = path.with_extension("backlog.tmp");
    copy.create(&leftover)
        .unwrap()
        .write_at(&bytes[..100], 0)
        .unwrap();
    read_all(&world, &copy).unwrap();
    assert!(!copy.exists(&leftover).unwrap());
}

#[test]
fn file_under_anothers_name_is_refused() {
    let (world, path, bytes) = world();
    let copy = world.vfs.fork();
    let other = path.with_file_name("00000000000000ff.backlog");
    copy.create(&other).unwrap().write_at(&bytes, 0).unwrap();
    assert!(
        read_all(&world, &copy)
            .unwrap_err()
            .contains("another partition or file number")
    );
}

#[test]
fn nothing_is_given_up_before_the_restore() {
    let (world, _, _) = world();
    let vfs = world.vfs.fork();
    let dir = PathBuf::from(DIR);
    let store = PayloadStore::open(
        Arc::new(vfs.clone()),
        world.wal.clone(),
        world.rows.clone(),
        dir,
        P,
        OPTIONS,
    )
    .unwrap();
    assert!(matches!(store.evacuate(1), Err(PayloadError::NotRestored)));
    assert!(matches!(store.compact(), Err(PayloadError::NotRestored)));
    // Without a lane nothing is alive.
    store
        .restore(&PayloadCut::default(), std::iter::empty(), std::iter::empty())
        .unwrap();
    assert_eq!(store.read(LaneId(0), Offset(0), Offset(9), 99).unwrap(), []);
    assert!(store.compact().unwrap().files_removed > 0);
    assert!(vfs.list(Path::new(DIR)).unwrap().is_empty());
}

#[test]
fn full_disk_stops_an_evacuation_without_harm() {
    let mut world = World::new(OPTIONS);
    for step in 0..40u8 {
        world
            .run(Op::Push {
                lane: step % 2,
                sizes: vec![200, 300],
            })
            .unwrap();
    }
    world.checkpoint(true).unwrap();
    world.vfs.set_disk_bytes(Some(world.vfs.used_bytes() + 1000));
    let error = world.evacuate(false).unwrap_err();
    assert!(
        matches!(&error, PayloadError::File(file) if file.is_full()),
        "{error}"
    );
    world.check();
    assert_eq!(world.vfs.list(Path::new(DIR)).unwrap(), Vec::<String>::new());
    world.vfs.set_disk_bytes(None);
    world.evacuate(false).unwrap();
    assert!(world.store.stats().backlog_files > 0);
    world.check();
}

#[test]
fn failed_sync_stops_an_evacuation_without_harm() {
    let mut world = World::new(OPTIONS);
    for step in 0..40u8 {
        world
            .run(Op::Push {
                lane: step % 2,
                sizes: vec![200, 300],
            })
            .unwrap();
    }
    world.checkpoint(true).unwrap();
    world.vfs.fail_sync_at(world.vfs.syncs());
    assert!(world.evacuate(false).is_err());
    world.check();
    world.evacuate(false).unwrap();
    world.check();
    world.reopen().check();
}

/// Scrubs all files in small steps; returns the bytes read.
fn scrub(store: &PayloadStore) -> u64 {
    let mut cursor = store.begin_scrub();
    let mut read = 0;
    while !cursor.is_done() {
        let step = store.scrub(&mut cursor, 500);
        assert!(step < 500 + 2 * 1024, "a step is bounded: {step}");
        read += step;
    }
    read
}

#[test]
fn scrub_finds_every_damaged_byte() {
    let (world, path, bytes) = world();
    let read = scrub(&world.store);
    assert_eq!(world.store.damaged(), []);
    assert!(read > 0 && read <= world.store.stats().backlog_bytes);
    for at in (0..bytes.len()).step_by(61) {
        world.vfs.corrupt(&path, at, &[bytes[at] ^ 0x20]);
        let (store, twin) = (reopened(&world), &world.twin);
        world.vfs.corrupt(&path, at, &[bytes[at]]);
        // A header or footer that cannot be read keeps the store from opening.
        let Some(store) = store else { continue };
        world.vfs.corrupt(&path, at, &[bytes[at] ^ 0x20]);
        scrub(&store);
        let damaged = store.damaged();
        assert_eq!(damaged.len(), 1, "byte {at}");
        assert_eq!(damaged[0].file, path);
        assert!(damaged[0].to_string().contains("is damaged at byte"));
        world.vfs.corrupt(&path, at, &[bytes[at]]);
        assert!(!twin.lanes.is_empty());
    }
}

/// The store opened anew over the world's disk, if it opens.
fn reopened(world: &World) -> Option<PayloadStore> {
    let store = PayloadStore::open(
        Arc::new(world.vfs.clone()),
        world.wal.clone(),
        world.rows.clone(),
        PathBuf::from(DIR),
        P,
        OPTIONS,
    )
    .ok()?;
    let heads = world.twin.lanes.iter().map(|(id, lane)| (*id, Offset(lane.head)));
    store
        .restore(&world.store.cut(), heads, std::iter::empty())
        .ok()?;
    Some(store)
}

#[test]
fn damaged_file_is_told_by_a_read_and_forgotten_with_the_file() {
    let (mut world, path, bytes) = world();
    world
        .vfs
        .corrupt(&path, bytes.len() / 3, &[bytes[bytes.len() / 3] ^ 1]);
    let mut failed = 0;
    for (id, lane) in &world.twin.lanes {
        for offset in 0..lane.tail() {
            failed += usize::from(
                world
                    .store
                    .read(*id, Offset(offset), Offset(offset + 1), 1)
                    .is_err(),
            );
        }
    }
    assert!((1..10).contains(&failed), "what is elsewhere is served: {failed}");
    assert_eq!(world.store.damaged()[0].file, path);
    // It does not keep others from being compacted, and goes when nothing in it is alive.
    let lanes: Vec<u8> = vec![0, 1];
    for lane in lanes {
        world.run(Op::Trim { lane, count: 255 }).unwrap();
    }
    world.store.compact().unwrap();
    assert_eq!(world.store.damaged(), []);
    assert!(!world.vfs.exists(&path).unwrap());
}

#[test]
fn damaged_segment_is_not_copied_to_a_file_with_a_good_checksum() {
    let mut world = World::new(OPTIONS);
    for step in 0..40u8 {
        world
            .run(Op::Push {
                lane: step % 2,
                sizes: vec![200, 300],
            })
            .unwrap();
    }
    let location = world.wal.locate(P, 2).unwrap();
    world.checkpoint(true).unwrap();
    let path = world.wal.segment_path(location.segment);
    let at = location.body_at as usize + 60;
    let byte = world.vfs.read(&path).unwrap()[at];
    world.vfs.corrupt(&path, at, &[byte ^ 1]);
    let error = world.store.evacuate(location.segment).unwrap_err();
    assert!(matches!(error, PayloadError::Wal(_)), "{error}");
    assert_eq!(world.store.damaged()[0].file, path);
    assert!(world.store.segment_live_bytes(location.segment) > 0, "it is kept");
    world.vfs.corrupt(&path, at, &[byte]);
    assert!(world.store.evacuate(location.segment).unwrap().clear);
    assert_eq!(world.store.damaged(), []);
    world.check();
}
