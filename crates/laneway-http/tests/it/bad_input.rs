//! What a client gets wrong changes nothing, is answered as the contract says, and the broker goes on.

use std::time::Duration;

use laneway_http::HttpOptions;
use serde_json::json;

use crate::broker::{Broker, messages};

/// A broker with a queue, a lease and a dead letter.
async fn busy_broker() -> Broker {
    let broker = Broker::start_with(HttpOptions {
        body_bytes_max: 256 * 1024,
        ..HttpOptions::default()
    })
    .await;
    broker.push_numbers("q", "p", 0..4).await;
    broker.make_dead_letter("q", "batch=1&leaseSeconds=3600").await;
    let popped = broker
        .pop("q", "batch=1&consumerGroup=g&subscriptionMode=all")
        .await;
    broker.ack(&popped, &messages(&popped), "completed").await;
    broker
}

/// Posts each body, expects its refusal, and that none changed anything.
async fn check_bodies(cases: &[(&str, &str, u16, &str)]) {
    let broker = busy_broker().await;
    let before = broker.state().await;
    for (route, body, status, code) in cases {
        broker
            .request("POST", &format!("/api/v1/{route}"), body)
            .await
            .expect_error(*status, code);
    }
    assert_eq!(broker.state().await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_pushes_change_nothing() {
    let depth = "[".repeat(100_000);
    let long_name = format!(r#"{{"items":[{{"queue":"{}","payload":1}}]}}"#, "x".repeat(412));
    check_bodies(&[
        ("push", "{", 400, "bad_body"),
        ("push", "", 400, "bad_body"),
        ("push", "nonsense", 400, "bad_body"),
        ("push", &depth, 400, "bad_body"),
        ("push", r#"{"items":{}}"#, 400, "bad_body"),
        ("push", r#"{"items":[{"payload":1}]}"#, 400, "bad_body"),
        ("push", r#"{"items":[{"queue":"q"}]}"#, 400, "bad_body"),
        (
            "push",
            r#"{"items":[{"queue":"q","payload":1},{"queue":1,"payload":1}]}"#,
            400,
            "bad_body",
        ),
        (
            "push",
            r#"{"items":[{"queue":"q","payload":1}]}}"#,
            400,
            "bad_body",
        ),
        (
            "push",
            r#"{"items":[{"queue":"q","payload":1},{"queue":"a\u0000b","payload":1}]}"#,
            400,
            "bad_request",
        ),
        ("push", &long_name, 413, "name_too_long"),
        ("push", "QPB1\u{0}\u{1}", 400, "bad_body"),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_acks_change_nothing() {
    let long_group = format!(
        r#"{{"transactionId":"t0","partitionId":"1","consumerGroup":"{}"}}"#,
        "x".repeat(412)
    );
    check_bodies(&[
        ("ack", "{}", 400, "bad_body"),
        ("ack", "[]", 400, "bad_body"),
        ("ack", r#"{"transactionId":"t0"}"#, 400, "bad_body"),
        (
            "ack",
            r#"{"transactionId":"t0","partitionId":1}"#,
            400,
            "bad_body",
        ),
        (
            "ack",
            r#"{"transactionId":"t0","partitionId":"1","status":1}"#,
            400,
            "bad_body",
        ),
        ("ack", &long_group, 413, "name_too_long"),
        ("ack/batch", "{}", 400, "bad_body"),
        ("ack/batch", r#"{"acknowledgments":{}}"#, 400, "bad_body"),
        ("ack/batch", r#"{"acknowledgments":[{}]}"#, 400, "bad_body"),
        (
            "lease/019fb305-4c95-7000-8400-000000000007/extend",
            r#"{"seconds":9e18}"#,
            400,
            "bad_request",
        ),
        (
            "lease/019fb305-4c95-7000-8400-000000000007/extend",
            r#"{"seconds":0}"#,
            400,
            "bad_request",
        ),
        (
            "lease/019fb305-4c95-7000-8400-000000000007/extend",
            r#"{"seconds":"5"}"#,
            400,
            "bad_body",
        ),
        ("dlq/1/replay", "[1", 400, "bad_body"),
        ("dlq/1/replay", r#"{"queue":""}"#, 400, "bad_request"),
        ("dlq/1/replay", r#"{"queue":"other"}"#, 400, "not_supported"),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_settings_change_nothing() {
    check_bodies(&[
        ("configure", "{}", 400, "bad_body"),
        (
            "configure",
            r#"{"queue":"q","options":{"leaseTime":9e18}}"#,
            400,
            "bad_request",
        ),
        (
            "configure",
            r#"{"queue":"q","options":{"leaseTime":-1}}"#,
            400,
            "bad_request",
        ),
        (
            "configure",
            r#"{"queue":"q","options":{"leaseTime":"5"}}"#,
            400,
            "bad_body",
        ),
        (
            "configure",
            r#"{"queue":"q","options":{"retryLimit":1.5}}"#,
            400,
            "bad_body",
        ),
        (
            "configure",
            r#"{"queue":"q","options":{"retentionEnabled":"yes"}}"#,
            400,
            "bad_body",
        ),
        (
            "configure",
            r#"{"queue":"q","mode":"upsert"}"#,
            400,
            "bad_request",
        ),
        (
            "configure",
            r#"{"queue":"q","options":{"retentionSinkHold":"a/b"}}"#,
            400,
            "bad_request",
        ),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_of_another_shape_change_nothing() {
    let extend = "lease/019fb305-4c95-7000-8400-000000000007/extend";
    // An array in place of an object, null where something is required, a key twice, something behind the end.
    let bodies = [
        ("push", r#"[[{"queue":"q","payload":1}]]"#),
        ("push", r#"{"items":[["q",null,1,"t9"]]}"#),
        ("push", r#"{"items":[null]}"#),
        ("push", "null"),
        ("push", r#"{"items":[],"items":[]}"#),
        ("push", r#"{"items":[{"queue":"q","queue":"r","payload":1}]}"#),
        ("push", r#"{"items":[{"queue":"q","payload":1}]} null"#),
        ("ack", "null"),
        ("ack", r#"["t1","1","completed"]"#),
        (
            "ack",
            r#"{"transactionId":"t1","partitionId":"1","status":"ok","status":"dlq"}"#,
        ),
        ("ack", r#"{"transactionId":"t1","partitionId":"1"},"#),
        ("ack/batch", "null"),
        ("ack/batch", r#"[[{"transactionId":"t1","partitionId":"1"}]]"#),
        ("ack/batch", r#"{"acknowledgments":[["t1","1"]]}"#),
        ("ack/batch", r#"{"acknowledgments":[null]}"#),
        (extend, "[]"),
        (extend, "[5]"),
        (extend, r#"{"seconds":5,"seconds":6}"#),
        (extend, r#"{"seconds":5}}"#),
        ("configure", "null"),
        ("configure", r#"["q"]"#),
        ("configure", r#"{"queue":"q","options":[1]}"#),
        ("configure", r#"{"queue":"q","queue":"r"}"#),
        ("configure", r#"{"queue":"q","ttl":5,"ttl":null}"#),
        (
            "configure",
            r#"{"queue":"q","options":{"leaseTime":5,"leaseTime":6}}"#,
        ),
        ("configure", r#"{"queue":"q"}x"#),
        ("dlq/1/replay", "[]"),
        ("dlq/1/replay", "{} {}"),
        ("messages/1/t0/retry", "[]"),
        ("messages/1/t0/retry", r#"["q","p"]"#),
    ];
    check_bodies(&bodies.map(|(route, body)| (route, body, 400, "bad_body"))).await;
}

/// Asks each target, expects its refusal, and that none changed anything.
async fn check_targets(cases: &[(&str, &str, u16, &str)]) {
    let broker = busy_broker().await;
    let before = broker.state().await;
    for (method, target, status, code) in cases {
        let answer = broker
            .request(method, &format!("/api/v1/{target}"), "")
            .await
            .expect_error(*status, code);
        if target.starts_with("pop/") && matches!(status, 400 | 413) {
            let body = answer.json();
            assert_eq!(
                (&body["success"], &body["messages"]),
                (&json!(false), &json!([])),
                "{target}"
            );
        }
        if *code == "no_such_route" {
            assert_eq!(answer.json()["path"], format!("/api/v1/{target}"));
        }
    }
    assert_eq!(broker.state().await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_paths_change_nothing() {
    let long_pop = format!("pop/queue/{}", "x".repeat(412));
    check_targets(&[
        ("GET", "nowhere", 404, "no_such_route"),
        ("GET", "", 404, "no_such_route"),
        ("GET", "pop/queue/q/partition/p/more", 404, "no_such_route"),
        ("POST", "push/", 404, "no_such_route"),
        ("POST", "queue/q", 404, "no_such_route"),
        ("GET", "push", 405, "method_not_allowed"),
        ("PUT", "push", 405, "method_not_allowed"),
        ("POST", "pop/queue/q", 405, "method_not_allowed"),
        ("POST", "resources/queues", 405, "method_not_allowed"),
        ("DELETE", "dlq", 405, "method_not_allowed"),
        ("GET", "pop/queue/%zz", 400, "bad_request"),
        ("GET", "pop/queue/a%2", 400, "bad_request"),
        ("GET", "pop/queue/%FF", 400, "bad_request"),
        ("GET", "pop/queue/a%00b", 400, "bad_request"),
        ("GET", &long_pop, 413, "name_too_long"),
        ("DELETE", "resources/queues/%00", 400, "bad_request"),
        ("GET", "messages/1/%", 400, "bad_request"),
        ("DELETE", "messages/x/y", 404, "not_found"),
        ("POST", "messages/x/y/retry", 404, "not_found"),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_parameters_change_nothing() {
    check_targets(&[
        ("GET", "pop/queue/q?consumerGroup=%C3%28", 400, "bad_request"),
        ("GET", "pop/queue/q?consumerGroup=a%0Ab", 400, "bad_request"),
        ("GET", "pop/queue/q?leaseSeconds=9e18", 400, "bad_request"),
        (
            "GET",
            "pop/queue/q?leaseSeconds=9223372036854775807",
            400,
            "bad_request",
        ),
        ("GET", "pop/queue/q?leaseSeconds=-1", 400, "bad_request"),
        ("GET", "pop/queue/q?leaseSeconds=soon", 400, "bad_request"),
        ("GET", "pop/queue/q?batch=0", 400, "bad_request"),
        ("GET", "pop/queue/q?batch=-1", 400, "bad_request"),
        (
            "GET",
            "pop/queue/q?batch=99999999999999999999",
            400,
            "bad_request",
        ),
        ("GET", "pop/queue/q?timeout=x&wait=true", 400, "bad_request"),
        (
            "GET",
            "pop/queue/q?consumerGroup=g&subscriptionFrom=yesterday",
            400,
            "bad_request",
        ),
        (
            "GET",
            "pop/queue/q?conflation=true&consumerGroup=h",
            400,
            "not_supported",
        ),
        ("GET", "dlq?limit=0", 400, "bad_request"),
        ("GET", "dlq?limit=x", 400, "bad_request"),
        ("GET", "dlq?offset=-1", 400, "bad_request"),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_name_what_is_wrong() {
    let broker = Broker::start().await;
    let check = async |target: &str, body: &str, part: &str| {
        let method = if body.is_empty() { "GET" } else { "POST" };
        let answer = broker.request(method, &format!("/api/v1/{target}"), body).await;
        assert!(
            answer.json()["error"].as_str().unwrap().contains(part),
            "{answer:?}"
        );
    };
    check(
        "pop/queue/q?leaseSeconds=-1",
        "",
        "leaseSeconds must be an integer from 0 to 31536000",
    )
    .await;
    check(
        "pop/queue/q?batch=0",
        "",
        "batch must be an integer from 1 to 1000000",
    )
    .await;
    check(
        "pop/queue/a%00",
        "",
        "queue has the control character U+0000 at byte 1",
    )
    .await;
    check(
        "configure",
        r#"{"queue":"q","options":{"ttl":-1}}"#,
        "options.ttl must be an integer from 0",
    )
    .await;
    check(
        "push",
        r#"{"items":[{"queue":"q","payload":1},{"payload":1}]}"#,
        "bad body at items[1]: missing field `queue`",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_over_the_limit_is_refused_and_the_connection_lives_or_says_why() {
    let broker = busy_broker().await;
    let before = broker.state().await;
    let payload = "x".repeat(300 * 1024);
    let body = format!(r#"{{"items":[{{"queue":"q","payload":"{payload}"}}]}}"#);
    let answer = broker
        .request("POST", "/api/v1/push", &body)
        .await
        .expect_error(413, "payload_too_large");
    assert!(answer.json()["error"].as_str().unwrap().contains("262144"));
    let mut client = broker.client().await;
    client
        .write(b"POST /api/v1/push HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n")
        .await;
    client
        .write(format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).as_bytes())
        .await;
    client.answer("POST").await.expect_error(413, "payload_too_large");
    let fits = format!(
        r#"{{"items":[{{"queue":"q","payload":"{}"}}]}}"#,
        "é".repeat(120 * 1024)
    );
    assert!(fits.len() < 256 * 1024);
    broker.request("POST", "/api/v1/push", &fits).await.expect(201);
    let bytes = format!(
        r#"{{"items":[{{"queue":"q","payload":"{}"}}]}}"#,
        "é".repeat(140 * 1024)
    );
    broker
        .request("POST", "/api/v1/push", &bytes)
        .await
        .expect_error(413, "payload_too_large");
    assert_ne!(broker.state().await, before, "the one that fits was stored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusal_of_a_request_whose_body_nobody_wants_is_answered_all_the_same() {
    let broker = Broker::start().await;
    // More than the sockets hold.
    let body = "x".repeat(16 * 1024 * 1024);
    for (target, status, code) in [
        ("/nowhere", 404, "no_such_route"),
        ("/livez", 405, "method_not_allowed"),
    ] {
        broker
            .request("POST", target, &body)
            .await
            .expect_error(status, code);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_or_broken_bodies_are_given_up() {
    let options = HttpOptions {
        body_read_timeout: Duration::from_millis(200),
        ..HttpOptions::default()
    };
    let broker = Broker::start_with(options).await;
    let mut client = broker.client().await;
    client
        .write(b"POST /api/v1/push HTTP/1.1\r\nhost: t\r\ncontent-length: 50\r\n\r\n{\"items\"")
        .await;
    client.answer("POST").await.expect_error(408, "timeout");
    let mut client = broker.client().await;
    client
        .write(b"POST /api/v1/push HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")
        .await;
    client.answer("POST").await.expect_error(400, "bad_body");
    let mut client = broker.client().await;
    client
        .write(b"POST /api/v1/push HTTP/1.1\r\nhost: t\r\ncontent-length: -5\r\n\r\n")
        .await;
    assert_eq!(client.answer("POST").await.status, 400);
    let mut client = broker.client().await;
    client.write(b"\x16\x03\x01\x00\x05hello\r\n\r\n").await;
    assert!(
        client
            .try_answer("GET")
            .await
            .is_none_or(|answer| answer.status == 400)
    );
    broker.get("/livez").await.expect(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_request_ids_are_refused_on_every_write() {
    let broker = busy_broker().await;
    let before = broker.state().await;
    let long = "x".repeat(65);
    for id in ["", "a b", "é", long.as_str()] {
        let header = format!("x-laneway-request-id: {id}\r\n");
        let mut client = broker.client().await;
        for (method, target, body) in [
            ("POST", "push", r#"{"items":[{"queue":"q","payload":1}]}"#),
            ("POST", "ack", r#"{"transactionId":"t1","partitionId":"1"}"#),
            ("POST", "ack/batch", r#"{"acknowledgments":[]}"#),
            ("POST", "lease/x/extend", "{}"),
            ("POST", "configure", r#"{"queue":"q"}"#),
            ("POST", "dlq/1/replay", ""),
            ("POST", "messages/1/t0/retry", ""),
            ("DELETE", "messages/1/t0", ""),
            ("DELETE", "resources/queues/q", ""),
        ] {
            client
                .send_with(method, &format!("/api/v1/{target}"), &header, body)
                .await;
            client.answer(method).await.expect_error(400, "bad_request");
        }
        client.send_with("GET", "/api/v1/dlq", &header, "").await;
        client.answer("GET").await.expect(200);
    }
    assert_eq!(broker.state().await, before);
}
