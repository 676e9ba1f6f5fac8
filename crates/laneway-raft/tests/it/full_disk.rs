use std::sync::Arc;

use bytes::Bytes;
use laneway_storage::vfs::{SimVfs, Vfs};
use laneway_storage::wal::{Wal, WalOptions, WalRecovery};

use crate::harness::{Replica, Seen, bodies, body};

const SEGMENT_BYTES: u64 = 64 * 1024;
const LARGE_BYTES: usize = 16 * 1024;

fn open_wal(disk: &SimVfs) -> (Wal, WalRecovery) {
    let options = WalOptions {
        segment_bytes: SEGMENT_BYTES,
        segments_max: 2,
        ..WalOptions::default()
    };
    let disk: Arc<dyn Vfs> = Arc::new(disk.clone());
    Wal::open(disk, "/node/wal".into(), options).expect("opened")
}

fn large(number: u64) -> Bytes {
    let mut large = body(number).to_vec();
    large.resize(LARGE_BYTES, b'.');
    large.into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_outlives_a_full_disk() {
    let disk = SimVfs::new();
    let (wal, mut recovery) = open_wal(&disk);
    let (replica, term) = Replica::lead(0, &wal, &mut recovery).await;
    disk.set_disk_bytes(Some(disk.used_bytes() + 2 * SEGMENT_BYTES));
    let mut number = 0;
    while !replica.group.metrics().waits_for_room {
        replica.group.propose(term, number, large(number));
        number += 1;
        // Each proposal either gets in or makes the group wait.
        loop {
            let applied = replica.machine.seen().bodies().len();
            if replica.group.metrics().waits_for_room || applied == usize::try_from(number).unwrap() {
                break;
            }
            tokio::task::yield_now().await;
        }
        assert!(number < 100, "the disk is never full");
    }
    // More of them queue up behind the first, and the group goes on leading.
    for more in number..number + 5 {
        replica.group.propose(term, more, large(more));
    }
    number += 5;
    assert!(replica.group.leadership().is_self);
    assert!(replica.group.read_index().await.is_ok());

    disk.set_disk_bytes(None);
    let all = |seen: &Seen| seen.bodies().len() == usize::try_from(number).unwrap();
    let seen = replica.machine.wait(all).await;
    assert!(
        seen.bodies() == (0..number).map(large).collect::<Vec<_>>(),
        "out of order"
    );
    assert_eq!((seen.failed, seen.stopped), (vec![], None));
    let replica_after = replica.group.metrics();
    assert_eq!(replica_after.term, term);
    replica.apply(term, number..number + 300).await;
    assert!(!replica.group.metrics().waits_for_room);
    replica.shut_down().await;
    wal.close();
    drop(wal);

    let (wal, mut recovery) = open_wal(&disk);
    let (replica, _) = Replica::lead(0, &wal, &mut recovery).await;
    let kept = replica.machine.seen().bodies();
    let (first, rest) = kept.split_at(usize::try_from(number).unwrap());
    assert!(first == (0..number).map(large).collect::<Vec<_>>() && rest == bodies(number..number + 300));
    replica.shut_down().await;
    wal.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_ends_quietly_while_it_waits_for_room() {
    let disk = SimVfs::new();
    let (wal, mut recovery) = open_wal(&disk);
    let (replica, term) = Replica::lead(0, &wal, &mut recovery).await;
    disk.set_disk_bytes(Some(0));
    for number in 0..20 {
        replica.group.propose(term, number, large(number));
    }
    while !replica.group.metrics().waits_for_room {
        tokio::task::yield_now().await;
    }
    let seen = replica.shut_down().await;
    assert_eq!(seen.stopped, None);
    let applied = u64::try_from(seen.bodies().len()).unwrap();
    let mut failed = seen.failed;
    failed.sort_unstable(); // those that had not been handed over yet fail at once, and for sure
    let numbers: Vec<u64> = failed.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (applied..20).collect::<Vec<_>>());
    assert!(
        !failed[0].1,
        "what waited in the log may be found there later, for all this group knows"
    );
    wal.close();
}
