//! `laneway ctl` against a running node.

use laneway_client::wire::AckStatus;
use laneway_client::{Ack, Client, Pop, Push};

use crate::broker::{Broker, output};

#[track_caller]
fn ctl(broker: &Broker, args: &[&str]) -> String {
    let output = output(&[&["ctl", "--url", &broker.url], args].concat());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn json(broker: &Broker, args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ctl(broker, &[args, &["--json"]].concat())).unwrap()
}

/// Pushes one message and dead-letters it.
async fn dead_letter(broker: &Broker, queue: &str, transaction_id: &str) {
    let client = Client::new(&broker.url).unwrap();
    client
        .push(&[Push::new(queue, &"payload")
            .unwrap()
            .transaction_id(transaction_id)])
        .await
        .unwrap();
    let popped = client.pop(&Pop::new(queue)).await.unwrap().unwrap();
    let ack = Ack::of(&popped.messages[0], AckStatus::DeadLetter).because("no good");
    assert!(client.ack(&[ack]).await.unwrap()[0].dlq);
}

#[test]
fn node_that_does_not_answer_is_told_after_the_timeout() {
    // Connections are made, but nobody takes them: as with a process that is stopped.
    let hung = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", hung.local_addr().unwrap());
    for command in [&["status"][..], &["cluster", "remove-node", "2"]] {
        let output = output(&[&["ctl", "--url", &url, "--timeout", "1"], command].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{told}");
        for part in [
            "no answer from",
            "may hang",
            "--url",
            "longer than 1 s with --timeout",
        ] {
            assert!(told.contains(part), "{told}");
        }
        assert_eq!(told.lines().count(), 1, "{told}");
        assert_eq!(told.contains("may be done"), command.len() > 1, "{told}");
    }
}

#[test]
fn addresses_that_are_no_node_s_are_told() {
    // It hangs up on what is no handshake, as a peer port does.
    let peer_port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = peer_port.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        while let Ok((mut caller, _)) = peer_port.accept() {
            let _ = std::io::Read::read(&mut caller, &mut [0; 4096]);
        }
    });
    let check = |url: &str, part: &str| {
        let output = output(&["ctl", "--url", url, "status"]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(part), "{told}");
    };
    check(&address, "only http:// is spoken");
    check(&format!("https://{address}"), "only http:// is spoken");
    check(&format!("http://{address}"), "not its HTTP port");
}

#[tokio::test]
async fn dead_letters_are_listed_replayed_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(&dir.path().join("data"));
    for transaction_id in ["t1", "t2", "t3"] {
        dead_letter(&broker, "q", transaction_id).await;
    }
    let text = ctl(&broker, &["dlq", "list", "--queue", "q"]);
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.contains("no good") && text.contains("t1"), "{text}");
    assert!(!text.contains("there are more"), "{text}");
    let page = ctl(&broker, &["dlq", "list", "--limit", "2"]);
    assert_eq!(page.lines().last(), Some("there are more: --offset 2"));
    let rest = ctl(&broker, &["dlq", "list", "--limit", "2", "--offset", "2"]);
    assert_eq!(rest.lines().count(), 2, "{rest}");
    assert!(rest.contains("t1"), "{rest}");
    let rows = json(&broker, &["dlq", "list", "--limit", "3"]);
    let row = |transaction_id: &str| {
        let rows = rows["messages"].as_array().unwrap();
        rows.iter()
            .find(|row| row["transactionId"] == transaction_id)
            .unwrap()
            .clone()
    };
    let lane = row("t1")["partitionId"].as_str().unwrap().to_owned();
    assert!(ctl(&broker, &["dlq", "retry", &lane, "t1"]).contains("t1 is back in q/Default"));
    assert!(
        ctl(
            &broker,
            &["dlq", "retry", "--id", row("t2")["id"].as_str().unwrap()]
        )
        .contains("t2 is back")
    );
    assert_eq!(
        ctl(&broker, &["dlq", "delete", &lane, "t3"]),
        "deleted 1 dead letter(s) of t3\n"
    );
    assert_eq!(
        json(&broker, &["dlq", "list"])["messages"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
    let empty = ctl(&broker, &["dlq", "list", "--queue", "q"]);
    assert_eq!(empty.lines().count(), 1, "{empty}");
    let nosuch = output(&["ctl", "--url", &broker.url, "dlq", "list", "--queue", "nosuch"]);
    let nosuch = String::from_utf8(nosuch.stderr).unwrap();
    assert!(nosuch.contains("there is no queue \"nosuch\""), "{nosuch}");
    let again = output(&["ctl", "--url", &broker.url, "dlq", "delete", &lane, "t3"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8(again.stderr).unwrap().contains("404"));
    broker.stop();
}

#[tokio::test]
async fn control_characters_of_a_transaction_id_are_not_printed() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(&dir.path().join("data"));
    for transaction_id in ["a\u{1b}[2J", "b\nc"] {
        dead_letter(&broker, "q", transaction_id).await;
    }
    let rows = json(&broker, &["dlq", "list"]);
    let (lane, id) = (
        rows["messages"][0]["partitionId"].as_str().unwrap(),
        rows["messages"][1]["id"].as_str().unwrap(),
    );
    let texts = [
        ctl(&broker, &["dlq", "list"]),
        ctl(&broker, &["dlq", "retry", "--id", id]),
        ctl(&broker, &["dlq", "delete", lane, "b\nc"]),
    ];
    assert_eq!(texts.each_ref().map(|text| text.lines().count()), [3, 1, 1]);
    for text in texts {
        assert!(text.contains('\u{fffd}') && !text.contains('\u{1b}'), "{text:?}");
    }
    broker.stop();
}

#[tokio::test]
async fn node_and_queues_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(&dir.path().join("data"));
    let client = Client::new(&broker.url).unwrap();
    client
        .push(&[
            Push::new("orders", &1).unwrap().lane("eu"),
            Push::new("orders", &2).unwrap(),
        ])
        .await
        .unwrap();
    let status = ctl(&broker, &["status"]);
    assert!(
        status.contains("ready") && status.contains("catalog") && status.contains("leads"),
        "{status}"
    );
    assert!(status.contains("node 1 of cluster dev ("), "{status}");
    assert_eq!(json(&broker, &["status"])["cluster"], "dev");
    assert_eq!(json(&broker, &["status"])["groups"].as_array().unwrap().len(), 5);
    let queues = ctl(&broker, &["queue", "list"]);
    assert!(
        queues.lines().nth(1).unwrap().starts_with("orders  2"),
        "{queues}"
    );
    let queue = ctl(&broker, &["queue", "get", "orders"]);
    assert!(queue.contains("eu") && queue.contains("Default"), "{queue}");
    assert_eq!(json(&broker, &["queue", "get", "orders"])["totals"]["pending"], 2);
    let digests = json(&broker, &["debug", "digest"]);
    assert_eq!(digests["groups"].as_array().unwrap().len(), 5);
    assert_eq!(ctl(&broker, &["debug", "digest"]).lines().count(), 6);
    broker.stop();
}

#[tokio::test]
async fn cluster_of_one_is_shown_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(&dir.path().join("data"));
    let status = ctl(&broker, &["cluster", "status"]);
    assert!(status.starts_with("cluster dev ("), "{status}");
    assert!(
        status.contains("5 of 5") && status.contains("REPLICAS"),
        "{status}"
    );
    let cluster = json(&broker, &["cluster", "status"]);
    assert_eq!(cluster["groups"][0]["partition"], "catalog");
    assert_eq!(cluster["groups"].as_array().unwrap().len(), 5);
    assert_eq!(cluster["nodes"][0]["connected"], true);
    let leads = ctl(&broker, &["cluster", "transfer-leader", "--to", "1"]);
    assert_eq!(leads, "nothing to do: node 1 leads every group already\n");
    let done = json(
        &broker,
        &["cluster", "transfer-leader", "--partition", "2", "--to", "1"],
    );
    assert_eq!(
        done,
        serde_json::json!({"changed": [], "note": "node 1 leads partition 2 already"})
    );
    assert_eq!(
        ctl(&broker, &["cluster", "remove-node", "9"]),
        "nothing to do: node 9 is no member of any group, nor is it in the cluster file of the asked node: is the number right?\n"
    );
    let refused = |args: &[&str], code| {
        let output = output(&[&["ctl", "--url", &broker.url, "cluster"], args].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(code == 2 || stderr.lines().count() == 1, "{stderr}");
    };
    refused(&["add-node", "2"], 1);
    refused(&["remove-node", "1"], 1);
    refused(&["transfer-leader", "--to", "2"], 1);
    refused(&["transfer-leader", "--to", "1", "--partition", "x"], 1);
    refused(&["transfer-leader"], 2);
    refused(&["add-node", "0"], 2);
    broker.stop();
}

#[test]
fn unreachable_node_and_bad_address_fail_with_one_line() {
    for (url, wanted) in [
        ("http://127.0.0.1:1", "cannot connect"),
        ("ftp://x", "no address such as"),
        ("x", "no address"),
    ] {
        let output = output(&["ctl", "--url", url, "status"]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(wanted) && stderr.lines().count() == 1, "{stderr}");
    }
}
