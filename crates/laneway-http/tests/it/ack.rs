use serde_json::{Value, json};

use crate::broker::{Broker, ack_item, messages, payloads};

const UNRESOLVABLE: &str = "transaction is unresolvable, already committed, or acknowledgment is stale";

fn flags(result: &Value) -> (bool, bool, bool, bool) {
    let flag = |key: &str| result[key].as_bool().unwrap();
    (flag("success"), flag("leaseReleased"), flag("dlq"), flag("noop"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_message_completes_the_batch() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..3).await;
    let popped = broker.pop("q", "").await;
    let answer = broker
        .post("/api/v1/ack", &ack_item(messages(&popped)[2], "completed"))
        .await
        .expect(200);
    assert_eq!(
        answer.body,
        r#"[{"index":0,"transactionId":"t2","success":true,"error":null,"leaseReleased":true,"dlq":false,"noop":false}]"#
    );
    assert_eq!(broker.pop("q", "").await, Value::Null);
    let repeat = broker
        .post("/api/v1/ack", &ack_item(messages(&popped)[2], "completed"))
        .await
        .expect(200)
        .json();
    assert_eq!(
        repeat[0]["success"], true,
        "a repeat of a lost answer is a success: {repeat}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefix_is_settled_and_the_rest_stays_leased() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..3).await;
    let popped = broker.pop("q", "").await;
    let all = messages(&popped);
    let second = broker.ack(&popped, &all[1..2], "completed").await;
    assert_eq!(flags(&second[0]), (true, false, false, false));
    let below = broker.ack(&popped, &all[..1], "completed").await;
    assert_eq!(
        flags(&below[0]),
        (true, false, false, true),
        "settled before: a success without effect"
    );
    let signal = broker.ack(&popped, &all[..1], "failed").await;
    assert_eq!(
        (&signal[0]["success"], &signal[0]["error"]),
        (&json!(false), &json!(UNRESOLVABLE))
    );
    let nack = broker.ack(&popped, &all[2..], "failed").await;
    assert_eq!(flags(&nack[0]), (true, true, false, false));
    assert_eq!(payloads(&broker.pop("q", "").await), [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lowest_signal_wins_and_later_acks_of_the_lease_are_refused() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..3).await;
    let popped = broker.pop("q", "").await;
    let all = messages(&popped);
    let mut items = vec![
        ack_item(all[0], "completed"),
        ack_item(all[1], "failed"),
        ack_item(all[2], "completed"),
    ];
    let body = json!({"acknowledgments": items});
    let results = broker.post("/api/v1/ack/batch", &body).await.expect(200).json();
    assert!(
        results
            .as_array()
            .unwrap()
            .iter()
            .all(|result| result["success"] == json!(true)),
        "{results}"
    );
    items.truncate(0);
    for message in &all[1..] {
        let late = broker.ack(&popped, &[message], "completed").await;
        assert_eq!(late[0]["error"], "invalid or expired lease");
    }
    assert_eq!(payloads(&broker.pop("q", "").await), [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_transaction_is_refused_and_the_lease_stays() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..2).await;
    let popped = broker.pop("q", "").await;
    let mut stranger = ack_item(messages(&popped)[0], "completed");
    stranger["transactionId"] = json!("never pushed");
    let mut no_lane = ack_item(messages(&popped)[0], "completed");
    no_lane["partitionId"] = json!("no-lane");
    let mut other_lane = ack_item(messages(&popped)[0], "completed");
    other_lane["partitionId"] = json!("17179869183");
    let mut bad_lease = ack_item(messages(&popped)[0], "completed");
    bad_lease["leaseId"] = json!("nonsense");
    let body = json!({"acknowledgments": [stranger, no_lane, other_lane, bad_lease]});
    let results = broker.post("/api/v1/ack/batch", &body).await.expect(200).json();
    let errors: Vec<&Value> = results
        .as_array()
        .unwrap()
        .iter()
        .map(|result| &result["error"])
        .collect();
    assert_eq!(errors[0], UNRESOLVABLE);
    assert_eq!(errors[1], "partitionId is not a partition id");
    assert_eq!(errors[3], "invalid or expired lease");
    assert!(
        errors[2].as_str().is_some_and(|text| !text.is_empty()),
        "{results}"
    );
    assert!(
        results
            .as_array()
            .unwrap()
            .iter()
            .all(|result| result["success"] == json!(false))
    );
    let done = broker.ack(&popped, &messages(&popped), "completed").await;
    assert_eq!(flags(&done[1]), (true, true, false, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_of_another_lane_changes_nothing() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "a", 0..1).await;
    broker.push_numbers("q", "b", 1..2).await;
    let a = broker.get("/api/v1/pop/queue/q/partition/a").await.json();
    let b = broker.get("/api/v1/pop/queue/q/partition/b").await.json();
    let mut crossed = ack_item(&a["messages"][0], "completed");
    crossed["leaseId"] = b["leaseId"].clone();
    let result = broker.post("/api/v1/ack", &crossed).await.expect(200).json();
    assert_eq!(result[0]["error"], "invalid or expired lease");
    for popped in [a, b] {
        let done = broker.ack(&popped, &messages(&popped), "completed").await;
        assert_eq!(flags(&done[0]), (true, true, false, false));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budget_allows_n_failures_then_files_one_dead_letter() {
    let broker = Broker::start().await;
    broker
        .post(
            "/api/v1/configure",
            &json!({"queue": "q", "options": {"retryLimit": 2}}),
        )
        .await
        .expect(200);
    broker.push_numbers("q", "p", 0..2).await;
    for _ in 0..6 {
        let popped = broker.pop("q", "batch=1").await;
        broker.ack(&popped, &messages(&popped), "retry").await;
    }
    let mut deliveries = 0;
    loop {
        let popped = broker.pop("q", "batch=1").await;
        deliveries += 1;
        let results = broker.ack(&popped, &messages(&popped), "failed").await;
        assert!(results[0]["success"].as_bool().unwrap());
        if results[0]["dlq"] == json!(true) {
            break;
        }
        assert!(deliveries < 10);
    }
    assert_eq!(deliveries, 3);
    assert_eq!(broker.get("/api/v1/dlq?queue=q").await.json()["total"], 1);
    assert_eq!(payloads(&broker.pop("q", "").await), [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budget_spent_with_both_switches_off_drops_the_message() {
    let broker = Broker::start().await;
    let options = json!({"retryLimit": 0, "deadLetterQueue": false, "dlqAfterMaxRetries": false});
    broker
        .post("/api/v1/configure", &json!({"queue": "q", "options": options}))
        .await
        .expect(200);
    broker.push_numbers("q", "p", 0..2).await;
    let popped = broker.pop("q", "batch=1").await;
    let results = broker.ack(&popped, &messages(&popped), "failed").await;
    assert_eq!(flags(&results[0]), (true, true, false, false));
    assert_eq!(broker.get("/api/v1/dlq").await.json()["total"], 0);
    assert_eq!(payloads(&broker.pop("q", "").await), [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bare_ack_needs_no_lease() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..3).await;
    let popped = broker.pop("q", "").await;
    let bare = json!({"transactionId": "t1", "partitionId": popped["partitionId"], "leaseId": null});
    let result = broker.post("/api/v1/ack", &bare).await.expect(200).json();
    assert_eq!(result[0]["success"], true);
    let rest = broker.ack(&popped, &messages(&popped)[2..], "retry").await;
    assert_eq!(flags(&rest[0]), (true, true, false, false));
    assert_eq!(payloads(&broker.pop("q", "").await), [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nack_of_one_lane_leaves_the_others_of_its_lease() {
    let broker = Broker::start().await;
    // Lanes of one partition share a lease: push to many, so that some pop claims two.
    for lane in 0..12 {
        broker
            .push_numbers("q", &format!("p{lane}"), lane..lane + 1)
            .await;
    }
    let popped = broker.pop("q", "partitions=64").await;
    let all = messages(&popped);
    assert!(all.len() >= 2, "{popped}");
    let nack = broker.ack(&popped, &all[..1], "retry").await;
    assert_eq!(flags(&nack[0]), (true, true, false, false));
    let rest = broker.ack(&popped, &all[1..], "completed").await;
    assert!(
        rest.iter()
            .all(|result| flags(result) == (true, true, false, false)),
        "{rest:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledgments_get_no_results() {
    let broker = Broker::start().await;
    let answer = broker
        .request("POST", "/api/v1/ack/batch", r#"{"acknowledgments":[]}"#)
        .await
        .expect(200);
    assert_eq!(answer.body, "[]");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partly_done_batch_is_200_with_errors_of_the_refused_items() {
    let broker = Broker::start_with_limits(|_| {}).await;
    broker.push_numbers("q", "a", 0..2).await;
    broker.push_numbers("q", "b", 2..3).await;
    let mut all = broker.pop_all("q", "batch=3&partitions=2").await;
    all.sort_by_key(|message| message["data"].as_u64());
    let item = |at: usize| ack_item(&all[at], "completed");
    let mut client = broker.client().await;
    let mut ack = async |items: &[Value]| {
        let header = "x-laneway-request-id: one\r\n";
        let body = json!({ "acknowledgments": items }).to_string();
        client.send_with("POST", "/api/v1/ack/batch", header, &body).await;
        client.answer("POST").await
    };
    ack(&[item(0)]).await.expect(200);

    // The first part stands where the request of that id had another one; the second is new there.
    let results = ack(&[item(1), item(2)]).await.expect(200).json();
    assert_eq!(flags(&results[0]), (false, false, false, false));
    let error = results[0]["error"].as_str().unwrap();
    assert!(error.contains("a new request id"), "{error}");
    assert_eq!(flags(&results[1]), (true, true, false, false));
    assert_eq!(results[1]["error"], Value::Null);

    let before = broker.state().await;
    ack(&[item(1)]).await.expect_error(409, "request_id_reused");
    assert_eq!(broker.state().await["queues"], before["queues"]);
    let done = broker.post("/api/v1/ack", &item(1)).await.expect(200).json();
    assert_eq!(flags(&done[0]), (true, true, false, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_over_the_limit_is_refused_and_nothing_is_done() {
    let broker = Broker::start_with_limits(|limits| limits.ack_items_max = 2).await;
    broker.push_numbers("q", "p", 0..3).await;
    let popped = broker.pop("q", "").await;
    let items: Vec<Value> = messages(&popped)
        .iter()
        .map(|message| ack_item(message, "completed"))
        .collect();
    let before = broker.state().await;
    let refused = broker
        .post("/api/v1/ack/batch", &json!({ "acknowledgments": items }))
        .await
        .expect_error(400, "bad_request");
    assert!(refused.body.contains("ack_items_max"), "{refused:?}");
    assert_eq!(broker.state().await, before);
    let done = broker.ack(&popped, &messages(&popped)[1..], "completed").await;
    assert_eq!(flags(&done[1]), (true, true, false, false));
}
