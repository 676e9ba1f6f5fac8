//! Peers that belong here and misbehave.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use laneway_storage::vfs::RealVfs;
use laneway_storage::wal::{RecoveredPartition, Wal, WalOptions};
use tokio::io::{AsyncReadExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::watch;

use super::*;
use crate::fsm::{AppliedState, FsmMsg};
use crate::group::{Group, GroupOptions};
use crate::peer::frame::{BODY_BYTES_MAX, write_pieces};
use crate::peer::handshake::introduce;
use crate::peer::room::RoomLimits;
use crate::peer::{
    GENERATION_TAKEOVER, NEWCOMERS_MAX, PeerListener, PeerOptions, PeerService, PeerTransport, Peers,
};
use crate::types::Vote;

const KIB: usize = 1024;
const P: PartitionId = PartitionId(3);

/// Lets all that can run do so.
async fn settle() {
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
}

/// Counts calls and answers each with so many bytes, once the gate is open.
struct Service {
    begun: AtomicUsize,
    answer_bytes: usize,
    gate: watch::Sender<bool>,
}

impl Service {
    fn new(answer_bytes: usize, open: bool) -> Arc<Self> {
        Arc::new(Self {
            begun: AtomicUsize::new(0),
            answer_bytes,
            gate: watch::Sender::new(open),
        })
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }
}

impl PeerService for Service {
    fn call(&self, _node: u16, _body: Bytes) -> BoxFuture<'_, Result<Vec<Bytes>, String>> {
        Box::pin(async {
            self.begun.fetch_add(1, Ordering::SeqCst);
            let mut gate = self.gate.subscribe();
            gate.wait_for(|open| *open).await.unwrap();
            Ok(vec![Bytes::from(vec![7; self.answer_bytes])])
        })
    }

    fn reverted(&self, _raft_id: u64, _reason: String) {}
}

/// Takes what the test sends to it and reaches nobody.
struct Pipes(Mutex<Option<mpsc::UnboundedReceiver<PeerStream>>>);

struct Pipe(tokio::sync::Mutex<mpsc::UnboundedReceiver<PeerStream>>);

impl std::fmt::Debug for Pipes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pipes")
    }
}

impl std::fmt::Debug for Pipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pipe")
    }
}

impl PeerTransport for Pipes {
    fn connect<'a>(&'a self, _address: &'a str) -> BoxFuture<'a, io::Result<PeerStream>> {
        Box::pin(std::future::pending())
    }

    fn listen<'a>(&'a self, _address: &'a str) -> BoxFuture<'a, io::Result<Box<dyn PeerListener>>> {
        let pipe = self.0.lock().unwrap().take().unwrap();
        Box::pin(async { Ok(Box::new(Pipe(tokio::sync::Mutex::new(pipe))) as Box<dyn PeerListener>) })
    }
}

impl PeerListener for Pipe {
    fn accept(&self) -> BoxFuture<'_, io::Result<(PeerStream, String)>> {
        Box::pin(async {
            match self.0.lock().await.recv().await {
                Some(stream) => Ok((stream, "192.0.2.1:4000".to_owned())),
                None => std::future::pending().await,
            }
        })
    }

    fn address(&self) -> String {
        "a test".to_owned()
    }
}

fn introduction(node: u16) -> NodeIntroduction {
    NodeIntroduction {
        cluster: "test".to_owned(),
        cluster_id: 7,
        fingerprint: 9,
        raft_id: crate::node_id(node, 42),
        process: 5,
        founded: true,
    }
}

/// Node 1, with its peer 2 at the other end of pipes.
struct Here {
    peers: Peers,
    pipes: mpsc::UnboundedSender<PeerStream>,
}

impl Here {
    async fn start(service: Arc<Service>) -> Self {
        let (pipes, taken) = mpsc::unbounded_channel();
        let options = PeerOptions {
            introduction: introduction(1),
            addresses: BTreeMap::from([(2, "nowhere".to_owned())]),
            listen: "a test".to_owned(),
            takeover: GENERATION_TAKEOVER,
        };
        let transport = Arc::new(Pipes(Mutex::new(Some(taken))));
        let peers = Peers::start(transport, options, service).await.unwrap();
        Self { peers, pipes }
    }

    fn pipe(&self) -> PeerStream {
        let (theirs, ours) = pipe();
        self.pipes.send(ours).unwrap();
        theirs
    }

    /// A connection of node 2 that was let in.
    async fn connect(&self, class: Class) -> PeerStream {
        let mut stream = self.pipe();
        let welcome = introduce(&mut stream, class, 1, introduction(2)).await.unwrap();
        assert_eq!(welcome, introduction(1));
        stream
    }

    /// Serves a connection of node 2 in a room of the test's own. The task ends with the reason.
    fn talk(&self, limits: RoomLimits) -> (PeerStream, tokio::task::JoinHandle<ServeError>) {
        let (theirs, ours) = pipe();
        let inner = Arc::clone(&self.peers.inner);
        let talking = talk(inner, 2, Room::new(limits), BODY_BYTES_MAX, ours);
        (theirs, tokio::spawn(talking))
    }
}

/// Two ends of a connection that holds next to nothing.
fn pipe() -> (PeerStream, PeerStream) {
    let side = |(input, output): (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>)| PeerStream {
        input: Box::new(input),
        output: Box::new(output),
    };
    let (near, far) = duplex(4 * KIB);
    (side(split(near)), side(split(far)))
}

fn limits() -> RoomLimits {
    RoomLimits {
        calls: 10_000,
        request_bytes: 1 << 30,
        answer_bytes_pause: 1 << 30,
        answer_bytes: 2 << 30,
    }
}

fn call(number: u64, body_bytes: usize) -> Frame {
    Frame {
        kind: Kind::Call,
        partition: PartitionId::CATALOG,
        number,
        body: Verb::Node.body([Bytes::from(vec![1; body_bytes - 1])]),
    }
}

fn item(number: u64) -> Frame {
    let request = AppendEntriesRequest::<Types> {
        vote: Vote::new_committed(1, crate::node_id(2, 42)),
        prev_log_id: None,
        entries: Vec::new(),
        leader_commit: None,
    };
    Frame {
        kind: Kind::Item,
        partition: P,
        number,
        body: message::encode_append(request),
    }
}

fn end(number: u64) -> Frame {
    Frame::new(Kind::End, P, number, Bytes::new())
}

/// Writes frames for as long as the other side takes them, and counts.
fn write(
    mut output: impl tokio::io::AsyncWrite + Send + Unpin + 'static,
    frames: Vec<Frame>,
) -> watch::Receiver<usize> {
    let (count, written) = watch::channel(0);
    tokio::spawn(async move {
        for frame in frames {
            let mut pieces = frame.pieces(BODY_BYTES_MAX).unwrap();
            if write_pieces(&mut output, &mut pieces).await.is_err() {
                return;
            }
            count.send_modify(|count| *count += 1);
        }
        // The connection stays open.
        std::future::pending::<()>().await;
    });
    written
}

async fn answer(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Received {
    in_time(read_frame(stream, BODY_BYTES_MAX)).await.unwrap()
}

/// For what must happen.
async fn in_time<T>(what: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), what)
        .await
        .expect("it must happen")
}

#[tokio::test]
async fn peer_that_never_reads_has_few_calls_carried_out() {
    let service = Service::new(100 * KIB, true);
    let here = Here::start(Arc::clone(&service)).await;
    let calls = |count| (0..count).map(|number| call(number, 100)).collect();

    let (theirs, _talking) = here.talk(RoomLimits { calls: 8, ..limits() });
    write(theirs.output, calls(200));
    settle().await;
    assert_eq!(service.begun(), 8, "a call counts until its answer is written");

    let few_bytes = RoomLimits {
        answer_bytes_pause: 1 << 20,
        ..limits()
    };
    service.begun.store(0, Ordering::SeqCst);
    let (mut theirs, _talking) = here.talk(few_bytes);
    write(theirs.output, calls(60));
    settle().await;
    let begun = service.begun();
    assert!(
        (8..=16).contains(&begun),
        "{begun} calls of 100 KiB each in 1 MiB"
    );
    for _ in 0..60 {
        assert_eq!(answer(&mut theirs.input).await.body.len(), 100 * KIB);
    }
}

#[tokio::test]
async fn peer_that_lets_the_answers_of_begun_calls_lie_is_cut_off() {
    let service = Service::new(1000 * KIB, false);
    let here = Here::start(Arc::clone(&service)).await;
    let (theirs, talking) = here.talk(RoomLimits {
        answer_bytes: 2000 * KIB,
        ..limits()
    });
    write(theirs.output, (0..10).map(|number| call(number, 100)).collect());
    settle().await;
    assert_eq!(service.begun(), 10);
    service.gate.send_replace(true);
    let error = in_time(talking).await.unwrap();
    assert!(matches!(error, ServeError::Unread), "{error}");
}

#[tokio::test]
async fn big_calls_wait_in_the_connection_while_others_are_carried_out() {
    let service = Service::new(1, false);
    let here = Here::start(Arc::clone(&service)).await;
    let (mut theirs, _talking) = here.talk(RoomLimits {
        request_bytes: 1 << 20,
        ..limits()
    });
    write(
        theirs.output,
        (0..16).map(|number| call(number, 256 * KIB)).collect(),
    );
    // One more is in the reader's hands.
    settle().await;
    assert_eq!(service.begun(), 4);
    service.gate.send_replace(true);
    for _ in 0..16 {
        assert_eq!(answer(&mut theirs.input).await.kind, Kind::Answer);
    }
}

#[tokio::test]
async fn votes_do_not_wait_behind_bulk() {
    let service = Service::new(1, false);
    let here = Here::start(Arc::clone(&service)).await;
    let bulk = here.connect(Class::Bulk).await;
    write(bulk.output, (0..5_000).map(|number| call(number, 100)).collect());
    settle().await;
    let begun = service.begun();
    assert!(begun < 5_000, "there is no room for all {begun}");
    let mut control = here.connect(Class::Control).await;
    let vote = Frame {
        kind: Kind::Call,
        partition: P,
        number: 1,
        body: Verb::Vote.body([]),
    };
    write(control.output, vec![vote]);
    let answer = answer(&mut control.input).await;
    assert_eq!(answer.kind, Kind::Failure);
    assert_eq!(&answer.body[..], not_here(P).as_bytes());
}

/// A group that peers can reach, as a follower of nobody.
async fn group(here: &Here, dir: &std::path::Path) -> Group {
    let options = WalOptions {
        segment_bytes: 1 << 20,
        segments_max: 2,
        ..WalOptions::default()
    };
    let (wal, _) = Wal::open(Arc::new(RealVfs), dir.to_path_buf(), options).unwrap();
    let (fsm, mut told) = mpsc::unbounded_channel::<FsmMsg>();
    tokio::spawn(async move { while told.recv().await.is_some() {} });
    let (options, found) = (
        GroupOptions::new(P, introduction(1).raft_id),
        RecoveredPartition::default(),
    );
    let peers = Some(here.peers.clone());
    let opening = Group::open(options, wal, found, AppliedState::default(), fsm, peers, None);
    opening.await.unwrap()
}

#[tokio::test]
async fn peer_that_opens_very_many_streams_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let here = Here::start(Service::new(1, true)).await;
    let _group = group(&here, dir.path()).await;

    // One after the other, as many as it likes.
    let (mut theirs, _talking) = here.talk(limits());
    let mut frames: Vec<Frame> = (1..500).flat_map(|number| [item(number), end(number)]).collect();
    frames.push(call(500, 100));
    write(theirs.output, frames);
    while answer(&mut theirs.input).await.number != 500 {}

    let (mut theirs, talking) = here.talk(limits());
    write(theirs.output, (1..500).map(item).collect());
    let mut read = Vec::new();
    in_time(theirs.input.read_to_end(&mut read)).await.unwrap();
    let error = in_time(talking).await.unwrap();
    assert!(matches!(error, ServeError::Streams(P)), "{error}");
}

#[tokio::test]
async fn peer_that_never_reads_has_few_appends_taken() {
    let dir = tempfile::tempdir().unwrap();
    let here = Here::start(Service::new(1, true)).await;
    let _group = group(&here, dir.path()).await;
    let (mut theirs, _talking) = here.talk(RoomLimits {
        request_bytes: 64 << 10,
        ..limits()
    });
    // Sixteen hold all of the room; some more, and some answers, fit into the connection.
    let mut written = write(theirs.output, (0..2_000).map(|_| item(1)).collect());
    written.wait_for(|count| *count >= 16).await.unwrap();
    settle().await;
    let taken = *written.borrow();
    assert!(taken <= 300, "{taken} appends were taken");
    for _ in 0..2_000 {
        assert_eq!(answer(&mut theirs.input).await.kind, Kind::ItemAnswer);
    }
}

#[tokio::test]
async fn newer_connection_of_a_node_ends_the_one_before() {
    let here = Here::start(Service::new(1, true)).await;
    let mut first = here.connect(Class::Bulk).await;
    let control = here.connect(Class::Control).await;
    let mut second = here.connect(Class::Bulk).await;
    assert_eq!(
        in_time(first.input.read(&mut [0])).await.unwrap(),
        0,
        "it is closed"
    );
    for stream in [&mut second, &mut { control }] {
        let mut pieces = call(1, 10).pieces(BODY_BYTES_MAX).unwrap();
        write_pieces(&mut stream.output, &mut pieces).await.unwrap();
        assert_eq!(answer(&mut stream.input).await.kind, Kind::Answer);
    }
}

#[tokio::test]
async fn newcomers_that_say_nothing_are_bounded() {
    let here = Here::start(Service::new(1, true)).await;
    let silent: Vec<PeerStream> = (0..NEWCOMERS_MAX).map(|_| here.pipe()).collect();
    settle().await;
    let mut one_more = here.pipe();
    let closed = tokio::select! {
        biased;
        read = one_more.input.read_u8() => read.is_err(),
        () = settle() => false,
    };
    assert!(closed);
    drop(silent);
    settle().await;
    here.connect(Class::Bulk).await;
}
