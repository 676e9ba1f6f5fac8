use laneway_raft::PurgeError;

use crate::harness::{Replica, open_wal};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoint_is_named_by_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let (replica, term) = Replica::lead(0, &wal, &mut recovery).await;
    assert_eq!(replica.group.name_checkpoint().await, Ok(None));
    assert_eq!(replica.group.purge(1).await, Err(PurgeError::NoCheckpoint));

    replica.apply(term, 0..20).await;
    let seen = replica.machine.seen();
    for index in [5, 11, 11] {
        let name = seen.checkpoint(index);
        replica.machine.checkpoint.send_replace(Some(name.clone()));
        assert_eq!(replica.group.name_checkpoint().await, Ok(Some(name)));
    }
    assert_eq!(replica.group.metrics().purged, None, "naming purges nothing");
    assert_eq!(replica.group.purge(7).await, Ok(Some(7)));
    assert_eq!(replica.group.purge(u64::MAX).await, Ok(Some(11)));
    assert_eq!(
        wal.purged(laneway_core::ids::PartitionId(0))
            .map(|(index, ..)| index),
        Some(11)
    );

    replica.apply(term, 20..30).await;
    replica.group.shutdown().await;
    assert_eq!(replica.group.purge(11).await, Err(PurgeError::Stopped));
    replica.shut_down().await;
    wal.close();
}
