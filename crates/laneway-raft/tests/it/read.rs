use laneway_raft::{AppliedState, ReadIndexError};

use crate::harness::{Gate, Replica, body, open_wal};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_index_waits_for_what_is_committed() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let (replica, term) = Replica::lead(0, &wal, &mut recovery).await;
    let start = replica.group.read_index().await.unwrap();
    let batches = replica.machine.seen().batches;

    replica.machine.gate.send_replace(Gate::Closed);
    replica.group.propose(term, 1, body(1));
    replica.machine.wait(|seen| seen.batches > batches).await; // committed, and held back by the gate
    let readers: Vec<_> = (0..100)
        .map(|_| {
            let group = replica.group.clone();
            tokio::spawn(async move { group.read_index().await })
        })
        .collect();
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert!(
        readers.iter().all(|reader| !reader.is_finished()),
        "a read went ahead of a committed entry"
    );
    replica.machine.gate.send_replace(Gate::Open);
    for reader in readers {
        assert_eq!(reader.await.unwrap(), Ok(start + 1));
    }
    assert_eq!(replica.machine.seen().bodies(), [body(1)]);
    replica.shut_down().await;
    wal.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_index_needs_a_leader() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let replica = Replica::open(0, &wal, &mut recovery, AppliedState::default())
        .await
        .unwrap();
    assert_eq!(
        replica.group.read_index().await,
        Err(ReadIndexError::NotLeader { leader: None })
    );
    replica.group.shutdown().await;
    assert_eq!(replica.group.read_index().await, Err(ReadIndexError::Stopped));
    replica.shut_down().await;
    wal.close();
}
