use serde_json::{Value, json};

use crate::broker::{Broker, messages, payloads};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_follow_pushes_pops_and_acks() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "a", 0..5).await;
    broker.push_numbers("q", "b", 5..6).await;
    let row = async || {
        broker
            .get("/api/v1/resources/queues?limit=1&search=x")
            .await
            .json()["queues"][0]
            .clone()
    };
    let pushed = row().await;
    for key in [
        "id",
        "name",
        "namespace",
        "task",
        "partitions",
        "messages",
        "segments",
        "retainedBytes",
        "createdAt",
    ] {
        assert!(!pushed[key].is_null(), "{key} in {pushed}");
    }
    assert_eq!(
        (
            &pushed["name"],
            &pushed["partitions"],
            &pushed["segments"]["messages"]
        ),
        (&json!("q"), &json!(2), &json!(6))
    );
    assert_eq!(
        pushed["messages"],
        json!({"total": 6, "pending": 6, "processing": 0, "completed": 0, "deadLetter": 0})
    );
    let popped = broker.get("/api/v1/pop/queue/q/partition/a?batch=3").await.json();
    assert_eq!(
        row().await["messages"],
        json!({"total": 6, "pending": 3, "processing": 3, "completed": 0, "deadLetter": 0})
    );
    broker.ack(&popped, &messages(&popped)[1..2], "completed").await;
    broker.ack(&popped, &messages(&popped)[2..], "dlq").await;
    assert_eq!(
        row().await["messages"],
        json!({"total": 6, "pending": 3, "processing": 0, "completed": 3, "deadLetter": 1})
    );

    let detail = broker.get("/api/v1/resources/queues/q").await.json();
    assert_eq!(detail["totals"], row().await["messages"]);
    let lanes = detail["partitions"].as_array().unwrap();
    let lane = |name: &str| lanes.iter().find(|lane| lane["name"] == name).unwrap();
    assert_eq!(lane("a")["id"], popped["partitionId"]);
    assert_eq!(
        (&lane("a")["messages"], &lane("a")["cursor"]["totalConsumed"]),
        (&json!(5), &json!(3))
    );
    assert_eq!(
        lane("b")["stats"],
        json!({"total": 1, "pending": 1, "processing": 0, "completed": 0, "failed": null, "deadLetter": 0})
    );
    assert!(lane("a")["oldestMessage"].is_string() && lane("a")["newestMessage"].is_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_queue_is_not_found() {
    let broker = Broker::start().await;
    let answer = broker
        .get("/api/v1/resources/queues/none")
        .await
        .expect_error(404, "not_found");
    assert_eq!(answer.json()["error"], "Queue not found");
    broker.pop("none", "consumerGroup=g").await;
    broker
        .get("/api/v1/resources/queues/none")
        .await
        .expect_error(404, "not_found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_queue_is_gone_with_all_it_had() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..3).await;
    broker
        .make_dead_letter("q", "batch=1&consumerGroup=g&subscriptionMode=all")
        .await;
    let before = broker.pop("q", "").await;
    let deleted = broker
        .request("DELETE", "/api/v1/resources/queues/q", "")
        .await
        .expect(200);
    assert_eq!(deleted.body, r#"{"deleted":true,"existed":true,"queue":"q"}"#);
    let again = broker
        .request("DELETE", "/api/v1/resources/queues/q", "")
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&again["deleted"], &again["existed"]),
        (&json!(false), &json!(false))
    );
    assert!(again["message"].is_string());
    assert_eq!(
        broker.get("/api/v1/resources/queues").await.json()["queues"],
        json!([])
    );
    assert_eq!(broker.get("/api/v1/dlq").await.json()["total"], 0);
    assert_eq!(broker.pop("q", "").await, Value::Null);
    let late = broker.ack(&before, &messages(&before), "completed").await;
    assert!(
        late.iter().all(|result| result["success"] == json!(false)),
        "{late:?}"
    );
    broker.push_numbers("q", "p", 7..8).await;
    let fresh = broker.pop("q", "").await;
    assert_eq!(
        (payloads(&fresh), &fresh["messages"][0]["offset"]),
        (vec![json!(7)], &json!(0))
    );
    assert_ne!(fresh["partitionId"], before["partitionId"]);
    assert_eq!(
        payloads(&broker.pop("q", "consumerGroup=g&subscriptionMode=all").await),
        [7],
        "its groups are gone too"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_detail_shows_where_it_stands() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..2).await;
    let popped = broker
        .pop("q", "batch=1&consumerGroup=g-detail&subscriptionMode=all")
        .await;
    let lane = popped["partitionId"].as_str().unwrap();
    let detail = async |id: &str| {
        broker
            .get(&format!("/api/v1/messages/{lane}/{id}"))
            .await
            .expect(200)
            .json()
    };
    let leased = detail("t0").await;
    for key in [
        "id",
        "transactionId",
        "partitionId",
        "partition",
        "queue",
        "queuePath",
        "namespace",
        "task",
        "status",
        "data",
        "payload",
        "createdAt",
        "retryCount",
        "queueConfig",
        "consumerGroups",
        "isEncrypted",
        "mode",
    ] {
        assert!(!leased[key].is_null(), "{key} in {leased}");
    }
    for key in ["traceId", "producerSub", "errorMessage"] {
        assert_eq!(leased.get(key), Some(&Value::Null), "{key}");
    }
    assert_eq!(
        (&leased["status"], &leased["queuePath"], &leased["data"]),
        (&json!("processing"), &json!("q/p"), &json!(0))
    );
    assert_eq!(leased["queueConfig"]["leaseTime"], 60);
    let group = &leased["consumerGroups"][0];
    assert_eq!(
        (&group["name"], &group["committed"], &group["consumed"]),
        (&json!("g-detail"), &json!(-1), &json!(false))
    );
    assert!(group["leaseExpiresAt"].is_string(), "{leased}");
    assert_eq!(detail("t1").await["status"], "pending");
    broker.ack(&popped, &messages(&popped), "completed").await;
    let done = detail("t0").await;
    assert_eq!(
        (&done["status"], &done["consumerGroups"][0]["consumed"]),
        (&json!("completed"), &json!(true))
    );
    for missing in [format!("{lane}/none"), "nolane/t0".to_owned(), "99/t0".to_owned()] {
        let answer = broker
            .get(&format!("/api/v1/messages/{missing}"))
            .await
            .expect_error(404, "not_found");
        assert_eq!(answer.json()["error"], "Message not found", "{missing}");
    }
}
