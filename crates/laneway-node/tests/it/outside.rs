//! What nodes without a part in the cluster say, and what the others say of them.

use laneway_node::{ClusterChange, Node, PushRequest, Readiness};
use tokio::time::Instant;

use crate::support::{SOON, item, push};
use crate::three::Cluster;

/// Waits until the node has one reason, with all of `parts`.
async fn until_it_says(node: &Node, parts: &[&str]) {
    let deadline = Instant::now() + SOON;
    let says = |readiness: &Readiness| match &readiness.reasons[..] {
        [reason] => parts.iter().all(|part| reason.contains(part)),
        _ => false,
    };
    loop {
        let readiness = node.readiness();
        if says(&readiness) {
            assert!(!readiness.ready);
            return;
        }
        assert!(Instant::now() < deadline, "{readiness:?}");
        tokio::task::yield_now().await;
    }
}

/// Waits until node 1 sees this trouble with node 3; none at all when it is empty.
async fn until_seen(cluster: &Cluster, trouble: &str) {
    let deadline = Instant::now() + SOON;
    loop {
        let node = cluster.node(0).cluster().await.nodes.remove(2);
        let seen = node.trouble.as_deref().unwrap_or_default();
        if seen.contains(trouble) && seen.is_empty() == trouble.is_empty() {
            assert_eq!(node.connected, trouble.is_empty());
            return;
        }
        assert!(Instant::now() < deadline, "{node:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_with_new_data_says_that_it_is_kept_out_for_a_while() {
    let mut cluster = Cluster::start_with(|options| {
        let peers = options.peers.as_mut().expect("it has peers");
        peers.takeover_ms = 3_000;
    })
    .await;
    cluster.wipe(2).await;
    cluster.start_node(2).await;
    let parts = ["nodes 1, 2 refuse this node", "ran with earlier data", "3000 ms"];
    until_it_says(cluster.node(2), &parts).await;
    until_seen(&cluster, "runs with new data").await;
    cluster.ready().await;
    until_seen(&cluster, "").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_node_says_so_and_refuses_at_once_until_it_is_back() {
    let mut cluster = Cluster::start().await;
    let remove = ClusterChange::RemoveNode(3);
    cluster.node(0).change_cluster(remove).await.unwrap();
    until_it_says(
        cluster.node(2),
        &["node 3 is no member", "was removed", "add-node 3"],
    )
    .await;
    // After a restart it does not even know the leaders of that time.
    cluster.stop_node(2).await;
    cluster.start_node(2).await;
    until_it_says(cluster.node(2), &["was removed"]).await;
    let request = PushRequest {
        request_id: None,
        items: vec![item("q", "a", "1", "1")],
    };
    let refused = cluster.node(2).push(request).await.unwrap_err();
    assert_eq!(refused.code, "no_leader");
    assert!(refused.message.contains("was removed"), "{refused}");
    let add = ClusterChange::AddNode(3);
    cluster.node(0).change_cluster(add).await.unwrap();
    cluster.ready().await;
    push(cluster.node(2), vec![item("q", "a", "2", "2")]).await;

    cluster.stop_node(1).await;
    cluster.stop_node(2).await;
    let deadline = Instant::now() + SOON;
    loop {
        let refused = cluster.node(0).change_cluster(remove).await.unwrap_err();
        if refused.message.contains("decides nothing now: 1 of its 3 voters") {
            break;
        }
        assert!(Instant::now() < deadline, "{refused}");
    }
    cluster.stop().await;
}
