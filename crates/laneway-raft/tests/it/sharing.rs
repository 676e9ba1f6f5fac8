use crate::harness::{Replica, bodies, body, open_wal};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_on_one_wal_share_its_syncs() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let mut replicas = Vec::new();
    for partition in 0..4 {
        replicas.push(Replica::lead(partition, &wal, &mut recovery).await);
    }
    let before = wal.stats().fsyncs;
    for number in 0..500 {
        for (replica, term) in &replicas {
            replica.group.propose(*term, number, body(number));
        }
    }
    for (replica, _) in &replicas {
        let seen = replica.machine.wait(|seen| seen.bodies().len() == 500).await;
        assert_eq!(seen.bodies(), bodies(0..500));
    }
    let syncs = wal.stats().fsyncs - before;
    assert!(syncs < 2_000 / 4, "{syncs} syncs for 2000 entries of 4 groups");
    for (replica, _) in replicas {
        replica.shut_down().await;
    }
    wal.close();
}
