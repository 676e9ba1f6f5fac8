//! Bytes that changed behind the log's back.

use laneway_storage::vfs::Vfs;
use laneway_storage::wal::{WalOpenError, fuzz_segment};
use proptest::prelude::*;

use super::support::*;

/// Several drains in one segment, the last of three records.
fn sample() -> (Node, Vec<usize>) {
    let mut node = Node::new(SMALL);
    let mut starts = vec![];
    for index in 0..4 {
        starts.push(node.tail().1);
        node.append(P0, vec![entry(index, 1, 300)]);
    }
    starts.push(node.tail().1);
    node.append(P0, (4..7).map(|index| entry(index, 1, 300)).collect());
    starts.push(node.tail().1);
    (node, starts)
}

fn flip(vfs: &laneway_storage::vfs::SimVfs, path: &std::path::Path, at: usize) {
    let byte = vfs.read(path).unwrap()[at] ^ 0x10;
    vfs.corrupt(path, at, &[byte]);
}

#[test]
fn flipped_bit_before_the_last_drain_is_refused() {
    let (node, starts) = sample();
    let (path, _) = node.tail();
    for at in (0..64).chain(4096..starts[4]) {
        let vfs = node.vfs.fork();
        flip(&vfs, &path, at);
        let error = Node::open(&vfs, SMALL).map(|node| node.recovery).unwrap_err();
        let WalOpenError::Damaged { file, .. } = &error else {
            panic!("byte {at}: {error}")
        };
        assert_eq!(*file, path);
        let text = error.to_string();
        assert!(
            text.contains("0000000001.wal is damaged at byte ") && text.contains("backup"),
            "{text}"
        );
    }
}

#[test]
fn flipped_bit_in_the_last_drain_is_a_torn_tail() {
    let (node, starts) = sample();
    let (path, end) = node.tail();
    for at in starts[4]..end {
        let vfs = node.vfs.fork();
        flip(&vfs, &path, at);
        let opened = Node::open(&vfs, SMALL).unwrap();
        let found = opened.dump()[&P0].entries.len();
        let whole = (at - starts[4]) / (64 + 300);
        assert_eq!(found, 4 + whole, "byte {at}");
        // Whatever was cut off stays away.
        let mut opened = opened;
        let next = found as u64;
        opened.append(P0, vec![entry(next, 2, 5)]);
        let opened = opened.reopen(SMALL).unwrap();
        assert_eq!(opened.dump()[&P0].entries.len(), found + 1);
        assert_eq!(opened.recovery.torn_bytes_cut, 0);
    }
}

#[test]
fn flipped_bit_in_an_older_segment_is_refused() {
    let mut node = Node::new(SMALL);
    let mut index = 0;
    while node.wal.segments().len() < 3 {
        node.append(P0, vec![entry(index, 1, 1000)]);
        index += 1;
    }
    for info in &node.wal.segments()[..2] {
        let path = segment_path(info.id);
        for at in (0..64).chain((4096..info.bytes_used as usize).step_by(7)) {
            let vfs = node.vfs.fork();
            flip(&vfs, &path, at);
            let refused = matches!(Node::open(&vfs, SMALL), Err(WalOpenError::Damaged { .. }));
            assert!(refused, "byte {at} of segment {}", info.id);
        }
        // The tail gone: nothing bad is left to see, but the next segment knows better.
        let vfs = node.vfs.fork();
        let last = info.bytes_used as usize - 1064;
        vfs.corrupt(&path, last, &vec![0; 1064]);
        assert!(matches!(
            Node::open(&vfs, SMALL),
            Err(WalOpenError::Damaged { .. })
        ));
        let vfs = node.vfs.fork();
        vfs.open(&path).unwrap().set_len(9000).unwrap();
        assert!(matches!(
            Node::open(&vfs, SMALL),
            Err(WalOpenError::Damaged { .. })
        ));
    }
}

#[test]
fn wiped_range_before_a_later_drain_is_refused() {
    let options = laneway_storage::wal::WalOptions {
        segment_bytes: 64 * 1024,
        ..SMALL
    };
    let mut node = Node::new(options);
    for index in 0..6 {
        node.append(P0, vec![entry(index, 1, 7000)]);
    }
    let (path, end) = node.tail();
    for (from, bytes) in [
        (5000, 9000),
        (4096, 64),
        (6000, 30_000),
        (12_000, 4096),
        (end - 7064 - 5000, 5000),
    ] {
        let vfs = node.vfs.fork();
        vfs.corrupt(&path, from, &vec![0; bytes]);
        assert!(
            matches!(Node::open(&vfs, options), Err(WalOpenError::Damaged { .. })),
            "{bytes} bytes at {from}"
        );
    }
    // The whole of the last drain, and the file's end with it.
    let vfs = node.vfs.fork();
    vfs.corrupt(&path, end - 7064, &vec![0; 7064]);
    assert_eq!(Node::open(&vfs, options).unwrap().dump()[&P0].entries.len(), 5);
}

#[test]
fn missing_segment_is_named() {
    let mut node = Node::new(SMALL);
    let mut index = 0;
    while node.wal.segments().len() < 4 {
        node.append(P0, vec![entry(index, 1, 1000)]);
        index += 1;
    }
    let ids: Vec<u64> = node.wal.segments().iter().map(|info| info.id).collect();
    for id in &ids[..3] {
        let vfs = node.vfs.fork();
        vfs.remove(&segment_path(*id)).unwrap();
        let error = Node::open(&vfs, SMALL).map(|node| node.recovery).unwrap_err();
        assert!(
            matches!(error, WalOpenError::MissingEntries { partition: P0, .. }),
            "{error}"
        );
    }
    // Purged entries are not missed.
    node.purge(P0, index - 2).unwrap();
    let vfs = node.vfs.fork();
    vfs.remove(&segment_path(ids[1])).unwrap();
    Node::open(&vfs, SMALL).unwrap();
}

#[test]
fn swapped_segments_are_refused() {
    let mut node = Node::new(SMALL);
    let mut index = 0;
    while node.wal.segments().len() < 3 {
        node.append(P0, vec![entry(index, 1, 1000)]);
        index += 1;
    }
    let vfs = node.vfs.fork();
    let other = vfs.read(&segment_path(2)).unwrap();
    vfs.corrupt(&segment_path(1), 0, &other);
    assert!(matches!(
        Node::open(&vfs, SMALL),
        Err(WalOpenError::Damaged { .. })
    ));
}

#[test]
fn cold_read_notices_damage() {
    let mut node = Node::new(SMALL);
    for index in 0..9 {
        node.append(P0, vec![entry(index, 1, 500)]);
    }
    let at = node.wal.locate(P0, 0).unwrap();
    flip(&node.vfs, &segment_path(at.segment), at.body_at as usize + 77);
    let error = node.wal.read(P0, 0..1, 9).unwrap_err();
    assert_eq!(
        error,
        laneway_storage::wal::WalError::Corrupt {
            segment: at.segment,
            at: at.body_at
        }
    );
}

/// A log with a body of each size at the beginning of its first segment, none of them in memory any more.
fn cold(sizes: &[usize]) -> Node {
    let options = laneway_storage::wal::WalOptions {
        segment_bytes: 1024 * 1024,
        ..SMALL
    };
    let mut node = Node::new(options);
    let end = sizes.len() as u64;
    for (index, &bytes) in (0..).zip(sizes) {
        node.append(P0, vec![entry(index, 1, bytes)]);
    }
    for index in end..end + 20 {
        node.append(P0, vec![entry(index, 1, 500)]);
    }
    node
}

#[test]
fn slice_of_a_short_body_is_checked_with_all_of_it() {
    let mut node = cold(&[0, 300, 64 * 1024, 200_000]);
    // Purged entries have payloads too.
    node.purge(P0, 3).unwrap();
    let whole = cold(&[0, 300, 64 * 1024, 200_000]);
    for index in 1..4 {
        let at = whole.wal.locate(P0, index).unwrap();
        let body = entry(index, 1, at.body_bytes as usize).body;
        let path = segment_path(at.segment);
        for (from, bytes) in [(0, 1), (0, at.body_bytes), (100, 80), (at.body_bytes - 1, 1)] {
            let read = |node: &Node| node.wal.read_at(at.segment, at.body_at + u64::from(from), bytes);
            let wanted = body.slice(from as usize..(from + bytes) as usize);
            assert_eq!(read(&node).unwrap(), wanted);
            // Elsewhere in the body, or in its header.
            for damage in [at.body_at as usize - 20, at.body_at as usize + 290] {
                flip(&node.vfs, &path, damage);
                let found = read(&node);
                flip(&node.vfs, &path, damage);
                if at.body_bytes <= 64 * 1024 || bytes > at.body_bytes / 4 {
                    assert!(
                        matches!(found, Err(laneway_storage::wal::WalError::Corrupt { .. })),
                        "{found:?}"
                    );
                } else {
                    assert_eq!(found.unwrap(), wanted, "too long to be read for so little");
                }
            }
        }
    }
    // Across bodies, as nobody asks.
    let at = whole.wal.locate(P0, 1).unwrap();
    assert_eq!(node.wal.read_at(at.segment, at.body_at, 400).unwrap().len(), 400);
    assert!(node.wal.read_at(at.segment, 1 << 33, 4).is_err());
}

#[test]
fn verified_segment_has_no_damaged_byte() {
    let mut node = Node::new(SMALL);
    let mut index = 0;
    while node.wal.segments().len() < 2 {
        node.append(P0, vec![entry(index, 1, 1000)]);
        index += 1;
    }
    let info = node.wal.segments()[0];
    let path = segment_path(info.id);
    for at in (0..64).chain((4096..info.bytes_used as usize).step_by(5)) {
        flip(&node.vfs, &path, at);
        let found = node.wal.verify_segment(info.id);
        flip(&node.vfs, &path, at);
        assert!(
            matches!(found, Err(laneway_storage::wal::WalError::Corrupt { .. })),
            "byte {at}: {found:?}"
        );
    }
    node.wal.verify_segment(info.id).unwrap();
    assert!(node.wal.verify_segment(99).is_err());
}

proptest! {
    #[test]
    fn reader_survives_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..9000)) {
        fuzz_segment(&bytes);
    }

    #[test]
    fn reader_survives_mutated_segments(
        edits in proptest::collection::vec((0usize..16 * 1024, any::<u8>()), 1..8),
        cut in 0usize..16 * 1024,
    ) {
        let (node, _) = sample();
        let mut bytes = node.vfs.read(&node.tail().0).unwrap();
        for (at, byte) in edits {
            bytes[at] = byte;
        }
        fuzz_segment(&bytes);
        fuzz_segment(&bytes[..cut]);
    }
}
