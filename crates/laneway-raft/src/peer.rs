//! Connections between the nodes of a cluster.
//!
//! Each node keeps three connections to each other one (votes and heartbeats; entries; bulk) and makes them anew when they
//! end. Over them go the calls of raft groups and, for the node above, calls of its own ([`Peers::call`]). Both sides of a
//! connection introduce themselves first, and one that does not belong is refused with the reason on both sides.

mod admission;
mod check;
mod frame;
mod handshake;
mod link;
mod log_limit;
mod matched;
mod message;
mod room;
mod serve;
mod transport;
mod wire;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use laneway_core::ids::PartitionId;
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::TransferLeaderRequest;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use admission::Caller;
pub use check::check_peer_bytes;
use handshake::Class;
pub use handshake::NodeIntroduction;
use link::Link;
use log_limit::LogLimit;
use matched::Matched;
pub(crate) use message::{SnapshotAnswer, Verb};
pub(crate) use message::{
    decode_append_response, decode_appended, decode_snapshot_answer, decode_voted, encode_append,
    encode_snapshot_offer, encode_snapshot_part, encode_snapshot_question, encode_transfer, encode_vote,
};
use room::{Room, RoomLimits};
pub use transport::{PeerListener, PeerStream, PeerTransport, TcpTransport};
pub use wire::PeerCallError;
pub(crate) use wire::WireStream;

use crate::group::Raft;
use crate::snapshot::Receiver;

type Answer = Result<Bytes, PeerCallError>;

/// Connections whose other end has not introduced itself yet. A port scan may lie in wait, but must not take all memory.
const NEWCOMERS_MAX: usize = 256;

/// Between two survivors of a dead leader who stand for election, so that the first is elected before the second stands.
const STAND_STEP: Duration = Duration::from_millis(40);

/// Default of [`PeerOptions::takeover`].
pub const GENERATION_TAKEOVER: Duration = Duration::from_secs(10);

/// What a node needs to talk to others.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// This node, as it introduces itself.
    pub introduction: NodeIntroduction,
    /// `host:port` of every other node by its number.
    pub addresses: BTreeMap<u16, String>,
    /// `host:port` to listen on.
    pub listen: String,
    /// How long nothing may have been heard of a node's data generation before another one of that node is let in.
    pub takeover: Duration,
}

/// The node's own part of the protocol: calls that are not raft's.
pub trait PeerService: Send + Sync + 'static {
    /// Carries out a call of `node`. An error's text reaches the caller as [`PeerCallError::Refused`]: nothing was done.
    fn call(&self, node: u16, body: Bytes) -> BoxFuture<'_, Result<Vec<Bytes>, String>>;

    /// The replicas of this raft node id have lost what they had confirmed: their data is of an earlier time, and must not be
    /// relied on. Must not block; said again as long as it stays so, every some seconds.
    fn reverted(&self, raft_id: u64, reason: String);
}

/// What is known of one peer now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerView {
    /// Who is there, while connected.
    pub peer: Option<NodeIntroduction>,
    /// Nothing listens at its address: the process is gone, and not just slow.
    pub gone: bool,
    /// Why it does not let this node in, in its words; its "this node" is not this one.
    pub refusal: Option<String>,
}

/// A group that peers can reach.
#[derive(Clone)]
struct Member {
    raft: Raft,
    /// `None`: it takes and sends no snapshots.
    receiver: Option<Arc<Receiver>>,
}

/// Connections to all peers. Cheap to clone; they close at [`Peers::shutdown`].
#[derive(Clone)]
pub struct Peers {
    inner: Arc<Inner>,
}

struct Inner {
    transport: Arc<dyn PeerTransport>,
    introduction: Mutex<NodeIntroduction>,
    takeover: Duration,
    links: BTreeMap<(u16, Class), Arc<Link>>,
    views: BTreeMap<u16, watch::Sender<PeerView>>,
    callers: Mutex<HashMap<u16, Caller>>,
    /// The last incoming connection of each node and class; dropping it ends that one.
    newest: Mutex<HashMap<(u16, Class), oneshot::Sender<()>>>,
    rooms: BTreeMap<(u16, Class), Arc<Room>>,
    groups: RwLock<HashMap<PartitionId, Member>>,
    service: Arc<dyn PeerService>,
    log_limit: LogLimit,
    matched: Matched,
    stopping: Stopping,
}

impl Peers {
    /// Listens, and starts to connect to every peer. Returns at once; see [`Peers::view`] for who is there.
    pub async fn start(
        transport: Arc<dyn PeerTransport>,
        options: PeerOptions,
        service: Arc<dyn PeerService>,
    ) -> io::Result<Self> {
        let listener = transport.listen(&options.listen).await?;
        let mut links = BTreeMap::new();
        let mut rooms = BTreeMap::new();
        let mut views = BTreeMap::new();
        for (node, address) in options.addresses {
            views.insert(node, watch::Sender::new(PeerView::default()));
            for class in Class::ALL {
                links.insert((node, class), Arc::new(Link::new(node, class, address.clone())));
                rooms.insert((node, class), Room::new(RoomLimits::of(class)));
            }
        }
        let inner = Arc::new(Inner {
            transport,
            introduction: Mutex::new(options.introduction),
            takeover: options.takeover,
            links,
            views,
            callers: Mutex::default(),
            newest: Mutex::default(),
            rooms,
            groups: RwLock::default(),
            service,
            log_limit: LogLimit::default(),
            matched: Matched::default(),
            stopping: Stopping::default(),
        });
        for link in inner.links.values() {
            tokio::spawn(Arc::clone(link).run(Arc::clone(&inner)));
        }
        tokio::spawn(accept(Arc::clone(&inner), listener));
        Ok(Self { inner })
    }

    /// Numbers of all peers.
    pub fn nodes(&self) -> impl Iterator<Item = u16> + '_ {
        self.inner.views.keys().copied()
    }

    /// What is known of `node`, now and later; `None` when it is no peer.
    #[must_use]
    pub fn view(&self, node: u16) -> Option<watch::Receiver<PeerView>> {
        self.inner.views.get(&node).map(watch::Sender::subscribe)
    }

    /// Whether a process with this raft id is kept out, for other data of its node is there, or was less than
    /// [`PeerOptions::takeover`] ago.
    #[must_use]
    pub fn keeps_out(&self, raft_id: u64) -> bool {
        self.inner.keeps_out(raft_id)
    }

    /// How this node introduces itself from the next connection on.
    pub fn introduce_as(&self, introduction: NodeIntroduction) {
        *lock(&self.inner.introduction) = introduction;
    }

    /// Calls the node's service on `node`. Errors say whether anything can have been done there. Cancel safety: a dropped call
    /// may be carried out all the same.
    pub async fn call(&self, node: u16, within: Duration, body: Vec<Bytes>) -> Result<Bytes, PeerCallError> {
        self.call_service((node, Class::Bulk), within, body).await
    }

    /// The same for a few bytes that must not wait behind the work that [`Peers::call`] gives the peer.
    pub async fn call_small(
        &self,
        node: u16,
        within: Duration,
        body: Vec<Bytes>,
    ) -> Result<Bytes, PeerCallError> {
        self.call_service((node, Class::Control), within, body).await
    }

    async fn call_service(
        &self,
        to: (u16, Class),
        within: Duration,
        body: Vec<Bytes>,
    ) -> Result<Bytes, PeerCallError> {
        let body = Verb::Node.body(body);
        self.inner
            .call(to, None, PartitionId::CATALOG, within, body)
            .await
    }

    /// A replica has confirmed to this leader of `term` what it holds up to `index`.
    pub(crate) fn matched(&self, partition: PartitionId, raft_id: u64, term: u64, index: u64) {
        self.inner.matched.note(partition, raft_id, term, index);
    }

    /// A replica says that it does not have this leader's entry at `index`.
    pub(crate) fn conflict(&self, partition: PartitionId, raft_id: u64, term: u64, index: u64) {
        let Some(confirmed) = self.inner.matched.lost(partition, raft_id, term, index) else {
            return;
        };
        let node = crate::node_number(raft_id);
        if let Some(left_out) = self.inner.log_limit.due(&node.to_string(), "reverted") {
            tracing::error!(
                %partition, node, confirmed, lacks = index, left_out,
                "a node lacks log entries that it had confirmed: its data was put back to an earlier time"
            );
            let reason = format!(
                "partition {partition} had confirmed the log up to {confirmed} and lacks {index}: the data was put back to an earlier time"
            );
            self.inner.service.reverted(raft_id, reason);
        }
    }

    /// Closes all connections and listens no more.
    pub fn shutdown(&self) {
        self.inner.stopping.stop();
    }

    /// A group's raft call, answered by the replica with this raft node id and no other.
    pub(crate) async fn call_raft(
        &self,
        raft_id: u64,
        partition: PartitionId,
        within: Duration,
        verb: Verb,
        body: Vec<Bytes>,
    ) -> Result<Bytes, PeerCallError> {
        self.call_replica(Class::Control, raft_id, partition, within, verb, body)
            .await
    }

    /// A call about snapshots, by the connection for bulk, answered by the replica with this raft node id and no other.
    pub(crate) async fn call_bulk(
        &self,
        raft_id: u64,
        partition: PartitionId,
        within: Duration,
        verb: Verb,
        body: Vec<Bytes>,
    ) -> Result<Bytes, PeerCallError> {
        self.call_replica(Class::Bulk, raft_id, partition, within, verb, body)
            .await
    }

    async fn call_replica(
        &self,
        class: Class,
        raft_id: u64,
        partition: PartitionId,
        within: Duration,
        verb: Verb,
        body: Vec<Bytes>,
    ) -> Result<Bytes, PeerCallError> {
        let key = (crate::node_number(raft_id), class);
        let body = verb.body(body);
        self.inner.call(key, Some(raft_id), partition, within, body).await
    }

    /// An ordered stream of appends to the replica with this raft node id.
    pub(crate) fn open(
        &self,
        raft_id: u64,
        partition: PartitionId,
    ) -> Result<(WireStream, mpsc::Receiver<Answer>), PeerCallError> {
        let link = self.inner.link((crate::node_number(raft_id), Class::Entries))?;
        link.open(raft_id, partition)
    }

    /// Lets peers reach this group until the registration is dropped.
    pub(crate) fn register(
        &self,
        partition: PartitionId,
        raft: Raft,
        receiver: Option<Receiver>,
    ) -> Registration {
        let mut groups = self.inner.groups.write().unwrap_or_else(PoisonError::into_inner);
        let receiver = receiver.map(Arc::new);
        groups.insert(partition, Member { raft, receiver });
        Registration {
            peers: self.clone(),
            partition,
        }
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers")
            .field("nodes", &self.nodes().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// Keeps a group reachable.
pub(crate) struct Registration {
    peers: Peers,
    partition: PartitionId,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let groups = &self.peers.inner.groups;
        let member = groups
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.partition);
        if let Some(receiver) = member.and_then(|member| member.receiver) {
            receiver.close();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn introduction(&self) -> NodeIntroduction {
        lock(&self.introduction).clone()
    }

    fn link(&self, key: (u16, Class)) -> Result<&Arc<Link>, PeerCallError> {
        self.links.get(&key).ok_or_else(|| PeerCallError::NotConnected {
            node: key.0,
            reason: "it is not in the cluster file".to_owned(),
        })
    }

    async fn call(
        &self,
        key: (u16, Class),
        raft_id: Option<u64>,
        partition: PartitionId,
        within: Duration,
        body: Vec<Bytes>,
    ) -> Answer {
        let call = self.link(key)?.call(raft_id, partition, body);
        tokio::time::timeout(within, call).await.unwrap_or_else(|_| {
            Err(PeerCallError::NoAnswer {
                node: key.0,
                reason: format!("{} ms went by", within.as_millis()),
            })
        })
    }

    fn group(&self, partition: PartitionId) -> Option<Member> {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        groups.get(&partition).cloned()
    }

    fn groups(&self) -> Vec<(PartitionId, Raft)> {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        groups
            .iter()
            .map(|(id, member)| (*id, member.raft.clone()))
            .collect()
    }

    /// A peer has called: it is there.
    fn poke(&self, node: u16) {
        for class in Class::ALL {
            if let Some(link) = self.links.get(&(node, class)) {
                link.poke();
            }
        }
    }

    fn peer_up(&self, node: u16, welcome: &NodeIntroduction) {
        if let Some(view) = self.views.get(&node) {
            view.send_replace(PeerView {
                peer: Some(welcome.clone()),
                ..PeerView::default()
            });
        }
        let raft_id = welcome.raft_id;
        let groups = self.groups();
        tokio::spawn(async move {
            for (_, raft) in groups {
                // A group that ended needs none.
                let _ = raft.trigger().reset_backoff([raft_id]).await;
            }
        });
    }

    fn peer_down(self: &Arc<Self>, node: u16, gone: bool, refusal: Option<String>) {
        let Some(view) = self.views.get(&node) else { return };
        let peer = None;
        let before = view.send_replace(PeerView { peer, gone, refusal });
        let known = before.peer.as_ref().map(|peer| peer.raft_id);
        if gone && !before.gone {
            for (partition, raft) in self.groups() {
                tokio::spawn(stand_for_dead_leader(partition, raft, node));
            }
        }
        tracing::debug!(node, gone, ?known, "peer is down");
    }

    fn log_stranger(&self, address: &str, kind: &'static str, reason: &str) {
        if let Some(left_out) = self.log_limit.due(address, kind) {
            tracing::warn!(address, reason, left_out, "refused a connection to the peer port");
        }
    }
}

async fn accept(inner: Arc<Inner>, listener: Box<dyn PeerListener>) {
    let stopping = inner.stopping.clone();
    let newcomers = Arc::new(Semaphore::new(NEWCOMERS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopping.cancelled() => return,
        };
        match accepted {
            Ok((stream, address)) => match Arc::clone(&newcomers).try_acquire_owned() {
                Ok(newcomer) => {
                    tokio::spawn(serve::serve(Arc::clone(&inner), stream, address, newcomer));
                }
                Err(_) => {
                    let reason = format!("{NEWCOMERS_MAX} others have not introduced themselves yet");
                    inner.log_stranger(&address, "crowd", &reason);
                }
            },
            Err(error) => {
                if let Some(left_out) = inner.log_limit.due("", "accept") {
                    tracing::warn!(%error, left_out, "cannot take a peer's connection");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// The process of a group's leader is gone for certain, so its lease protects nobody: one survivor after the other stands
/// for election at once, in an order that spreads the partitions.
async fn stand_for_dead_leader(partition: PartitionId, raft: Raft, dead: u16) {
    let us = *raft.node_id();
    let (vote, rank) = {
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        let led_by_dead = metrics
            .current_leader
            .is_some_and(|leader| crate::node_number(leader) == dead);
        if !led_by_dead || metrics.state != ServerState::Follower {
            return;
        }
        let membership = metrics.membership_config.membership();
        let alive: Vec<u64> = membership
            .voter_ids()
            .filter(|voter| crate::node_number(*voter) != dead)
            .collect();
        let Some(place) = alive.iter().position(|voter| *voter == us) else {
            return;
        };
        let first = usize::from(partition.0) % alive.len();
        (metrics.vote, (place + alive.len() - first) % alive.len())
    };
    tokio::time::sleep(STAND_STEP * u32::try_from(rank).unwrap_or(u32::MAX)).await;
    if raft.metrics().borrow_watched().vote != vote {
        return;
    }
    tracing::info!(%partition, dead, "the leader's process is gone: standing for election");
    let request = TransferLeaderRequest::new(vote, us, None);
    match raft.handle_transfer_leader(request).await {
        Ok(Ok(())) => {}
        Ok(Err(refusal)) => tracing::debug!(%partition, %refusal, "no early election"),
        Err(fatal) => tracing::debug!(%partition, %fatal, "no early election"),
    }
}

/// Says once that all tasks shall end.
#[derive(Clone, Debug)]
struct Stopping(watch::Sender<bool>);

impl Default for Stopping {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Stopping {
    fn stop(&self) {
        self.0.send_replace(true);
    }

    async fn cancelled(&self) {
        // This sender keeps the channel open.
        let _ = self.0.subscribe().wait_for(|stop| *stop).await;
    }
}
