//! Three nodes in one process, connected over TCP on loopback.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use laneway_raft::{
    AppliedState, GENERATION_TAKEOVER, NodeIntroduction, PeerCallError, PeerOptions, PeerService, Peers,
    TcpTransport, node_id,
};
use laneway_storage::wal::{Wal, WalRecovery};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{Replica, Seen, bodies, body, open_wal};

const PARTITION: u16 = 2;
const GENERATION: u64 = 0x2a;

/// Answers with who asked and what.
struct Echo;

impl PeerService for Echo {
    fn call(&self, node: u16, body: Bytes) -> BoxFuture<'_, Result<Vec<Bytes>, String>> {
        Box::pin(async move {
            match &body[..] {
                b"refuse" => Err("as asked".to_owned()),
                _ => Ok(vec![Bytes::from(format!("{node}:")), body]),
            }
        })
    }

    fn reverted(&self, raft_id: u64, reason: String) {
        panic!("data of {raft_id:#x} went back in time: {reason}");
    }
}

pub(crate) struct Node {
    number: u16,
    peers: Peers,
    pub(crate) replica: Replica,
    /// Held so that it outlives the group.
    _wal: Wal,
}

pub(crate) fn raft_id(node: u16) -> u64 {
    node_id(node, GENERATION)
}

fn introduction(node: u16) -> NodeIntroduction {
    NodeIntroduction {
        cluster: "test".to_owned(),
        cluster_id: 7,
        fingerprint: 9,
        raft_id: raft_id(node),
        process: rand_process(),
        founded: false,
    }
}

fn rand_process() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

pub(crate) fn options(node: u16, ports: &[u16]) -> PeerOptions {
    let address = |at: usize| format!("127.0.0.1:{}", ports[at]);
    let others = (0..ports.len()).filter(|at| *at + 1 != usize::from(node));
    PeerOptions {
        introduction: introduction(node),
        addresses: others
            .map(|at| (u16::try_from(at + 1).expect("few nodes"), address(at)))
            .collect(),
        listen: address(usize::from(node) - 1),
        takeover: GENERATION_TAKEOVER,
    }
}

/// Ports that nothing listens on. Not out of the range that the system hands to outgoing connections, which might take one
/// before it is listened on.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id() * 64;
    let candidates = std::iter::repeat_with(|| {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        u16::try_from(20_000 + (start + step) % 12_000).expect("below 32 000")
    });
    candidates
        .filter(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .take(count)
        .collect()
}

pub(crate) async fn start_peers(options: PeerOptions) -> Peers {
    Peers::start(Arc::new(TcpTransport), options, Arc::new(Echo))
        .await
        .expect("the port is free")
}

impl Node {
    async fn start(number: u16, dir: &Path, ports: &[u16], applied: AppliedState) -> Self {
        let peers = start_peers(options(number, ports)).await;
        let (wal, mut recovery): (Wal, WalRecovery) = open_wal(&dir.join(number.to_string()));
        let replica = Replica::open_among(
            PARTITION,
            raft_id(number),
            &wal,
            &mut recovery,
            applied,
            peers.clone(),
        )
        .await
        .expect("a group opens on what it wrote");
        Self {
            number,
            peers,
            replica,
            _wal: wal,
        }
    }

    pub(crate) async fn stop(self) {
        self.peers.shutdown();
        self.replica.shut_down().await;
    }

    pub(crate) async fn has_applied(&self, numbers: std::ops::Range<u64>) -> Seen {
        let all = bodies(numbers);
        self.replica.machine.wait(|seen| seen.bodies() == all).await
    }
}

pub(crate) struct Cluster {
    dir: tempfile::TempDir,
    ports: Vec<u16>,
    pub(crate) nodes: BTreeMap<u16, Node>,
}

impl Cluster {
    async fn start() -> Self {
        Self::start_with(1..=3).await
    }

    /// Three nodes, of which these vote; the others belong to no group yet.
    pub(crate) async fn start_with(voters: std::ops::RangeInclusive<u16>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let ports = free_ports(3);
        let mut nodes = BTreeMap::new();
        for number in 1..=3 {
            let node = Node::start(number, dir.path(), &ports, AppliedState::default()).await;
            nodes.insert(number, node);
        }
        let voters: BTreeSet<u64> = voters.map(raft_id).collect();
        let founder = &nodes[&1].replica.group;
        founder.initialize(voters).await.expect("node 1 is a voter");
        Self { dir, ports, nodes }
    }

    /// The node that leads and may plan, with its term.
    pub(crate) async fn leader(&self) -> (u16, u64) {
        let terms = self.nodes.values().map(|node| {
            Box::pin(async move {
                let term = node.replica.term().await;
                (node.number, term)
            })
        });
        futures_util::future::select_all(terms).await.0
    }

    /// Proposes until it is applied. A leader without a quorum refuses, and nobody may lead for a while.
    pub(crate) async fn apply_when_possible(&self, number: u64) -> Seen {
        loop {
            let (leader, term) = self.leader().await;
            let Replica { group, machine } = &self.nodes[&leader].replica;
            let failures = machine.seen().failed.len();
            group.propose(term, number, body(number));
            let seen = machine
                .wait(|seen| seen.bodies().last() == Some(&body(number)) || seen.failed.len() > failures)
                .await;
            match seen.failed.get(failures) {
                None => return seen,
                Some((failed, definite)) => assert!(*definite || *failed != number, "unknown outcome"),
            }
        }
    }

    async fn restart(&mut self, number: u16) {
        let node = Node::start(number, self.dir.path(), &self.ports, AppliedState::default()).await;
        self.nodes.insert(number, node);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_reach_every_replica_and_survive_the_leader() {
    let mut cluster = Cluster::start().await;
    let (first, term) = cluster.leader().await;
    cluster.nodes[&first].replica.apply(term, 0..200).await;
    for node in cluster.nodes.values() {
        node.has_applied(0..200).await;
    }

    cluster.nodes.remove(&first).unwrap().stop().await;
    let (second, later) = cluster.leader().await;
    assert!(second != first && later > term);
    cluster.nodes[&second].replica.apply(later, 200..400).await;

    cluster.restart(first).await;
    for node in cluster.nodes.values() {
        node.has_applied(0..400).await;
    }
    assert!(cluster.nodes[&second].replica.group.read_index().await.is_ok());
    for (_, node) in cluster.nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_commits_without_a_quorum() {
    let mut cluster = Cluster::start().await;
    let (leader, term) = cluster.leader().await;
    cluster.nodes[&leader].replica.apply(term, 0..10).await;
    let others: Vec<u16> = cluster
        .nodes
        .keys()
        .copied()
        .filter(|node| *node != leader)
        .collect();
    for node in &others {
        cluster.nodes.remove(node).unwrap().stop().await;
    }
    let left = &cluster.nodes[&leader].replica;
    left.group.propose(term, 10, body(10));
    let read = tokio::time::timeout(Duration::from_secs(1), left.group.read_index()).await;
    assert!(!matches!(read, Ok(Ok(_))), "{read:?}");
    assert_eq!(left.machine.seen().bodies(), bodies(0..10));

    cluster.restart(others[0]).await;
    // What was proposed without a quorum may have become part of the log, once.
    let seen = cluster.apply_when_possible(11).await.bodies();
    let mut without: Vec<Bytes> = bodies(0..10);
    without.push(body(11));
    assert!(seen == without || seen == bodies(0..12), "{seen:?}");
    for (_, node) in cluster.nodes {
        node.stop().await;
    }
}

async fn connected(peers: &Peers, node: u16) {
    let mut view = peers.view(node).expect("a configured peer");
    let seen = tokio::time::timeout(Duration::from_secs(20), view.wait_for(|view| view.peer.is_some()));
    seen.await.expect("the peer connects").expect("the peers live");
}

#[tokio::test]
async fn calls_of_the_node_above_are_answered_refused_or_not_sent() {
    let ports = free_ports(3);
    let [one, two] = [
        start_peers(options(1, &ports)).await,
        start_peers(options(2, &ports)).await,
    ];
    connected(&one, 2).await;
    let within = Duration::from_secs(20);
    // The connection for calls is another one: it may be a moment later.
    let answer = loop {
        match one.call(2, within, vec!["he".into(), "llo".into()]).await {
            Err(PeerCallError::NotConnected { .. }) => tokio::task::yield_now().await,
            answer => break answer,
        }
    };
    assert_eq!(&answer.unwrap()[..], b"1:hello");
    let refused = one.call(2, within, vec!["refuse".into()]).await.unwrap_err();
    assert_eq!(refused.to_string(), "node 2 refused: as asked");
    let absent = one.call(3, within, vec!["hello".into()]).await.unwrap_err();
    assert!(
        matches!(absent, PeerCallError::NotConnected { node: 3, .. }),
        "{absent}"
    );
    let stranger = one.call(9, within, Vec::new()).await.unwrap_err();
    assert!(
        matches!(stranger, PeerCallError::NotConnected { node: 9, .. }),
        "{stranger}"
    );

    two.shutdown();
    let mut view = one.view(2).unwrap();
    let gone = view.wait_for(|view| view.gone && view.peer.is_none());
    tokio::time::timeout(within, gone)
        .await
        .expect("a closed port is noticed")
        .unwrap();
    one.shutdown();
}

/// Starts node 2 with `change` beside node 1 and says why they do not connect.
async fn why_not(change: impl FnOnce(&mut PeerOptions)) -> String {
    let ports = free_ports(2);
    let one = start_peers(options(1, &ports)).await;
    let mut changed = options(2, &ports);
    change(&mut changed);
    let two = start_peers(changed).await;
    let within = Duration::from_secs(5);
    let reason = loop {
        let error = two
            .call(1, within, Vec::new())
            .await
            .expect_err("they must not connect");
        let reason = error.to_string();
        if !reason.contains("no attempt has ended yet") {
            break reason;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(two.view(1).expect("a configured peer").borrow().peer, None);
    one.shutdown();
    two.shutdown();
    reason
}

#[tokio::test]
async fn nodes_that_do_not_belong_together_are_refused_with_the_reason() {
    let other_name = why_not(|two| two.introduction.cluster = "other".to_owned()).await;
    assert!(
        other_name.contains("belongs to cluster \"other\""),
        "{other_name}"
    );
    let other_id = why_not(|two| two.introduction.cluster_id = 8).await;
    assert!(
        other_id.contains("belongs to cluster id 0000000000000008"),
        "{other_id}"
    );
    let other_config = why_not(|two| two.introduction.fingerprint = 8).await;
    assert!(
        other_config.contains("cluster configuration differs"),
        "{other_config}"
    );
    let not_a_peer = why_not(|two| two.introduction.raft_id = raft_id(5)).await;
    assert!(
        not_a_peer.contains("node 5 is not in the cluster file"),
        "{not_a_peer}"
    );
}

#[tokio::test]
async fn second_process_of_a_node_is_refused_while_the_first_is_there() {
    let ports = free_ports(3);
    let one = start_peers(options(1, &ports)).await;
    let two = start_peers(options(2, &ports)).await;
    connected(&two, 1).await;
    connected(&one, 2).await;
    let mut twin = options(2, &ports);
    twin.listen = "127.0.0.1:0".to_owned();
    twin.introduction.raft_id = node_id(2, GENERATION + 1);
    let twin = start_peers(twin).await;
    let within = Duration::from_secs(5);
    let reason = loop {
        let reason = twin.call(1, within, Vec::new()).await.unwrap_err().to_string();
        if !reason.contains("no attempt has ended yet") {
            break reason;
        }
        tokio::task::yield_now().await;
    };
    assert!(reason.contains("another process serves as node 2"), "{reason}");
    assert!(two.view(1).unwrap().borrow().peer.is_some());
    for peers in [one, two, twin] {
        peers.shutdown();
    }
}

/// Sends `bytes` to the peer port of `peers` and returns what comes back until it closes.
async fn sent_to(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port))
        .await
        .expect("it listens");
    // A server that has had enough closes in the middle of it.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer))
        .await
        .expect("a stranger's connection is closed");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_peer_port_disturbs_nobody() {
    let mut cluster = Cluster::start().await;
    let (leader, term) = cluster.leader().await;
    let port = cluster.ports[usize::from(leader) - 1];
    let header = |bytes: u32| [&bytes.to_le_bytes()[..], &[0; 16]].concat();
    let garbage: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        vec![0xff; 100_000],
        vec![0; 100_000],
        header(u32::MAX),
        header(10),
        (0..=255).cycle().take(70_000).collect(),
    ];
    for bytes in &garbage {
        assert!(sent_to(port, bytes).await.is_empty(), "nobody answers a stranger");
    }
    cluster.nodes[&leader].replica.apply(term, 0..20).await;
    for (_, node) in std::mem::take(&mut cluster.nodes) {
        node.has_applied(0..20).await;
        node.stop().await;
    }
}
