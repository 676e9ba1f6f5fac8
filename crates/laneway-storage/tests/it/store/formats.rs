//! Golden files of the stores, and readers that meet arbitrary bytes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use laneway_core::ids::{Offset, PartitionId, QueueId};
use laneway_core::time::WallTime;
use laneway_storage::check_backlog_bytes;
use laneway_storage::checkpoint::{CheckpointStore, check_checkpoint_bytes, check_manifest_bytes};
use laneway_storage::dedup::{DedupFileName, DedupOptions, DedupStore, check_dedup_bytes};
use laneway_storage::vfs::{SimVfs, Vfs};
use proptest::prelude::*;

use super::world::{OPTIONS, Op, World};
use crate::golden::golden;

/// The only file with that ending.
fn file(vfs: &SimVfs, dir: &str, ending: &str) -> Vec<u8> {
    let names = vfs.list(Path::new(dir)).unwrap();
    let name = names.iter().find(|name| name.ends_with(ending)).unwrap();
    vfs.read(&Path::new(dir).join(name)).unwrap()
}

/// A world with several lanes, blocks of several pushes, and a pinned message.
fn world() -> World {
    let mut world = World::new(OPTIONS);
    for step in 0..70u8 {
        world
            .run(Op::Push {
                lane: step % 3,
                sizes: vec![40, 0, u16::from(step) * 5],
            })
            .unwrap();
    }
    world.run(Op::Pin { lane: 1, ahead: 1 }).unwrap();
    world.run(Op::Trim { lane: 1, count: 4 }).unwrap();
    world
}

fn backlog_file() -> Vec<u8> {
    let mut world = world();
    world.checkpoint(true).unwrap();
    world.evacuate(false).unwrap();
    file(&world.vfs, "/d/backlog", ".backlog")
}

fn checkpoint_files() -> (Vec<u8>, Vec<u8>) {
    let vfs = SimVfs::new();
    let dir = "/c";
    let (store, _) =
        CheckpointStore::open(Arc::new(vfs.clone()), PathBuf::from(dir), PartitionId(3)).unwrap();
    let world = world();
    let mut writer = store.begin(true).unwrap();
    writer.row(b"first", Some(b"one")).unwrap();
    writer.row(b"gone", None).unwrap();
    writer.row(b"empty", Some(b"")).unwrap();
    writer.payload_cut(&world.store.cut()).unwrap();
    let dedup = vec![DedupFileName(4), DedupFileName(9)];
    writer
        .finish(
            (70, 2, 0x0001_0000_0000_0007),
            Bytes::from_static(b"members"),
            dedup,
        )
        .unwrap();
    (file(&vfs, dir, ".checkpoint"), file(&vfs, dir, "manifest"))
}

fn dedup_file() -> Vec<u8> {
    let vfs = SimVfs::new();
    let store = DedupStore::open(
        Arc::new(vfs.clone()),
        PathBuf::from("/d"),
        DedupOptions::default(),
        &[],
    )
    .unwrap();
    for number in 0..200u64 {
        let key = DedupStore::key(QueueId(3), "lane", &format!("t-{number}"));
        store.insert(key, Offset(number), WallTime(1_700_000_000_000_000 + number), 60);
    }
    store.write(store.freeze()).unwrap();
    file(&vfs, "/d", ".dedup")
}

#[test]
fn backlog_file_is_golden() {
    let kept = golden("backlog-v1.bin", &backlog_file());
    let messages = check_backlog_bytes(&kept).unwrap();
    assert!(messages > 100, "{messages}");
}

#[test]
fn checkpoint_file_is_golden() {
    let kept = golden("checkpoint-v1.bin", &checkpoint_files().0);
    assert_eq!(check_checkpoint_bytes(&kept).unwrap(), 3);
}

#[test]
fn manifest_is_golden() {
    let kept = golden("manifest-v1.bin", &checkpoint_files().1);
    let manifest = check_manifest_bytes(&kept).unwrap();
    assert_eq!((manifest.partition, manifest.generation), (PartitionId(3), 1));
    assert_eq!(manifest.applied, (70, 2, 0x0001_0000_0000_0007));
    assert_eq!(manifest.membership, &b"members"[..]);
    assert_eq!((manifest.base.0, manifest.deltas.len()), (1, 0));
    assert_eq!(manifest.dedup, [DedupFileName(4), DedupFileName(9)]);
}

#[test]
fn dedup_file_is_golden() {
    let kept = golden("dedup-v1.bin", &dedup_file());
    assert_eq!(check_dedup_bytes(&kept).unwrap(), 200);
}

/// All readers; each says whether it took the bytes.
fn read_all(bytes: &[u8]) -> [bool; 4] {
    [
        check_backlog_bytes(bytes).is_ok(),
        check_checkpoint_bytes(bytes).is_ok(),
        check_manifest_bytes(bytes).is_ok(),
        check_dedup_bytes(bytes).is_ok(),
    ]
}

#[test]
fn every_changed_bit_is_noticed() {
    let (checkpoint, manifest) = checkpoint_files();
    let step = |bytes: &[u8]| (bytes.len() / 1500).max(1);
    for (reader, bytes) in [backlog_file(), checkpoint, manifest, dedup_file()]
        .into_iter()
        .enumerate()
    {
        assert!(read_all(&bytes)[reader]);
        for at in (0..bytes.len()).step_by(step(&bytes)) {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            assert_eq!(read_all(&changed), [false; 4], "byte {at} of {}", bytes.len());
            assert_eq!(read_all(&bytes[..at]), [false; 4], "cut at {at}");
        }
        assert_eq!(read_all(&[&bytes[..], &[0]].concat()), [false; 4], "a byte more");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert_eq!(read_all(&bytes), [false; 4]);
    }

    #[test]
    fn garbled_files_do_no_harm(
        which in 0usize..4,
        at in any::<prop::sample::Index>(),
        garbage in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        thread_local! {
            static FILES: [Vec<u8>; 4] = {
                let (checkpoint, manifest) = checkpoint_files();
                [backlog_file(), checkpoint, manifest, dedup_file()]
            };
        }
        let mut bytes = FILES.with(|files| files[which].clone());
        let at = at.index(bytes.len());
        let end = (at + garbage.len()).min(bytes.len());
        bytes.splice(at..end, garbage);
        read_all(&bytes);
    }
}
