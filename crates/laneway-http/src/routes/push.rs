//! `POST /api/v1/push`

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use laneway_node::{PushItem, PushReply, PushRequest, RequestId};
use laneway_wire::limits::LANE_DEFAULT;
use laneway_wire::{PushResult, PushStatus};
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

use crate::counts::Verb;
use crate::error::ApiError;
use crate::gateway::Gateway;
use crate::names::{check_names, check_transaction_id, request_id};

/// Text of a result, roughly: two ids, a queue name, the rest.
const RESULT_BYTES: usize = 256;

pub(crate) async fn push(State(gateway): State<Gateway>, request: Request) -> Result<Response, ApiError> {
    let (parts, received) = gateway.receive(request).await?;
    let request = parse(request_id(&parts.headers)?, &received.bytes)?;
    let items = request.items.clone();
    let replies = if items.is_empty() {
        Vec::new()
    } else {
        gateway.node.push(request).await?
    };
    if replies.len() != items.len() {
        return Err(ApiError::internal(
            "the push was answered for another number of items",
        ));
    }
    for reply in &replies {
        if let PushReply::Refused(error) = reply {
            gateway
                .failures
                .note(Verb::Push, &ApiError::from(error.clone()).failure());
        }
    }
    let results = Results {
        items: &items,
        replies: &replies,
    };
    Ok(super::json_of_size(
        StatusCode::CREATED,
        &results,
        items.len() * RESULT_BYTES,
    ))
}

/// The answer: one result for each item, made while it is written.
struct Results<'a> {
    items: &'a [PushItem],
    replies: &'a [PushReply],
}

impl Serialize for Results<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut results = serializer.serialize_seq(Some(self.items.len()))?;
        for (index, (item, reply)) in self.items.iter().zip(self.replies).enumerate() {
            let message_id = match reply {
                PushReply::Queued(pushed) | PushReply::Duplicate(pushed) => Some(pushed.message_id.text()),
                PushReply::Refused(_) => None,
            };
            let message_id = message_id.as_deref().unwrap_or_default();
            results.serialize_element(&result(index, item, reply, message_id))?;
        }
        results.end()
    }
}

/// Reads and checks a body. Payloads and transaction ids stay where they are: slices of it.
pub(crate) fn parse(request_id: Option<RequestId>, body: &Bytes) -> Result<PushRequest, ApiError> {
    let request: laneway_wire::PushRequest<'_> = crate::json::parse(body)?;
    let mut items = Vec::with_capacity(request.items.len());
    let mut last: Option<(Arc<str>, Arc<str>)> = None;
    let none: Arc<str> = Arc::from("");
    for (index, item) in request.items.iter().enumerate() {
        let lane = item
            .partition
            .as_deref()
            .filter(|lane| !lane.is_empty())
            .unwrap_or(LANE_DEFAULT);
        let (queue, lane) = match &last {
            Some((last_queue, last_lane)) if **last_queue == *item.queue && **last_lane == *lane => {
                (Arc::clone(last_queue), Arc::clone(last_lane))
            }
            _ => {
                check_names(&item.queue, Some(lane), None)?;
                (Arc::from(item.queue.as_str()), Arc::from(lane))
            }
        };
        last = Some((Arc::clone(&queue), Arc::clone(&lane)));
        let transaction_id = match item.transaction_id.as_deref() {
            None | Some("") => Arc::clone(&none),
            Some(id) => {
                check_transaction_id(|| format!("items[{index}].transactionId"), id)?;
                Arc::from(id)
            }
        };
        let payload = body.slice_ref(item.payload.get().as_bytes());
        items.push(PushItem {
            queue,
            lane,
            transaction_id,
            payload,
        });
    }
    Ok(PushRequest { request_id, items })
}

fn result<'a>(index: usize, item: &'a PushItem, reply: &'a PushReply, message_id: &'a str) -> PushResult<'a> {
    let (status, offset, refusal) = match reply {
        PushReply::Queued(pushed) => (PushStatus::Queued, Some(pushed.offset.0), None),
        PushReply::Duplicate(pushed) => (PushStatus::Duplicate, Some(pushed.offset.0), None),
        PushReply::Refused(error) => (PushStatus::Error, None, Some(error)),
    };
    let given = &*item.transaction_id;
    PushResult {
        index,
        message_id: Cow::Borrowed(message_id),
        transaction_id: Cow::Borrowed(if given.is_empty() { message_id } else { given }),
        queue_name: Cow::Borrowed(&item.queue),
        status,
        offset,
        error: refusal.map(|error| Cow::Borrowed(&*error.message)),
        code: refusal.map(|error| Cow::Borrowed(error.code)),
    }
}

#[cfg(test)]
mod tests {
    use laneway_core::ids::{LaneId, MessageId, Offset};
    use laneway_core::time::WallTime;
    use laneway_node::{ErrorClass, Pushed, RequestError};

    use super::*;

    fn read(body: &str) -> Result<PushRequest, ApiError> {
        parse(None, &Bytes::copy_from_slice(body.as_bytes()))
    }

    #[test]
    fn payloads_keep_their_very_bytes() {
        let body = r#"{"items":[
            {"queue":"q","payload": {"a" : 1e2,"b":"\u00e9\/","a":0.10} ,"traceId":"x","producerSub":"y"},
            {"queue":"q","partition":null,"payload":null,"transactionId":null},
            {"queue":"","partition":"","payload":12345678901234567890.123,"transactionId":""},
            {"queue":"a\/b","partition":"p\u0020q","payload":"s","transactionId":"t\n1"}],"x":{}}"#;
        let request = read(body).unwrap();
        let payloads: Vec<&[u8]> = request.items.iter().map(|item| &*item.payload).collect();
        let expected: [&[u8]; 4] = [
            br#"{"a" : 1e2,"b":"\u00e9\/","a":0.10}"#,
            b"null",
            b"12345678901234567890.123",
            b"\"s\"",
        ];
        assert_eq!(payloads, expected);
        let names: Vec<(&str, &str, &str)> = request
            .items
            .iter()
            .map(|item| (&*item.queue, &*item.lane, &*item.transaction_id))
            .collect();
        assert_eq!(
            names,
            [
                ("q", "Default", ""),
                ("q", "Default", ""),
                ("", "Default", ""),
                ("a/b", "p q", "t\n1")
            ]
        );
    }

    #[test]
    fn bad_items_refuse_the_whole_call() {
        let check = |body: &str, status: u16, code: &str, part: &str| {
            let error = read(body).unwrap_err();
            assert_eq!((error.parts().0, error.parts().1), (status, code), "{body}");
            assert!(error.parts().2.contains(part), "{}", error.parts().2);
        };
        check("{}", 400, "bad_body", "items");
        check(
            r#"{"items":[{"queue":"q\u0000","payload":1}]}"#,
            400,
            "bad_request",
            "U+0000",
        );
        check(
            r#"{"items":[{"queue":"q","partition":"\t","payload":1}]}"#,
            400,
            "bad_request",
            "partition",
        );
        let long = "x".repeat(412);
        check(
            &format!(r#"{{"items":[{{"queue":"{long}","payload":1}}]}}"#),
            413,
            "name_too_long",
            "411",
        );
        let long = "x".repeat(65_536);
        let body = format!(
            r#"{{"items":[{{"queue":"q","payload":1}},{{"queue":"q","payload":1,"transactionId":"{long}"}}]}}"#
        );
        check(&body, 413, "name_too_long", "items[1].transactionId");
        let long = "x".repeat(65_535);
        read(&format!(
            r#"{{"items":[{{"queue":"q","payload":1,"transactionId":"{long}"}}]}}"#
        ))
        .unwrap();
        let lane = "p".repeat(250);
        read(&format!(
            r#"{{"items":[{{"queue":"q","payload":1,"partition":"{lane}"}}]}}"#
        ))
        .unwrap();
    }

    #[test]
    fn answer_is_golden() {
        let lane = LaneId(17);
        let pushed = |offset| Pushed {
            message_id: MessageId::new(WallTime(1_785_414_896_789_012), lane, Offset(offset)),
            lane,
            offset: Offset(offset),
        };
        let replies = [
            PushReply::Queued(pushed(41)),
            PushReply::Duplicate(pushed(3)),
            PushReply::Refused(RequestError::new(
                ErrorClass::Overloaded,
                "overloaded",
                "no room for \"lane\"",
            )),
        ];
        let item = |id: &str| PushItem {
            queue: "orders".into(),
            lane: "eu".into(),
            transaction_id: id.into(),
            payload: Bytes::new(),
        };
        let items = [item(""), item("order-1"), item("order-2")];
        let results = Results {
            items: &items,
            replies: &replies,
        };
        assert_eq!(
            serde_json::to_string(&results).unwrap(),
            concat!(
                r#"[{"index":0,"message_id":"019fb305-4c95-7000-8000-110000000029","#,
                r#""transaction_id":"019fb305-4c95-7000-8000-110000000029","queueName":"orders","status":"queued","offset":41},"#,
                r#"{"index":1,"message_id":"019fb305-4c95-7000-8000-110000000003","transaction_id":"order-1","#,
                r#""queueName":"orders","status":"duplicate","offset":3},"#,
                r#"{"index":2,"message_id":"","transaction_id":"order-2","queueName":"orders","status":"error","#,
                r#""error":"no room for \"lane\"","code":"overloaded"}]"#
            )
        );
    }
}
