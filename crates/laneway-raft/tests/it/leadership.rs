use std::collections::BTreeSet;

use laneway_raft::{AppliedState, GroupState, InitializeError, Leadership};

use crate::harness::{NODE, Replica, body, open_wal};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_announced_from_start_to_end() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let replica = Replica::open(0, &wal, &mut recovery, AppliedState::default())
        .await
        .unwrap();
    let nobody = Leadership {
        term: 0,
        leader: None,
        is_self: false,
    };
    let seen = replica.machine.wait(|seen| !seen.leadership.is_empty()).await;
    assert_eq!(seen.leadership, [nobody]);
    assert_eq!(replica.group.leadership(), nobody);
    assert_eq!(replica.group.metrics().state, GroupState::Learner);

    replica.group.initialize(BTreeSet::from([NODE])).await.unwrap();
    let term = replica.term().await;
    let leading = Leadership {
        term,
        leader: Some(NODE),
        is_self: true,
    };
    assert_eq!(replica.group.leadership(), leading);
    assert_eq!(replica.group.metrics().state, GroupState::Leader);
    assert_eq!(replica.group.metrics().leader, Some(NODE));

    replica.group.shutdown().await;
    assert_eq!(replica.group.metrics().state, GroupState::Stopped);
    let seen = replica.shut_down().await;
    assert_eq!(
        seen.leadership
            .iter()
            .filter(|now| now.is_self)
            .collect::<Vec<_>>(),
        [&leading]
    );
    assert_eq!(
        seen.leadership.last(),
        Some(&Leadership {
            term,
            leader: None,
            is_self: false
        })
    );
    assert_eq!(seen.stopped, None, "a shutdown is no failure");
    wal.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initializing_twice_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let (replica, term) = Replica::lead(0, &wal, &mut recovery).await;
    replica.group.initialize(BTreeSet::from([NODE])).await.unwrap();
    replica.group.initialize(BTreeSet::from([NODE, 7])).await.unwrap();
    replica.apply(term, 0..1).await;
    replica.shut_down().await;
    wal.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stranger_cannot_initialize() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let replica = Replica::open(0, &wal, &mut recovery, AppliedState::default())
        .await
        .unwrap();
    let refused = replica.group.initialize(BTreeSet::from([7])).await;
    assert!(
        matches!(refused, Err(InitializeError::NotAVoter { node_id: NODE })),
        "{refused:?}"
    );
    replica.group.initialize(BTreeSet::from([NODE])).await.unwrap();
    replica.term().await;
    replica.shut_down().await;
    wal.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn voter_without_its_peer_never_leads() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let replica = Replica::open(0, &wal, &mut recovery, AppliedState::default())
        .await
        .unwrap();
    replica.group.initialize(BTreeSet::from([NODE, 7])).await.unwrap();
    // The election that follows initialization has moved the term; its vote request met no peer.
    replica
        .machine
        .wait(|seen| seen.leadership.last().is_some_and(|now| now.term > 0))
        .await;
    replica.group.propose(1, 1, body(1));
    let seen = replica.machine.wait(|seen| !seen.failed.is_empty()).await;
    assert_eq!(seen.failed, [(1, true)]);
    assert!(replica.group.read_index().await.is_err());
    let seen = replica.shut_down().await;
    assert!(seen.applied.is_empty());
    assert!(
        seen.leadership.iter().all(|now| !now.is_self),
        "{:?}",
        seen.leadership
    );
    wal.close();
}
