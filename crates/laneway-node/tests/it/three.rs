//! Three nodes in one process, over loopback.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use laneway_core::command::AckStatus;
use laneway_core::reply::AckedItem;
use laneway_node::{
    AckOutcome, ClusterChange, ClusterGroup, Node, NodeOptions, PeerNetOptions, PushReply, PushRequest,
};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::support::{SOON, ack, ack_item, item, payloads, pop, pop_request, push, small};

/// One cluster at a time: many of them in one process starve each other of votes.
static ONE_CLUSTER: Mutex<()> = Mutex::const_new(());

/// A cluster with its directories.
pub(crate) struct Cluster {
    _only: MutexGuard<'static, ()>,
    pub(crate) nodes: Vec<Option<Node>>,
    dirs: Vec<TempDir>,
    addresses: BTreeMap<u16, String>,
    tune: fn(&mut NodeOptions),
}

/// Ports that were free a moment ago.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free"))
        .collect();
    let port = |listener: &TcpListener| listener.local_addr().expect("it is bound").port();
    listeners.iter().map(port).collect()
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| ()).await
    }

    /// The same, on options of the caller's own.
    pub(crate) async fn start_with(tune: fn(&mut NodeOptions)) -> Self {
        let mut cluster = Self::unstarted(tune).await;
        for at in 0..3 {
            cluster.start_node(at).await;
        }
        cluster.ready().await;
        cluster
    }

    /// Folders and addresses only.
    async fn unstarted(tune: fn(&mut NodeOptions)) -> Self {
        let addresses = (1..).zip(free_ports(3));
        let addresses = addresses.map(|(node, port)| (node, format!("127.0.0.1:{port}")));
        Self {
            _only: ONE_CLUSTER.lock().await,
            nodes: vec![None, None, None],
            dirs: (0..3).map(|_| tempfile::tempdir().expect("a folder")).collect(),
            addresses: addresses.collect(),
            tune,
        }
    }

    fn options(&self, at: usize) -> NodeOptions {
        let number = u16::try_from(at + 1).expect("three nodes");
        let mut options = small(self.dir(at));
        options.node = number;
        options.partitions = 4;
        // Other tests and builds share the machine.
        options.raft.heartbeat_ms = 100;
        options.raft.election_ms_min = 600;
        options.raft.election_ms_max = 1_200;
        options.peers = Some(PeerNetOptions {
            listen: self.addresses[&number].clone(),
            addresses: self.addresses.clone(),
            fingerprint: 1,
            takeover_ms: 500,
        });
        (self.tune)(&mut options);
        options
    }

    pub(crate) fn dir(&self, at: usize) -> &Path {
        self.dirs[at].path()
    }

    pub(crate) async fn start_node(&mut self, at: usize) {
        let (node, _) = Node::start(self.options(at)).await.expect("the node starts");
        self.nodes[at] = Some(node);
    }

    pub(crate) async fn stop_node(&mut self, at: usize) {
        let node = self.nodes[at].take().expect("it runs");
        node.shutdown().await;
    }

    pub(crate) fn node(&self, at: usize) -> &Node {
        self.nodes[at].as_ref().expect("it runs")
    }

    /// Waits until all running nodes serve.
    pub(crate) async fn ready(&self) {
        let deadline = Instant::now() + SOON;
        for node in self.nodes.iter().flatten() {
            while !node.readiness().ready {
                if Instant::now() >= deadline {
                    for node in self.nodes.iter().flatten() {
                        for group in node.status().await.groups {
                            eprintln!("node {}: {group:?}", node.status().await.node);
                        }
                    }
                    panic!("{:?}", node.readiness());
                }
                tokio::task::yield_now().await;
            }
        }
    }

    pub(crate) async fn stop(mut self) {
        for at in 0..3 {
            if self.nodes[at].is_some() {
                self.stop_node(at).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn founding_goes_on_after_a_crash_while_the_identity_was_written() {
    let mut cluster = Cluster::unstarted(|_| ()).await;
    for at in 0..3 {
        std::fs::write(cluster.dir(at).join("identity.tmp"), "laneway-ident").unwrap();
        cluster.start_node(at).await;
        // As if it had died in the second write, when it learns the cluster's id.
        std::fs::write(cluster.dir(at).join("identity.tmp"), "laneway-ident").unwrap();
    }
    cluster.ready().await;
    push(cluster.node(0), vec![item("q", "a", "1", "1")]).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_takes_any_request() {
    let cluster = Cluster::start().await;
    let lanes = 12;
    for n in 0..lanes {
        let items = (0..3)
            .map(|m| {
                item(
                    "q",
                    &format!("lane{n}"),
                    &format!("{n}/{m}"),
                    &format!("[{n},{m}]"),
                )
            })
            .collect();
        let replies = push(cluster.node(n % 3), items).await;
        assert!(replies.iter().all(|reply| matches!(reply, PushReply::Queued(_))));
    }
    let again = push(cluster.node(1), vec![item("q", "lane0", "0/1", "1")]).await;
    assert!(matches!(&again[0], PushReply::Duplicate(position) if position.offset.0 == 1));
    let mut seen = 0;
    for n in 0..lanes {
        let popped = pop(cluster.node((n + 1) % 3), "q").await;
        assert_eq!(popped.lanes.len(), 1);
        let lane = &popped.lanes[0];
        seen += lane.messages.len();
        let last = &lane.messages[2].transaction_id;
        let item = ack_item(lane.lane, last, AckStatus::Completed, popped.lease_id);
        let done = ack(cluster.node((n + 2) % 3), item).await;
        assert_eq!(done.outcome, AckOutcome::Applied(AckedItem::Done));
    }
    assert_eq!(seen, lanes * 3);
    for at in 0..3 {
        assert!(payloads(&pop(cluster.node(at), "q").await).is_empty());
        let info = cluster.node(at).queue("q").await.unwrap().unwrap();
        assert_eq!(
            (info.lanes.len(), info.counts.completed),
            (lanes, (lanes * 3) as u64)
        );
    }
    cluster.stop().await;
}

/// Pushes one message and repeats it until its outcome is known.
async fn push_until_known(node: &Node, id: &str) {
    let deadline = Instant::now() + SOON;
    loop {
        let request = PushRequest {
            request_id: None,
            items: vec![item("q", "a", id, "2")],
        };
        match node.push(request).await {
            Ok(_) => return,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_three_go_on_and_the_third_catches_up() {
    let mut cluster = Cluster::start().await;
    push(cluster.node(0), vec![item("q", "a", "1", "1")]).await;
    for stopped in 0..3 {
        cluster.stop_node(stopped).await;
        cluster.ready().await;
        let other = (stopped + 1) % 3;
        let id = format!("while {stopped} was down");
        push_until_known(cluster.node(other), &id).await;
        cluster.start_node(stopped).await;
        cluster.ready().await;
    }
    let mut request = pop_request("q");
    request.wait = Some(SOON);
    let mut popped = cluster.node(2).pop(request).await.unwrap();
    popped.delivered();
    assert_eq!(payloads(&popped), ["1", "2", "2", "2"]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_alone_refuses_and_changes_nothing() {
    let mut cluster = Cluster::start().await;
    push(cluster.node(0), vec![item("q", "a", "1", "1")]).await;
    cluster.stop_node(1).await;
    cluster.stop_node(2).await;
    let request = PushRequest {
        request_id: None,
        items: vec![item("q", "a", "2", "2")],
    };
    let refused = cluster.node(0).push(request).await.unwrap_err();
    assert!(
        matches!(refused.code, "no_leader" | "outcome_unknown"),
        "{refused:?}"
    );
    assert!(!cluster.node(0).readiness().ready);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pop_without_a_quorum_waits_for_leaders_once() {
    const LEADER_WAIT: Duration = Duration::from_secs(2);
    let mut cluster = Cluster::start_with(|options| {
        options.limits.leader_wait_ms = u64::try_from(LEADER_WAIT.as_millis()).unwrap();
    })
    .await;
    push(cluster.node(0), vec![item("q", "a", "1", "1")]).await;
    assert_eq!(payloads(&pop(cluster.node(0), "q").await), ["1"]);
    cluster.stop_node(1).await;
    cluster.stop_node(2).await;
    let lost = Instant::now() + SOON;
    // Four partitions and the catalog.
    while cluster.node(0).readiness().reasons.len() < 5 {
        assert!(Instant::now() < lost, "{:?}", cluster.node(0).readiness());
        tokio::task::yield_now().await;
    }
    for (group, wait) in [("_", None), ("new", None), ("_", Some(Duration::from_millis(1)))] {
        let mut request = pop_request("q");
        request.wait = wait;
        if group == "new" {
            request.group = group.into();
        }
        let began = Instant::now();
        let refused = cluster.node(0).pop(request).await.unwrap_err();
        assert_eq!(refused.code, "no_leader", "{refused}");
        assert!(
            began.elapsed() < LEADER_WAIT * 3 / 2,
            "{group}: {:?}",
            began.elapsed()
        );
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_pop_of_any_node_gets_what_is_pushed_through_any_other() {
    let cluster = Cluster::start().await;
    for round in 0..6 {
        let (popping, pushing) = (round % 3, (round + 1 + round / 3) % 3);
        let queue = format!("q{round}");
        let mut request = pop_request(&queue);
        request.wait = Some(SOON);
        let node = cluster.node(popping).clone();
        let parked = tokio::spawn(async move { node.pop(request).await });
        while cluster.node(popping).status().await.parked_pops == 0 {
            assert!(!parked.is_finished(), "{:?}", parked.await.unwrap());
            tokio::task::yield_now().await;
        }
        push(cluster.node(pushing), vec![item(&queue, "a", "1", "7")]).await;
        let mut popped = parked.await.unwrap().unwrap();
        popped.delivered();
        assert_eq!(payloads(&popped), ["7"], "round {round}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lead_goes_where_it_is_sent_and_leases_live_on() {
    let cluster = Cluster::start().await;
    push(
        cluster.node(0),
        vec![item("q", "a", "1", "1"), item("q", "a", "2", "2")],
    )
    .await;
    let popped = pop(cluster.node(0), "q").await;
    for to in [2, 3, 1, 1] {
        let change = ClusterChange::TransferLeader(None, to);
        cluster.node(1).change_cluster(change).await.unwrap();
        let status = cluster.node(2).cluster().await;
        assert_eq!(status.groups.len(), 5);
        assert!(
            status.groups.iter().all(|group| group.leader == Some(to)),
            "{status:?}"
        );
        assert!(payloads(&pop(cluster.node(0), "q").await).is_empty());
    }
    let lane = popped.lanes[0].lane;
    let item = ack_item(lane, "2", AckStatus::Completed, popped.lease_id);
    let done = ack(cluster.node(1), item).await;
    assert_eq!(done.outcome, AckOutcome::Applied(AckedItem::Done));
    assert!(done.lease_released);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_is_removed_and_added_again_once_each() {
    let cluster = Cluster::start().await;
    push(cluster.node(0), vec![item("q", "a", "1", "1")]).await;
    let change = async |change| cluster.node(0).change_cluster(change).await;
    assert_eq!(
        change(ClusterChange::RemoveNode(3)).await.unwrap().changed.len(),
        5
    );
    assert_eq!(
        change(ClusterChange::RemoveNode(3)).await.unwrap().changed.len(),
        0
    );
    let status = cluster.node(0).cluster().await;
    assert!(
        status.groups.iter().all(|group| group.members.len() == 2),
        "{status:?}"
    );
    assert_eq!(change(ClusterChange::AddNode(3)).await.unwrap().changed.len(), 5);
    assert_eq!(change(ClusterChange::AddNode(3)).await.unwrap().changed.len(), 0);
    let unknown = change(ClusterChange::AddNode(9)).await.unwrap_err();
    assert_eq!(unknown.code, "conflict");
    push(cluster.node(2), vec![item("q", "a", "2", "2")]).await;
    assert_eq!(payloads(&pop(cluster.node(2), "q").await), ["1", "2"]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_far_a_dead_node_is_nobody_knows() {
    let mut cluster = Cluster::start().await;
    let known = async |cluster: &Cluster| {
        let groups = cluster.node(0).cluster().await.groups;
        let third = groups
            .iter()
            .flat_map(|group| &group.members)
            .filter(|member| member.node == 3);
        third.map(|member| member.matched.is_some()).collect::<Vec<_>>()
    };
    let deadline = Instant::now() + SOON;
    while known(&cluster).await != [true; 5] {
        assert!(Instant::now() < deadline);
    }
    cluster.stop_node(2).await;
    while known(&cluster).await != [false; 5] {
        assert!(Instant::now() < deadline);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removal_that_would_lose_the_quorum_is_refused() {
    let mut cluster = Cluster::start().await;
    cluster.stop_node(2).await;
    cluster.ready().await;
    let refused = cluster.node(0).change_cluster(ClusterChange::RemoveNode(2)).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, "conflict", "{refused}");
    cluster.stop().await;
}

impl Cluster {
    /// Stops a node and takes all its data away.
    pub(crate) async fn wipe(&mut self, at: usize) {
        self.stop_node(at).await;
        for entry in std::fs::read_dir(self.dir(at))
            .expect("the folder is there")
            .flatten()
        {
            let path = entry.path();
            if path.is_dir() {
                std::fs::remove_dir_all(path).expect("the folder goes");
            } else {
                std::fs::remove_file(path).expect("the file goes");
            }
        }
    }

    /// Waits until a node condemns its data for this reason; started again, it gets everything from the others.
    pub(crate) async fn condemned_node_is_replaced(&mut self, at: usize, reason: &str) {
        let deadline = Instant::now() + 2 * SOON;
        let failure = loop {
            if let Some(failure) = self.node(at).failure() {
                break failure;
            }
            assert!(Instant::now() < deadline, "it goes on");
            tokio::task::yield_now().await;
        };
        assert!(failure.contains(reason), "{failure}");
        self.stop_node(at).await;
        self.start_node(at).await;
        push_much(self, "after").await;
        self.ready().await;
        self.agree().await;
    }

    /// Waits until all nodes have the same state in every group, and every node votes in every group.
    pub(crate) async fn agree(&self) {
        let deadline = Instant::now() + 3 * SOON;
        loop {
            let mut digests = Vec::new();
            for node in self.nodes.iter().flatten() {
                let groups = node.digests().await.unwrap_or_default();
                digests.push(
                    groups
                        .into_iter()
                        .map(|group| (group.partition, group.applied_index, group.digest))
                        .collect::<Vec<_>>(),
                );
            }
            let cluster = self.node(0).cluster().await;
            let voters = |group: &ClusterGroup| group.members.iter().filter(|member| member.voter).count();
            let all_vote = cluster
                .groups
                .iter()
                .all(|group| group.members.len() == 3 && voters(group) == 3);
            if all_vote && digests.iter().all(|one| !one.is_empty() && *one == digests[0]) {
                return;
            }
            assert!(Instant::now() < deadline, "{digests:#?} {cluster:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Pushes about 5 MB through every node in turn, to 20 lanes.
pub(crate) async fn push_much(cluster: &Cluster, tag: &str) {
    let filler = "x".repeat(4_000);
    for round in 0..60 {
        let payload = format!("\"{tag}-{round}-{filler}\"");
        let node = cluster
            .nodes
            .iter()
            .flatten()
            .nth(round % 2)
            .expect("two nodes run");
        let items: Vec<_> = (0..20)
            .map(|n| item("q", &format!("lane{n}"), &format!("{tag}/{round}/{n}"), &payload))
            .collect();
        let deadline = Instant::now() + SOON;
        loop {
            let request = PushRequest {
                request_id: None,
                items: items.clone(),
            };
            match node.push(request).await {
                Ok(replies)
                    if replies
                        .iter()
                        .all(|reply| !matches!(reply, PushReply::Refused(_))) =>
                {
                    break;
                }
                refused => assert!(Instant::now() < deadline, "{refused:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wiped_node_comes_back_with_everything() {
    let mut cluster = Cluster::start().await;
    push_much(&cluster, "first").await;
    let popped = pop(cluster.node(0), "q").await;
    let lane = popped.lanes[0].lane;
    cluster.wipe(2).await;
    push_much(&cluster, "second").await;
    cluster.start_node(2).await;
    push_much(&cluster, "third").await;
    cluster.ready().await;
    cluster.agree().await;
    // Everything is read through the node that was wiped, as the leader of all.
    let change = ClusterChange::TransferLeader(None, 3);
    cluster.node(2).change_cluster(change).await.unwrap();
    let again = push(cluster.node(2), vec![item("q", "lane3", "first/7/3", "1")]).await;
    assert!(matches!(&again[0], PushReply::Duplicate(_)));
    let last = &popped.lanes[0]
        .messages
        .last()
        .expect("it has messages")
        .transaction_id;
    let done = ack(
        cluster.node(2),
        ack_item(lane, last, AckStatus::Completed, popped.lease_id),
    );
    assert_eq!(done.await.outcome, AckOutcome::Applied(AckedItem::Done));
    let mut seen = 0;
    loop {
        let mut request = pop_request("q");
        request.lanes_max = 20;
        let mut reply = cluster.node(2).pop(request).await.unwrap();
        reply.delivered();
        if reply.lanes.is_empty() {
            break;
        }
        for lane in &reply.lanes {
            seen += lane.messages.len();
            let last = &lane.messages.last().expect("it has messages").transaction_id;
            let item = ack_item(lane.lane, last, AckStatus::Completed, reply.lease_id);
            assert!(ack(cluster.node(2), item).await.outcome.is_success());
        }
    }
    assert_eq!(seen + popped.lanes[0].messages.len(), 3 * 60 * 20);
    cluster.agree().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_data_is_moved_aside_and_comes_from_the_others() {
    let mut cluster = Cluster::start().await;
    push_much(&cluster, "first").await;
    let noted = cluster.dir(1).join("voters");
    let deadline = Instant::now() + SOON;
    while !std::fs::read_to_string(&noted).is_ok_and(|voters| voters.trim() == "3") {
        assert!(Instant::now() < deadline, "three voters are noted");
        tokio::task::yield_now().await;
    }
    cluster.stop_node(1).await;
    std::fs::remove_dir_all(cluster.dir(1).join("wal")).unwrap();
    // Of a lone voter nobody else has the data: it is never moved aside.
    std::fs::write(&noted, "1\n").unwrap();
    let refused = Node::start(cluster.options(1)).await.unwrap_err();
    assert!(
        refused.to_string().contains("the log of data directory"),
        "{refused}"
    );
    std::fs::write(&noted, "3\n").unwrap();
    cluster.start_node(1).await;
    push_much(&cluster, "second").await;
    cluster.ready().await;
    cluster.agree().await;
    let aside = std::fs::read_dir(cluster.dir(1)).unwrap().flatten();
    let aside = aside.filter(|entry| entry.file_name().to_string_lossy().starts_with("damaged-"));
    assert_eq!(aside.count(), 1);
    cluster.stop().await;
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder is made");
    for entry in std::fs::read_dir(from).expect("the folder is there").flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_all(&path, &target);
        } else {
            std::fs::copy(path, target).expect("a file is copied");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_that_was_put_back_to_an_earlier_time_is_condemned_and_replaced() {
    let mut cluster = Cluster::start().await;
    push_much(&cluster, "first").await;
    cluster.agree().await;
    cluster.stop_node(2).await;
    let earlier = tempfile::tempdir().unwrap();
    copy_all(cluster.dir(2), earlier.path());
    cluster.start_node(2).await;
    cluster.ready().await;
    push_much(&cluster, "second").await;
    cluster.agree().await;
    // The leaders of this term know what it confirmed; whoever is elected later does not.
    cluster.wipe(2).await;
    copy_all(earlier.path(), cluster.dir(2));
    cluster.start_node(2).await;
    cluster
        .condemned_node_is_replaced(2, "put back to an earlier time")
        .await;
    cluster.stop().await;
}
