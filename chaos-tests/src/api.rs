//! The part of Queen's HTTP contract that the tools speak: request texts and answer shapes, written from the contract and not
//! from the broker's own types, so that a mistake there is seen here.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Group of a pop that names none.
pub const QUEUE_MODE_GROUP: &str = "__QUEUE_MODE__";

/// Body of a push, made item by item.
#[derive(Clone, Debug, Default)]
pub struct PushBody {
    text: String,
    items: usize,
}

impl PushBody {
    /// Adds one item. `payload` is JSON text. Names must need no escape in JSON.
    pub fn item(&mut self, queue: &str, lane: &str, transaction_id: Option<&str>, payload: &str) {
        let parts = [
            if self.items == 0 { "{\"items\":[" } else { "," },
            "{\"queue\":\"",
            queue,
            "\",\"partition\":\"",
            lane,
            if transaction_id.is_some() {
                "\",\"transactionId\":\""
            } else {
                ""
            },
            transaction_id.unwrap_or_default(),
            "\",\"payload\":",
            payload,
            "}",
        ];
        for part in parts {
            self.text.push_str(part);
        }
        self.items += 1;
    }

    /// Items so far.
    pub fn items(&self) -> usize {
        self.items
    }

    /// The whole body.
    pub fn finish(mut self) -> String {
        self.text
            .push_str(if self.items == 0 { "{\"items\":[]}" } else { "]}" });
        self.text
    }
}

/// One element of a push's answer.
#[derive(Clone, Debug, Deserialize)]
pub struct PushedItem {
    /// The message, or the one stored before.
    pub message_id: String,
    /// Its transaction id.
    pub transaction_id: String,
    /// `queued`, `duplicate` or `error`.
    pub status: String,
    /// Its offset; none on `error`.
    pub offset: Option<u64>,
    /// Which refusal, on `error`.
    pub code: Option<String>,
}

/// Body of a call that failed as a whole.
#[derive(Clone, Debug, Deserialize)]
pub struct Failure {
    /// Which failure.
    pub code: String,
}

/// What a pop asks for.
#[derive(Clone, Debug)]
pub struct PopQuery<'a> {
    /// The queue.
    pub queue: &'a str,
    /// One lane of it.
    pub lane: Option<&'a str>,
    /// The group; `None` = queue mode.
    pub group: Option<&'a str>,
    /// `all`, `new`; `None` = not sent.
    pub mode: Option<&'a str>,
    /// Most messages.
    pub batch: u32,
    /// Most lanes.
    pub lanes_max: u32,
    /// Park so long.
    pub wait_ms: Option<u64>,
    /// Lease asked for.
    pub lease_seconds: Option<u64>,
    /// Settle at delivery.
    pub auto_ack: bool,
}

impl PopQuery<'_> {
    /// Path and query.
    pub fn path(&self) -> String {
        let mut path = format!("/api/v1/pop/queue/{}", path_segment(self.queue));
        if let Some(lane) = self.lane {
            path.push_str("/partition/");
            path.push_str(&path_segment(lane));
        }
        let _infallible = write!(path, "?batch={}&partitions={}", self.batch, self.lanes_max);
        let mut add = |key: &str, value: &str| {
            let _infallible = write!(path, "&{key}={value}");
        };
        if let Some(group) = self.group {
            add("consumerGroup", &path_segment(group));
        }
        if let Some(mode) = self.mode {
            add("subscriptionMode", mode);
        }
        if let Some(wait) = self.wait_ms {
            add("wait", "true");
            add("timeout", &wait.to_string());
        }
        if let Some(seconds) = self.lease_seconds {
            add("leaseSeconds", &seconds.to_string());
        }
        if self.auto_ack {
            add("autoAck", "true");
        }
        path
    }
}

/// Answer of a pop that delivered.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PopAnswer {
    /// Empty under auto-ack and when nothing was claimed.
    pub lease_id: String,
    /// Lane after lane.
    pub messages: Vec<PoppedMessage>,
}

/// One delivered message.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoppedMessage {
    /// Its id.
    pub id: String,
    /// Its transaction id.
    pub transaction_id: String,
    /// Its payload as it came.
    pub data: Box<RawValue>,
    /// Its lane's id.
    pub partition_id: String,
    /// Its lane's name.
    pub partition: String,
    /// Its offset.
    pub offset: u64,
    /// When it was pushed by the broker's clock, in ms since 1970.
    #[serde(rename = "createdAt", deserialize_with = "crate::utc::deserialize_ms")]
    pub created_at_ms: u64,
    /// 1 for a first delivery.
    pub delivery_attempt: u32,
}

/// One acknowledgment; `null` is the same as absent, and both are sent.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AckItem<'a> {
    /// Which message.
    pub transaction_id: &'a str,
    /// Its lane.
    pub partition_id: &'a str,
    /// `completed`, `failed`, `retry` or `dlq`.
    pub status: &'a str,
    /// The lease; `None` = bare.
    pub lease_id: Option<&'a str>,
    /// Reason.
    pub error: Option<&'a str>,
}

/// Body of `/ack/batch`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AckBatch<'a> {
    /// The items.
    pub acknowledgments: Vec<AckItem<'a>>,
    /// Their group.
    pub consumer_group: Option<&'a str>,
}

/// Body of `/ack`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AckOne<'a> {
    /// The item.
    #[serde(flatten)]
    pub item: AckItem<'a>,
    /// Its group.
    pub consumer_group: Option<&'a str>,
}

/// One element of an ack's answer. All of these keys are required by the contract.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AckedItem {
    /// Position in the request.
    pub index: usize,
    /// Echo.
    pub transaction_id: String,
    /// Accepted.
    pub success: bool,
    /// Why not.
    pub error: Option<String>,
    /// The lease ended.
    pub lease_released: bool,
    /// Filed as a dead letter.
    pub dlq: bool,
    /// Settled before.
    pub noop: bool,
}

/// Answer of an extension.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct ExtendAnswer {
    /// Something was renewed.
    pub success: bool,
    /// Lanes renewed.
    pub renewed: u32,
}

/// A page of dead letters.
#[derive(Clone, Debug, Deserialize)]
pub struct DeadLetterPage {
    /// Newest failure first.
    pub messages: Vec<DeadLetterRow>,
    /// Rows on this page.
    pub total: usize,
}

/// One dead letter.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterRow {
    /// The row.
    pub id: String,
    /// Its queue.
    pub queue: String,
    /// Its lane.
    pub partition: String,
    /// Its lane's id.
    pub partition_id: String,
    /// Its group.
    pub consumer_group: String,
    /// Offset of its message.
    pub offset: u64,
    /// Transaction id of its message.
    pub transaction_id: String,
    /// Payload as it came.
    pub data: Box<RawValue>,
    /// Reason.
    pub error_message: String,
    /// Budget spent at filing.
    pub retry_count: u32,
}

/// Answer of a replay.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayAnswer {
    /// Where it went.
    pub queue: String,
    /// Which lane.
    pub partition: String,
    /// The row it was.
    pub dlq_id: String,
    /// The new message.
    pub replayed_as: PushedItem,
}

/// Percent-encodes everything outside RFC 3986's unreserved characters.
pub fn path_segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _infallible = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_body_is_json_in_order() {
        let mut body = PushBody::default();
        body.item("q", "a", Some("t1"), "{\"n\":1}");
        body.item("q", "b", None, "null");
        assert_eq!(body.items(), 2);
        let value: serde_json::Value = serde_json::from_str(&body.finish()).unwrap();
        assert_eq!(value["items"][0]["transactionId"], "t1");
        assert_eq!(value["items"][1]["partition"], "b");
        assert!(value["items"][1]["payload"].is_null());
        assert_eq!(PushBody::default().finish(), "{\"items\":[]}");
    }

    #[test]
    fn pop_path_names_only_what_is_asked() {
        let mut query = PopQuery {
            queue: "a/b",
            lane: None,
            group: None,
            mode: None,
            batch: 5,
            lanes_max: 2,
            wait_ms: None,
            lease_seconds: None,
            auto_ack: false,
        };
        assert_eq!(query.path(), "/api/v1/pop/queue/a%2Fb?batch=5&partitions=2");
        query.lane = Some("l 1");
        query.group = Some("g");
        query.mode = Some("all");
        query.wait_ms = Some(700);
        query.lease_seconds = Some(2);
        query.auto_ack = true;
        assert_eq!(
            query.path(),
            "/api/v1/pop/queue/a%2Fb/partition/l%201?batch=5&partitions=2&consumerGroup=g&subscriptionMode=all\
             &wait=true&timeout=700&leaseSeconds=2&autoAck=true"
        );
    }

    #[test]
    fn examples_of_the_contract_are_read() {
        let pop = r#"{"success":true,"queue":"orders","partition":"eu","partitionId":"17","leaseId":"0191",
            "consumerGroup":"billing","messages":[{"id":"0191","transactionId":"order-1","traceId":null,"data":{"n": 1},
            "producerSub":null,"createdAt":"2026-07-30T12:34:56.789Z","partitionId":"17","partition":"eu",
            "leaseId":"0191","consumerGroup":"billing","deliveryAttempt":1,"offset":41}],"partitionsClaimed":1}"#;
        let pop: PopAnswer = serde_json::from_str(pop).unwrap();
        assert_eq!(
            (pop.messages[0].data.get(), pop.messages[0].offset),
            ("{\"n\": 1}", 41)
        );
        assert_eq!(pop.messages[0].created_at_ms, 1_785_414_896_789);
        let acked = r#"[{"index":0,"transactionId":"order-1","success":true,"error":null,"leaseReleased":true,
            "dlq":false,"noop":false}]"#;
        let acked: Vec<AckedItem> = serde_json::from_str(acked).unwrap();
        assert!(acked[0].success && acked[0].lease_released);
    }
}
