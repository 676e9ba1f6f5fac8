//! What backlog and load have in common: strict calls, where every answer but success ends the run.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;

use crate::api::{AckBatch, AckItem, AckedItem, PopAnswer, PopQuery, PushBody};
use crate::http::{Answer, Call, Connection};
use crate::workload::client::is_definite;

/// Longest wait for any answer, beyond a pop's own parking.
const DEADLINE: Duration = Duration::from_secs(60);

/// Times a refusal for overload is waited out.
const OVERLOADED_MAX: u32 = 1200;

/// Pause after such a refusal.
const OVERLOADED_PAUSE: Duration = Duration::from_millis(50);

/// One connection of a well-behaved client.
#[derive(Debug)]
pub struct Peer {
    connection: Connection,
    /// Refusals for overload, or for want of a leader, that were waited out.
    pub overloaded: u64,
}

impl Peer {
    /// To `host:port`.
    pub fn new(authority: &Arc<str>) -> Self {
        Self {
            connection: Connection::new(Arc::clone(authority)),
            overloaded: 0,
        }
    }

    /// Sends until it is not refused for overload or for want of a leader.
    pub async fn call(&mut self, call: Call<'_>) -> anyhow::Result<Answer> {
        for _ in 0..OVERLOADED_MAX {
            let answer = self.connection.call(call.clone()).await?;
            if answer.status != 429 && !(answer.status == 503 && is_definite(&answer.body)) {
                return Ok(answer);
            }
            self.overloaded += 1;
            tokio::time::sleep(OVERLOADED_PAUSE).await;
        }
        anyhow::bail!("{} was refused {OVERLOADED_MAX} times", call.path)
    }

    /// A GET whose answer is JSON.
    pub async fn get_json(&mut self, path: &str) -> anyhow::Result<serde_json::Value> {
        let answer = self.call(Call::get(path, DEADLINE)).await?;
        ensure!(answer.status == 200, "{path}: {}", answer.brief());
        serde_json::from_slice(&answer.body).with_context(|| path.to_owned())
    }

    /// Configures a queue.
    pub async fn configure(&mut self, queue: &str, options: serde_json::Value) -> anyhow::Result<()> {
        let body = serde_json::json!({"queue": queue, "options": options}).to_string();
        let answer = self.call(Call::post("/api/v1/configure", body, DEADLINE)).await?;
        ensure!(answer.status == 200, "configure: {}", answer.brief());
        Ok(())
    }

    /// Pushes new messages; all of them must be stored. What is refused for overload is sent again, with what was stored
    /// beside it: only then may messages be found stored before.
    pub async fn push(&mut self, body: PushBody) -> anyhow::Result<()> {
        let (items, overloaded) = (body.items(), self.overloaded);
        let body = body.finish();
        loop {
            let answer = self
                .call(Call::post("/api/v1/push", body.clone(), DEADLINE))
                .await?;
            ensure!(answer.status == 201, "push: {}", answer.brief());
            let refused = count_of(&answer.body, b"\"code\":\"overloaded\"");
            let mut stored = count_of(&answer.body, b"\"status\":\"queued\"");
            if self.overloaded > overloaded {
                stored += count_of(&answer.body, b"\"status\":\"duplicate\"");
            }
            ensure!(
                stored + refused == items,
                "{stored} of {items} pushed messages were stored: {}",
                answer.brief()
            );
            if refused == 0 {
                return Ok(());
            }
            self.overloaded += 1;
            tokio::time::sleep(OVERLOADED_PAUSE).await;
        }
    }

    /// Pops; no messages when nothing was deliverable.
    pub async fn pop(&mut self, query: &PopQuery<'_>) -> anyhow::Result<PopAnswer> {
        let deadline = DEADLINE + Duration::from_millis(query.wait_ms.unwrap_or(0));
        let answer = self.call(Call::get(&query.path(), deadline)).await?;
        match answer.status {
            204 => Ok(PopAnswer::default()),
            200 => serde_json::from_slice(&answer.body).with_context(|| format!("pop: {}", answer.brief())),
            _ => anyhow::bail!("pop: {}", answer.brief()),
        }
    }

    /// Completes every message of a pop; all must be accepted.
    pub async fn complete(&mut self, popped: &PopAnswer, group: Option<&str>) -> anyhow::Result<()> {
        let items = popped.messages.iter().map(|message| AckItem {
            transaction_id: &message.transaction_id,
            partition_id: &message.partition_id,
            status: "completed",
            lease_id: Some(&popped.lease_id),
            error: None,
        });
        let batch = AckBatch {
            acknowledgments: items.collect(),
            consumer_group: group,
        };
        let body = Bytes::from(serde_json::to_vec(&batch)?);
        let answer = self.call(Call::post("/api/v1/ack/batch", body, DEADLINE)).await?;
        ensure!(answer.status == 200, "ack: {}", answer.brief());
        let acked: Vec<AckedItem> = serde_json::from_slice(&answer.body)?;
        let refused = acked.iter().find(|item| !item.success);
        ensure!(
            acked.len() == popped.messages.len() && refused.is_none(),
            "ack refused: {refused:?}"
        );
        Ok(())
    }
}

/// Occurrences of `wanted` that do not overlap.
fn count_of(text: &[u8], wanted: &[u8]) -> usize {
    let (mut found, mut at) = (0, 0);
    while at + wanted.len() <= text.len() {
        if text[at] == wanted[0] && text[at..].starts_with(wanted) {
            found += 1;
            at += wanted.len();
        } else {
            at += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeBroker;

    #[tokio::test]
    async fn push_counts_what_was_stored_and_waits_out_overload() {
        let calls = std::sync::atomic::AtomicU32::new(0);
        let answer = |words: &[&str]| {
            let items: Vec<_> = words
                .iter()
                .map(|word| format!("{{\"status\":\"{word}\"}}"))
                .collect();
            (201, format!("[{}]", items.join(",")))
        };
        let fake = FakeBroker::start(move |request| {
            assert_eq!(request.path, "/api/v1/push");
            assert!(request.request_id.is_none());
            let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
            assert_eq!(body["items"].as_array().unwrap().len(), 2);
            match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                0 => (429, "{}".to_owned()),
                1 => answer(&["queued", "duplicate"]),
                2 => answer(&["queued", "queued"]),
                3 => answer(&["queued", "error\",\"code\":\"overloaded"]),
                4 => answer(&["duplicate", "queued"]),
                _ => answer(&["queued", "duplicate"]),
            }
        })
        .await;
        let mut peer = Peer::new(&fake.address().into());
        let mut body = PushBody::default();
        body.item("q", "l", None, "1");
        body.item("q", "l", None, "2");
        peer.push(body.clone()).await.unwrap();
        assert_eq!(peer.overloaded, 1);
        peer.push(body.clone()).await.unwrap();
        peer.push(body.clone()).await.unwrap();
        assert_eq!(peer.overloaded, 2, "a part was refused and sent again");
        assert!(
            peer.push(body).await.is_err(),
            "nothing was refused, so nothing can be stored before"
        );
    }

    #[test]
    fn occurrences_are_counted() {
        assert_eq!(count_of(b"ababab", b"ab"), 3);
        assert_eq!(count_of(b"aaaa", b"aa"), 2);
        assert_eq!(count_of(b"", b"x"), 0);
    }
}
