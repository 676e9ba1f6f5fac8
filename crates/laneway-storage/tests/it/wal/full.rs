//! A disk without room.

use laneway_storage::vfs::{Crash, SimVfs};
use laneway_storage::wal::{WalError, WalOpenError};

use super::support::*;

/// A log on a disk of `segments` segments, filled until appends are refused. Returns the next index of P0.
fn filled(segments: u64) -> (Node, u64) {
    let vfs = SimVfs::new();
    vfs.set_disk_bytes(Some(segments * SMALL.segment_bytes + NEWEST_BYTES));
    let mut node = Node::open(&vfs, SMALL).unwrap();
    for index in 0.. {
        match node.try_append(P0, vec![entry(index, 1, 1000)]) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, WalError::Full);
                return (node, index);
            }
        }
    }
    unreachable!()
}

#[test]
fn full_disk_refuses_appends_and_keeps_the_log_usable() {
    let (mut node, index) = filled(4);
    assert_eq!(node.wal.segments().len(), 4);
    assert!(!node.wal.reserve());
    assert_eq!(node.wal.last(P0), Some((index - 1, 1, 7)));
    assert_eq!(
        node.try_append(P0, vec![entry(index, 1, 1000)]),
        Err(WalError::Full)
    );
    // Votes and purges go on, and purges make room without any from outside.
    node.vote(P0, b"vote").unwrap();
    node.purge(P0, index - 2).unwrap();
    assert_eq!(node.release_all(), 3);
    assert!(node.wal.reserve());
    node.append(P0, vec![entry(index, 1, 1000)]);
    let vfs = node.vfs.clone();
    vfs.crash(Crash::Synced);
    drop(node);
    let node = Node::open(&vfs, SMALL).unwrap();
    assert_eq!(
        node.dump()[&P0].entries,
        vec![entry(index - 1, 1, 1000), entry(index, 1, 1000)]
    );
}

#[test]
fn refused_append_takes_those_behind_it_along() {
    let (mut node, index) = filled(2);
    let (done, first) = callback();
    node.wal.append(P0, vec![entry(index, 1, 1000)], done);
    let (done, other) = callback();
    node.wal.append(P1, vec![entry(0, 1, 10)], done);
    let (done, second) = callback();
    node.wal.append(P0, vec![entry(index + 1, 1, 10)], done);
    let (done, truncation) = callback();
    node.wal.truncate_after(P0, Some(index - 3), done);
    node.writer.step();
    assert_eq!(first.get(), Some(Err(WalError::Full)));
    assert_eq!(second.get(), Some(Err(WalError::Full)));
    assert!(truncation.is_ok());
    assert!(other.is_ok(), "it fits what is left");
    assert_eq!(node.wal.last(P0), Some((index - 3, 1, 7)));
    let before = node.wal.read(P0, 0..99, u64::MAX).unwrap();
    let node = node.reopen(SMALL).unwrap();
    assert_eq!(node.dump()[&P0].entries, before);
}

#[test]
fn append_over_several_segments_is_refused_whole() {
    let (mut node, index) = filled(3);
    node.purge(P0, index - 1).unwrap();
    node.release_all();
    // Two free segments, an append of three.
    let many: Vec<_> = (index..index + 36).map(|index| entry(index, 2, 1000)).collect();
    assert_eq!(node.try_append(P0, many), Err(WalError::Full));
    assert_eq!(node.wal.last(P0), Some((index - 1, 1, 7)));
    assert_eq!(node.wal.read(P0, index..index + 99, u64::MAX).unwrap(), vec![]);
    let released = node.release_all();
    assert!(released > 0, "the refused part holds no segment");
    node.append(P0, vec![entry(index, 3, 10)]);
    let node = node.reopen(SMALL).unwrap();
    assert_eq!(node.dump()[&P0].entries, vec![entry(index, 3, 10)]);
}

#[test]
fn room_that_comes_back_is_used() {
    let (mut node, index) = filled(2);
    node.vfs.set_disk_bytes(None);
    node.append(P0, vec![entry(index, 1, 1000)]);
    assert!(node.wal.reserve());
}

#[test]
fn new_log_needs_room() {
    let vfs = SimVfs::new();
    vfs.set_disk_bytes(Some(1000));
    let error = Node::open(&vfs, SMALL).map(|node| node.recovery).unwrap_err();
    assert!(matches!(error, WalOpenError::Full { .. }), "{error}");
    assert_eq!(vfs.used_bytes(), 0);
    vfs.set_disk_bytes(Some(NEWEST_BYTES + 1000));
    let error = Node::open(&vfs, SMALL).map(|node| node.recovery).unwrap_err();
    assert!(matches!(error, WalOpenError::Full { .. }), "{error}");
    vfs.set_disk_bytes(Some(NEWEST_BYTES + SMALL.segment_bytes));
    Node::open(&vfs, SMALL).unwrap();
}

#[test]
fn used_up_reserve_fails_the_log_and_loses_nothing() {
    let (mut node, index) = filled(2);
    let mut votes = 0;
    while node.vote(P0, b"vote").is_ok() {
        votes += 1;
        assert!(votes < 1000);
    }
    assert!(votes > 5);
    assert!(node.wal.stats().failed);
    node.vfs.crash(Crash::Process);
    node.vfs.set_disk_bytes(None);
    let node = node.reopen(SMALL).unwrap();
    assert_eq!(node.wal.last(P0), Some((index - 1, 1, 7)));
}
