use serde_json::{Value, json};

use crate::broker::{Broker, payloads};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_are_answered_in_order_and_popped_as_they_were() {
    let broker = Broker::start().await;
    let results = broker
        .push_items(&json!([
            {"queue": "q", "payload": {"n": 1}, "transactionId": "a", "traceId": "x", "producerSub": "y"},
            {"queue": "q", "partition": "p", "payload": null},
            {"queue": "q", "payload": [2]},
            {"queue": "other", "partition": null, "payload": "s", "transactionId": ""},
        ]))
        .await;
    let field = |name: &str| {
        results
            .iter()
            .map(|result| result[name].clone())
            .collect::<Vec<Value>>()
    };
    assert_eq!(field("index"), [0, 1, 2, 3]);
    assert_eq!(field("status"), ["queued", "queued", "queued", "queued"]);
    assert_eq!(field("offset"), [0, 0, 1, 0]);
    assert_eq!(field("queueName"), ["q", "q", "q", "other"]);
    assert_eq!(results[0]["transaction_id"], "a");
    assert_eq!(results[1]["transaction_id"], results[1]["message_id"]);

    let popped = broker.pop_all("q", "batch=10&partitions=9").await;
    assert_eq!(popped.len(), 3);
    let first = popped
        .iter()
        .find(|message| message["transactionId"] == "a")
        .unwrap();
    assert_eq!(first["id"], results[0]["message_id"]);
    assert_eq!(first["data"], json!({"n": 1}));
    assert_eq!(
        (&first["traceId"], &first["producerSub"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(first["partition"], "Default");
    assert_eq!(broker.push_items(&json!([])).await, Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payload_text_comes_back_byte_for_byte() {
    let broker = Broker::start().await;
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    let large = format!("\"{}\"", "é".repeat(600_000));
    let texts = [
        r#"{"a" : 1e2,  "a":"\u00e9\/"}"#,
        "null",
        "12345678901234567890.0",
        "\"\"",
        "[ ]",
        &deep,
        &large,
    ];
    let items: Vec<String> = texts
        .iter()
        .map(|text| format!(r#"{{"queue":"q","payload":{text}}}"#))
        .collect();
    broker
        .request(
            "POST",
            "/api/v1/push",
            &format!(r#"{{"items":[{}]}}"#, items.join(",")),
        )
        .await
        .expect(201);
    let answer = broker.get("/api/v1/pop/queue/q?autoAck=true").await.expect(200);
    let mut rest = answer.body.as_str();
    for text in texts {
        let at = rest.find("\"data\":").unwrap() + "\"data\":".len();
        rest = &rest[at..];
        assert!(
            rest.starts_with(text) && rest[text.len()..].starts_with(",\"producerSub\""),
            "{}",
            &text[..40.min(text.len())]
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn same_key_is_a_duplicate_of_the_stored_message() {
    let broker = Broker::start().await;
    let item = |queue: &str, lane: &str| json!([{"queue": queue, "partition": lane, "payload": 1, "transactionId": "k"}]);
    let first = broker.push_items(&item("q", "a")).await;
    let again = broker.push_items(&item("q", "a")).await;
    assert_eq!(again[0]["status"], "duplicate");
    for key in ["message_id", "transaction_id", "offset"] {
        assert_eq!(again[0][key], first[0][key], "{key}");
    }
    assert_eq!(broker.push_items(&item("q", "b")).await[0]["status"], "queued");
    assert_eq!(broker.push_items(&item("r", "a")).await[0]["status"], "queued");
    assert_eq!(broker.pop_all("q", "partitions=9").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn same_key_inside_one_request_is_stored_once_even_without_a_window() {
    let broker = Broker::start().await;
    broker
        .post(
            "/api/v1/configure",
            &json!({"queue": "q", "options": {"dedupWindowSeconds": 0}}),
        )
        .await
        .expect(200);
    let item = |payload: u64, key: &str| json!({"queue": "q", "payload": payload, "transactionId": key});
    let results = broker
        .push_items(&json!([item(1, "k"), item(2, "l"), item(3, "k")]))
        .await;
    let statuses: Vec<&Value> = results.iter().map(|result| &result["status"]).collect();
    assert_eq!(statuses, ["queued", "queued", "duplicate"]);
    assert_eq!(results[2]["message_id"], results[0]["message_id"]);
    let later = broker.push_items(&json!([item(4, "k")])).await;
    assert_eq!(
        (&later[0]["status"], &later[0]["offset"]),
        (&json!("queued"), &json!(2))
    );
    assert_eq!(payloads(&broker.pop("q", "").await), [1, 2, 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_pushes_of_one_key_store_one_message() {
    let broker = Broker::start().await;
    let mut clients = Vec::new();
    for _ in 0..12 {
        clients.push(broker.client().await);
    }
    let body = r#"{"items":[{"queue":"q","payload":1,"transactionId":"k"}]}"#;
    let pushes = clients.into_iter().map(|mut client| {
        tokio::spawn(async move {
            client
                .request("POST", "/api/v1/push", body)
                .await
                .expect(201)
                .json()[0]
                .clone()
        })
    });
    let mut results = Vec::new();
    for push in pushes.collect::<Vec<_>>() {
        results.push(push.await.unwrap());
    }
    assert_eq!(
        results
            .iter()
            .filter(|result| result["status"] == "queued")
            .count(),
        1,
        "{results:?}"
    );
    assert_eq!(
        results
            .iter()
            .filter(|result| result["status"] == "duplicate")
            .count(),
        11
    );
    assert!(
        results
            .iter()
            .all(|result| result["message_id"] == results[0]["message_id"])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_request_id_gets_the_kept_answer() {
    let broker = Broker::start().await;
    let mut client = broker.client().await;
    let body = r#"{"items":[{"queue":"q","payload":1},{"queue":"q","partition":"b","payload":2}]}"#;
    let header = "x-laneway-request-id: req-1\r\n";
    client.send_with("POST", "/api/v1/push", header, body).await;
    let first = client.answer("POST").await.expect(201);
    client.send_with("POST", "/api/v1/push", header, body).await;
    let again = client.answer("POST").await.expect(201);
    assert_eq!(again.body, first.body);
    assert_eq!(broker.pop_all("q", "partitions=9").await.len(), 2);
    client
        .send_with(
            "POST",
            "/api/v1/push",
            header,
            r#"{"items":[{"queue":"q","payload":3}]}"#,
        )
        .await;
    let reused = client.answer("POST").await;
    assert!((400..500).contains(&reused.status), "{reused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_pushes_survive_a_restart() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..5).await;
    let broker = broker.restart().await;
    let popped = broker.pop("q", "").await;
    assert_eq!(payloads(&popped), [0, 1, 2, 3, 4]);
    assert_eq!(
        broker
            .push_items(&json!([{"queue": "q", "partition": "p", "payload": 9, "transactionId": "t3"}]))
            .await[0]["status"],
        "duplicate"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partly_stored_push_is_201_with_errors_of_the_refused_items() {
    let broker = Broker::start_with_limits(|limits| limits.lanes_max = 1).await;
    broker.push_numbers("q", "a", 0..1).await;
    let item = |lane: &str, n: u64| json!({"queue": "q", "partition": lane, "payload": n, "transactionId": format!("t{n}")});

    let results = broker.push_items(&json!([item("a", 1), item("c", 2)])).await;
    assert_eq!(
        (&results[0]["status"], &results[0]["offset"]),
        (&json!("queued"), &json!(1))
    );
    assert_eq!(results[1]["status"], "error");
    assert_eq!(
        (&results[1]["code"], &results[1]["transaction_id"]),
        (&json!("overloaded"), &json!("t2"))
    );
    assert!(
        results[1]["error"].as_str().unwrap().contains("lanes_max"),
        "{results:?}"
    );
    assert!(results[1].get("offset").is_none(), "{results:?}");

    let refused = broker
        .post("/api/v1/push", &json!({"items": [item("c", 2), item("d", 3)]}))
        .await
        .expect(429);
    assert_eq!(refused.json()["code"], "overloaded");
    assert_eq!(payloads(&broker.pop("q", "").await), [json!(0), json!(1)]);
}
