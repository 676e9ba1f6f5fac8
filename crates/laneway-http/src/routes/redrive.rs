//! Dead letters: `GET /api/v1/dlq`, `POST /api/v1/dlq/:id/replay`, `POST /api/v1/messages/.../retry`,
//! `DELETE /api/v1/messages/...`

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use laneway_core::ids::DeadLetterId;
use laneway_node::{DeadLetterFilter, DeadLetterInfo, DeadLetterRef, ReplayReply};
use laneway_wire::limits::{DEAD_LETTERS_DEFAULT, DEAD_LETTERS_MAX, SKIP_MAX};
use laneway_wire::{
    DeadLetterList, DeadLetterRow, DeleteDeadLettersResponse, Pagination, PushStatus, ReplayDestination,
    ReplayResponse, ReplayedAs,
};

use super::message::{address, raw};
use crate::error::ApiError;
use crate::gateway::Gateway;
use crate::names::{Segments, check_group, check_names, request_id};
use crate::query::Query;
use crate::stamp;

pub(crate) async fn list(State(gateway): State<Gateway>, request: Request) -> Result<Response, ApiError> {
    let filter = filter(request.uri().query().unwrap_or_default())?;
    let pagination = Pagination {
        limit: filter.limit,
        offset: filter.skip,
    };
    let letters = gateway.node.dead_letters(filter).await?;
    let messages = letters.iter().map(row).collect::<Result<Vec<_>, _>>()?;
    Ok(super::json(
        StatusCode::OK,
        &DeadLetterList {
            total: messages.len(),
            messages,
            pagination,
        },
    ))
}

pub(crate) async fn replay(State(gateway): State<Gateway>, request: Request) -> Result<Response, ApiError> {
    let row = Segments::of(request.uri().path())
        .get(3)?
        .parse::<DeadLetterId>()
        .ok();
    replayed(&gateway, request, row.map(DeadLetterRef::Row)).await
}

pub(crate) async fn retry(State(gateway): State<Gateway>, request: Request) -> Result<Response, ApiError> {
    let (lane, transaction_id) = address(request.uri().path())?;
    replayed(
        &gateway,
        request,
        lane.map(|lane| DeadLetterRef::Message(lane, transaction_id.into())),
    )
    .await
}

async fn replayed(
    gateway: &Gateway,
    request: Request,
    letter: Option<DeadLetterRef>,
) -> Result<Response, ApiError> {
    let (parts, received) = gateway.receive(request).await?;
    check_destination(&received.bytes)?;
    let request_id = request_id(&parts.headers)?;
    let reply = match letter {
        Some(letter) => gateway.node.replay(request_id, letter).await?,
        None => None,
    };
    match reply {
        Some(reply) => Ok(super::json(StatusCode::OK, &replay_answer(&reply))),
        None => Err(ApiError::not_found("Dead letter not found").with_success_key()),
    }
}

pub(crate) async fn delete(State(gateway): State<Gateway>, request: Request) -> Result<Response, ApiError> {
    let (lane, transaction_id) = address(request.uri().path())?;
    let request_id = request_id(request.headers())?;
    let transaction_id: Arc<str> = transaction_id.into();
    let Some(lane) = lane else {
        return Err(ApiError::not_found("Dead letter not found").with_success_key());
    };
    let letter = DeadLetterRef::Message(lane, Arc::clone(&transaction_id));
    match gateway.node.delete_dead_letters(request_id, letter).await? {
        0 => Err(ApiError::not_found("Dead letter not found").with_success_key()),
        deleted => Ok(super::json(
            StatusCode::OK,
            &DeleteDeadLettersResponse {
                success: true,
                partition_id: lane.to_string(),
                transaction_id: Cow::Borrowed(&transaction_id),
                deleted,
            },
        )),
    }
}

/// Reads and checks the parameters of a listing.
pub(crate) fn filter(raw_query: &str) -> Result<DeadLetterFilter, ApiError> {
    let query = Query::parse(raw_query)?;
    let (queue, group) = (query.text("queue"), query.text("consumerGroup"));
    check_names(queue.unwrap_or_default(), None, None)?;
    check_group(group.unwrap_or_default())?;
    let size = |name, first: usize, last: usize, default: usize| {
        let number = query.integer(name, first as u64..=last as u64)?;
        Ok::<_, ApiError>(
            number
                .and_then(|number| usize::try_from(number).ok())
                .unwrap_or(default),
        )
    };
    Ok(DeadLetterFilter {
        queue: queue.map(Arc::from),
        group: group.map(Arc::from),
        limit: size("limit", 1, DEAD_LETTERS_MAX, DEAD_LETTERS_DEFAULT)?,
        skip: size("offset", 0, SKIP_MAX, 0)?,
    })
}

/// Only the message's own lane is a destination so far.
pub(crate) fn check_destination(body: &[u8]) -> Result<(), ApiError> {
    let destination: ReplayDestination<'_> = crate::json::parse(body)?;
    for (name, given) in [
        ("queue", &destination.queue),
        ("partition", &destination.partition),
    ] {
        match given.as_deref() {
            None => {}
            Some("") => {
                return Err(ApiError::bad_request(format!("{name} must not be empty")).with_success_key());
            }
            Some(_) => {
                let message = format!("{name}: a replay to another lane is not supported by this version");
                return Err(ApiError::not_supported(message).with_success_key());
            }
        }
    }
    Ok(())
}

fn row(info: &DeadLetterInfo) -> Result<DeadLetterRow<'_>, ApiError> {
    let payload = raw(&info.message.payload)?;
    let filed = stamp::micros(info.row.filed);
    Ok(DeadLetterRow {
        id: info.row.id.to_string(),
        queue: Cow::Borrowed(&info.queue),
        partition: Cow::Borrowed(&info.lane_name),
        partition_id: info.row.lane.to_string(),
        consumer_group: Cow::Borrowed(&info.row.group),
        offset: info.row.offset.0,
        message_id: info.message.id.to_string(),
        transaction_id: Cow::Borrowed(&info.message.transaction_id),
        data: Cow::Borrowed(payload),
        payload: Cow::Borrowed(payload),
        error_message: Cow::Borrowed(&info.row.reason),
        retry_count: info.row.retries_used,
        created_at: filed.clone(),
        failed_at: filed,
        producer_sub: None,
    })
}

fn replay_answer(reply: &ReplayReply) -> ReplayResponse<'_> {
    ReplayResponse {
        success: true,
        replayed: true,
        result: Cow::Borrowed("moved"),
        queue: Cow::Borrowed(&reply.queue),
        partition: Cow::Borrowed(&reply.lane_name),
        partition_id: reply.dead_letter.lane.to_string(),
        consumer_group: Cow::Borrowed(&reply.dead_letter.group),
        dlq_id: reply.dead_letter.id.to_string(),
        original_transaction_id: Cow::Borrowed(&reply.dead_letter.transaction_id),
        replayed_as: ReplayedAs {
            index: 0,
            message_id: reply.message_id.to_string(),
            transaction_id: Cow::Borrowed(&reply.transaction_id),
            queue_name: Cow::Borrowed(&reply.queue),
            status: PushStatus::Queued,
            offset: reply.offset.0,
        },
        dlq_row_removed: true,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use laneway_core::ids::{LaneId, MessageId, Offset, PartitionId, QueueId};
    use laneway_core::reply::DeadLetter;
    use laneway_core::time::WallTime;
    use laneway_node::PoppedMessage;

    use super::*;

    const AT: WallTime = WallTime(1_785_414_896_789_012);

    fn letter() -> DeadLetter {
        DeadLetter {
            id: DeadLetterId::new(PartitionId(0), 5),
            queue: QueueId(7),
            lane: LaneId(17),
            offset: Offset(41),
            group: "billing".to_owned(),
            transaction_id: "order-1".to_owned(),
            reason: "card \"declined\"".to_owned(),
            retries_used: 1,
            filed: AT,
        }
    }

    #[test]
    fn filters_are_checked() {
        let all = filter("status=x&limit=").unwrap();
        assert_eq!((all.queue, all.group, all.limit, all.skip), (None, None, 100, 0));
        let some = filter("queue=a%2Fb&consumerGroup=g+1&limit=1000&offset=7").unwrap();
        assert_eq!(
            (some.queue.as_deref(), some.group.as_deref()),
            (Some("a/b"), Some("g 1"))
        );
        assert_eq!((some.limit, some.skip), (1000, 7));
        for (bad, part) in [
            ("limit=0", "limit must be an integer from 1 to 1000"),
            ("limit=1001", "limit"),
            ("limit=-1", "limit"),
            ("offset=-1", "offset must be an integer from 0 to 1000000000"),
            ("offset=x", "offset"),
            ("queue=%00", "queue has the control character"),
        ] {
            let error = filter(bad).unwrap_err();
            assert_eq!(error.parts().0, 400, "{bad}");
            assert!(error.parts().2.contains(part), "{}", error.parts().2);
        }
    }

    #[test]
    fn only_the_own_lane_is_a_destination() {
        check_destination(b"{}").unwrap();
        check_destination(br#"{"queue":null,"other":1}"#).unwrap();
        let code = |body: &str| {
            check_destination(body.as_bytes()).map_err(|error| (error.parts().0, error.parts().1))
        };
        assert_eq!(code(r#"{"queue":""}"#), Err((400, "bad_request")));
        assert_eq!(code(r#"{"partition":"x"}"#), Err((400, "not_supported")));
        assert_eq!(code(r#"{"queue":5}"#), Err((400, "bad_body")));
        assert_eq!(code("[]x"), Err((400, "bad_body")));
    }

    #[test]
    fn listed_row_is_golden() {
        let info = DeadLetterInfo {
            row: letter(),
            queue: "orders".to_owned(),
            lane_name: "eu".to_owned(),
            message: PoppedMessage {
                id: MessageId::new(AT, LaneId(17), Offset(41)),
                offset: Offset(41),
                transaction_id: "order-1".to_owned(),
                created: AT,
                payload: Bytes::from_static(b"[1, 2]"),
            },
        };
        assert_eq!(
            serde_json::to_string(&row(&info).unwrap()).unwrap(),
            concat!(
                r#"{"id":"5","queue":"orders","partition":"eu","partitionId":"17","consumerGroup":"billing","offset":41,"#,
                r#""messageId":"019fb305-4c95-7000-8000-110000000029","transactionId":"order-1","data":[1, 2],"payload":[1, 2],"#,
                r#""errorMessage":"card \"declined\"","retryCount":1,"createdAt":"2026-07-30T12:34:56.789012Z","#,
                r#""failedAt":"2026-07-30T12:34:56.789012Z","producerSub":null}"#
            )
        );
    }

    #[test]
    fn replay_answers_in_both_vocabularies() {
        let reply = ReplayReply {
            dead_letter: letter(),
            queue: "orders".to_owned(),
            lane_name: "eu".to_owned(),
            message_id: MessageId::new(AT, LaneId(17), Offset(42)),
            transaction_id: "dlq:5".to_owned(),
            offset: Offset(42),
        };
        assert_eq!(
            serde_json::to_string(&replay_answer(&reply)).unwrap(),
            concat!(
                r#"{"success":true,"replayed":true,"result":"moved","queue":"orders","partition":"eu","partitionId":"17","#,
                r#""consumerGroup":"billing","dlqId":"5","originalTransactionId":"order-1","replayedAs":{"index":0,"#,
                r#""message_id":"019fb305-4c95-7000-8000-11000000002a","transaction_id":"dlq:5","queueName":"orders","#,
                r#""status":"queued","offset":42},"dlqRowRemoved":true}"#
            )
        );
    }
}
