use std::time::Duration;

use laneway_http::HttpOptions;
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::broker::{Broker, payloads};
use crate::client::Client;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_carries_many_requests_also_pipelined() {
    let broker = Broker::start().await;
    let mut client = broker.client().await;
    for number in 0..3 {
        let body = format!(r#"{{"items":[{{"queue":"q","payload":{number}}}]}}"#);
        client.send_with("POST", "/api/v1/push", "", &body).await;
    }
    client
        .send_with(
            "GET",
            "/api/v1/pop/queue/q",
            "authorization: Bearer nonsense\r\nx-queen-client: t\r\n",
            "",
        )
        .await;
    for _ in 0..3 {
        client.answer("POST").await.expect(201);
    }
    assert_eq!(
        payloads(&client.answer("GET").await.expect(200).json()),
        [0, 1, 2]
    );
    client.request("GET", "/nowhere", "").await.expect(404);
    client.request("GET", "/health", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_type_is_not_required_and_empty_bodies_are_objects() {
    let broker = Broker::start().await;
    let mut client = broker.client().await;
    client
        .send_with(
            "POST",
            "/api/v1/push",
            "content-type: text/nonsense\r\n",
            r#"{"items":[]}"#,
        )
        .await;
    assert_eq!(client.answer("POST").await.expect(201).body, "[]");
    client
        .send_with("POST", "/api/v1/lease/x/extend", "content-length: 0\r\n", "")
        .await;
    client.answer("POST").await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_without_a_request_head_is_closed() {
    let options = HttpOptions {
        head_read_timeout: Duration::from_millis(200),
        ..HttpOptions::default()
    };
    let broker = Broker::start_with(options).await;
    let mut slow = broker.client().await;
    slow.write(b"GET /livez HTTP/1.1\r\nhost:").await;
    let mut idle = broker.client().await;
    assert_eq!(slow.try_answer("GET").await, None);
    assert_eq!(idle.try_answer("GET").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_over_the_limit_wait_for_room() {
    let broker = Broker::start_with(HttpOptions {
        connections_max: 1,
        ..HttpOptions::default()
    })
    .await;
    let mut first = broker.client().await;
    first.request("GET", "/livez", "").await.expect(200);
    let mut second = broker.client().await;
    second.send_with("GET", "/livez", "", "").await;
    let waits = timeout(Duration::from_millis(200), second.try_answer("GET")).await;
    assert!(waits.is_err(), "{waits:?}");
    drop(first);
    second.answer("GET").await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_answers_waiting_pops_at_once_and_closes_idle_connections() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..1).await;
    let mut idle = broker.client().await;
    idle.request("GET", "/livez", "").await.expect(200);
    let mut waiting = broker.client().await;
    waiting
        .send_with("GET", "/api/v1/pop/queue/empty?wait=true&timeout=60000", "", "")
        .await;
    broker
        .until("/admin/v1/status", |status| status["parked_pops"] == json!(1))
        .await;
    let started = Instant::now();
    let (served, node, _dir) = broker.stop_serving();
    let answer = waiting.answer("GET").await;
    assert_eq!((answer.status, answer.body.as_str()), (204, ""));
    assert_eq!(idle.try_answer("GET").await, None);
    served.await.unwrap().unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_loses_no_message_that_is_settled_at_delivery() {
    let target = "/api/v1/pop/queue/q?autoAck=true&wait=true&timeout=60000&batch=1&partitions=3";
    let numbers = 0..300;
    let broker = Broker::start().await;
    for lane in 0..6 {
        let own = numbers.start + lane * 50..numbers.start + (lane + 1) * 50;
        broker.push_numbers("q", &format!("p{lane}"), own).await;
    }
    let (first, mut begun) = tokio::sync::mpsc::channel(1);
    let workers: Vec<_> = (0..4)
        .map(|_| (broker.address, first.clone()))
        .map(|(address, first)| {
            tokio::spawn(async move {
                let mut received = Vec::new();
                let mut client = Client::connect(address).await;
                loop {
                    client.send_with("GET", target, "", "").await;
                    let Some(answer) = client.try_answer("GET").await else {
                        return received;
                    };
                    received.extend(payloads(&answer.json()));
                    // Full when somebody was quicker.
                    let _ = first.try_send(());
                }
            })
        })
        .collect();
    begun.recv().await.unwrap();
    let (served, node, dir) = broker.stop_serving();
    let mut seen = Vec::new();
    for worker in workers {
        seen.extend(worker.await.unwrap());
    }
    served.await.unwrap().unwrap();
    node.shutdown().await;
    drop(node);
    let broker = Broker::start_in(dir, HttpOptions::default()).await;
    let rest = broker.pop_all("q", "autoAck=true&batch=300&partitions=6").await;
    seen.extend(rest.iter().map(|message| message["data"].clone()));
    let mut seen: Vec<u64> = seen.iter().map(|number| number.as_u64().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, numbers.collect::<Vec<u64>>());
}
