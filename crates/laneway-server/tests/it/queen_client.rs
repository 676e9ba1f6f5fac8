//! The published Rust client, crate `queen-mq` 2.7.0, unmodified.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queen_mq::{
    AckStatus, BufferOptions, Config, Message, PushItem, PushStatus, Queen, QueueBuilder, QueueOptions,
    StopReason, SubscriptionMode,
};
use serde_json::json;

use crate::broker::Broker;

/// A broker and a client of it.
struct Fixture {
    queen: Queen,
    broker: Broker,
    _dir: tempfile::TempDir,
}

impl Fixture {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let broker = Broker::start(&dir.path().join("data"));
        let queen = Queen::connect(Config::new(&broker.url).retry_attempts(1)).unwrap();
        Self {
            queen,
            broker,
            _dir: dir,
        }
    }

    /// A pop that takes what is there, from the beginning for a group that is new.
    async fn pop(&self, queue: &str, group: &str) -> Vec<Message> {
        let pop = self.queen.queue(queue).group(group).batch(100).wait(false);
        pop.subscription_mode(SubscriptionMode::All).pop().await.unwrap()
    }

    async fn dead_letters(&self, queue: &str) -> queen_mq::DlqResponse {
        self.queen.queue(queue).dlq(None, None).await.unwrap()
    }
}

/// A consumer that ends when the queue is dry.
fn consumer(queue: QueueBuilder) -> QueueBuilder {
    queue
        .wait(false)
        .idle(Duration::from_millis(300))
        .subscription_mode(SubscriptionMode::All)
}

pub(crate) fn numbers(messages: &[Message]) -> Vec<i64> {
    messages
        .iter()
        .map(|message| message.data["n"].as_i64().unwrap())
        .collect()
}

#[tokio::test]
async fn consumed_messages_are_acked_and_stay_so() {
    let fixture = Fixture::start();
    let queue = fixture.queen.queue("orders");
    let pushed = queue.push_many((0..5).map(|n| json!({ "n": n }))).await.unwrap();
    assert!(pushed.iter().all(|one| one.status == PushStatus::Queued));

    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let handler = move |message: Message| {
        sink.lock().unwrap().push(message.data["n"].as_i64().unwrap());
        async { Ok::<_, Infallible>(()) }
    };
    let summary = consumer(queue.group("billing"))
        .limit(5)
        .consume(handler)
        .await
        .unwrap();

    assert_eq!((summary.processed, summary.acked, summary.nacked), (5, 5, 0));
    assert_eq!(summary.stopped_by, StopReason::Limit);
    assert_eq!(*seen.lock().unwrap(), [0, 1, 2, 3, 4]);
    assert!(fixture.pop("orders", "billing").await.is_empty());
    fixture.broker.stop();
}

#[tokio::test]
async fn failing_handler_ends_in_the_dead_letter_store_and_replays() {
    let fixture = Fixture::start();
    let queue = fixture.queen.queue("payments");
    queue
        .configure(QueueOptions {
            retry_limit: Some(2),
            ..Default::default()
        })
        .await
        .unwrap();
    queue
        .push_items(vec![
            PushItem::new("payments", json!({ "n": 7 })).transaction_id("pay-7"),
        ])
        .await
        .unwrap();

    let fail = |_message: Message| async { Err::<(), _>("card declined") };
    let summary = consumer(queue.clone().group("billing"))
        .consume(fail)
        .await
        .unwrap();
    assert_eq!(
        (summary.acked, summary.nacked),
        (0, 3),
        "retry limit 2 means three deliveries"
    );

    let dead = fixture.dead_letters("payments").await.messages;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].transaction_id.as_deref(), Some("pay-7"));
    assert_eq!(dead[0].error.as_deref(), Some("card declined"));
    assert_eq!(dead[0].data["n"], 7);

    let lane = dead[0].partition_id.clone().unwrap();
    fixture.queen.admin().retry_message(&lane, "pay-7").await.unwrap();
    assert!(fixture.dead_letters("payments").await.messages.is_empty());
    let again = fixture.queen.admin().retry_message(&lane, "pay-7").await;
    assert_eq!(
        again.unwrap_err().status(),
        Some(404),
        "there is nothing left to replay"
    );

    let replayed = fixture.pop("payments", "billing").await;
    assert_eq!(numbers(&replayed), [7]);
    assert!(fixture.queen.ack(&replayed[0]).await.unwrap().success);
    assert!(fixture.pop("payments", "billing").await.is_empty());
    fixture.broker.stop();
}

#[tokio::test]
async fn batch_handler_settles_and_fails_whole_claims() {
    let fixture = Fixture::start();
    let queue = fixture.queen.queue("batches");
    queue.push_many((0..6).map(|n| json!({ "n": n }))).await.unwrap();
    let first = Arc::new(Mutex::new(true));
    let handler = move |_batch: Vec<Message>| {
        let fails = std::mem::take(&mut *first.lock().unwrap());
        async move { if fails { Err("not yet") } else { Ok(()) } }
    };
    let summary = consumer(queue.group("g"))
        .batch(6)
        .consume_batch(handler)
        .await
        .unwrap();
    assert_eq!((summary.acked, summary.nacked), (6, 6));
    assert!(
        fixture.dead_letters("batches").await.messages.is_empty(),
        "one failed call charges once"
    );
    fixture.broker.stop();
}

#[tokio::test]
async fn repeated_transaction_id_is_a_duplicate() {
    let fixture = Fixture::start();
    let queue = fixture.queen.queue("dedup");
    let item = PushItem::new("dedup", json!({ "n": 1 })).transaction_id("t1");
    let first = queue.push_items(vec![item.clone()]).await.unwrap();
    let second = queue.push_items(vec![item.clone(), item]).await.unwrap();
    assert_eq!(first[0].status, PushStatus::Queued);
    assert!(second.iter().all(|one| one.status == PushStatus::Duplicate));
    assert!(second.iter().all(|one| one.message_id == first[0].message_id));
    assert_eq!(numbers(&fixture.pop("dedup", "g").await), [1]);
    fixture.broker.stop();
}

#[tokio::test]
async fn buffered_pushes_arrive_in_order() {
    let fixture = Fixture::start();
    let options = BufferOptions {
        message_count: 4,
        time: Duration::from_secs(60),
        ..Default::default()
    };
    let queue = fixture.queen.queue("buffered").partition("one").buffer(options);
    for n in 0..10 {
        queue.push(json!({ "n": n })).await.unwrap();
    }
    fixture.queen.flush_all_buffers().await.unwrap();
    fixture.queen.close().await.unwrap();
    assert_eq!(
        numbers(&fixture.pop("buffered", "g").await),
        (0..10).collect::<Vec<_>>()
    );
    fixture.broker.stop();
}

#[tokio::test]
async fn waiting_pop_wakes_with_the_push() {
    let fixture = Fixture::start();
    let waiting = fixture
        .queen
        .queue("late")
        .wait(true)
        .poll_timeout(Duration::from_secs(30));
    let popped = tokio::spawn(async move { waiting.pop().await.unwrap() });
    // The pop may come before or after the push; the broker must serve both.
    fixture.queen.queue("late").push(json!({ "n": 1 })).await.unwrap();
    let popped = tokio::time::timeout(Duration::from_secs(20), popped)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(numbers(&popped), [1]);
    fixture.broker.stop();
}

#[tokio::test]
async fn quiet_queue_answers_empty_at_the_deadline() {
    let fixture = Fixture::start();
    let pop = fixture
        .queen
        .queue("quiet")
        .wait(true)
        .poll_timeout(Duration::from_millis(400));
    assert!(pop.pop().await.unwrap().is_empty());
    fixture.broker.stop();
}

#[tokio::test]
async fn groups_are_independent_and_new_ones_skip_the_backlog() {
    let fixture = Fixture::start();
    let queue = fixture.queen.queue("events");
    queue.push(json!({ "n": 1 })).await.unwrap();
    let fresh = queue
        .clone()
        .group("fresh")
        .subscription_mode(SubscriptionMode::New)
        .wait(false);
    assert!(fresh.pop().await.unwrap().is_empty());
    queue.push(json!({ "n": 2 })).await.unwrap();
    assert_eq!(numbers(&fixture.pop("events", "a").await), [1, 2]);
    assert_eq!(numbers(&fixture.pop("events", "b").await), [1, 2]);
    assert_eq!(numbers(&fresh.pop().await.unwrap()), [2]);
    fixture.broker.stop();
}

#[tokio::test]
async fn acks_follow_the_cursor_arithmetic() {
    let fixture = Fixture::start();
    fixture
        .queen
        .queue("prefix")
        .push_many((0..3).map(|n| json!({ "n": n })))
        .await
        .unwrap();
    let popped = fixture.pop("prefix", "g").await;
    let second = fixture.queen.ack(&popped[1]).await.unwrap();
    assert!(second.success && !second.lease_released, "{second:?}");
    let below = fixture.queen.ack(&popped[0]).await.unwrap();
    assert!(below.success && below.noop, "{below:?}");
    let released = fixture
        .queen
        .ack_with(&popped[2], AckStatus::Retry, None)
        .await
        .unwrap();
    assert!(released.success, "{released:?}");
    let stale = fixture.queen.ack(&popped[2]).await.unwrap();
    assert!(!stale.success && stale.error.unwrap().contains("lease"));
    assert_eq!(numbers(&fixture.pop("prefix", "g").await), [2]);
    fixture.broker.stop();
}

#[tokio::test]
async fn lapsed_lease_gives_the_batch_back() {
    let fixture = Fixture::start();
    let queue = fixture.queen.queue("lapsing");
    queue.push(json!({ "n": 1 })).await.unwrap();
    let short = queue.clone().lease_seconds(1).wait(false).pop().await.unwrap();
    assert!(fixture.queen.renew(&short[0], Some(2)).await.unwrap());
    let waiting = queue
        .clone()
        .wait(true)
        .poll_timeout(Duration::from_secs(20))
        .pop()
        .await
        .unwrap();
    assert_eq!(numbers(&waiting), [1]);
    assert!(!fixture.queen.renew(&short[0], None).await.unwrap());
    assert!(!fixture.queen.ack(&short[0]).await.unwrap().success);
    assert!(fixture.queen.ack(&waiting[0]).await.unwrap().success);
    fixture.broker.stop();
}

#[tokio::test]
async fn discovery_and_admin_reads_find_a_queue() {
    let fixture = Fixture::start();
    let options = QueueOptions {
        lease_time: Some(30),
        ..Default::default()
    };
    let queue = fixture.queen.queue("mail.send").namespace("mail").task("send");
    queue.configure(options).await.unwrap();
    fixture
        .queen
        .queue("mail.send")
        .partition("eu")
        .push(json!({ "n": 1 }))
        .await
        .unwrap();
    let found = fixture
        .queen
        .queue_opt(None)
        .namespace("mail")
        .task("send")
        .wait(false)
        .pop()
        .await
        .unwrap();
    assert_eq!(numbers(&found), [1]);
    let detail = fixture.queen.admin().queue("mail.send").await.unwrap();
    assert_eq!(detail["options"]["leaseTime"], 30);
    assert_eq!(detail["totals"]["processing"], 1);
    let message = fixture
        .queen
        .admin()
        .message(&found[0].partition_id, &found[0].transaction_id)
        .await
        .unwrap();
    assert_eq!(message["status"], "processing");
    assert_eq!(fixture.queen.admin().health().await.unwrap()["status"], "healthy");
    fixture.queen.queue("mail.send").delete().await.unwrap();
    assert!(fixture.queen.admin().queue("mail.send").await.is_err());
    fixture.broker.stop();
}
