//! The answer of a pop, written by hand: small payloads are copied once, large ones not at all.

use bytes::Bytes;
use laneway_core::ids::LeaseId;
use laneway_core::time::WallTime;
use laneway_node::{PoppedLane, PoppedMessage};

use crate::stamp;

/// Payloads up to this size are copied into the text around them; a frame of their own would cost more.
const INLINE_BYTES_MAX: usize = 16 * 1024;

/// Text around a message, roughly.
const MESSAGE_TEXT_BYTES: usize = 512;

/// Writes the answer as frames to send one after the other.
pub(super) fn answer(
    queue: &str,
    group: &str,
    lease_id: Option<LeaseId>,
    lanes: &[PoppedLane],
) -> Vec<Bytes> {
    let mut out = Writer::new(lanes);
    let lease_id = lease_id.map(|id| id.to_string()).unwrap_or_default();
    let (name, id) = lanes
        .first()
        .map_or(("", String::new()), |lane| (&*lane.name, lane.lane.to_string()));
    out.text("{\"success\":true,\"queue\":");
    out.string(queue);
    out.text(",\"partition\":");
    out.string(name);
    out.text(",\"partitionId\":");
    out.string(&id);
    out.text(",\"leaseId\":");
    out.string(&lease_id);
    out.text(",\"consumerGroup\":");
    out.string(group);
    out.text(",\"messages\":[");
    let mut first = true;
    for lane in lanes {
        let shared = LaneText::new(lane, &lease_id, group);
        let mut created = CreatedText::default();
        for message in &lane.messages {
            if !first {
                out.text(",");
            }
            first = false;
            out.message(message, created.of(message.created), &shared.0);
        }
    }
    out.text("],\"partitionsClaimed\":");
    out.text(&lanes.len().to_string());
    out.text("}");
    out.finish()
}

/// What all messages of one lane end with, up to the offset.
struct LaneText(Vec<u8>);

impl LaneText {
    fn new(lane: &PoppedLane, lease_id: &str, group: &str) -> Self {
        let mut text = Vec::with_capacity(MESSAGE_TEXT_BYTES);
        for (key, value) in [
            ("\",\"partitionId\":", lane.lane.to_string().as_str()),
            (",\"partition\":", &lane.name),
            (",\"queue\":", &lane.queue),
            (",\"leaseId\":", lease_id),
            (",\"consumerGroup\":", group),
        ] {
            text.extend_from_slice(key.as_bytes());
            push_string(&mut text, value);
        }
        text.extend_from_slice(format!(",\"deliveryAttempt\":{},\"offset\":", lane.attempt).as_bytes());
        Self(text)
    }
}

/// Text of a stamp; messages of one push share it.
#[derive(Default)]
struct CreatedText {
    at: Option<WallTime>,
    text: String,
}

impl CreatedText {
    fn of(&mut self, at: WallTime) -> &str {
        if self.at != Some(at) {
            self.at = Some(at);
            self.text = stamp::millis(at);
        }
        &self.text
    }
}

struct Writer {
    frames: Vec<Bytes>,
    text: Vec<u8>,
}

impl Writer {
    fn new(lanes: &[PoppedLane]) -> Self {
        let inline = |message: &PoppedMessage| {
            if message.payload.len() <= INLINE_BYTES_MAX {
                message.payload.len()
            } else {
                0
            }
        };
        let messages = lanes.iter().flat_map(|lane| &lane.messages);
        let bytes: usize = messages.map(|message| inline(message) + MESSAGE_TEXT_BYTES).sum();
        Self {
            frames: Vec::new(),
            text: Vec::with_capacity(bytes + MESSAGE_TEXT_BYTES),
        }
    }

    fn text(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
    }

    fn string(&mut self, text: &str) {
        push_string(&mut self.text, text);
    }

    fn number(&mut self, number: u64) {
        serde_json::to_writer(&mut self.text, &number).expect("a number is written to memory");
    }

    fn message(&mut self, message: &PoppedMessage, created: &str, lane: &[u8]) {
        self.text("{\"id\":");
        self.string(&message.id.text());
        self.text(",\"transactionId\":");
        self.string(&message.transaction_id);
        self.text(",\"traceId\":null,\"data\":");
        self.payload(&message.payload);
        self.text(",\"producerSub\":null,\"createdAt\":\"");
        self.text(created);
        self.text.extend_from_slice(lane);
        self.number(message.offset.0);
        self.text("}");
    }

    fn payload(&mut self, payload: &Bytes) {
        if payload.is_empty() {
            self.text("null");
        } else if payload.len() <= INLINE_BYTES_MAX {
            self.text.extend_from_slice(payload);
        } else {
            self.cut();
            self.frames.push(payload.clone());
        }
    }

    fn cut(&mut self) {
        // The capacity left over is for the text to come.
        let rest = self.text.capacity() - self.text.len();
        let text = std::mem::replace(&mut self.text, Vec::with_capacity(rest));
        self.frames.push(text.into());
    }

    fn finish(mut self) -> Vec<Bytes> {
        self.frames.push(self.text.into());
        self.frames
    }
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a string is written to memory");
}

#[cfg(test)]
mod tests {
    use laneway_core::ids::{LaneId, MessageId, Offset, PartitionId};
    use laneway_wire::PopResponse;

    use super::*;

    const AT: WallTime = WallTime(1_785_414_896_789_012);

    fn message(lane: LaneId, offset: u64, transaction_id: &str, payload: Bytes) -> PoppedMessage {
        let id = MessageId::new(AT, lane, Offset(offset));
        PoppedMessage {
            id,
            offset: Offset(offset),
            transaction_id: transaction_id.to_owned(),
            created: AT,
            payload,
        }
    }

    fn joined(frames: &[Bytes]) -> String {
        String::from_utf8(frames.concat()).unwrap()
    }

    #[test]
    fn answer_is_golden() {
        let lane = LaneId(17);
        let lanes = [PoppedLane {
            queue: "orders".into(),
            name: "eu".into(),
            lane,
            attempt: 2,
            messages: vec![message(lane, 41, "order-1", Bytes::from_static(br#"{"n": 1e0}"#))],
        }];
        let lease = LeaseId::new(AT, PartitionId(1), 7);
        assert_eq!(
            joined(&answer("orders", "billing", Some(lease), &lanes)),
            concat!(
                r#"{"success":true,"queue":"orders","partition":"eu","partitionId":"17","#,
                r#""leaseId":"019fb305-4c95-7000-8400-000000000007","consumerGroup":"billing","messages":["#,
                r#"{"id":"019fb305-4c95-7000-8000-110000000029","transactionId":"order-1","traceId":null,"data":{"n": 1e0},"#,
                r#""producerSub":null,"createdAt":"2026-07-30T12:34:56.789Z","partitionId":"17","partition":"eu","#,
                r#""queue":"orders","leaseId":"019fb305-4c95-7000-8400-000000000007","consumerGroup":"billing","#,
                r#""deliveryAttempt":2,"offset":41}],"partitionsClaimed":1}"#
            )
        );
    }

    #[test]
    fn large_payloads_are_frames_of_their_own() {
        let large = Bytes::from(format!("\"{}\"", "x".repeat(INLINE_BYTES_MAX)));
        let names = ["a\"b\\c", "名\u{7}"];
        let lanes: Vec<PoppedLane> = names
            .iter()
            .zip(1..)
            .map(|(name, id)| PoppedLane {
                queue: "q/ü".into(),
                name: (*name).into(),
                lane: LaneId(id),
                attempt: 1,
                messages: vec![
                    message(LaneId(id), 0, "t\n", Bytes::from_static(b"null")),
                    message(LaneId(id), 1, "u", large.clone()),
                    message(LaneId(id), 2, "v", Bytes::from_static(b"[[]]")),
                ],
            })
            .collect();
        let frames = answer("", "g\"", None, &lanes);
        assert_eq!(
            frames
                .iter()
                .filter(|frame| frame.as_ptr() == large.as_ptr())
                .count(),
            2
        );
        assert_eq!(frames.len(), 5);
        let read: PopResponse = serde_json::from_str(&joined(&frames)).unwrap();
        assert_eq!(
            (read.partitions_claimed, &*read.lease_id, &*read.consumer_group),
            (2, "", "g\"")
        );
        assert_eq!(
            (&*read.partition, &*read.partition_id, &*read.queue),
            ("a\"b\\c", "1", "")
        );
        let offsets: Vec<(String, u64)> = read
            .messages
            .iter()
            .map(|m| (m.partition.clone(), m.offset))
            .collect();
        let expected = names
            .iter()
            .flat_map(|name| (0..3).map(|offset| ((*name).to_owned(), offset)));
        assert_eq!(offsets, expected.collect::<Vec<_>>());
        assert_eq!(read.messages[4].data.get().as_bytes(), large);
        assert_eq!(
            (&*read.messages[0].transaction_id, &*read.messages[0].queue),
            ("t\n", "q/ü")
        );
    }
}
