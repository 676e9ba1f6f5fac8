use bytes::Bytes;
use laneway_core::ids::PartitionId;
use laneway_storage::vfs::Crash;
use laneway_storage::wal::{EntryLocation, WalError, WalOpenError, WalOptions, WalStep};

use super::support::*;

#[test]
fn entries_votes_and_positions_come_back() {
    let mut node = Node::new(SMALL);
    node.append(P0, vec![entry(0, 1, 10), entry(1, 1, 0)]);
    node.append(P1, vec![entry(1, 3, 100)]);
    node.vote(P0, b"vote-1").unwrap();
    node.vote(P0, b"vote-2").unwrap();
    node.wal.save_committed(P1, Bytes::from_static(b"c1"));
    node.append(P0, vec![entry(2, 1, 3000)]);
    node.purge(P0, 0).unwrap();
    let node = node.reopen(SMALL).unwrap();
    let p0 = &node.recovery.partitions[&P0];
    assert_eq!(p0.vote.as_deref(), Some(&b"vote-2"[..]));
    assert_eq!(
        (p0.purged, p0.last, p0.committed.clone()),
        (Some((0, 1, 7)), Some((2, 1, 7)), None)
    );
    let p1 = &node.recovery.partitions[&P1];
    assert_eq!(
        (p1.last, p1.committed.as_deref()),
        (Some((1, 3, 7)), Some(&b"c1"[..]))
    );
    assert_eq!(node.dump()[&P0].entries, vec![entry(1, 1, 0), entry(2, 1, 3000)]);
    assert_eq!(node.recovery.torn_bytes_cut, 0);
}

#[test]
fn queued_entries_are_readable_before_the_drain() {
    let mut node = Node::new(SMALL);
    let (done, answer) = callback();
    node.wal.append(P0, vec![entry(0, 1, 50), entry(1, 1, 50)], done);
    assert_eq!(
        node.wal.read(P0, 0..9, u64::MAX).unwrap(),
        vec![entry(0, 1, 50), entry(1, 1, 50)]
    );
    assert_eq!(node.wal.last(P0), Some((1, 1, 7)));
    assert_eq!(node.wal.locate(P0, 1), None);
    assert_eq!(answer.get(), None);
    assert_eq!(node.writer.step(), WalStep::Wrote);
    assert!(answer.is_ok());
    assert!(node.wal.locate(P0, 1).is_some());
    assert_eq!(node.writer.step(), WalStep::Idle);
}

#[test]
fn one_sync_serves_everything_queued() {
    let mut node = Node::new(SMALL);
    let before = node.vfs.syncs();
    let answers: Vec<Answer> = (0..20)
        .map(|partition| {
            let (done, answer) = callback();
            node.wal
                .append(PartitionId(partition), vec![entry(0, 1, 40)], done);
            answer
        })
        .collect();
    node.writer.step();
    assert!(answers.iter().all(Answer::is_ok));
    assert_eq!(node.vfs.syncs() - before, 1);
    assert_eq!(node.wal.stats().drains, 2, "the first one made the segment");
}

#[test]
fn committed_positions_alone_cause_no_write() {
    let mut node = Node::new(SMALL);
    node.append(P0, vec![entry(0, 1, 10)]);
    node.wal.save_committed(P0, Bytes::from_static(b"c"));
    assert_eq!(node.writer.step(), WalStep::Idle);
    node.wal.close();
    assert_eq!(node.writer.step(), WalStep::Wrote);
    let node = node.reopen(SMALL).unwrap();
    assert_eq!(
        node.recovery.partitions[&P0].committed.as_deref(),
        Some(&b"c"[..])
    );
}

#[test]
fn payloads_are_served_without_a_copy_while_cached() {
    let options = WalOptions {
        tail_cache_bytes: 600,
        ..SMALL
    };
    let mut node = Node::new(options);
    for index in 0..8 {
        node.append(P0, vec![entry(index, 1, 100)]);
    }
    let newest: EntryLocation = node.wal.locate(P0, 7).unwrap();
    let whole = node.wal.read(P0, 7..8, 1).unwrap().remove(0).body;
    let part = node.wal.read_at(newest.segment, newest.body_at + 10, 20).unwrap();
    assert_eq!(part.as_ptr(), whole[10..].as_ptr());
    let oldest = node.wal.locate(P0, 0).unwrap();
    assert_eq!(node.wal.read_at_cached(oldest.segment, oldest.body_at, 5), None);
    assert_eq!(
        node.wal.read_at(oldest.segment, oldest.body_at + 10, 20).unwrap(),
        entry(0, 1, 100).body.slice(10..30)
    );
    assert!(node.wal.stats().cached_bytes <= 600);
    assert_eq!(node.wal.read(P0, 0..8, u64::MAX).unwrap().len(), 8);
}

#[test]
fn reads_stop_at_their_bound_but_return_one() {
    let mut node = Node::new(SMALL);
    node.append(P0, (0..5).map(|index| entry(index, 1, 100)).collect());
    let lengths = |range, bytes_max| node.wal.read(P0, range, bytes_max).unwrap().len();
    assert_eq!(
        [
            lengths(0..5, 0),
            lengths(0..5, 250),
            lengths(2..3, 250),
            lengths(4..99, 900)
        ],
        [1, 2, 1, 1]
    );
    assert_eq!(lengths(5..9, 900), 0);
    assert_eq!(node.wal.read(P1, 0..9, 1).unwrap(), vec![]);
}

#[test]
fn gaps_and_large_records_are_refused_and_change_nothing() {
    let mut node = Node::new(SMALL);
    let gap = |expected, found| {
        Err(WalError::Gap {
            partition: P0,
            expected,
            found,
        })
    };
    assert_eq!(node.try_append(P0, vec![entry(2, 1, 1)]), gap(0, 2));
    assert_eq!(
        node.try_append(P0, vec![entry(0, 1, 1), entry(2, 1, 1)]),
        gap(1, 2)
    );
    node.append(P0, vec![entry(0, 1, 1)]);
    assert_eq!(node.try_append(P0, vec![entry(0, 1, 1)]), gap(1, 0));
    let (done, answer) = callback();
    node.wal.save_vote(P0, vec![0; 4096].into(), done);
    assert!(matches!(
        answer.get(),
        Some(Err(WalError::TooLarge { bytes: 4096, .. }))
    ));
    assert_eq!(
        node.reopen(SMALL).unwrap().dump()[&P0].entries,
        vec![entry(0, 1, 1)]
    );
}

#[test]
fn later_truncation_wins_over_earlier_entries() {
    let mut node = Node::new(SMALL);
    node.append(P0, (0..10).map(|index| entry(index, 1, 900)).collect());
    node.append(P1, (0..10).map(|index| entry(index, 1, 900)).collect());
    node.truncate(P0, Some(4));
    assert_eq!(node.wal.last(P0), Some((4, 1, 7)));
    node.append(P0, vec![entry(5, 2, 20)]);
    node.truncate(P1, None);
    let wanted: Vec<_> = (0..5)
        .map(|index| entry(index, 1, 900))
        .chain([entry(5, 2, 20)])
        .collect();
    let mut node = node.reopen(SMALL).unwrap();
    assert_eq!(node.dump()[&P0].entries, wanted);
    assert_eq!(node.wal.last(P1), None);
    node.append(P1, vec![entry(0, 5, 1)]);
    let node = node.reopen(SMALL).unwrap();
    assert_eq!(node.dump()[&P1].entries, vec![entry(0, 5, 1)]);
}

#[test]
fn truncated_entries_stay_void_when_the_truncation_is_released() {
    let mut node = Node::new(SMALL);
    // Segment 1 keeps an entry of P1, and void entries of P0.
    node.append(P1, vec![entry(0, 1, 10)]);
    node.append(P0, (0..10).map(|index| entry(index, 1, 900)).collect());
    let first = node.wal.segments()[0].id;
    while node.wal.segments().len() == 1 {
        let next = node.wal.last(PartitionId(2)).map_or(0, |(index, _, _)| index + 1);
        node.append(PartitionId(2), vec![entry(next, 1, 500)]);
    }
    node.truncate(P0, Some(3));
    node.append(P0, (4..8).map(|index| entry(index, 2, 10)).collect());
    while node.wal.segments().len() < 4 {
        let next = node.wal.last(PartitionId(2)).map_or(0, |(index, _, _)| index + 1);
        node.append(PartitionId(2), vec![entry(next, 1, 1500)]);
    }
    node.purge(P0, 7).unwrap();
    node.purge(PartitionId(2), node.wal.last(PartitionId(2)).unwrap().0)
        .unwrap();
    while node.wal.segments().len() < 5 {
        let next = node.wal.last(PartitionId(2)).unwrap().0 + 1;
        node.append(PartitionId(2), vec![entry(next, 1, 1500)]);
    }
    assert!(node.release_all() >= 2);
    let kept: Vec<u64> = node.wal.segments().iter().map(|info| info.id).collect();
    assert_eq!((kept[0], kept.contains(&(first + 1))), (first, false));
    let node = node.reopen(SMALL).unwrap();
    assert_eq!(
        node.dump()[&P0],
        PartitionState {
            vote: None,
            purged: Some((7, 1, 7)),
            entries: vec![]
        }
    );
}

#[test]
fn released_segment_never_holds_the_only_copy_of_a_fact() {
    let mut node = Node::new(SMALL);
    node.vote(P0, b"vote").unwrap();
    node.append(P0, vec![entry(0, 1, 10)]);
    node.purge(P0, 0).unwrap();
    node.wal.save_committed(P0, Bytes::from_static(b"committed"));
    let mut index = 0;
    while node.wal.segments().len() < 4 {
        node.append(P1, vec![entry(index, 1, 2000)]);
        index += 1;
    }
    node.purge(P1, index - 1).unwrap();
    assert_eq!(node.release_all(), 3);
    let node = node.reopen(SMALL).unwrap();
    let p0 = &node.recovery.partitions[&P0];
    assert_eq!(
        (p0.vote.as_deref(), p0.committed.as_deref()),
        (Some(&b"vote"[..]), Some(&b"committed"[..]))
    );
    assert_eq!((p0.purged, p0.last), (Some((0, 1, 7)), Some((0, 1, 7))));
    assert_eq!(node.recovery.segments, 1);
}

#[test]
fn segment_is_needed_until_its_purge_is_durable() {
    let mut node = Node::new(SMALL);
    node.append(P0, (0..8).map(|index| entry(index, 1, 1500)).collect());
    node.append(P1, vec![entry(0, 1, 5000)]);
    let first = node.wal.segments()[0];
    assert!(first.log_needed && !first.active);
    let (done, _answer) = callback();
    node.wal.purge(P0, (7, 1, 7), done);
    assert_eq!(
        node.wal.read(P0, 0..1, 1),
        Err(WalError::Purged {
            partition: P0,
            index: 0,
            first: 8
        })
    );
    assert_eq!(node.wal.release_segment(first.id), Ok(false));
    node.writer.step();
    assert_eq!(node.wal.release_segment(first.id), Ok(true));
    assert_eq!(
        node.wal.release_segment(first.id),
        Err(WalError::NoSegment { segment: first.id })
    );
    let active = node.wal.segments()[0];
    assert!(active.active);
    node.purge(P1, 0).unwrap();
    assert_eq!(node.wal.release_segment(active.id), Ok(false));
}

#[test]
fn void_entries_hold_their_segment_until_the_truncation_is_durable() {
    let mut node = Node::new(SMALL);
    let (done, _first) = callback();
    node.wal
        .append(P0, (0..3).map(|index| entry(index, 1, 10)).collect(), done);
    let (done, _second) = callback();
    node.wal.truncate_after(P0, Some(0), done);
    let (done, _third) = callback();
    node.wal.append(P0, vec![entry(1, 2, 10)], done);
    node.writer.step();
    assert_eq!(
        node.wal.read(P0, 0..9, 999).unwrap(),
        vec![entry(0, 1, 10), entry(1, 2, 10)]
    );
    node.append(P1, vec![entry(0, 1, 9000)]);
    node.append(P1, vec![entry(1, 1, 9000)]);
    node.purge(P0, 1).unwrap();
    node.purge(P1, 0).unwrap();
    assert_eq!(node.release_all(), 1);
    assert_eq!(
        node.reopen(SMALL).unwrap().dump()[&P1].entries,
        vec![entry(1, 1, 9000)]
    );
}

#[test]
fn recycled_segment_hides_its_stale_records() {
    let mut node = Node::new(SMALL);
    let mut index = 0;
    for round in 0..6 {
        let target = node.wal.segments().last().unwrap().id + 2;
        while node.wal.segments().last().unwrap().id < target {
            node.append(P0, vec![entry(index, round, 700)]);
            index += 1;
        }
        node.purge(P0, index - 3).unwrap();
        node.release_all();
        assert!(node.wal.stats().segments_free > 0);
        let wanted: Vec<_> = node.wal.read(P0, index - 2..index, u64::MAX).unwrap();
        node = node.reopen(SMALL).unwrap();
        assert_eq!(node.dump()[&P0].entries, wanted);
        assert_eq!(node.recovery.torn_bytes_cut, 0);
    }
    let stats = node.wal.stats();
    assert!(stats.segments + stats.segments_free <= u64::from(SMALL.segments_max));
}

#[test]
fn entry_larger_than_a_segment_gets_its_own() {
    let mut node = Node::new(SMALL);
    node.append(P0, vec![entry(0, 1, 10), entry(1, 1, 100_000), entry(2, 1, 10)]);
    node.append(P0, vec![entry(3, 1, 30_000)]);
    assert_eq!(node.wal.segments().len(), 4);
    let mut node = node.reopen(SMALL).unwrap();
    let wanted = [(0, 10), (1, 100_000), (2, 10), (3, 30_000)].map(|(index, bytes)| entry(index, 1, bytes));
    assert_eq!(node.dump()[&P0].entries, wanted);
    node.append(P0, vec![entry(4, 1, 9000)]);
    let oversize = node.wal.segments()[1].id;
    node.purge(P0, 3).unwrap();
    let free = node.wal.stats().segments_free;
    assert_eq!(node.wal.release_segment(oversize), Ok(true));
    assert_eq!(
        node.wal.stats().segments_free,
        free,
        "it is removed, not recycled"
    );
}

#[test]
fn purge_beyond_the_end_lets_the_log_go_on_behind_it() {
    let mut node = Node::new(SMALL);
    node.append(P0, vec![entry(0, 1, 10), entry(1, 1, 10)]);
    node.purge(P0, 41).unwrap();
    assert_eq!(node.wal.last(P0), Some((41, 1, 7)));
    assert!(matches!(
        node.try_append(P0, vec![entry(2, 1, 1)]),
        Err(WalError::Gap { expected: 42, .. })
    ));
    node.append(P0, vec![entry(42, 1, 10)]);
    let node = node.reopen(SMALL).unwrap();
    assert_eq!(node.dump()[&P0].entries, vec![entry(42, 1, 10)]);
}

#[test]
fn failed_sync_fails_the_log_for_good() {
    let mut node = Node::new(SMALL);
    node.append(P0, vec![entry(0, 1, 10)]);
    node.vfs.fail_sync_at(node.vfs.syncs());
    assert!(matches!(
        node.try_append(P0, vec![entry(1, 1, 10)]),
        Err(WalError::Failed { .. })
    ));
    assert!(matches!(
        node.try_append(P1, vec![entry(0, 1, 10)]),
        Err(WalError::Failed { .. })
    ));
    assert!(matches!(node.vote(P0, b"v"), Err(WalError::Failed { .. })));
    assert!(node.wal.stats().failed);
    // The restarted process reads the entry from the page cache. Then it must really be on disk.
    let vfs = node.vfs.clone();
    vfs.crash(Crash::Process);
    drop(node);
    let node = Node::open(&vfs, SMALL).unwrap();
    let found = node.dump();
    vfs.crash(Crash::Synced);
    drop(node);
    assert_eq!(Node::open(&vfs, SMALL).unwrap().dump(), found);
}

#[test]
fn second_opener_is_kept_out() {
    let node = Node::new(SMALL);
    assert!(matches!(
        Node::open(&node.vfs, SMALL),
        Err(WalOpenError::Locked { .. })
    ));
    let vfs = node.vfs.clone();
    drop(node);
    Node::open(&vfs, SMALL).unwrap();
}

#[test]
fn closed_log_refuses() {
    let mut node = Node::new(SMALL);
    node.wal.close();
    assert_eq!(node.try_append(P0, vec![entry(0, 1, 1)]), Err(WalError::Closed));
}

#[test]
fn group_that_starts_anew_in_the_process_goes_on_from_what_is_queued() {
    let mut node = Node::new(SMALL);
    node.append(P0, vec![entry(0, 1, 10)]);
    let (done, _answer) = callback();
    node.wal.save_vote(P0, Bytes::from_static(b"vote"), done);
    node.wal.save_committed(P0, Bytes::from_static(b"committed"));
    let (done, _answer) = callback();
    node.wal.append(P0, vec![entry(1, 1, 10)], done);
    let now = node.wal.recovered(P0);
    assert_eq!(
        (now.vote.as_deref(), now.committed.as_deref()),
        (Some(&b"vote"[..]), Some(&b"committed"[..]))
    );
    assert_eq!((now.purged, now.last), (None, Some((1, 1, 7))));
    node.writer.step();
    assert_eq!(node.reopen(SMALL).unwrap().wal.recovered(P0), now);
}
