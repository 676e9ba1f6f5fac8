use serde_json::{Value, json};

use crate::broker::{Broker, payloads};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_keeps_payload_reason_and_names() {
    let broker = Broker::start().await;
    broker
        .push_items(
            &json!([{"queue": "orders", "partition": "eu", "payload": {"n": 1}, "transactionId": "order-1"}]),
        )
        .await;
    let message = broker
        .make_dead_letter("orders", "consumerGroup=billing&subscriptionMode=all")
        .await;
    let list = broker
        .get("/api/v1/dlq?queue=orders&consumerGroup=billing")
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&list["total"], &list["pagination"]),
        (&json!(1), &json!({"limit": 100, "offset": 0}))
    );
    let row = &list["messages"][0];
    for (key, value) in [
        ("queue", json!("orders")),
        ("partition", json!("eu")),
        ("partitionId", message["partitionId"].clone()),
        ("consumerGroup", json!("billing")),
        ("offset", json!(0)),
        ("messageId", message["id"].clone()),
        ("transactionId", json!("order-1")),
        ("data", json!({"n": 1})),
        ("payload", json!({"n": 1})),
        ("errorMessage", json!("card declined")),
        ("retryCount", json!(0)),
        ("producerSub", Value::Null),
    ] {
        assert_eq!(row.get(key), Some(&value), "{key}");
    }
    assert_eq!(row["createdAt"], row["failedAt"]);
    let detail = broker
        .get(&format!(
            "/api/v1/messages/{}/order-1",
            row["partitionId"].as_str().unwrap()
        ))
        .await
        .json();
    assert_eq!(
        (&detail["status"], &detail["errorMessage"]),
        (&json!("dead_letter"), &json!("card declined"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listing_filters_and_pages_newest_first() {
    let broker = Broker::start().await;
    for (queue, count) in [("a", 3), ("b", 1)] {
        broker.push_numbers(queue, "p", 0..count).await;
        for _ in 0..count {
            broker.make_dead_letter(queue, "batch=1").await;
        }
    }
    let list = async |query: &str| {
        broker
            .get(&format!("/api/v1/dlq?{query}"))
            .await
            .expect(200)
            .json()
    };
    assert_eq!(list("").await["total"], 4);
    let a = list("queue=a").await;
    let payloads_of = |list: &Value| {
        list["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["data"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(payloads_of(&a), [2, 1, 0]);
    assert_eq!(a["messages"][0]["consumerGroup"], "__QUEUE_MODE__");
    let page = list("queue=a&limit=1&offset=1").await;
    assert_eq!((payloads_of(&page), &page["total"]), (vec![json!(1)], &json!(1)));
    assert_eq!(list("queue=none").await["total"], 0);
    assert_eq!(list("consumerGroup=none").await["total"], 0);
    assert_eq!(list("queue=a&consumerGroup=__QUEUE_MODE__").await["total"], 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_moves_a_dead_letter_to_the_tail_of_its_lane() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..2).await;
    let message = broker.make_dead_letter("q", "batch=1").await;
    let path = format!(
        "/api/v1/messages/{}/t0/retry",
        message["partitionId"].as_str().unwrap()
    );
    let answer = broker.request("POST", &path, "").await.expect(200).json();
    let row = answer["dlqId"].as_str().unwrap();
    for (key, value) in [
        ("success", json!(true)),
        ("replayed", json!(true)),
        ("result", json!("moved")),
        ("queue", json!("q")),
        ("partition", json!("p")),
        ("consumerGroup", json!("__QUEUE_MODE__")),
        ("originalTransactionId", json!("t0")),
        ("dlqRowRemoved", json!(true)),
    ] {
        assert_eq!(answer.get(key), Some(&value), "{key}");
    }
    let moved = &answer["replayedAs"];
    assert_eq!(
        (&moved["offset"], &moved["status"], &moved["queueName"]),
        (&json!(2), &json!("queued"), &json!("q"))
    );
    assert_eq!(moved["transaction_id"], format!("dlq:{row}"));
    assert_eq!(broker.get("/api/v1/dlq").await.json()["total"], 0);
    assert_eq!(payloads(&broker.pop("q", "").await), [1, 0]);
    let again = broker
        .request("POST", &path, "{}")
        .await
        .expect_error(404, "not_found");
    assert_eq!(again.json()["success"], false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay_by_row_does_the_same() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..1).await;
    broker.make_dead_letter("q", "").await;
    let row = broker.get("/api/v1/dlq").await.json()["messages"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let answer = broker
        .request("POST", &format!("/api/v1/dlq/{row}/replay"), "")
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&answer["dlqId"], &answer["replayedAs"]["offset"]),
        (&json!(row), &json!(1))
    );
    for missing in [
        row.as_str(),
        "nonsense",
        "18446744073709551615",
        "99999999999999999999999",
    ] {
        broker
            .request("POST", &format!("/api/v1/dlq/{missing}/replay"), "")
            .await
            .expect_error(404, "not_found");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delete_removes_dead_letters_only() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..2).await;
    let message = broker.make_dead_letter("q", "batch=1").await;
    let path = |id: &str| {
        format!(
            "/api/v1/messages/{}/{id}",
            message["partitionId"].as_str().unwrap()
        )
    };
    let live = broker
        .request("DELETE", &path("t1"), "")
        .await
        .expect_error(404, "not_found");
    assert_eq!(live.json()["success"], false);
    broker
        .request("POST", &format!("{}/retry", path("t1")), "")
        .await
        .expect_error(404, "not_found");
    let deleted = broker.request("DELETE", &path("t0"), "").await.expect(200).json();
    let expected =
        json!({"success": true, "partitionId": message["partitionId"], "transactionId": "t0", "deleted": 1});
    assert_eq!(deleted, expected);
    broker
        .request("DELETE", &path("t0"), "")
        .await
        .expect_error(404, "not_found");
    assert_eq!(payloads(&broker.pop("q", "").await), [1]);
}
