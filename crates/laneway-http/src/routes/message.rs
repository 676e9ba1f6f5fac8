//! `GET /api/v1/messages/:partitionId/:transactionId`

use std::borrow::Cow;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use laneway_core::ids::LaneId;
use laneway_node::{MessageGroup, MessageInfo, MessageStatus};
use laneway_wire::limits::GROUP_DEFAULT;
use laneway_wire::{ConsumerGroup, DeliveryMode, MessageDetail};
use serde_json::value::RawValue;

use super::configure::options;
use crate::error::ApiError;
use crate::gateway::Gateway;
use crate::names::Segments;
use crate::stamp;

pub(crate) async fn detail(State(gateway): State<Gateway>, request: Request) -> Result<Response, ApiError> {
    let (lane, transaction_id) = address(request.uri().path())?;
    let info = match lane {
        Some(lane) => gateway.node.message(lane, &transaction_id).await?,
        None => None,
    };
    match info {
        Some(info) => Ok(super::json(StatusCode::OK, &answer(&info)?)),
        None => Err(ApiError::not_found("Message not found")),
    }
}

/// Lane and transaction id of a path below `/api/v1/messages`; no lane has an id that is none.
pub(crate) fn address(path: &str) -> Result<(Option<LaneId>, String), ApiError> {
    let segments = Segments::of(path);
    Ok((segments.get(3)?.parse().ok(), segments.get(4)?))
}

/// A stored payload as JSON text.
pub(super) fn raw(payload: &Bytes) -> Result<&RawValue, ApiError> {
    let payload: &[u8] = if payload.is_empty() { b"null" } else { payload };
    serde_json::from_slice(payload).map_err(|error| {
        ApiError::internal(format!(
            "a stored payload is no JSON, which no push takes: the data on disk is damaged ({error})"
        ))
    })
}

fn answer(info: &MessageInfo) -> Result<MessageDetail<'_>, ApiError> {
    let payload = raw(&info.message.payload)?;
    let settings = &info.queue.settings;
    Ok(MessageDetail {
        id: info.message.id.to_string(),
        transaction_id: Cow::Borrowed(&info.message.transaction_id),
        data: Cow::Borrowed(payload),
        payload: Cow::Borrowed(payload),
        trace_id: None,
        producer_sub: None,
        created_at: stamp::micros(info.message.created),
        offset: info.message.offset.0,
        partition_id: info.lane.to_string(),
        partition: Cow::Borrowed(&info.lane_name),
        queue: Cow::Borrowed(&info.queue.name),
        queue_path: format!("{}/{}", info.queue.name, info.lane_name),
        namespace: Cow::Borrowed(&settings.namespace),
        task: Cow::Borrowed(&settings.task),
        status: Cow::Borrowed(status(info.status)),
        error_message: info
            .dead_letter
            .as_ref()
            .map(|letter| Cow::Borrowed(letter.reason.as_str())),
        retry_count: info.retries_used,
        is_encrypted: false,
        queue_config: options(settings),
        mode: mode(&info.groups),
        consumer_groups: info.groups.iter().map(group).collect(),
    })
}

fn status(status: MessageStatus) -> &'static str {
    match status {
        MessageStatus::Pending => "pending",
        MessageStatus::Processing => "processing",
        MessageStatus::Completed => "completed",
        MessageStatus::DeadLetter => "dead_letter",
    }
}

fn mode(groups: &[MessageGroup]) -> DeliveryMode<'static> {
    let named = groups.iter().filter(|group| group.name != GROUP_DEFAULT).count();
    let queue_mode = named < groups.len();
    let kind = match (queue_mode, named) {
        (false, 0) => "none",
        (true, 0) => "queue",
        (false, _) => "bus",
        (true, _) => "hybrid",
    };
    DeliveryMode {
        has_queue_mode: queue_mode,
        bus_groups_count: named,
        kind: Cow::Borrowed(kind),
    }
}

fn group(group: &MessageGroup) -> ConsumerGroup<'_> {
    ConsumerGroup {
        name: Cow::Borrowed(&group.name),
        // The contract's cursor is the last settled offset, ours the first one that is not.
        committed: i64::try_from(group.cursor.0).unwrap_or(i64::MAX) - 1,
        consumed: group.consumed,
        lease_expires_at: group.lease_expires.map(stamp::micros),
    }
}

#[cfg(test)]
mod tests {
    use laneway_core::ids::{CatalogVersion, MessageId, Offset, QueueId};
    use laneway_core::settings::{QueueRow, QueueSettings};
    use laneway_core::time::WallTime;
    use laneway_node::PoppedMessage;

    use super::*;

    const AT: WallTime = WallTime(1_785_414_896_789_012);

    fn group_of(name: &str, cursor: u64) -> MessageGroup {
        MessageGroup {
            name: name.to_owned(),
            cursor: Offset(cursor),
            consumed: cursor > 41,
            lease_expires: Some(AT),
        }
    }

    #[test]
    fn answer_is_golden() {
        let lane = LaneId(17);
        let info = MessageInfo {
            message: PoppedMessage {
                id: MessageId::new(AT, lane, Offset(41)),
                offset: Offset(41),
                transaction_id: "order-1".to_owned(),
                created: AT,
                payload: Bytes::from_static(br#"{"n": 1}"#),
            },
            queue: QueueRow {
                id: QueueId(7),
                name: "orders".to_owned(),
                settings: QueueSettings::implicit("ns.task"),
                version: CatalogVersion(1),
                listed: true,
                created: AT,
            },
            lane,
            lane_name: "eu".to_owned(),
            status: MessageStatus::Processing,
            dead_letter: None,
            retries_used: 2,
            groups: vec![group_of(GROUP_DEFAULT, 0), group_of("g", 42)],
        };
        let text = serde_json::to_string(&answer(&info).unwrap()).unwrap();
        let start = concat!(
            r#"{"id":"019fb305-4c95-7000-8000-110000000029","transactionId":"order-1","data":{"n": 1},"payload":{"n": 1},"#,
            r#""traceId":null,"producerSub":null,"createdAt":"2026-07-30T12:34:56.789012Z","offset":41,"partitionId":"17","#,
            r#""partition":"eu","queue":"orders","queuePath":"orders/eu","namespace":"ns","task":"task","status":"processing","#,
            r#""errorMessage":null,"retryCount":2,"isEncrypted":false,"queueConfig":{"namespace":"ns","task":"task","leaseTime":60,"#
        );
        assert!(text.starts_with(start), "{text}");
        let end = concat!(
            r#""mode":{"hasQueueMode":true,"busGroupsCount":1,"type":"hybrid"},"consumerGroups":["#,
            r#"{"name":"__QUEUE_MODE__","committed":-1,"consumed":false,"leaseExpiresAt":"2026-07-30T12:34:56.789012Z"},"#,
            r#"{"name":"g","committed":41,"consumed":true,"leaseExpiresAt":"2026-07-30T12:34:56.789012Z"}]}"#
        );
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn address_is_decoded_after_the_split() {
        let (lane, id) = address("/api/v1/messages/17/a%2Fretry%20b/retry").unwrap();
        assert_eq!((lane, &*id), (Some(LaneId(17)), "a/retry b"));
        assert_eq!(address("/api/v1/messages/x/y").unwrap().0, None);
        assert_eq!(address("/api/v1/messages/17/%zz").unwrap_err().parts().0, 400);
    }
}
