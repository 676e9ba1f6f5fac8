//! A node with its gateway, and shorthands for what tests ask of it.

use std::net::SocketAddr;
use std::time::Duration;

use laneway_http::HttpOptions;
use laneway_node::{Node, NodeLimits, NodeOptions};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::client::{Answer, Client};

/// A running broker.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) address: SocketAddr,
    node: Node,
    dir: TempDir,
    stop: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
}

impl Broker {
    pub(crate) async fn start() -> Self {
        Self::start_with(HttpOptions::default()).await
    }

    pub(crate) async fn start_with(options: HttpOptions) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), options).await
    }

    /// One partition with other limits.
    pub(crate) async fn start_with_limits(set: impl FnOnce(&mut NodeLimits)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = node_options(&dir);
        options.partitions = 1;
        set(&mut options.limits);
        Self::start_node(dir, options, HttpOptions::default()).await
    }

    /// On the data of an earlier one.
    pub(crate) async fn start_in(dir: TempDir, options: HttpOptions) -> Self {
        let node_options = node_options(&dir);
        Self::start_node(dir, node_options, options).await
    }

    async fn start_node(dir: TempDir, node_options: NodeOptions, options: HttpOptions) -> Self {
        let (node, _) = Node::start(node_options).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = laneway_http::serve(listener, node.clone(), options, async {
            let _ = stopped.await;
        });
        let served = tokio::spawn(serving);
        Self {
            address,
            node,
            dir,
            stop,
            served,
        }
    }

    /// Tells the server to stop; the node goes on.
    pub(crate) fn stop_serving(self) -> (JoinHandle<std::io::Result<()>>, Node, TempDir) {
        self.stop.send(()).unwrap();
        (self.served, self.node, self.dir)
    }

    /// Stops it and starts it again on the same data.
    pub(crate) async fn restart(self) -> Self {
        let (served, node, dir) = self.stop_serving();
        served.await.unwrap().unwrap();
        node.shutdown().await;
        drop(node);
        Self::start_in(dir, HttpOptions::default()).await
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address).await
    }

    /// One request on a connection of its own.
    pub(crate) async fn request(&self, method: &str, target: &str, body: &str) -> Answer {
        self.client().await.request(method, target, body).await
    }

    pub(crate) async fn get(&self, target: &str) -> Answer {
        self.request("GET", target, "").await
    }

    pub(crate) async fn post(&self, target: &str, body: &Value) -> Answer {
        self.request("POST", target, &body.to_string()).await
    }

    /// Pushes items and gives their results.
    pub(crate) async fn push_items(&self, items: &Value) -> Vec<Value> {
        let answer = self
            .post("/api/v1/push", &json!({ "items": items }))
            .await
            .expect(201);
        answer.json().as_array().unwrap().clone()
    }

    /// Pushes numbers to one lane, with transaction ids `t<number>`.
    pub(crate) async fn push_numbers(&self, queue: &str, lane: &str, numbers: std::ops::Range<u64>) {
        let item = |number| json!({"queue": queue, "partition": lane, "payload": number, "transactionId": format!("t{number}")});
        let results = self.push_items(&numbers.clone().map(item).collect()).await;
        assert!(
            results.iter().all(|result| result["status"] == "queued"),
            "{results:?}"
        );
    }

    /// Pops with a query string; null when there was nothing.
    pub(crate) async fn pop(&self, queue: &str, query: &str) -> Value {
        let answer = self.get(&format!("/api/v1/pop/queue/{queue}?{query}")).await;
        assert!(matches!(answer.status, 200 | 204), "{answer:?}");
        answer.json()
    }

    /// Messages of as many pops as find something: one pop claims lanes of one partition only.
    pub(crate) async fn pop_all(&self, queue: &str, query: &str) -> Vec<Value> {
        let mut all = Vec::new();
        loop {
            let popped = self.pop(queue, query).await;
            if popped.is_null() {
                return all;
            }
            all.extend(messages(&popped).into_iter().cloned());
        }
    }

    /// Acks messages of one pop with one status word.
    pub(crate) async fn ack(&self, popped: &Value, messages: &[&Value], status: &str) -> Vec<Value> {
        let items: Vec<Value> = messages.iter().map(|message| ack_item(message, status)).collect();
        let body = json!({"acknowledgments": items, "consumerGroup": popped["consumerGroup"]});
        self.post("/api/v1/ack/batch", &body)
            .await
            .expect(200)
            .json()
            .as_array()
            .unwrap()
            .clone()
    }

    /// Fails the first message of a queue until it is dead, and gives it as it was popped last.
    pub(crate) async fn make_dead_letter(&self, queue: &str, query: &str) -> Value {
        let popped = self.pop(queue, query).await;
        let message = popped["messages"][0].clone();
        let mut item = ack_item(&message, "dlq");
        item["error"] = json!("card declined");
        let body = json!({"acknowledgments": [item], "consumerGroup": popped["consumerGroup"]});
        let results = self.post("/api/v1/ack/batch", &body).await.expect(200).json();
        assert_eq!(
            (&results[0]["success"], &results[0]["dlq"]),
            (&json!(true), &json!(true)),
            "{results}"
        );
        message
    }

    /// Everything that a refused request must leave as it was.
    pub(crate) async fn state(&self) -> Value {
        let queues = self.get("/api/v1/resources/queues").await.expect(200).json();
        let letters = self.get("/api/v1/dlq?limit=1000").await.expect(200).json();
        let digests = self.get("/admin/v1/digest").await.expect(200).json();
        let digests: Vec<Value> = digests["groups"]
            .as_array()
            .unwrap()
            .iter()
            .map(|group| group["digest"].clone())
            .collect();
        json!({"queues": queues, "letters": letters, "digests": digests})
    }

    /// Asks again until the condition holds, for at most ten seconds.
    pub(crate) async fn until(&self, target: &str, condition: impl Fn(&Value) -> bool) {
        let started = Instant::now();
        let mut client = self.client().await;
        let asked = timeout(Duration::from_secs(10), async {
            while !condition(&client.request("GET", target, "").await.json()) {
                tokio::task::yield_now().await;
            }
        });
        assert!(
            asked.await.is_ok(),
            "not so after {:?}: {:?}",
            started.elapsed(),
            self.get(target).await
        );
    }
}

fn node_options(dir: &TempDir) -> NodeOptions {
    let mut options = NodeOptions::new(dir.path().join("data"));
    options.partitions = 3;
    options.storage.wal_segment_bytes = 8 * 1024 * 1024;
    options.limits.disk_free_bytes_min = 1024 * 1024;
    options
}

/// An acknowledgment of a popped message under its lease.
pub(crate) fn ack_item(message: &Value, status: &str) -> Value {
    json!({
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "leaseId": message["leaseId"],
        "status": status,
    })
}

/// The messages of a pop; none for null.
pub(crate) fn messages(popped: &Value) -> Vec<&Value> {
    popped["messages"]
        .as_array()
        .map(|messages| messages.iter().collect())
        .unwrap_or_default()
}

/// The payloads of a pop.
pub(crate) fn payloads(popped: &Value) -> Vec<Value> {
    messages(popped)
        .iter()
        .map(|message| message["data"].clone())
        .collect()
}

/// The payloads of messages, ascending.
pub(crate) fn sorted_numbers(messages: &[Value]) -> Vec<u64> {
    let mut numbers: Vec<u64> = messages
        .iter()
        .map(|message| message["data"].as_u64().unwrap())
        .collect();
    numbers.sort_unstable();
    numbers
}
