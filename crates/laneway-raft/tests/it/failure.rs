use crate::harness::{Gate, Replica, bodies, body, open_wal};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proposal_after_shutdown_is_a_definite_failure() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let (replica, term) = Replica::lead(0, &wal, &mut recovery).await;
    replica.apply(term, 0..10).await;
    replica.group.shutdown().await;
    replica
        .machine
        .wait(|seen| seen.leadership.last().is_some_and(|now| !now.is_self))
        .await;
    replica.group.propose(term, 10, body(10));
    let seen = replica.machine.wait(|seen| !seen.failed.is_empty()).await;
    assert_eq!(seen.failed, [(10, true)]);
    replica.group.shutdown().await; // a second time does no harm
    replica.shut_down().await;
    wal.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_proposal_of_a_broken_machine_is_reported_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let (replica, term) = Replica::lead(0, &wal, &mut recovery).await;
    replica.apply(term, 0..10).await;
    replica.machine.gate.send_replace(Gate::Broken);
    for number in 10..20 {
        replica.group.propose(term, number, body(number));
    }
    let seen = replica
        .machine
        .wait(|seen| seen.stopped.is_some() && seen.failed.len() == 10)
        .await;
    let reason = seen.stopped.unwrap();
    assert!(reason.contains("state machine failed"), "{reason}");
    assert_eq!(seen.leadership.last().map(|now| now.is_self), Some(false));
    // Those that came after the end are surely not in the log; those before may be.
    let mut numbers: Vec<u64> = seen.failed.iter().map(|(number, _)| *number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (10..20).collect::<Vec<_>>());
    let first = seen.failed.iter().find(|(number, _)| *number == 10).unwrap();
    assert!(!first.1, "it was committed");
    replica.shut_down().await;
    wal.close();
    drop(wal);

    // The log has kept what was committed, and gives it to the machine's next life.
    let (wal, mut recovery) = open_wal(dir.path());
    let (replica, _) = Replica::lead(0, &wal, &mut recovery).await;
    let kept = replica.machine.seen().bodies();
    assert!(
        kept.len() > 10 && kept == bodies(0..u64::try_from(kept.len()).unwrap()),
        "{kept:?}"
    );
    replica.shut_down().await;
    wal.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proposals_under_way_at_shutdown_have_one_outcome_each() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, mut recovery) = open_wal(dir.path());
    let (replica, term) = Replica::lead(0, &wal, &mut recovery).await;
    for number in 0..300 {
        replica.group.propose(term, number, body(number));
    }
    replica.machine.wait(|seen| seen.bodies().len() > 3).await;
    let seen = replica.shut_down().await;
    let applied = u64::try_from(seen.bodies().len()).unwrap();
    assert_eq!(seen.bodies(), bodies(0..applied), "no gap");
    let mut outcomes: Vec<u64> = (0..applied)
        .chain(seen.failed.iter().map(|(number, _)| *number))
        .collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, (0..300).collect::<Vec<_>>());
    wal.close();
    drop(wal);

    // What failed for sure is not in the log.
    let (wal, mut recovery) = open_wal(dir.path());
    let (replica, _) = Replica::lead(0, &wal, &mut recovery).await;
    let kept = replica.machine.seen().bodies();
    for (number, definite) in seen.failed {
        assert!(
            !definite || !kept.contains(&body(number)),
            "proposal {number} came back"
        );
    }
    replica.shut_down().await;
    wal.close();
}
