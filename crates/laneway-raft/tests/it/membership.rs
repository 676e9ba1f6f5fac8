//! Members come, become voters and go.

use std::collections::BTreeSet;

use laneway_raft::{ChangeError, Group, GroupState, Members, TransferError};

use crate::cluster::{Cluster, raft_id};

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
