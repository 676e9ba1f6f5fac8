//! Members come, become voters and go.

use std::collections::BTreeSet;

use laneway_raft::{ChangeError, Group, GroupState, Members, TransferError};

use crate::cluster::{Cluster, raft_id};
use crate::harness::{Replica, Seen, body};

fn ids<const N: usize>(nodes: [u16; N]) -> BTreeSet<u64> {
    nodes.into_iter().map(raft_id).collect()
}

fn group(cluster: &Cluster, node: u16) -> &Group {
    &cluster.nodes[&node].replica.group
}

async fn stop(cluster: Cluster) {
    for (_, node) in cluster.nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn learner_catches_up_becomes_a_voter_and_outlives_the_first() {
    let mut cluster = Cluster::start_with(1..=1).await;
    let (leader, term) = cluster.leader().await;
    assert_eq!(leader, 1);
    cluster.nodes[&1].replica.apply(term, 0..50).await;
    assert_eq!(group(&cluster, 2).members(), Members::default());
    assert!(group(&cluster, 2).is_member(), "it belongs to nothing else");

    let unknown = group(&cluster, 1).set_voters(ids([1, 2])).await;
    assert_eq!(unknown, Err(ChangeError::UnknownMember { raft_id: raft_id(2) }));
    for learner in [2, 3] {
        group(&cluster, 1).add_learner(raft_id(learner)).await.unwrap();
    }
    for node in [2, 3] {
        cluster.nodes[&node].has_applied(0..50).await;
    }
    let members = group(&cluster, 1).members();
    assert_eq!((members.voters, members.learners), (ids([1]), ids([2, 3])));
    assert!(group(&cluster, 2).is_member());
    assert_eq!(group(&cluster, 2).metrics().state, GroupState::Learner);

    group(&cluster, 1).set_voters(ids([1, 2])).await.unwrap();
    let members = group(&cluster, 1).members();
    assert_eq!(
        members,
        Members {
            voters: ids([1, 2]),
            learners: ids([3]),
            joint: false
        }
    );
    let mut known: BTreeSet<u64> = group(&cluster, 1).matched().into_keys().collect();
    assert_eq!(known, ids([1, 2, 3]));
    group(&cluster, 1).set_voters(ids([1, 2, 3])).await.unwrap();
    cluster.nodes[&1].replica.apply(term, 50..60).await;

    // The first leaves: it hands over once its removal is committed.
    group(&cluster, 1).set_voters(ids([2, 3])).await.unwrap();
    cluster.nodes.remove(&1).unwrap().stop().await;
    let (leader, later) = cluster.leader().await;
    assert!(later > term);
    cluster.nodes[&leader].replica.apply(later, 60..70).await;
    for node in cluster.nodes.values() {
        node.has_applied(0..70).await;
        assert_eq!(node.replica.group.members().voters, ids([2, 3]));
    }
    known = group(&cluster, leader).matched().into_keys().collect();
    assert_eq!(known, ids([2, 3]), "it is gone, not a learner");
    stop(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn learner_is_removed_and_a_voter_is_not_removed_as_one() {
    let cluster = Cluster::start_with(1..=2).await;
    let (leader, _) = cluster.leader().await;
    let at_leader = group(&cluster, leader);
    at_leader.add_learner(raft_id(3)).await.unwrap();
    at_leader.add_learner(raft_id(3)).await.unwrap();
    assert_eq!(at_leader.members().learners, ids([3]));
    let voter = raft_id(3 - leader);
    assert_eq!(
        at_leader.remove_learner(voter).await,
        Err(ChangeError::UnknownMember { raft_id: voter })
    );
    at_leader.remove_learner(raft_id(3)).await.unwrap();
    at_leader.remove_learner(raft_id(3)).await.unwrap();
    assert_eq!(at_leader.members().learners, ids([]));
    assert_eq!(
        at_leader.set_voters(BTreeSet::new()).await,
        Err(ChangeError::NoVoters)
    );
    let elsewhere = group(&cluster, 3 - leader).add_learner(raft_id(3)).await;
    assert_eq!(
        elsewhere,
        Err(ChangeError::NotLeader {
            leader: Some(raft_id(leader))
        })
    );
    assert!(group(&cluster, 3 - leader).matched().is_empty());
    stop(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lead_passes_to_the_named_voter_and_to_nobody_else() {
    let cluster = Cluster::start_with(1..=2).await;
    let (leader, term) = cluster.leader().await;
    let (at_leader, other) = (group(&cluster, leader), 3 - leader);
    at_leader.add_learner(raft_id(3)).await.unwrap();
    assert_eq!(
        at_leader.transfer_leader(raft_id(3)).await,
        Err(TransferError::NotAVoter { raft_id: raft_id(3) })
    );
    assert_eq!(at_leader.transfer_leader(raft_id(leader)).await, Ok(()));
    at_leader.transfer_leader(raft_id(other)).await.unwrap();
    let later = cluster.nodes[&other].replica.term().await;
    assert!(later > term);
    cluster.nodes[&other].replica.apply(later, 0..5).await;
    assert!(matches!(
        group(&cluster, leader).transfer_leader(raft_id(3)).await,
        Err(TransferError::NotLeader { .. })
    ));
    stop(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_on_its_way_when_the_lead_passes_on() {
    let cluster = Cluster::start_with(1..=3).await;
    let (leader, term) = cluster.leader().await;
    let other = leader % 3 + 1;
    let Replica { group, machine } = &cluster.nodes[&leader].replica;
    cluster.nodes[&leader].replica.apply(term, 0..200).await;

    let (mut load_told, mut told) = (machine.watch(), machine.watch());
    let load = async {
        let mut next = 200;
        while group.leadership().is_self {
            for number in next..next + 3 {
                group.propose(term, number, body(number));
            }
            next += 3;
            load_told.changed().await.expect("the machine lives");
        }
        next
    };
    let until_the_end = async {
        let ended = |seen: &Seen| seen.leadership.last().is_some_and(|now| !now.is_self);
        told.wait_for(ended).await.expect("the machine lives").bodies()
    };
    let (transferred, proposed, at_the_end) =
        tokio::join!(group.transfer_leader(raft_id(other)), load, until_the_end);
    transferred.unwrap();
    let later = cluster.nodes[&other].replica.term().await;
    assert!(later > term);
    let count = usize::try_from(proposed).expect("few");
    let all = |seen: &Seen| seen.failed.len() + seen.bodies().len() == count;
    let seen = machine.wait(all).await;
    assert!(
        seen.failed.iter().all(|(_, definite)| *definite),
        "an unknown outcome"
    );
    assert!(
        seen.bodies() == at_the_end,
        "all of the term was applied within it"
    );
    cluster.nodes[&other]
        .replica
        .apply(later, proposed..proposed + 5)
        .await;
    stop(cluster).await;
}

/// A leader with its term, and a voter that is gone and lacks five entries.
async fn one_voter_lags() -> (Cluster, u16, u64, u16) {
    let mut cluster = Cluster::start_with(1..=3).await;
    let (leader, term) = cluster.leader().await;
    let gone = leader % 3 + 1;
    cluster.nodes[&leader].replica.apply(term, 0..10).await;
    let all = Some(group(&cluster, leader).metrics().last_index);
    while group(&cluster, leader).matched().get(&raft_id(gone)).copied() != all {
        tokio::task::yield_now().await;
    }
    let node = cluster.nodes.remove(&gone).expect("one of three");
    node.stop().await;
    cluster.nodes[&leader].replica.apply(term, 10..15).await;
    (cluster, leader, term, gone)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lead_stays_when_its_target_does_not_catch_up() {
    let (cluster, leader, term, gone) = one_voter_lags().await;
    let behind = TransferError::Behind {
        raft_id: raft_id(gone),
        entries: 5,
    };
    assert_eq!(
        group(&cluster, leader).transfer_leader(raft_id(gone)).await,
        Err(behind)
    );
    cluster.nodes[&leader].replica.apply(term, 15..25).await;
    stop(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_transfer_lets_proposals_in_again() {
    let (cluster, leader, term, gone) = one_voter_lags().await;
    let Replica { group, machine } = &cluster.nodes[&leader].replica;
    let mut next = 15;
    loop {
        let refused = async {
            group.propose(term, next, body(next));
            let number = next;
            next += 1;
            let seen = machine
                .wait(|seen| {
                    seen.failed.contains(&(number, true)) || seen.bodies().last() == Some(&body(number))
                })
                .await;
            seen.failed.contains(&(number, true))
        };
        // The transfer is dropped half-way, if the machine is not so slow that it has ended by then.
        let was_refused = tokio::select! {
            biased;
            _ = group.transfer_leader(raft_id(gone)) => false,
            was_refused = refused => was_refused,
        };
        if was_refused {
            break;
        }
    }
    cluster.nodes[&leader].replica.apply(term, next..next + 10).await;
    assert!(group.leadership().is_self);
    stop(cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_change_of_voters_is_finished() {
    let cluster = Cluster::start_with(1..=3).await;
    let (leader, _) = cluster.leader().await;
    let at_leader = group(&cluster, leader);
    assert_eq!(at_leader.finish_change().await, Ok(false));
    let (three, two) = (ids([1, 2, 3]), ids([leader, leader % 3 + 1]));
    loop {
        let joint = async {
            while !at_leader.members().joint {
                tokio::task::yield_now().await;
            }
        };
        // Dropped between its two entries, unless this task is too late.
        tokio::select! {
            biased;
            () = joint => {}
            _ = at_leader.set_voters(two.clone()) => {}
        }
        if at_leader.members().joint {
            break;
        }
        let third = *three.difference(&two).next().expect("three are more than two");
        at_leader.add_learner(third).await.unwrap();
        at_leader.set_voters(three.clone()).await.unwrap();
    }
    // The lease begins anew with the other quorum: the first proposals may be refused.
    cluster.apply_when_possible(0).await;
    assert!(at_leader.members().joint, "nobody finishes it");

    let (leader, _) = cluster.leader().await;
    let at_leader = group(&cluster, leader);
    assert_eq!(at_leader.finish_change().await, Ok(true));
    let members = at_leader.members();
    assert_eq!((members.joint, members.voters), (false, two));
    assert_eq!(at_leader.finish_change().await, Ok(false));
    cluster.apply_when_possible(1).await;
    stop(cluster).await;
}
