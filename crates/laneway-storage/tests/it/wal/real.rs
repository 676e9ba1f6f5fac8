//! The log on real files, with its threads.

use std::sync::Arc;
use std::sync::mpsc;

use laneway_core::ids::PartitionId;
use laneway_storage::vfs::{RealVfs, Vfs};
use laneway_storage::wal::{Wal, WalEntry, WalError, WalOpenError, WalOptions};

use super::support::{P0, dump, entry};

const OPTIONS: WalOptions = WalOptions {
    segment_bytes: 256 * 1024,
    segments_max: 8,
    tail_cache_bytes: 64 * 1024,
};

fn append(wal: &Wal, partition: PartitionId, entries: Vec<WalEntry>) -> Result<(), WalError> {
    let (sender, receiver) = mpsc::channel();
    wal.append(
        partition,
        entries,
        Box::new(move |result| sender.send(result).unwrap()),
    );
    receiver.recv().unwrap()
}

#[test]
fn callers_of_all_partitions_share_drains() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, _) = Wal::open(Arc::new(RealVfs), dir.path().join("wal"), OPTIONS).unwrap();
    std::thread::scope(|scope| {
        for partition in 0..8 {
            let wal = wal.clone();
            scope.spawn(move || {
                for index in 0..100 {
                    append(&wal, PartitionId(partition), vec![entry(index, 1, 1000)]).unwrap();
                    if index % 10 == 9 {
                        let (sender, receiver) = mpsc::channel();
                        let done = Box::new(move |result: Result<(), WalError>| sender.send(result).unwrap());
                        wal.purge(PartitionId(partition), (index - 5, 1, 7), done);
                        receiver.recv().unwrap().unwrap();
                        for info in wal.segments() {
                            // Another thread may have been faster.
                            let _ = wal.release_segment(info.id);
                        }
                    }
                }
            });
        }
    });
    let stats = wal.stats();
    assert_eq!(stats.entries_written, 800);
    assert!(stats.drains <= stats.fsyncs && stats.segments < 6);
    assert_eq!(
        stats
            .fsync_latency
            .buckets
            .iter()
            .map(|(_, count)| count)
            .sum::<u64>(),
        stats.fsyncs
    );
    wal.close();
    assert_eq!(append(&wal, P0, vec![entry(100, 1, 1)]), Err(WalError::Closed));
    drop(wal);
    let (wal, recovery) = Wal::open(Arc::new(RealVfs), dir.path().join("wal"), OPTIONS).unwrap();
    let state = dump(&wal, &recovery);
    assert_eq!(state.len(), 8);
    for partition in state.values() {
        assert_eq!(
            partition.entries,
            (95..100).map(|index| entry(index, 1, 1000)).collect::<Vec<_>>()
        );
    }
}

#[test]
fn reader_keeps_its_bytes_while_the_segment_is_released() {
    let dir = tempfile::tempdir().unwrap();
    let options = WalOptions {
        tail_cache_bytes: 0,
        segment_bytes: 64 * 1024,
        ..OPTIONS
    };
    let (wal, _) = Wal::open(Arc::new(RealVfs), dir.path().join("wal"), options).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut read = 0;
            while read < 2000 {
                let first = wal.first_index(P0);
                match wal.read(P0, first..first + 3, u64::MAX) {
                    Ok(entries) => {
                        read += 1;
                        entries
                            .iter()
                            .for_each(|found| assert_eq!(*found, entry(found.index, 1, 3000)));
                    }
                    Err(WalError::Purged { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        for index in 0.. {
            append(&wal, P0, vec![entry(index, 1, 3000)]).unwrap();
            if index >= 10 {
                wal.purge(P0, (index - 10, 1, 7), Box::new(|result| result.unwrap()));
            }
            for info in wal.segments() {
                let _ = wal.release_segment(info.id);
            }
            if reader.is_finished() {
                break;
            }
        }
        reader.join().unwrap();
    });
}

#[test]
fn second_process_is_kept_out() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, _) = Wal::open(Arc::new(RealVfs), dir.path().to_owned(), OPTIONS).unwrap();
    let error = Wal::open(Arc::new(RealVfs), dir.path().to_owned(), OPTIONS)
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(error, WalOpenError::Locked { .. }), "{error}");
    drop(wal);
    Wal::open(Arc::new(RealVfs), dir.path().to_owned(), OPTIONS).unwrap();
}

#[test]
fn foreign_and_unfinished_files_are_dealt_with() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["notes.txt", "0000000007.tmp", "0000000008.free"] {
        std::fs::write(dir.path().join(name), "x").unwrap();
    }
    let (wal, recovery) = Wal::open(Arc::new(RealVfs), dir.path().to_owned(), OPTIONS).unwrap();
    assert_eq!(recovery.segments, 0);
    let names = RealVfs.list(dir.path()).unwrap();
    assert!(names.contains(&"notes.txt".to_owned()));
    assert!(!names.contains(&"0000000007.tmp".to_owned()) && !names.contains(&"0000000008.free".to_owned()));
    drop(wal);
}

#[test]
fn vectored_write_takes_any_number_of_buffers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let file = RealVfs.create(&path).unwrap();
    let pieces: Vec<Vec<u8>> = (0..3000u32).map(|at| vec![at as u8; (at % 7) as usize]).collect();
    let buffers: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
    file.write_vectored_at(&buffers, 5).unwrap();
    file.sync_data().unwrap();
    assert_eq!(RealVfs.read(&path).unwrap()[5..], pieces.concat());
    assert!(RealVfs.create(&path).is_err());
    assert!(RealVfs.free_bytes(dir.path()).unwrap() > 0);
    RealVfs.create_dir_all(&dir.path().join("a/b/c")).unwrap();
    RealVfs.create_dir_all(&dir.path().join("a/b/c")).unwrap();
    assert!(RealVfs.exists(&dir.path().join("a/b/c")).unwrap());
    assert_ne!(RealVfs.nonce(), RealVfs.nonce());
}
