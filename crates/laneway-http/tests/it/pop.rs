use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::broker::{Broker, messages, payloads, sorted_numbers};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_has_every_key_of_the_contract() {
    let broker = Broker::start().await;
    broker.push_numbers("orders", "eu", 0..1).await;
    let popped = broker
        .pop("orders", "consumerGroup=billing&subscriptionMode=all")
        .await;
    let keys: BTreeSet<&str> = popped.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "consumerGroup",
        "leaseId",
        "messages",
        "partition",
        "partitionId",
        "partitionsClaimed",
        "queue",
        "success",
    ];
    assert_eq!(keys, BTreeSet::from(expected));
    let message = &popped["messages"][0];
    let keys: BTreeSet<&str> = message.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "consumerGroup",
        "createdAt",
        "data",
        "deliveryAttempt",
        "id",
        "leaseId",
        "offset",
        "partition",
        "partitionId",
        "producerSub",
        "queue",
        "traceId",
        "transactionId",
    ];
    assert_eq!(keys, BTreeSet::from(expected));
    assert_eq!(
        (&popped["queue"], &popped["partition"], &popped["consumerGroup"]),
        (&json!("orders"), &json!("eu"), &json!("billing"))
    );
    for key in ["leaseId", "partitionId", "consumerGroup", "partition"] {
        assert_eq!(message[key], popped[key], "{key}");
    }
    assert_eq!(
        message["createdAt"].as_str().unwrap().len(),
        "2026-07-30T12:34:56.789Z".len()
    );
    assert_eq!(
        (&message["deliveryAttempt"], &message["offset"]),
        (&json!(1), &json!(0))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_is_a_budget_for_the_whole_answer() {
    let broker = Broker::start().await;
    for lane in ["a", "b", "c"] {
        broker.push_numbers("q", lane, 0..4).await;
    }
    let popped = broker.pop("q", "batch=6&partitions=64").await;
    let count = messages(&popped).len();
    assert!((1..=6).contains(&count), "{popped}");
    let lanes: Vec<&Value> = messages(&popped)
        .iter()
        .map(|message| &message["partition"])
        .collect();
    let runs = lanes.windows(2).filter(|pair| pair[0] != pair[1]).count() + 1;
    assert_eq!(
        json!(runs),
        popped["partitionsClaimed"],
        "messages of one lane are contiguous"
    );
    assert_eq!(count, 6.min(4 * runs));
    assert!(
        messages(&popped)
            .iter()
            .all(|message| message["leaseId"] == popped["leaseId"])
    );
    let pinned = broker
        .get("/api/v1/pop/queue/q/partition/c?partitions=9&consumerGroup=g&subscriptionMode=all")
        .await
        .json();
    assert_eq!(
        (&pinned["partition"], &pinned["partitionsClaimed"]),
        (&json!("c"), &json!(1))
    );
    assert_eq!(payloads(&pinned), [0, 1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_204_without_a_body() {
    let broker = Broker::start().await;
    let answer = broker.get("/api/v1/pop/queue/unknown").await;
    assert_eq!((answer.status, answer.body.as_str()), (204, ""));
    assert_eq!(
        broker
            .get("/api/v1/pop/queue/unknown/partition/x?consumerGroup=g")
            .await
            .status,
        204
    );
    assert_eq!(broker.get("/api/v1/pop?namespace=none").await.status, 204);
    let listed = broker.get("/api/v1/resources/queues").await.json();
    assert_eq!(listed["queues"], json!([]), "a pop creates no queue");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leased_lane_gives_nothing_and_groups_are_independent() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..3).await;
    let first = broker.pop("q", "batch=2").await;
    assert_eq!(payloads(&first), [0, 1]);
    for _ in 0..6 {
        assert_eq!(broker.pop("q", "").await, Value::Null);
    }
    for group in ["g", "h"] {
        let popped = broker
            .pop(
                "q",
                &format!("consumerGroup={group}&subscriptionMode=all&autoAck=true"),
            )
            .await;
        assert_eq!(
            (payloads(&popped), &popped["leaseId"]),
            (vec![json!(0), json!(1), json!(2)], &json!(""))
        );
        assert_eq!(
            broker.pop("q", &format!("consumerGroup={group}")).await,
            Value::Null
        );
    }
    broker.ack(&first, &messages(&first), "completed").await;
    assert_eq!(payloads(&broker.pop("q", "").await), [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_consumers_of_a_group_share_nothing() {
    let broker = Broker::start().await;
    for lane in 0..8 {
        broker
            .push_numbers("q", &format!("p{lane}"), lane * 10..lane * 10 + 10)
            .await;
    }
    let mut pops = Vec::new();
    for _ in 0..8 {
        let mut client = broker.client().await;
        pops.push(tokio::spawn(async move {
            client
                .request("GET", "/api/v1/pop/queue/q?batch=10", "")
                .await
                .json()
        }));
    }
    let mut seen = BTreeSet::new();
    for pop in pops {
        for payload in payloads(&pop.await.unwrap()) {
            assert!(
                seen.insert(payload.as_u64().unwrap()),
                "{payload} was delivered twice"
            );
        }
    }
    assert_eq!(seen.len(), 80);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_starts_where_its_first_pop_says_even_an_empty_one() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "old", 0..2).await;
    assert_eq!(broker.pop("q", "consumerGroup=new").await, Value::Null);
    assert_eq!(
        broker
            .pop("q", "consumerGroup=now&subscriptionMode=all&subscriptionFrom=now")
            .await,
        Value::Null
    );
    broker.push_numbers("q", "old", 2..3).await;
    broker.push_numbers("q", "born-later", 3..4).await;
    for group in ["new", "now"] {
        let popped = broker
            .pop_all("q", &format!("consumerGroup={group}&subscriptionMode=all"))
            .await;
        assert_eq!(sorted_numbers(&popped), [2, 3], "{group}");
    }
    let all = broker
        .pop_all("q", "consumerGroup=all&subscriptionMode=all")
        .await;
    assert_eq!(sorted_numbers(&all), [0, 1, 2, 3]);
    let since = "consumerGroup=since&subscriptionMode=new&subscriptionFrom=1970-01-01T00:00:00Z";
    assert_eq!(sorted_numbers(&broker.pop_all("q", since).await), [0, 1, 2, 3]);
    let later = "consumerGroup=later&subscriptionFrom=2099-01-01T00:00:00Z";
    assert_eq!(broker.pop("q", later).await, Value::Null);
    let queue_mode = broker
        .pop_all("q", "subscriptionMode=new&subscriptionFrom=now")
        .await;
    assert_eq!(
        sorted_numbers(&queue_mode),
        [0, 1, 2, 3],
        "queue mode starts at the beginning, whatever is asked for"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_pop_of_an_empty_queue_registers_its_group() {
    let broker = Broker::start().await;
    assert_eq!(
        broker.pop("q", "consumerGroup=g&subscriptionMode=new").await,
        Value::Null
    );
    broker.push_numbers("q", "p", 0..1).await;
    assert_eq!(
        payloads(&broker.pop("q", "consumerGroup=g&subscriptionMode=all").await),
        [0]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_pops_by_namespace_and_task() {
    let broker = Broker::start().await;
    broker.push_numbers("shop.mail.x", "p", 0..1).await;
    broker.push_numbers("shop.print", "p", 1..2).await;
    let pop = async |query: &str| broker.get(&format!("/api/v1/pop?{query}")).await.json();
    let popped = pop("namespace=shop&task=print&autoAck=true").await;
    assert_eq!(
        (payloads(&popped), &popped["queue"]),
        (vec![json!(1)], &json!(""))
    );
    assert_eq!(popped["messages"][0]["queue"], "shop.print");
    assert_eq!(payloads(&pop("task=mail&autoAck=true").await), [0]);
    assert_eq!(pop("namespace=shop&autoAck=true").await, Value::Null);
    let refused = broker.get("/api/v1/pop?wait=true").await.expect(400);
    let body = json!({"success": false, "error": "namespace or task is required", "code": "bad_request", "messages": []});
    assert_eq!(refused.json(), body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn head_request_claims_nothing() {
    let broker = Broker::start().await;
    broker.push_numbers("q", "p", 0..1).await;
    let answer = broker
        .request("HEAD", "/api/v1/pop/queue/q?autoAck=true", "")
        .await;
    assert_eq!(answer.status, 405);
    assert_eq!(payloads(&broker.pop("q", "").await), [0]);
}
