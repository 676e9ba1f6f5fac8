//! Push, pop, ack, retry, dead letters.

use std::time::Duration;

use laneway_core::catalog::{Patch, SettingsPatch};
use laneway_core::command::AckStatus;
use laneway_core::reply::AckedItem;
use laneway_node::{AckOutcome, DeadLetterFilter, DeadLetterRef, ErrorClass, Node, PushReply, PushRequest};

use crate::support::{
    SOON, ack, ack_item, configure, item, options, payloads, pop, pop_request, push, start,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushed_messages_are_popped_in_order_and_acked_once() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    let items = (0..5)
        .map(|n| item("orders", "eu", &format!("t{n}"), &format!("{{\"n\":{n}}}")))
        .collect();
    let replies = push(&node, items).await;
    assert!(replies.iter().all(|reply| matches!(reply, PushReply::Queued(_))));
    let again = push(&node, vec![item("orders", "eu", "t3", "1")]).await;
    assert!(matches!(&again[0], PushReply::Duplicate(position) if position.offset.0 == 3));

    let popped = pop(&node, "orders").await;
    assert_eq!(payloads(&popped).len(), 5);
    assert_eq!(payloads(&pop(&node, "orders").await).len(), 0);
    let lane = popped.lanes[0].lane;
    let done = ack(&node, ack_item(lane, "t4", AckStatus::Completed, popped.lease_id)).await;
    assert_eq!(done.outcome, AckOutcome::Applied(AckedItem::Done));
    assert!(done.lease_released);
    assert_eq!(payloads(&pop(&node, "orders").await).len(), 0);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spent_budget_files_a_dead_letter_that_can_be_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    configure(
        &node,
        "q",
        SettingsPatch {
            retry_limit: Patch::Set(1),
            ..SettingsPatch::keep()
        },
    )
    .await;
    push(
        &node,
        vec![item("q", "Default", "a", "1"), item("q", "Default", "b", "2")],
    )
    .await;
    for round in 0..2 {
        let popped = pop(&node, "q").await;
        let lane = &popped.lanes[0];
        assert_eq!(lane.attempt, round + 1);
        let reply = ack(
            &node,
            ack_item(lane.lane, "a", AckStatus::Failed, popped.lease_id),
        )
        .await;
        assert!(reply.lease_released);
        let wanted = if round == 0 {
            AckedItem::Done
        } else {
            AckedItem::DeadLettered
        };
        assert_eq!(reply.outcome, AckOutcome::Applied(wanted));
    }
    let filter = DeadLetterFilter {
        queue: Some("q".into()),
        group: None,
        limit: 100,
        skip: 0,
    };
    let dead = node.dead_letters(filter.clone()).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].row.reason, "boom");
    assert_eq!(&dead[0].message.payload[..], b"1");

    let which = DeadLetterRef::Message(dead[0].row.lane, "a".into());
    let moved = node.replay(None, which.clone()).await.unwrap().unwrap();
    assert_eq!(moved.offset.0, 2);
    assert!(node.replay(None, which).await.unwrap().is_none());
    assert!(node.dead_letters(filter).await.unwrap().is_empty());
    let popped = pop(&node, "q").await;
    assert_eq!(payloads(&popped), ["2", "1"]);
    assert_eq!(popped.lanes[0].messages[1].transaction_id, moved.transaction_id);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_pop_wakes_on_push_and_on_expiry() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    let mut request = pop_request("late");
    request.wait = Some(SOON);
    request.lease_ms = Some(300);
    let waiting = tokio::spawn({
        let (node, request) = (node.clone(), request.clone());
        async move { node.pop(request).await }
    });
    while node.status().await.parked_pops == 0 {
        tokio::task::yield_now().await;
    }
    push(&node, vec![item("late", "Default", "", "7")]).await;
    let mut first = waiting.await.unwrap().unwrap();
    first.delivered();
    assert_eq!(payloads(&first), ["7"]);

    let second = node.pop(request).await.unwrap();
    assert_eq!(payloads(&second), ["7"]);
    assert_eq!(second.lanes[0].attempt, 2);
    drop(second);
    // Given back, not delivered: nobody has to wait for its deadline.
    let third = tokio::time::timeout(Duration::from_secs(5), async {
        loop {
            let reply = pop(&node, "late").await;
            if !reply.lanes.is_empty() {
                return reply;
            }
        }
    });
    assert_eq!(third.await.unwrap().lanes[0].attempt, 2);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_queue_takes_its_messages_along() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    push(&node, vec![item("q", "a", "x", "1")]).await;
    assert!(node.delete_queue("q").await.unwrap());
    assert!(!node.delete_queue("q").await.unwrap());
    assert!(node.queue("q").await.unwrap().is_none());
    let reply = push(&node, vec![item("q", "a", "x", "2")]).await;
    assert!(matches!(&reply[0], PushReply::Queued(position) if position.offset.0 == 0));
    assert_eq!(payloads(&pop(&node, "q").await), ["2"]);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_new_queues_and_groups_share_entries() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    let items = (0..600)
        .map(|n| item(&format!("q{n}"), "Default", "", &n.to_string()))
        .collect();
    assert_eq!(push(&node, items).await.len(), 600);
    let pops: Vec<_> = (0..600)
        .map(|n| {
            let node = node.clone();
            tokio::spawn(async move { pop(&node, &format!("q{n}")).await })
        })
        .collect();
    for (n, popped) in pops.into_iter().enumerate() {
        assert_eq!(payloads(&popped.await.unwrap()), [n.to_string()]);
    }
    let status = node.status().await;
    let catalog = status
        .groups
        .iter()
        .find(|group| group.partition.to_string() == "catalog")
        .unwrap();
    assert!(
        catalog.applied_index < 600,
        "one entry each: {}",
        catalog.applied_index
    );
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_lease_spans_lanes_of_several_partitions() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    let items = (0..12)
        .map(|n| item("q", &format!("lane{n}"), "", &n.to_string()))
        .collect();
    push(&node, items).await;
    let mut request = pop_request("q");
    request.lanes_max = 64;
    request.lease_ms = Some(60_000);
    let mut popped = node.pop(request.clone()).await.unwrap();
    popped.delivered();
    assert_eq!(popped.lanes.len(), 12);
    let lease = popped.lease_id.unwrap();
    assert_eq!(node.extend(None, lease, 90_000).await.unwrap().renewed, 12);
    let lane = &popped.lanes[7];
    let id = &lane.messages[0].transaction_id;
    assert!(
        ack(&node, ack_item(lane.lane, id, AckStatus::Completed, Some(lease)))
            .await
            .lease_released
    );
    assert_eq!(node.extend(None, lease, 90_000).await.unwrap().renewed, 11);
    assert!(node.pop(request).await.unwrap().lanes.is_empty());
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partly_stored_push_tells_the_refusal_per_item() {
    let dir = tempfile::tempdir().unwrap();
    let mut one_lane = options(dir.path());
    one_lane.partitions = 1;
    one_lane.limits.lanes_max = 1;
    let (node, _) = Node::start(one_lane).await.unwrap();
    push(&node, vec![item("q", "a", "t0", "0")]).await;

    let items = vec![
        item("q", "c", "t1", "1"),
        item("q", "a", "t2", "2"),
        item("q", "a", "t0", "0"),
    ];
    let replies = push(&node, items.clone()).await;
    let PushReply::Refused(error) = &replies[0] else {
        panic!("{replies:?}");
    };
    assert_eq!((error.class, error.code), (ErrorClass::Overloaded, "overloaded"));
    assert!(error.message.contains("lanes_max"), "{error}");
    assert!(matches!(&replies[1], PushReply::Queued(position) if position.offset.0 == 1));
    assert!(matches!(&replies[2], PushReply::Duplicate(position) if position.offset.0 == 0));
    // The repeat of the whole is answered in kind: what is stored stays stored once.
    let replies = push(&node, items).await;
    assert!(matches!(&replies[0], PushReply::Refused(_)));
    assert!(matches!(&replies[1], PushReply::Duplicate(position) if position.offset.0 == 1));

    let nothing_stored = PushRequest {
        request_id: None,
        items: vec![item("q", "c", "t1", "1"), item("q", "d", "t3", "3")],
    };
    let error = node.push(nothing_stored).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Overloaded);
    assert_eq!(payloads(&pop(&node, "q").await), ["0", "2"]);
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_the_wait_is_not_the_end_of_the_pop() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path()).await;
    push(&node, vec![item("q", "a", "t0", "0")]).await;
    let mut request = pop_request("q");
    request.wait = Some(SOON * 10);
    request.auto_ack = true;
    let reply = node.pop_until(request.clone(), async {}).await.unwrap();
    assert_eq!(payloads(&reply), ["0"]);
    let none = tokio::time::timeout(SOON, node.pop_until(request, async {})).await;
    assert!(none.unwrap().unwrap().lanes.is_empty());
    node.shutdown().await;
}
