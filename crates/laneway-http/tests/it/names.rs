//! Field case "odd names": whatever is accepted works percent-encoded in every route.

use serde_json::json;

use crate::broker::{Broker, messages};

fn encode(name: &str) -> String {
    name.bytes()
        .map(|byte| {
            if byte.is_ascii_alphanumeric() {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

/// Pushes, pops, fails, lists and replays under one name for queue, lane, group and transaction id.
async fn use_everywhere(broker: &Broker, name: &str) {
    let id = encode(name);
    broker
        .post(
            "/api/v1/configure",
            &json!({"queue": name, "options": {"retryLimit": 0}}),
        )
        .await
        .expect(200);
    let item = json!({"queue": name, "partition": name, "payload": name, "transactionId": name});
    broker.push_items(&json!([item])).await;
    let pop = format!("/api/v1/pop/queue/{id}/partition/{id}?consumerGroup={id}&subscriptionMode=all");
    let popped = broker.get(&pop).await.expect(200).json();
    for key in ["queue", "partition", "consumerGroup"] {
        assert_eq!(popped[key], name, "{key}");
    }
    assert_eq!(popped["messages"][0]["transactionId"], name);
    let message = format!(
        "/api/v1/messages/{}/{id}",
        popped["partitionId"].as_str().unwrap()
    );
    assert_eq!(broker.get(&message).await.expect(200).json()["data"], name);
    broker.ack(&popped, &messages(&popped), "failed").await;
    let letters = broker
        .get(&format!("/api/v1/dlq?queue={id}&consumerGroup={id}"))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&letters["total"], &letters["messages"][0]["partition"]),
        (&json!(1), &json!(name)),
        "{name}"
    );
    broker
        .request("POST", &format!("{message}/retry"), "")
        .await
        .expect(200);
    let detail = broker
        .get(&format!("/api/v1/resources/queues/{id}"))
        .await
        .expect(200)
        .json();
    assert_eq!(detail["name"], name);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_names_work_in_every_route() {
    let broker = Broker::start().await;
    let long = "x".repeat(200);
    let names = [
        "a/b", "a+b", "a b", "a%2Fb", "名前", "é", "e\u{301}", "a#b?c", "a:b.c", "🦀", " ", "..", "\"\\",
        "team#1", "__system", "$x", "&=;", &long,
    ];
    for name in names {
        use_everywhere(&broker, name).await;
    }
    let listed = broker.get("/api/v1/resources/queues").await.json();
    assert_eq!(
        listed["queues"].as_array().unwrap().len(),
        names.len(),
        "no two names were folded into one"
    );
    for name in names {
        let target = format!("/api/v1/resources/queues/{}", encode(name));
        assert_eq!(
            broker.request("DELETE", &target, "").await.json()["existed"],
            true,
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_queue_name_is_legal() {
    let broker = Broker::start().await;
    broker
        .post("/api/v1/configure", &json!({"queue": ""}))
        .await
        .expect(200);
    broker.push_items(&json!([{"queue": "", "partition": "", "payload": 1}, {"queue": "", "partition": "p", "payload": 2}])).await;
    let data = async |path: &str| broker.get(path).await.expect(200).json()["messages"][0]["data"].clone();
    assert_eq!(
        data("/api/v1/pop/queue//partition/p?consumerGroup=a&subscriptionMode=all").await,
        2
    );
    assert_eq!(
        data("/api/v1/pop/queue//partition/?consumerGroup=b&subscriptionMode=all").await,
        1
    );
    assert!(
        data("/api/v1/pop/queue/?consumerGroup=c&subscriptionMode=all")
            .await
            .is_u64()
    );
    assert_eq!(
        broker.get("/api/v1/resources/queues/").await.expect(200).json()["segments"]["messages"],
        2
    );
    assert_eq!(
        broker
            .request("DELETE", "/api/v1/resources/queues/", "")
            .await
            .expect(200)
            .json()["existed"],
        true
    );
}
