//! Files that are gone from the end of a log.

use std::path::Path;

use laneway_storage::vfs::{Crash, SimVfs, Vfs};
use laneway_storage::wal::WalOpenError;
use proptest::prelude::*;

use super::support::*;

/// A stopped log of at least `segments` segments, all of them needed. Returns the index of the last entry.
fn filled(segments: usize) -> (Node, u64) {
    let mut node = Node::new(SMALL);
    let mut index = 0;
    while node.wal.segments().len() < segments {
        node.append(P0, vec![entry(index, 1, 1000)]);
        index += 1;
    }
    (node, index - 1)
}

fn refusal(vfs: &SimVfs) -> WalOpenError {
    let before: Vec<_> = files(vfs);
    let error = Node::open(vfs, SMALL).map(|node| node.recovery).unwrap_err();
    assert_eq!(files(vfs), before, "a refusal changes nothing");
    error
}

fn files(vfs: &SimVfs) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(DIR);
    let names = vfs.list(dir).unwrap();
    names
        .into_iter()
        .map(|name| (name.clone(), vfs.read(&dir.join(name)).unwrap()))
        .collect()
}

#[test]
fn segments_removed_from_the_end_are_refused() {
    let (node, _) = filled(4);
    for removed in 1..=4 {
        let vfs = node.vfs.fork();
        for id in 4 - removed + 1..=4 {
            vfs.remove(&segment_path(id)).unwrap();
        }
        let error = refusal(&vfs);
        assert!(
            matches!(&error, WalOpenError::NewestSegmentMissing { file, .. } if *file == segment_path(4)),
            "{removed}: {error}"
        );
        let text = error.to_string();
        assert!(text.contains("0000000004.wal is missing"), "{text}");
        assert!(text.contains("backup"), "{text}");
    }
}

#[test]
fn segments_removed_with_the_file_that_names_them_are_refused() {
    let (node, _) = filled(4);
    for removed in 0..4 {
        let vfs = node.vfs.fork();
        for id in 4 - removed + 1..=4 {
            vfs.remove(&segment_path(id)).unwrap();
        }
        vfs.remove(&newest_path()).unwrap();
        let error = refusal(&vfs);
        assert!(matches!(error, WalOpenError::NewestMissing { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("/newest is missing") && text.contains("backup"),
            "{text}"
        );
    }
}

#[test]
fn last_segment_that_holds_only_a_vote_is_missed() {
    let (mut node, last) = filled(3);
    node.purge(P0, last).unwrap();
    node.vote(P1, b"vote").unwrap();
    node.release_all();
    let (path, _) = node.tail();
    let vfs = node.vfs.fork();
    vfs.remove(&path).unwrap();
    assert!(matches!(refusal(&vfs), WalOpenError::NewestSegmentMissing { .. }));
}

#[test]
fn another_file_in_the_place_of_the_newest_segment_is_refused() {
    let mut node = Node::new(SMALL);
    node.append(P0, vec![entry(0, 1, 1000)]);
    let before = node.vfs.fork();
    node.append(P0, (1..20).map(|index| entry(index, 1, 1000)).collect());
    let (path, _) = node.tail();
    let earlier = node.vfs.read(&segment_path(1)).unwrap();
    // The same records of another life: a copy of the folder that went on by itself.
    before.nonce();
    let mut other = Node::open(&before, SMALL).unwrap();
    other.append(P0, (1..20).map(|index| entry(index, 1, 1000)).collect());
    assert_eq!(other.tail().0, path);
    let vfs = node.vfs.fork();
    vfs.corrupt(&path, 0, &before.read(&path).unwrap());
    let error = refusal(&vfs);
    assert!(
        matches!(&error, WalOpenError::Damaged { file, .. } if *file == path),
        "{error}"
    );
    assert!(error.to_string().contains("not the file of this name"), "{error}");
    // Another segment of the same log.
    let vfs = node.vfs.fork();
    vfs.corrupt(&path, 0, &earlier);
    assert!(matches!(refusal(&vfs), WalOpenError::Damaged { .. }));
}

#[test]
fn damage_to_the_file_is_survived_once_and_refused_twice() {
    let (mut node, last) = filled(4);
    let whole = node.vfs.read(&newest_path()).unwrap();
    for at in (0..28).chain(4096..4096 + 28) {
        let vfs = node.vfs.fork();
        vfs.corrupt(&newest_path(), at, &[whole[at] ^ 0x10]);
        let opened = Node::open(&vfs, SMALL).unwrap_or_else(|error| panic!("byte {at}: {error}"));
        assert_eq!(opened.wal.last(P0), Some((last, 1, 7)));
        let now = Node::reopen(opened, SMALL).unwrap();
        let (path, _) = now.tail();
        drop(now);
        vfs.remove(&path).unwrap();
        assert!(
            matches!(refusal(&vfs), WalOpenError::NewestSegmentMissing { .. }),
            "it was named anew"
        );
    }
    node.append(P0, vec![entry(last + 1, 1, 10)]);
    for bytes in [&whole[..100], &whole[..0], &vec![0; 8192], &vec![7; 8192]] {
        let vfs = node.vfs.fork();
        let file = vfs.open(&newest_path()).unwrap();
        file.set_len(0).unwrap();
        file.write_at(bytes, 0).unwrap();
        let error = refusal(&vfs);
        assert!(
            matches!(&error, WalOpenError::Damaged { file, .. } if *file == newest_path()),
            "{error}"
        );
    }
}

/// A crash at each operation of a move to another segment leaves a log that opens, holds what was acknowledged, and
/// misses its newest segment from then on.
#[test]
fn crash_at_every_step_of_a_segment_switch_keeps_the_newest_segment_named() {
    for recycled in [false, true] {
        let (mut node, mut last) = filled(2);
        if recycled {
            node.purge(P0, last).unwrap();
            assert_eq!(node.release_all(), 1);
        }
        while node.tail().1 + 2000 < 15 * 1024 {
            last += 1;
            node.append(P0, vec![entry(last, 1, 1000)]);
        }
        let active = node.tail().0;
        let before = node.vfs.fork();
        let dry = before.fork();
        let mut node = Node::open(&dry, SMALL).unwrap();
        let opening = dry.operations();
        node.append(P0, vec![entry(last + 1, 1, 3000)]);
        assert_ne!(node.tail().0, active, "it moved on");
        for operation in opening..dry.operations() {
            for crash in [Crash::Process, Crash::Synced, Crash::Torn { seed: operation }] {
                let vfs = before.fork();
                let mut node = Node::open(&vfs, SMALL).unwrap();
                vfs.power_off_at(operation);
                let acked = node.try_append(P0, vec![entry(last + 1, 1, 3000)]).is_ok();
                vfs.crash(crash);
                drop(node);
                let context = format!("operation {operation}, {crash:?}, recycled {recycled}");
                let node = Node::open(&vfs, SMALL).unwrap_or_else(|error| panic!("{context}: {error}"));
                let found = node.wal.last(P0).unwrap().0;
                assert!(found >= last + u64::from(acked), "{context}");
                let (path, _) = node.tail();
                drop(node);
                vfs.remove(&path).unwrap();
                assert!(
                    matches!(refusal(&vfs), WalOpenError::NewestSegmentMissing { .. }),
                    "{context}"
                );
            }
        }
    }
}

#[test]
fn failed_sync_of_the_file_fails_the_log_and_loses_nothing() {
    let (mut node, mut last) = filled(2);
    while node.tail().1 + 2000 < 15 * 1024 {
        last += 1;
        node.append(P0, vec![entry(last, 1, 1000)]);
    }
    // The next segment's own sync, and then the file's.
    node.vfs.fail_sync_at(node.vfs.syncs() + 1);
    assert!(node.try_append(P0, vec![entry(last + 1, 1, 3000)]).is_err());
    assert!(node.wal.stats().failed);
    let vfs = node.vfs.clone();
    drop(node);
    let mut node = Node::open(&vfs, SMALL).unwrap();
    assert_eq!(node.wal.last(P0), Some((last, 1, 7)));
    node.append(P0, vec![entry(last + 1, 1, 10)]);
    vfs.crash(Crash::Synced);
    drop(node);
    assert_eq!(
        Node::open(&vfs, SMALL).unwrap().wal.last(P0),
        Some((last + 1, 1, 7))
    );
}

proptest! {
    #[test]
    fn any_bytes_in_the_file_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
        let (node, _) = filled(2);
        let vfs = node.vfs.fork();
        let file = vfs.open(&newest_path()).unwrap();
        file.set_len(0).unwrap();
        file.write_at(&bytes, 0).unwrap();
        let refused = matches!(refusal(&vfs), WalOpenError::Damaged { .. });
        prop_assert!(refused);
    }
}
