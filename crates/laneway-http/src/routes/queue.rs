//! `GET /api/v1/resources/queues`, `GET` and `DELETE /api/v1/resources/queues/:queue`

use std::borrow::Cow;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use laneway_node::{Counts, LaneInfo, QueueInfo};
use laneway_wire::{
    DeleteQueueResponse, LaneCursor, LaneRow, LaneStats, MessageCounts, QueueDetail, QueueList, QueueRow,
    SegmentCounts,
};

use super::configure::options;
use crate::error::ApiError;
use crate::gateway::Gateway;
use crate::names::{Segments, check_names, request_id};
use crate::stamp;

/// The contract's word for how messages are kept.
pub(super) const STORAGE: &str = "segments";

pub(crate) async fn list(State(gateway): State<Gateway>) -> Result<Response, ApiError> {
    let queues = gateway.node.queues().await?;
    let list = QueueList {
        queues: queues.iter().map(row).collect(),
        kv_rows: 0,
        kv_bytes: 0,
        timer_rows: 0,
        timer_bytes: 0,
    };
    Ok(super::json(StatusCode::OK, &list))
}

pub(crate) async fn one(State(gateway): State<Gateway>, request: Request) -> Result<Response, ApiError> {
    let queue = name(request.uri().path())?;
    match gateway.node.queue(&queue).await? {
        Some(info) => Ok(super::json(StatusCode::OK, &detail(&info))),
        None => Err(ApiError::not_found("Queue not found")),
    }
}

pub(crate) async fn delete(State(gateway): State<Gateway>, request: Request) -> Result<Response, ApiError> {
    let queue = name(request.uri().path())?;
    request_id(request.headers())?;
    let existed = gateway.node.delete_queue(&queue).await;
    let existed = existed
        .map_err(|error| error.advising("repeat it: a queue that is deleted already is answered as well"))?;
    Ok(super::json(StatusCode::OK, &deleted(&queue, existed)))
}

fn name(path: &str) -> Result<String, ApiError> {
    let queue = Segments::of(path).get(4)?;
    check_names(&queue, None, None)?;
    Ok(queue)
}

fn deleted(queue: &str, existed: bool) -> DeleteQueueResponse<'_> {
    DeleteQueueResponse {
        deleted: existed,
        existed,
        queue: Cow::Borrowed(queue),
        message: if existed {
            None
        } else {
            Some(Cow::Borrowed("no such queue"))
        },
    }
}

fn row(info: &QueueInfo) -> QueueRow<'_> {
    let settings = &info.row.settings;
    QueueRow {
        id: info.row.id.to_uuid_text(),
        name: Cow::Borrowed(&info.row.name),
        queue: Cow::Borrowed(&info.row.name),
        namespace: Cow::Borrowed(&settings.namespace),
        task: Cow::Borrowed(&settings.task),
        storage: Cow::Borrowed(STORAGE),
        partitions: info.lane_count,
        segments: SegmentCounts {
            segments: info.lane_count,
            messages: info.counts.total,
        },
        messages: counts(&info.counts),
        retained_bytes: info.retained_bytes,
        options: options(settings),
        created_at: stamp::micros(info.row.created),
    }
}

fn detail(info: &QueueInfo) -> QueueDetail<'_> {
    let settings = &info.row.settings;
    QueueDetail {
        id: info.row.id.to_uuid_text(),
        name: Cow::Borrowed(&info.row.name),
        namespace: Cow::Borrowed(&settings.namespace),
        task: Cow::Borrowed(&settings.task),
        created_at: stamp::micros(info.row.created),
        options: options(settings),
        partitions: info.lanes.iter().map(lane).collect(),
        segments: SegmentCounts {
            segments: info.lane_count,
            messages: info.counts.total,
        },
        totals: counts(&info.counts),
        retained_bytes: info.retained_bytes,
    }
}

fn lane(info: &LaneInfo) -> LaneRow<'_> {
    let (oldest, newest) = (info.oldest.map(stamp::micros), info.newest.map(stamp::micros));
    LaneRow {
        id: info.lane.to_string(),
        name: Cow::Borrowed(&info.name),
        created_at: oldest.clone(),
        messages: info.counts.total,
        stats: LaneStats {
            total: info.counts.total,
            pending: info.counts.pending,
            processing: info.counts.processing,
            completed: info.counts.completed,
            failed: None,
            dead_letter: info.counts.dead_letter,
        },
        cursor: LaneCursor {
            total_consumed: info.counts.consumed,
            batches_consumed: 0,
        },
        last_activity: newest.clone(),
        oldest_message: oldest,
        newest_message: newest,
    }
}

fn counts(counts: &Counts) -> MessageCounts {
    MessageCounts {
        total: counts.total,
        pending: counts.pending,
        processing: counts.processing,
        completed: counts.completed,
        dead_letter: counts.dead_letter,
    }
}

#[cfg(test)]
mod tests {
    use laneway_core::ids::{CatalogVersion, LaneId, QueueId};
    use laneway_core::settings::QueueSettings;
    use laneway_core::time::WallTime;

    use super::*;

    const AT: WallTime = WallTime(1_785_414_896_789_012);

    fn info() -> QueueInfo {
        let counts = Counts {
            total: 5,
            pending: 2,
            processing: 1,
            completed: 2,
            dead_letter: 1,
            consumed: 9,
        };
        QueueInfo {
            row: laneway_core::settings::QueueRow {
                id: QueueId(7),
                name: "a/\"b".to_owned(),
                settings: QueueSettings::implicit("ns.task"),
                version: CatalogVersion(1),
                listed: true,
                created: AT,
            },
            lanes: vec![
                LaneInfo {
                    lane: LaneId(17),
                    name: "eu".to_owned(),
                    counts,
                    oldest: Some(AT),
                    newest: Some(AT),
                },
                LaneInfo {
                    lane: LaneId(18),
                    name: String::new(),
                    counts: Counts::default(),
                    oldest: None,
                    newest: None,
                },
            ],
            lane_count: 2,
            counts,
            retained_bytes: 1234,
        }
    }

    #[test]
    fn row_has_every_key_of_the_contract() {
        let text = serde_json::to_string(&row(&info())).unwrap();
        let id = QueueId(7).to_uuid_text();
        let start = format!(
            concat!(
                r#"{{"id":"{}","name":"a/\"b","queue":"a/\"b","namespace":"ns","task":"task","storage":"segments","#,
                r#""partitions":2,"segments":{{"segments":2,"messages":5}},"messages":{{"total":5,"pending":2,"processing":1,"#,
                r#""completed":2,"deadLetter":1}},"retainedBytes":1234,"options":{{"namespace":"ns","task":"task","leaseTime":60,"#
            ),
            id
        );
        assert!(text.starts_with(&start), "{text}");
        assert!(
            text.ends_with(r#"},"createdAt":"2026-07-30T12:34:56.789012Z"}"#),
            "{text}"
        );
    }

    #[test]
    fn detail_lists_lanes() {
        let text = serde_json::to_string(&detail(&info())).unwrap();
        let at = "2026-07-30T12:34:56.789012Z";
        let lanes = format!(
            concat!(
                r#""partitions":[{{"id":"17","name":"eu","createdAt":"{at}","messages":5,"stats":{{"total":5,"pending":2,"#,
                r#""processing":1,"completed":2,"failed":null,"deadLetter":1}},"cursor":{{"totalConsumed":9,"batchesConsumed":0}},"#,
                r#""lastActivity":"{at}","oldestMessage":"{at}","newestMessage":"{at}"}},"#,
                r#"{{"id":"18","name":"","createdAt":null,"messages":0,"stats":{{"total":0,"pending":0,"processing":0,"#,
                r#""completed":0,"failed":null,"deadLetter":0}},"cursor":{{"totalConsumed":0,"batchesConsumed":0}},"#,
                r#""lastActivity":null,"oldestMessage":null,"newestMessage":null}}],"segments":{{"segments":2,"messages":5}},"#,
                r#""totals":{{"total":5,"pending":2,"processing":1,"completed":2,"deadLetter":1}},"retainedBytes":1234}}"#
            ),
            at = at
        );
        assert!(text.ends_with(&lanes), "{text}");
    }

    #[test]
    fn deletion_says_whether_it_existed() {
        assert_eq!(
            serde_json::to_string(&deleted("q", true)).unwrap(),
            r#"{"deleted":true,"existed":true,"queue":"q"}"#
        );
        assert_eq!(
            serde_json::to_string(&deleted("q", false)).unwrap(),
            r#"{"deleted":false,"existed":false,"queue":"q","message":"no such queue"}"#
        );
    }
}
