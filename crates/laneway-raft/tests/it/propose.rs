use laneway_raft::{AppliedState, CommittedPayload};

use crate::harness::{Replica, bodies, body, open_wal};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proposals_are_applied_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let (replica, term) = Replica::lead(0, &wal, &mut recovery).await;
    replica.apply(term, 0..500).await;
    let seen = replica.machine.seen();
    assert_eq!(seen.bodies(), bodies(0..500));
    assert!(seen.failed.is_empty(), "{:?}", seen.failed);
    let indexes: Vec<u64> = seen.applied.iter().map(|entry| entry.index).collect();
    assert_eq!(
        indexes,
        (0..u64::try_from(indexes.len()).unwrap()).collect::<Vec<_>>()
    );
    assert!(matches!(seen.applied[0].payload, CommittedPayload::Membership(_)));
    assert_eq!(seen.applied[1].payload, CommittedPayload::Blank);
    assert!(seen.applied[1..].iter().all(|entry| entry.term == term));
    replica.shut_down().await;
    wal.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proposal_for_another_term_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let (replica, term) = Replica::lead(0, &wal, &mut recovery).await;
    replica.group.propose(term - 1, 1, body(1));
    replica.group.propose(term + 1, 2, body(2));
    replica.apply(term, 3..4).await;
    let seen = replica.machine.wait(|seen| seen.failed.len() == 2).await;
    assert_eq!(seen.failed, [(1, true), (2, true)]);
    assert_eq!(seen.bodies(), bodies(3..4));
    replica.shut_down().await;
    wal.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proposal_to_a_group_without_leader_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let replica = Replica::open(0, &wal, &mut recovery, AppliedState::default())
        .await
        .unwrap();
    replica.group.propose(0, 1, body(1));
    let seen = replica.machine.wait(|seen| !seen.failed.is_empty()).await;
    assert_eq!(seen.failed, [(1, true)]);
    replica.shut_down().await;
    wal.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_reach_the_machine_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let (replica, term) = Replica::lead(0, &wal, &mut recovery).await;
    let large: Vec<bytes::Bytes> = (0..24u8).map(|byte| vec![byte; 700_000].into()).collect();
    for (number, body) in (0..).zip(&large) {
        replica.group.propose(term, number, body.clone());
    }
    let seen = replica
        .machine
        .wait(|seen| seen.bodies().len() == large.len())
        .await;
    assert!(seen.bodies() == large, "bodies differ");
    replica.shut_down().await;
    wal.close();
}
