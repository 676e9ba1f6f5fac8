//! Long polls, leases and times.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::broker::{Broker, messages, payloads};

/// Starts a request on a connection of its own.
async fn start(broker: &Broker, target: &str) -> tokio::task::JoinHandle<(crate::client::Answer, Instant)> {
    let mut client = broker.client().await;
    client.send_with("GET", target, "", "").await;
    tokio::spawn(async move { (client.answer("GET").await, Instant::now()) })
}

async fn parked(broker: &Broker, pops: u64) {
    broker
        .until("/admin/v1/status", |status| status["parked_pops"] == json!(pops))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_wakes_a_waiting_pop() {
    let broker = Broker::start().await;
    let started = Instant::now();
    let pop = start(&broker, "/api/v1/pop/queue/q?wait=true&timeout=30000").await;
    let by_task = start(
        &broker,
        "/api/v1/pop?namespace=q&wait=true&timeout=30000&consumerGroup=g&subscriptionMode=all",
    )
    .await;
    parked(&broker, 2).await;
    broker.push_numbers("q", "p", 0..1).await;
    for waiting in [pop, by_task] {
        let (answer, at) = waiting.await.unwrap();
        assert_eq!(payloads(&answer.expect(200).json()), [0]);
        assert!(at - started < Duration::from_secs(10), "{:?}", at - started);
    }
    parked(&broker, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quiet_queue_holds_a_pop_for_its_timeout() {
    let broker = Broker::start().await;
    let started = Instant::now();
    let answer = broker.get("/api/v1/pop/queue/q?wait=true&timeout=600").await;
    assert_eq!((answer.status, answer.body.as_str()), (204, ""));
    let held = started.elapsed();
    assert!(
        held >= Duration::from_millis(550) && held < Duration::from_secs(4),
        "{held:?}"
    );
    let started = Instant::now();
    assert_eq!(
        broker
            .get("/api/v1/pop/queue/q?wait=false&timeout=60000")
            .await
            .status,
        204
    );
    assert_eq!(
        broker
            .get("/api/v1/pop/queue/q?wait=1&timeout=60000")
            .await
            .status,
        204
    );
    assert!(started.elapsed() < Duration::from_secs(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lapsed_lease_redelivers_its_whole_span_uncharged() {
    let broker = Broker::start().await;
    broker
        .post(
            "/api/v1/configure",
            &json!({"queue": "q", "options": {"leaseTime": 300, "retryLimit": 0}}),
        )
        .await
        .expect(200);
    broker.push_numbers("q", "p", 0..3).await;
    let first = broker.pop("q", "batch=3&leaseSeconds=5").await;
    for _ in 0..6 {
        assert_eq!(broker.pop("q", "").await, Value::Null);
    }
    let second = broker.pop("q", "wait=true&timeout=20000&leaseSeconds=1").await;
    assert_eq!(payloads(&second), [0, 1, 2]);
    assert_ne!(second["leaseId"], first["leaseId"]);
    assert_eq!(second["messages"][0]["deliveryAttempt"], 2);
    let stale = broker.ack(&first, &messages(&first), "completed").await;
    assert!(
        stale
            .iter()
            .all(|result| result["error"] == "invalid or expired lease"),
        "{stale:?}"
    );
    let third = broker.pop("q", "wait=true&timeout=20000").await;
    let done = broker.ack(&third, &messages(&third), "completed").await;
    assert!(
        done.iter().all(|result| result["success"] == json!(true)),
        "{done:?}"
    );
    assert_eq!(broker.get("/api/v1/dlq").await.json()["total"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nack_and_release_wake_a_waiting_pop() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..2).await;
    let first = broker.pop("q", "").await;
    let pop = start(&broker, "/api/v1/pop/queue/q?wait=true&timeout=30000").await;
    parked(&broker, 1).await;
    broker.ack(&first, &messages(&first)[..1], "retry").await;
    let (answer, _) = pop.await.unwrap();
    assert_eq!(payloads(&answer.expect(200).json()), [0, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gone_client_takes_no_messages_with_it() {
    let broker = Broker::start().await;
    for _ in 0..5 {
        let mut gone = broker.client().await;
        gone.send_with(
            "GET",
            "/api/v1/pop/queue/q?wait=true&timeout=60000&leaseSeconds=3600",
            "",
            "",
        )
        .await;
        parked(&broker, 1).await;
        drop(gone);
        parked(&broker, 0).await;
    }
    broker.push_numbers("q", "p", 0..1).await;
    let popped = broker.pop("q", "").await;
    assert_eq!(payloads(&popped), [0]);
    assert_eq!(popped["messages"][0]["deliveryAttempt"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delay_and_window_hold_messages_back() {
    let broker = Broker::start().await;
    for (queue, options, least_ms) in [
        ("delayed", json!({"delayedProcessing": 1}), 1000),
        ("windowed", json!({"windowBuffer": 1}), 1000),
        ("both", json!({"delayedProcessing": 1, "windowBuffer": 2}), 2000),
    ] {
        broker
            .post("/api/v1/configure", &json!({"queue": queue, "options": options}))
            .await
            .expect(200);
        let before_push = Instant::now();
        broker.push_numbers(queue, "p", 0..2).await;
        let mut popped = broker.pop(queue, "").await;
        if popped.is_null() {
            popped = broker.pop(queue, "wait=true&timeout=20000").await;
        }
        // Wall time in the log may run a little ahead of the clock here.
        assert!(
            before_push.elapsed() >= Duration::from_millis(least_ms * 9 / 10),
            "{queue} was delivered early"
        );
        assert_eq!(payloads(&popped), [0, 1], "{queue}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extension_lengthens_every_lane_of_a_lease_and_never_shortens() {
    let broker = Broker::start().await;
    for lane in 0..12 {
        broker
            .push_numbers("q", &format!("p{lane}"), lane..lane + 1)
            .await;
    }
    let popped = broker.pop("q", "partitions=64&leaseSeconds=2").await;
    assert!(messages(&popped).len() >= 2, "{popped}");
    let claimed = popped["partitionsClaimed"].as_u64().unwrap();
    let path = format!("/api/v1/lease/{}/extend", popped["leaseId"].as_str().unwrap());
    let long = broker
        .request("POST", &path, r#"{"seconds":600}"#)
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&long["success"], &long["renewed"], &long["leaseId"]),
        (&json!(true), &json!(claimed), &popped["leaseId"])
    );
    assert_eq!(
        long["newExpiresAt"].as_str().unwrap().len(),
        "2026-07-30T12:34:56.000000Z".len()
    );
    assert_eq!(
        (&long["expiresAt"], &long["lease_expires_at"]),
        (&long["newExpiresAt"], &long["newExpiresAt"])
    );
    for body in ["", "{}", "null", r#"{"seconds":null}"#, r#"{"seconds":1}"#] {
        let shorter = broker.request("POST", &path, body).await.expect(200).json();
        assert!(
            shorter["newExpiresAt"].as_str() >= long["newExpiresAt"].as_str().map(|at| &at[..17]),
            "{body}: {shorter}"
        );
    }
    let lane = popped["partition"].as_str().unwrap();
    let past_the_first_length = format!("/api/v1/pop/queue/q/partition/{lane}?wait=true&timeout=2500");
    assert_eq!(
        broker.get(&past_the_first_length).await.status,
        204,
        "the lease lives on"
    );
    for unknown in ["019fb305-4c95-7000-8400-000000000007", "nonsense", "a%2Fb"] {
        let answer = broker
            .request("POST", &format!("/api/v1/lease/{unknown}/extend"), "")
            .await
            .expect(200)
            .json();
        assert_eq!(
            (&answer["success"], &answer["renewed"], &answer["expiresAt"]),
            (&json!(false), &json!(0), &Value::Null)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lapsed_lease_cannot_be_extended() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..1).await;
    let first = broker.pop("q", "leaseSeconds=1").await;
    let again = broker.pop("q", "wait=true&timeout=20000&leaseSeconds=600").await;
    assert_eq!(payloads(&again), [0]);
    let path = format!("/api/v1/lease/{}/extend", first["leaseId"].as_str().unwrap());
    let answer = broker.request("POST", &path, "{}").await.expect(200).json();
    assert_eq!(
        (&answer["success"], &answer["renewed"]),
        (&json!(false), &json!(0))
    );
}
