use serde_json::{Value, json};

use crate::broker::Broker;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_routes_answer() {
    let broker = Broker::start().await;
    broker.until("/readyz", |body| body["ready"] == json!(true)).await;
    let health = broker.get("/health").await.expect(200).json();
    assert_eq!(
        (&health["status"], &health["engine"]),
        (&json!("healthy"), &json!("laneway"))
    );
    assert!(health["version"].is_string());
    broker.get("/livez").await.expect(200);
    assert_eq!(
        broker.get("/readyz").await.expect(200).json(),
        json!({"ready": true, "reasons": []})
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_shows_every_group() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..1).await;
    broker.until("/readyz", |body| body["ready"] == json!(true)).await;
    let status = broker.get("/admin/v1/status").await.expect(200).json();
    let groups = status["groups"].as_array().unwrap();
    let names: Vec<&Value> = groups.iter().map(|group| &group["partition"]).collect();
    assert_eq!(names, ["catalog", "0", "1", "2"]);
    assert!(
        groups
            .iter()
            .all(|group| group["leads"] == json!(true) && group["leader"] == json!(1)),
        "{status}"
    );
    assert_eq!((&status["node"], &status["disk_low"]), (&json!(1), &json!(false)));
    assert!(status["disk_free_bytes"].as_u64().unwrap() > 0);
    assert!(status["http"]["connections"].as_u64().unwrap() >= 1);
    let digest = broker.get("/admin/v1/digest").await.expect(200).json();
    let groups = digest["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 4);
    assert!(
        groups
            .iter()
            .all(|group| group["digest"].as_str().unwrap().len() == 16)
    );
    let before = broker.state().await;
    broker.push_numbers("q", "p", 1..2).await;
    assert_ne!(broker.state().await["digests"], before["digests"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_come_as_json_or_text() {
    let broker = Broker::start().await;
    broker.push_numbers("orders", "p", 0..3).await;
    broker.make_dead_letter("orders", "batch=1").await;
    broker.pop("orders", "batch=1").await;
    let json = broker.get("/metrics").await.expect(200).json();
    for key in ["uptime", "requests", "messages", "memory", "cpu"] {
        assert!(!json[key].is_null(), "{key} in {json}");
    }
    assert!(json["requests"]["total"].as_u64().unwrap() >= 4 && json["requests"]["rate"].is_number());
    assert!(json["memory"]["rss"].as_u64().unwrap() > 0);
    assert!(json["cpu"]["user"].is_number() && json["cpu"]["system"].is_number());
    assert_eq!(
        (&json["messages"]["pushed"], &json["messages"]["dead"]),
        (&json!(3), &json!(1))
    );

    let mut client = broker.client().await;
    client
        .send_with("GET", "/metrics", "accept: text/plain\r\n", "")
        .await;
    let negotiated = client.answer("GET").await.expect(200);
    let text = broker.get("/metrics/prometheus").await.expect(200);
    for answer in [negotiated, text] {
        assert_eq!(
            answer.header("content-type"),
            Some("text/plain; version=0.0.4; charset=utf-8")
        );
        for line in [
            "laneway_messages_pushed_total 3",
            "laneway_queue_ready_messages{queue=\"orders\"} 1",
            "laneway_queue_leased_messages{queue=\"orders\"} 1",
            "laneway_queue_dead_letters{queue=\"orders\"} 1",
            "laneway_partition_leads{partition=\"0\"} 1",
        ] {
            assert!(
                answer.body.lines().any(|written| written == line),
                "no {line} in {}",
                answer.body
            );
        }
        assert!(
            answer
                .body
                .contains("laneway_wal_sync_seconds_bucket{le=\"+Inf\"}")
        );
    }
}
