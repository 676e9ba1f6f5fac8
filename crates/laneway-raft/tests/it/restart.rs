use laneway_raft::{AppliedState, CommittedPayload, OpenError};

use crate::harness::{Replica, Seen, bodies, open_wal};

fn applied_at(seen: &Seen, index: u64) -> AppliedState {
    let name = seen.checkpoint(index);
    AppliedState {
        applied: Some((name.index, name.term, name.leader)),
        membership: name.membership,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_replays_only_what_the_checkpoint_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let (replica, term) = Replica::lead(0, &wal, &mut recovery).await;
    replica.apply(term, 0..200).await;
    let before = replica.shut_down().await;
    wal.close();
    drop(wal);

    let (wal, mut recovery) = open_wal(dir.path());
    let replica = Replica::open(0, &wal, &mut recovery, applied_at(&before, 120))
        .await
        .unwrap();
    let new_term = replica.term().await;
    assert!(new_term > term, "a restarted leader leads a new term");
    let after = replica.machine.seen();
    let replayed = &after.applied[..after.applied.len() - 1];
    assert_eq!(replayed, &before.applied[121..]);
    let first = after.applied.last().unwrap();
    assert_eq!((&first.payload, first.term), (&CommittedPayload::Blank, new_term));
    replica.apply(new_term, 200..210).await;
    replica.shut_down().await;
    wal.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_group_comes_back_with_every_applied_entry() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let (wal, mut recovery) = open_wal(dir.path());
        let (replica, term) = Replica::lead(0, &wal, &mut recovery).await;
        replica.apply(term, round * 50..(round + 1) * 50).await;
        assert_eq!(replica.machine.seen().bodies(), bodies(0..(round + 1) * 50));
        let Replica { group, machine } = replica;
        drop(group);
        let seen = machine.ended().await;
        assert_eq!(seen.leadership.last().map(|now| now.is_self), Some(false));
        wal.close();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terms_never_repeat_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = 0;
    for _ in 0..5 {
        let (wal, mut recovery) = open_wal(dir.path());
        let (replica, term) = Replica::lead(0, &wal, &mut recovery).await;
        assert!(term > last, "term {term} follows {last}");
        assert_eq!(replica.group.metrics().term, term);
        last = term;
        replica.shut_down().await;
        wal.close();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purged_log_restarts_from_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let (replica, term) = Replica::lead(0, &wal, &mut recovery).await;
    replica.apply(term, 0..100).await;
    let seen = replica.machine.seen();
    replica.machine.checkpoint.send_replace(Some(seen.checkpoint(60)));
    assert_eq!(
        replica.group.purge(80).await,
        Ok(Some(60)),
        "no further than the checkpoint"
    );
    assert_eq!(
        replica.group.purge(10).await,
        Ok(Some(60)),
        "what is purged stays purged"
    );
    let before = replica.shut_down().await;
    wal.close();
    drop(wal);

    let (wal, mut recovery) = open_wal(dir.path());
    let replica = Replica::open(0, &wal, &mut recovery, applied_at(&before, 60))
        .await
        .unwrap();
    let new_term = replica.term().await;
    replica.apply(new_term, 100..101).await;
    let after = replica.machine.seen();
    assert_eq!(after.applied[..before.applied.len() - 61], before.applied[61..]);
    replica.shut_down().await;
    wal.close();
    drop(wal);

    let (wal, mut recovery) = open_wal(dir.path());
    let stale = Replica::open(0, &wal, &mut recovery, applied_at(&before, 30)).await;
    let Err(OpenError::CheckpointBehindLog { purged, applied }) = stale else {
        panic!("opened with a hole")
    };
    assert_eq!((purged, applied), (Some(60), Some(30)));
    wal.close();
}
