//! The published Rust client, crate `queen-mq` 2.7.0, unmodified, and three nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use queen_mq::{
    AckResult, Cancel, Config, Message, PushItem, PushStatus, Queen, QueueBuilder, QueueOptions,
    SubscriptionMode,
};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::broker::WAIT_MAX;
use crate::dev_nodes::Parent;
use crate::queen_client::numbers;

const NODES: u64 = 3;

/// Messages of the run in which nodes die.
const MESSAGES: usize = 600;

/// Their lanes.
const LANES: usize = 8;

/// Messages of one push, each to another lane.
const AT_ONCE: usize = 4;

/// After so many messages a node is killed, the next one each time; before that, the one before must serve again.
const KILL_AT: [usize; 3] = [100, 300, 500];

const LEASE: Duration = Duration::from_secs(4);

/// Longest time for all of them to be worked off.
const SETTLED_MAX: Duration = Duration::from_secs(150);

/// A client of one node that says that it serves.
async fn client_of(url: &str) -> Queen {
    let queen = Queen::connect(Config::new(url).retry_attempts(1)).unwrap();
    let healthy = async {
        while queen.admin().health().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WAIT_MAX, healthy).await.unwrap();
    queen
}

/// A pop that takes what is there, from the beginning for a group that is new.
async fn pop(queen: &Queen, queue: &str, group: &str) -> Vec<Message> {
    let pop = queen.queue(queue).group(group).batch(1000).partitions(64);
    let pop = pop.wait(false).subscription_mode(SubscriptionMode::All);
    pop.pop().await.unwrap()
}

#[tokio::test]
async fn published_client_works_at_each_of_three_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let parent = Parent::start(&dir.path().join("data"), NODES);
    for (node, url) in parent.urls() {
        let other = &parent.urls()[&(node % NODES + 1)];
        let (queen, other) = (client_of(url).await, client_of(other).await);
        consumed_in_order_and_once(&queen, &format!("orders-{node}")).await;
        dead_lettered_and_replayed(&queen, &format!("payments-{node}")).await;
        woken_by_a_push_elsewhere(&queen, &other, &format!("late-{node}")).await;
    }
    parent.stop();
}

async fn consumed_in_order_and_once(queen: &Queen, queue: &str) {
    let items: Vec<_> = (0..5)
        .map(|n| PushItem::new(queue, json!({ "n": n })).transaction_id(format!("t{n}")))
        .collect();
    let builder = queen.queue(queue);
    let pushed = builder.push_items(items.clone()).await.unwrap();
    assert!(pushed.iter().all(|one| one.status == PushStatus::Queued));
    let again = builder.push_items(items).await.unwrap();
    assert!(again.iter().all(|one| one.status == PushStatus::Duplicate));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let handler = move |message: Message| {
        sink.lock().unwrap().extend(numbers(&[message]));
        async { Ok::<_, Infallible>(()) }
    };
    let consumer = builder.group("billing").subscription_mode(SubscriptionMode::All);
    let summary = consumer.limit(5).consume(handler).await.unwrap();
    assert_eq!((summary.acked, summary.nacked), (5, 0));
    assert_eq!(*seen.lock().unwrap(), [0, 1, 2, 3, 4]);
    assert!(pop(queen, queue, "billing").await.is_empty());
}

async fn dead_lettered_and_replayed(queen: &Queen, queue: &str) {
    let options = QueueOptions {
        retry_limit: Some(1),
        ..Default::default()
    };
    queen.queue(queue).configure(options).await.unwrap();
    let item = PushItem::new(queue, json!({ "n": 7 })).transaction_id("pay-7");
    queen.queue(queue).push_items(vec![item]).await.unwrap();
    for _ in 0..2 {
        let popped = pop(queen, queue, "billing").await;
        assert_eq!(numbers(&popped), [7]);
        assert!(queen.nack(&popped[0], "card declined").await.unwrap().success);
    }
    let dead = queen.queue(queue).dlq(None, None).await.unwrap().messages;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].error.as_deref(), Some("card declined"));
    let lane = dead[0].partition_id.as_deref().unwrap();
    queen.admin().retry_message(lane, "pay-7").await.unwrap();
    let replayed = pop(queen, queue, "billing").await;
    assert_eq!(numbers(&replayed), [7]);
    assert!(queen.ack(&replayed[0]).await.unwrap().success);
    assert!(pop(queen, queue, "billing").await.is_empty());
}

async fn woken_by_a_push_elsewhere(queen: &Queen, other: &Queen, queue: &str) {
    let waiting = queen
        .queue(queue)
        .wait(true)
        .poll_timeout(Duration::from_secs(30));
    let popped = tokio::spawn(async move { waiting.pop().await.unwrap() });
    // The pop may come before or after the push; the nodes must serve both.
    other.queue(queue).push(json!({ "n": 1 })).await.unwrap();
    let popped = tokio::time::timeout(Duration::from_secs(20), popped).await;
    assert_eq!(numbers(&popped.unwrap().unwrap()), [1]);
}

/// A message by lane and place in it.
type At = (usize, usize);

fn place_of(message: &Message) -> At {
    let field = |key: &str| usize::try_from(message.data[key].as_u64().unwrap()).unwrap();
    (field("lane"), field("place"))
}

/// A delivery that is not known to be settled.
#[derive(Debug)]
struct Open {
    since: Instant,
    /// What became of its acknowledgment, once that is known to have failed.
    failed: Option<String>,
}

/// What was delivered, lane by lane, and why some of it may come again.
#[derive(Debug, Default)]
struct Ledger {
    /// Place of the next message that each lane has not delivered yet.
    next: [usize; LANES],
    open: BTreeMap<At, Open>,
    settled: BTreeSet<At>,
    /// What came again, and why that is right.
    repeats: Vec<String>,
    /// What is not right.
    faults: Vec<String>,
}

impl Ledger {
    fn saw(&mut self, message: &Message) {
        let at = place_of(message);
        let next = &mut self.next[at.0];
        if self.settled.contains(&at) {
            let fault = format!("{at:?} came again after its acknowledgment had succeeded");
            self.faults.push(fault);
        } else if at.1 > *next {
            self.faults.push(format!("{at:?} came before place {next}"));
        } else if at.1 == *next {
            *next += 1;
        } else if let Some(open) = self.open.get(&at) {
            let late = open.since.elapsed();
            match &open.failed {
                Some(why) => self.repeats.push(format!("{at:?} after {late:?}: {why}")),
                // The lease began when the node gave it, which may be a while before its answer was here.
                None if late > LEASE / 2 => self
                    .repeats
                    .push(format!("{at:?} after {late:?}: not acked in time")),
                None => self
                    .faults
                    .push(format!("{at:?} came again under a live lease, after {late:?}")),
            }
        }
        let since = Instant::now();
        self.open.insert(at, Open { since, failed: None });
    }

    fn acked(&mut self, messages: &[Message], answer: &queen_mq::Result<Vec<AckResult>>) {
        for (place, message) in messages.iter().enumerate() {
            let at = place_of(message);
            let why = match answer {
                Ok(items) if items[place].success => {
                    self.settle(at);
                    continue;
                }
                Ok(items) => items[place].error.clone().unwrap_or_default(),
                Err(error) => error.to_string(),
            };
            if let Some(open) = self.open.get_mut(&at) {
                open.failed = Some(why);
            }
        }
    }
}

impl Ledger {
    /// Later messages of a lane come only once the earlier ones are settled: an acknowledgment of those of which only the answer was
    /// lost had been done.
    fn settle(&mut self, at: At) {
        let (lane, place) = at;
        let done: Vec<At> = self
            .open
            .range((lane, 0)..=at)
            .filter(|(earlier, open)| earlier.1 == place || open.failed.is_some())
            .map(|(earlier, _)| *earlier)
            .collect();
        for at in done {
            self.open.remove(&at);
            self.settled.insert(at);
        }
    }
}

/// A consumer that acknowledges each batch itself, to learn what became of that; tells how many messages are settled.
fn work_off(
    queen: &Queen,
    queue: QueueBuilder,
    ledger: &Arc<Mutex<Ledger>>,
    settled: watch::Sender<usize>,
) -> JoinHandle<queen_mq::Result<queen_mq::ConsumeSummary>> {
    let (queen, ledger) = (queen.clone(), Arc::clone(ledger));
    let handler = move |messages: Vec<Message>| {
        let (queen, ledger, settled) = (queen.clone(), Arc::clone(&ledger), settled.clone());
        async move {
            messages
                .iter()
                .for_each(|message| ledger.lock().unwrap().saw(message));
            let answer = queen.ack_all(&messages).await;
            let mut ledger = ledger.lock().unwrap();
            ledger.acked(&messages, &answer);
            settled.send_replace(ledger.settled.len());
            Ok::<_, Infallible>(())
        }
    };
    tokio::spawn(async move { queue.consume_batch(handler).await })
}

/// Pushes some messages until somebody says that they are stored; gives how often nobody did.
async fn push_surely(queen: &Queen, numbers: Range<usize>) -> usize {
    let item = |number: usize| {
        let data = json!({ "lane": number % LANES, "place": number / LANES });
        PushItem::new("failover", data)
            .partition(format!("lane-{}", number % LANES))
            .transaction_id(format!("message-{number}"))
    };
    let started = Instant::now();
    for failures in 0.. {
        let items = numbers.clone().map(item).collect();
        let pushed = queen.queue("failover").push_items(items).await;
        let stored =
            |one: &queen_mq::PushResult| matches!(one.status, PushStatus::Queued | PushStatus::Duplicate);
        if pushed.as_ref().is_ok_and(|pushed| pushed.iter().all(stored)) {
            return failures;
        }
        assert!(
            started.elapsed() < WAIT_MAX,
            "{numbers:?} are not stored: {pushed:?}"
        );
    }
    unreachable!("the loop ends by its assertion")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_doubled_while_each_of_three_nodes_dies() {
    let dir = tempfile::tempdir().unwrap();
    let mut parent = Parent::start(&dir.path().join("data"), NODES);
    for url in parent.urls().values() {
        client_of(url).await;
    }
    let queen = Queen::connect(Config::urls(parent.urls().values().cloned())).unwrap();
    let options = QueueOptions {
        lease_time: Some(i32::try_from(LEASE.as_secs()).unwrap()),
        ..Default::default()
    };
    queen.queue("failover").configure(options).await.unwrap();

    let (cancel, ledger) = (Cancel::new(), Arc::new(Mutex::new(Ledger::default())));
    let (settled, mut all_settled) = watch::channel(0);
    let queue = queen
        .queue("failover")
        .group("workers")
        .subscription_mode(SubscriptionMode::All);
    let queue = queue.batch(20).partitions(4).concurrency(2).auto_ack(false);
    let queue = queue.poll_timeout(Duration::from_secs(1)).cancel(cancel.clone());
    let consumer = work_off(&queen, queue, &ledger, settled);

    let (mut failures, mut dead) = (0, None);
    for number in (0..MESSAGES).step_by(AT_ONCE) {
        if let Some(kill) = KILL_AT.iter().position(|at| *at == number) {
            until_back(&mut parent, dead).await;
            dead = Some(kill as u64 + 1);
            parent.kill(kill as u64 + 1);
        }
        failures += push_surely(&queen, number..number + AT_ONCE).await;
    }
    until_back(&mut parent, dead).await;
    let worked_off = all_settled.wait_for(|count| *count == MESSAGES);
    let worked_off = tokio::time::timeout(SETTLED_MAX, worked_off).await;
    let ledger = std::mem::take(&mut *ledger.lock().unwrap());
    assert!(
        matches!(worked_off, Ok(Ok(_))),
        "{failures} pushes failed; {ledger:#?}"
    );
    assert!(ledger.faults.is_empty(), "{ledger:#?}");
    cancel.cancel();
    consumer.await.unwrap().unwrap();

    stored_once(&queen).await;
    assert!(pop(&queen, "failover", "workers").await.is_empty());
    parent.stop();
}

async fn until_back(parent: &mut Parent, dead: Option<u64>) {
    if let Some(node) = dead {
        parent.until_restarted(node);
        client_of(&parent.urls()[&node]).await;
    }
}

/// Another group reads all from the beginning: each message is there once, in the order of its lane.
async fn stored_once(queen: &Queen) {
    let mut next = [0; LANES];
    while next.iter().sum::<usize>() < MESSAGES {
        let messages = pop(queen, "failover", "auditors").await;
        assert!(!messages.is_empty(), "only {next:?} of the lanes are stored");
        for message in &messages {
            let (lane, place) = place_of(message);
            assert_eq!(place, next[lane], "lane {lane}");
            next[lane] += 1;
        }
        let acked = queen.ack_all(&messages).await.unwrap();
        assert!(acked.iter().all(|one| one.success));
    }
    assert!(pop(queen, "failover", "auditors").await.is_empty());
}
