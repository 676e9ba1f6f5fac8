use serde_json::{Value, json};

use crate::broker::{Broker, payloads};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_option_is_echoed_and_stored() {
    let broker = Broker::start().await;
    let options = json!({
        "namespace": "n", "task": "t", "leaseTime": 7, "retryLimit": 9, "retryDelay": 2500, "maxSize": 4, "ttl": 77,
        "priority": -6, "deadLetterQueue": false, "dlqAfterMaxRetries": true, "delayedProcessing": 1, "windowBuffer": 2,
        "retentionSeconds": 3, "completedRetentionSeconds": 4, "retentionEnabled": true, "encryptionEnabled": false,
        "maxWaitTimeSeconds": 5, "minPopWaitTime": 6, "dedupWindowSeconds": 8, "retentionSinkHold": "s3",
        "retentionSinkHoldMaxSeconds": 61,
    });
    let answer = broker
        .post(
            "/api/v1/configure",
            &json!({"queue": "a/b c", "options": options}),
        )
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&answer["configured"], &answer["queue"]),
        (&json!(true), &json!("a/b c"))
    );
    assert_eq!(answer["options"], options);
    assert_eq!(
        (&answer["namespace"], &answer["task"], &answer["storage"]),
        (&json!("n"), &json!("t"), &json!("segments"))
    );
    let detail = broker
        .get("/api/v1/resources/queues/a%2Fb%20c")
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&detail["options"], &detail["id"]),
        (&options, &answer["queueId"])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configure_replaces_unless_asked_to_merge() {
    let broker = Broker::start().await;
    let configure = async |body: Value| {
        broker.post("/api/v1/configure", &body).await.expect(200).json()["options"].clone()
    };
    broker.push_numbers("ns.task", "p", 0..1).await;
    let implicit = broker.get("/api/v1/resources/queues/ns.task").await.json();
    assert_eq!(
        (
            &implicit["options"]["leaseTime"],
            &implicit["namespace"],
            &implicit["task"]
        ),
        (&json!(60), &json!("ns"), &json!("task"))
    );
    let replaced = configure(json!({"queue": "ns.task"})).await;
    assert_eq!(replaced["leaseTime"], 300);
    let merged =
        configure(json!({"queue": "ns.task", "mode": "merge", "options": {"ttl": 5, "leaseTime": null}}))
            .await;
    assert_eq!((&merged["ttl"], &merged["leaseTime"]), (&json!(5), &json!(300)));
    let merged = configure(json!({"queue": "ns.task", "mode": "merge", "options": {"leaseTime": 9}})).await;
    assert_eq!((&merged["ttl"], &merged["leaseTime"]), (&json!(5), &json!(9)));
    let replaced = configure(json!({"queue": "ns.task", "mode": "replace", "leaseTime": 10})).await;
    assert_eq!(
        (&replaced["ttl"], &replaced["leaseTime"]),
        (&json!(3600), &json!(10))
    );
    let clamped =
        configure(json!({"queue": "new", "options": {"minPopWaitTime": 90000, "dedupWindowSeconds": -4}}))
            .await;
    assert_eq!(
        (&clamped["minPopWaitTime"], &clamped["dedupWindowSeconds"]),
        (&json!(60000), &json!(0))
    );
    assert_eq!(
        payloads(&broker.pop("ns.task", "").await),
        [0],
        "settings change no message"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_survive_a_restart() {
    let broker = Broker::start().await;
    broker
        .post(
            "/api/v1/configure",
            &json!({"queue": "q", "options": {"leaseTime": 17}}),
        )
        .await
        .expect(200);
    let broker = broker.restart().await;
    assert_eq!(
        broker.get("/api/v1/resources/queues/q").await.json()["options"]["leaseTime"],
        17
    );
}
