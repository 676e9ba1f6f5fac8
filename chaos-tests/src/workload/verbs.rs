//! The operations of a client: request, answer, record in the history.

use bytes::Bytes;
use hyper::Method;
use laneway_sim::oracle::history::{
    AckItem, AckedItem, DeadLetterSeen, Delivery, Op, Popped, PushItem, PushedItem, Replayed, Reply,
};

use super::client::{Attempt, Client, NoReply, definite_code, status_word};
use super::plan::QUEUE_LEASE_SECONDS;
use crate::api::{self, PopQuery, PushBody, QUEUE_MODE_GROUP, path_segment};
use crate::payload::{is_poison, payload_hash};

/// Rows of one page of dead letters: the most that the contract gives.
const PAGE_ROWS: usize = 1000;

/// A message before it is pushed.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) transaction_id: Option<String>,
    pub(crate) payload: String,
}

/// Messages of one lane of a push.
#[derive(Clone, Debug)]
pub(crate) struct LaneDrafts {
    pub(crate) lane: String,
    pub(crate) drafts: Vec<Draft>,
}

/// One lane of a pop.
#[derive(Clone, Debug)]
pub(crate) struct ClaimedLane {
    pub(crate) lane: String,
    pub(crate) lane_id: String,
    pub(crate) messages: Vec<ClaimedMessage>,
}

/// One message of a pop.
#[derive(Clone, Debug)]
pub(crate) struct ClaimedMessage {
    pub(crate) transaction_id: String,
    pub(crate) created_at_ms: u64,
    pub(crate) poison: bool,
}

/// What a pop delivered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claim {
    pub(crate) lease_id: String,
    pub(crate) lanes: Vec<ClaimedLane>,
}

/// One target of an ack.
#[derive(Clone, Debug)]
pub(crate) struct AckTarget {
    pub(crate) lane: String,
    pub(crate) lane_id: String,
    pub(crate) lease_id: Option<String>,
    pub(crate) items: Vec<AckItem>,
}

impl Client {
    /// One push attempt over any number of lanes: one operation for each.
    pub(crate) async fn push(
        &mut self,
        queue: &str,
        lanes: &[LaneDrafts],
        request_id: Option<&str>,
    ) -> Attempt<()> {
        let mut body = PushBody::default();
        for lane in lanes {
            for draft in &lane.drafts {
                body.item(queue, &lane.lane, draft.transaction_id.as_deref(), &draft.payload);
            }
        }
        let count = body.items();
        let sent = self
            .send(Method::POST, "/api/v1/push", body.finish().into(), request_id, 0)
            .await;
        let mut pushed = match &sent.result {
            Ok(answer) => self.read_pushed(answer, count),
            Err(_) => Ok(Vec::new()),
        };
        let mut attempt = Attempt::Done(());
        for lane in lanes {
            let items = lane.drafts.iter().map(|draft| PushItem {
                transaction_id: draft.transaction_id.clone(),
                payload_hash: payload_hash(&draft.payload),
            });
            let op = Op::Push {
                queue: queue.to_owned(),
                lane: lane.lane.clone(),
                items: items.collect(),
            };
            let reply = |_: &Bytes| match &mut pushed {
                Ok(items) => pushed_reply(items.drain(..lane.drafts.len()).collect()),
                Err(why) => Err(why.clone()),
            };
            match self.record(op, request_id, &sent, reply) {
                Attempt::Done(_) => {}
                Attempt::Refused => attempt = Attempt::Refused,
                Attempt::Unknown => attempt = Attempt::Unknown,
                Attempt::NotSent => return Attempt::NotSent,
            }
        }
        attempt
    }

    fn read_pushed(&self, answer: &Bytes, count: usize) -> Result<Vec<api::PushedItem>, NoReply> {
        let items: Vec<api::PushedItem> = self.read("push", answer)?;
        if items.len() == count {
            return Ok(items);
        }
        Err(NoReply::Odd(format!(
            "push of {count} items was answered with {}",
            items.len()
        )))
    }

    /// One pop attempt.
    pub(crate) async fn pop(&mut self, query: &PopQuery<'_>) -> Attempt<Claim> {
        let wait_ms = query.wait_ms.unwrap_or(0);
        let sent = self
            .send(Method::GET, &query.path(), Bytes::new(), None, wait_ms)
            .await;
        let op = Op::Pop {
            queue: query.queue.to_owned(),
            group: query.group.unwrap_or(QUEUE_MODE_GROUP).to_owned(),
            lane: query.lane.map(str::to_owned),
            auto_ack: query.auto_ack,
            lease_ms: query.lease_seconds.unwrap_or(QUEUE_LEASE_SECONDS) * 1000,
        };
        let mut claim = Claim::default();
        let attempt = self.record(op, None, &sent, |body| {
            let answer: api::PopAnswer = match body.is_empty() {
                true => api::PopAnswer::default(),
                false => self.read("pop", body)?,
            };
            claim = claim_of(&answer);
            Ok(Reply::Popped(popped_reply(answer)))
        });
        match attempt {
            Attempt::Done(_) => Attempt::Done(claim),
            Attempt::Refused => Attempt::Refused,
            Attempt::Unknown => Attempt::Unknown,
            Attempt::NotSent => Attempt::NotSent,
        }
    }

    /// One ack attempt over any number of targets of one group: one operation for each.
    pub(crate) async fn ack(
        &mut self,
        queue: &str,
        group: Option<&str>,
        targets: &[AckTarget],
        request_id: Option<&str>,
    ) -> Attempt<Vec<AckedItem>> {
        let count = targets.iter().map(|target| target.items.len()).sum();
        let (path, body) = ack_request(group, targets, count == 1 && self.chance(50));
        let sent = self.send(Method::POST, path, body.into(), request_id, 0).await;
        let acked = match &sent.result {
            Ok(answer) => self.read_acked(answer, count),
            Err(_) => Ok(Vec::new()),
        };
        let (mut all, mut attempt) = (Vec::new(), Attempt::Done(()));
        let mut at = 0;
        for target in targets {
            let range = at..at + target.items.len();
            at = range.end;
            let reply = |_: &Bytes| match &acked {
                Ok(items) => acked_reply(&items[range]),
                Err(why) => Err(why.clone()),
            };
            match self.record(ack_op(queue, group, target), request_id, &sent, reply) {
                Attempt::Done(Reply::Acked(items)) => all.extend(items),
                Attempt::Done(_) => {}
                Attempt::Refused => attempt = Attempt::Refused,
                Attempt::Unknown => attempt = Attempt::Unknown,
                Attempt::NotSent => return Attempt::NotSent,
            }
        }
        match attempt {
            Attempt::Done(()) => Attempt::Done(all),
            Attempt::Refused => Attempt::Refused,
            Attempt::Unknown => Attempt::Unknown,
            Attempt::NotSent => Attempt::NotSent,
        }
    }

    fn read_acked(&self, answer: &Bytes, count: usize) -> Result<Vec<AckedItem>, NoReply> {
        let items: Vec<api::AckedItem> = self.read("ack", answer)?;
        let in_order = items.iter().enumerate().all(|(index, item)| item.index == index);
        let consistent = items.iter().all(|item| item.success == item.error.is_none());
        if items.len() != count || !in_order || !consistent {
            return Err(NoReply::Odd(format!(
                "ack of {count} items: {}",
                String::from_utf8_lossy(answer)
            )));
        }
        Ok(items.into_iter().map(acked_item).collect())
    }

    /// One extension attempt; gives the number of lanes renewed.
    pub(crate) async fn extend(
        &mut self,
        lease_id: &str,
        seconds: u64,
        request_id: Option<&str>,
    ) -> Attempt<u32> {
        let path = format!("/api/v1/lease/{}/extend", path_segment(lease_id));
        let body = format!("{{\"seconds\":{seconds}}}");
        let sent = self.send(Method::POST, &path, body.into(), request_id, 0).await;
        let op = Op::Extend {
            lease_id: lease_id.to_owned(),
            lease_ms: seconds * 1000,
        };
        let attempt = self.record(op, request_id, &sent, |body| {
            let answer: api::ExtendAnswer = self.read("extend", body)?;
            Ok(Reply::Extended(answer.renewed))
        });
        match attempt {
            Attempt::Done(Reply::Extended(renewed)) => Attempt::Done(renewed),
            Attempt::Done(_) | Attempt::Unknown => Attempt::Unknown,
            Attempt::Refused => Attempt::Refused,
            Attempt::NotSent => Attempt::NotSent,
        }
    }

    /// Lists all dead letters of a queue. One page is one look at the state; while others change it, only a listing of
    /// a single page is one, and only such a listing is recorded.
    pub(crate) async fn list_dead_letters(
        &mut self,
        queue: &str,
        quiet: bool,
    ) -> Attempt<Vec<api::DeadLetterRow>> {
        let mut rows = Vec::new();
        loop {
            let path = format!(
                "/api/v1/dlq?queue={}&limit={PAGE_ROWS}&offset={}",
                path_segment(queue),
                rows.len()
            );
            let sent = self.send(Method::GET, &path, Bytes::new(), None, 0).await;
            let page: api::DeadLetterPage = match &sent.result {
                Ok(body) => match self.read("dlq", body) {
                    Ok(page) => page,
                    Err(why) => {
                        self.shared.recorder.fault(format!("{why:?}"));
                        return Attempt::Unknown;
                    }
                },
                Err(_) => return Attempt::Unknown,
            };
            let whole = page.messages.len() < PAGE_ROWS;
            rows.extend(page.messages);
            if !whole && quiet {
                continue;
            }
            if whole && (quiet || rows.len() < PAGE_ROWS) {
                let op = Op::ListDeadLetters {
                    queue: queue.to_owned(),
                };
                let seen = rows.iter().map(dead_letter_seen).collect();
                self.record(op, None, &sent, |_| Ok(Reply::DeadLetters(seen)));
            }
            return Attempt::Done(rows);
        }
    }

    /// One replay attempt.
    pub(crate) async fn replay(&mut self, row: &api::DeadLetterRow, request_id: &str) -> Attempt<()> {
        let path = format!("{}/retry", message_path(row));
        let sent = self
            .send(
                Method::POST,
                &path,
                Bytes::from_static(b"{}"),
                Some(request_id),
                0,
            )
            .await;
        let op = Op::Replay {
            dead_letter_id: row.id.clone(),
        };
        let attempt = self.record(op, Some(request_id), &sent, |body| {
            let answer: api::ReplayAnswer = self.read("replay", body)?;
            match (answer.dlq_id == row.id, answer.replayed_as.offset) {
                (true, Some(offset)) => Ok(Reply::Replayed(Replayed {
                    queue: answer.queue,
                    lane: answer.partition,
                    offset,
                    message_id: answer.replayed_as.message_id,
                    transaction_id: answer.replayed_as.transaction_id,
                })),
                _ => Err(odd("replay", row, body)),
            }
        });
        without_reply(attempt)
    }

    /// One attempt to delete a dead letter.
    pub(crate) async fn delete_dead_letter(
        &mut self,
        row: &api::DeadLetterRow,
        request_id: &str,
    ) -> Attempt<()> {
        let sent = self
            .send(
                Method::DELETE,
                &message_path(row),
                Bytes::new(),
                Some(request_id),
                0,
            )
            .await;
        let op = Op::DeleteDeadLetter {
            dead_letter_id: row.id.clone(),
        };
        let attempt = self.record(op, Some(request_id), &sent, |body| {
            let answer: serde_json::Value = self.read("delete", body)?;
            match answer["deleted"].as_u64() {
                Some(1) => Ok(Reply::DeadLetterDeleted),
                _ => Err(odd("delete", row, body)),
            }
        });
        without_reply(attempt)
    }
}

fn odd(what: &str, row: &api::DeadLetterRow, body: &Bytes) -> NoReply {
    NoReply::Odd(format!(
        "{what} of dead letter {}: {}",
        row.id,
        String::from_utf8_lossy(body)
    ))
}

fn without_reply(attempt: Attempt<Reply>) -> Attempt<()> {
    match attempt {
        Attempt::Done(_) => Attempt::Done(()),
        Attempt::Refused => Attempt::Refused,
        Attempt::Unknown => Attempt::Unknown,
        Attempt::NotSent => Attempt::NotSent,
    }
}

fn message_path(row: &api::DeadLetterRow) -> String {
    format!(
        "/api/v1/messages/{}/{}",
        path_segment(&row.partition_id),
        path_segment(&row.transaction_id)
    )
}

/// All items of a lane share their fate: stored (now or before), or refused.
fn pushed_reply(items: Vec<api::PushedItem>) -> Result<Reply, NoReply> {
    if let Some(item) = items.first()
        && items.iter().all(|item| item.status == "error")
    {
        let code = item.code.as_deref().unwrap_or_default();
        let why = format!("items in error: {code}");
        return Err(match definite_code(code) {
            true => NoReply::Refused(why),
            false => NoReply::Unknown(why),
        });
    }
    let pushed = items
        .into_iter()
        .map(|item| match (item.status.as_str(), item.offset) {
            (status @ ("queued" | "duplicate"), Some(offset)) => Ok(PushedItem {
                offset,
                message_id: item.message_id,
                transaction_id: item.transaction_id,
                duplicate: status == "duplicate",
            }),
            (status, offset) => Err(NoReply::Odd(format!(
                "push item {status} with offset {offset:?} in a lane that was stored"
            ))),
        });
    Ok(Reply::Pushed(pushed.collect::<Result<_, _>>()?))
}

fn claim_of(answer: &api::PopAnswer) -> Claim {
    let mut lanes: Vec<ClaimedLane> = Vec::new();
    for message in &answer.messages {
        let claimed = ClaimedMessage {
            transaction_id: message.transaction_id.clone(),
            created_at_ms: message.created_at_ms,
            poison: is_poison(message.data.get()),
        };
        match lanes.last_mut() {
            Some(lane) if lane.lane_id == message.partition_id => lane.messages.push(claimed),
            _ => lanes.push(ClaimedLane {
                lane: message.partition.clone(),
                lane_id: message.partition_id.clone(),
                messages: vec![claimed],
            }),
        }
    }
    Claim {
        lease_id: answer.lease_id.clone(),
        lanes,
    }
}

fn popped_reply(answer: api::PopAnswer) -> Popped {
    let messages = answer.messages.into_iter().map(|message| Delivery {
        payload_hash: payload_hash(message.data.get()),
        lane: message.partition,
        lane_id: message.partition_id,
        offset: message.offset,
        message_id: message.id,
        transaction_id: message.transaction_id,
        attempt: message.delivery_attempt,
    });
    Popped {
        lease_id: answer.lease_id,
        messages: messages.collect(),
    }
}

/// What the machine says of an item. Any other text says that its target was refused, or may have been carried out.
const VERDICTS: [&str; 5] = [
    "invalid or expired lease",
    "transaction is unresolvable, already committed, or acknowledgment is stale",
    "partition not found",
    "partitionId is not a partition id",
    "dlq rejected",
];

fn acked_reply(items: &[AckedItem]) -> Result<Reply, NoReply> {
    let errors = items.iter().filter_map(|item| item.error.as_deref());
    let mut undecided = errors.filter(|error| !VERDICTS.contains(error));
    match undecided.next() {
        Some(why) => Err(NoReply::Unknown(why.to_owned())),
        None => Ok(Reply::Acked(items.to_vec())),
    }
}

fn acked_item(item: api::AckedItem) -> AckedItem {
    AckedItem {
        success: item.success,
        error: item.error,
        lease_released: item.lease_released,
        dead_lettered: item.dlq,
        noop: item.noop,
    }
}

fn dead_letter_seen(row: &api::DeadLetterRow) -> DeadLetterSeen {
    DeadLetterSeen {
        id: row.id.clone(),
        queue: row.queue.clone(),
        lane: row.partition.clone(),
        lane_id: row.partition_id.clone(),
        group: row.consumer_group.clone(),
        offset: row.offset,
        transaction_id: row.transaction_id.clone(),
        payload_hash: payload_hash(row.data.get()),
        reason: row.error_message.clone(),
        retries_used: row.retry_count,
    }
}

fn ack_op(queue: &str, group: Option<&str>, target: &AckTarget) -> Op {
    Op::Ack {
        queue: queue.to_owned(),
        lane: target.lane.clone(),
        lane_id: target.lane_id.clone(),
        group: group.unwrap_or(QUEUE_MODE_GROUP).to_owned(),
        lease_id: target.lease_id.clone(),
        items: target.items.clone(),
    }
}

/// Path and body; `single` takes the route for one item.
fn ack_request(group: Option<&str>, targets: &[AckTarget], single: bool) -> (&'static str, Vec<u8>) {
    let mut acknowledgments = Vec::new();
    for target in targets {
        acknowledgments.extend(target.items.iter().map(|item| api::AckItem {
            transaction_id: &item.transaction_id,
            partition_id: &target.lane_id,
            status: status_word(item.status),
            lease_id: target.lease_id.as_deref(),
            error: item.error.as_deref(),
        }));
    }
    let encoded = match (single, acknowledgments.pop()) {
        (true, Some(item)) => (
            "/api/v1/ack",
            serde_json::to_vec(&api::AckOne {
                item,
                consumer_group: group,
            }),
        ),
        (_, last) => {
            acknowledgments.extend(last);
            let batch = api::AckBatch {
                acknowledgments,
                consumer_group: group,
            };
            ("/api/v1/ack/batch", serde_json::to_vec(&batch))
        }
    };
    (encoded.0, encoded.1.expect("strings and options always encode"))
}
