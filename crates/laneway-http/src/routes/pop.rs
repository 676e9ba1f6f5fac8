//! `GET /api/v1/pop/...`

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use laneway_core::settings::GroupStart;
use laneway_node::{PopReply, PopRequest, PopSource};
use laneway_wire::limits::{
    BATCH_DEFAULT, BATCH_MAX, GROUP_DEFAULT, LANE_DEFAULT, LANES_PER_POP_MAX, LEASE_SECONDS_MAX,
    WAIT_MS_DEFAULT, WAIT_MS_MAX,
};

use crate::error::ApiError;
use crate::gateway::Gateway;
use crate::names::{Segments, check_group, check_name, check_names};
use crate::query::Query;
use crate::stamp;

mod encode;

/// What to do when nobody knows what became of a pop.
const POP_AGAIN: &str =
    "nothing is lost: what it may have claimed comes back when its lease ends, so pop again";

/// The same with `autoAck`.
const POP_AGAIN_AUTO_ACK: &str =
    "pop again: what it may have claimed comes back, but what it may have settled (autoAck) does not";

/// All lanes of one queue.
pub(crate) async fn queue(
    State(gateway): State<Gateway>,
    method: Method,
    uri: Uri,
) -> Result<Response, ApiError> {
    let source = Segments::of(uri.path())
        .get(4)
        .map(|queue| PopSource::Queue(queue.into()));
    answer(&gateway, &method, &uri, source)
        .await
        .map_err(ApiError::on_pop)
}

/// One lane; the empty name means the default one, as on a push.
pub(crate) async fn lane(
    State(gateway): State<Gateway>,
    method: Method,
    uri: Uri,
) -> Result<Response, ApiError> {
    let source = lane_source(uri.path());
    answer(&gateway, &method, &uri, source)
        .await
        .map_err(ApiError::on_pop)
}

/// All queues of a namespace or task.
pub(crate) async fn discover(
    State(gateway): State<Gateway>,
    method: Method,
    uri: Uri,
) -> Result<Response, ApiError> {
    let source = discovery(uri.query().unwrap_or_default());
    answer(&gateway, &method, &uri, source)
        .await
        .map_err(ApiError::on_pop)
}

pub(crate) fn lane_source(path: &str) -> Result<PopSource, ApiError> {
    let segments = Segments::of(path);
    let lane = segments.get(6)?;
    let lane = if lane.is_empty() { LANE_DEFAULT } else { &lane };
    Ok(PopSource::Lane(segments.get(4)?.into(), lane.into()))
}

pub(crate) fn discovery(raw_query: &str) -> Result<PopSource, ApiError> {
    let query = Query::parse(raw_query)?;
    let (namespace, task) = (
        query.text("namespace").map(Arc::from),
        query.text("task").map(Arc::from),
    );
    if namespace.is_none() && task.is_none() {
        return Err(ApiError::bad_request("namespace or task is required"));
    }
    Ok(PopSource::Discovery { namespace, task })
}

async fn answer(
    gateway: &Gateway,
    method: &Method,
    uri: &Uri,
    source: Result<PopSource, ApiError>,
) -> Result<Response, ApiError> {
    if *method != Method::GET {
        // HEAD would claim messages that its answer has no room for.
        return Err(ApiError::wrong_method(uri.path()));
    }
    let mut pop = parse(
        source?,
        uri.query().unwrap_or_default(),
        gateway.options.group_start_default,
    )?;
    if gateway.is_closing() {
        pop.wait = None;
    }
    let group = Arc::clone(&pop.group);
    let queue = match &pop.source {
        PopSource::Queue(queue) | PopSource::Lane(queue, _) => Arc::clone(queue),
        PopSource::Discovery { .. } => Arc::from(""),
    };
    // A shutdown ends the wait and not the pop: messages settled at delivery must reach the client that is here for them.
    let again = if pop.auto_ack {
        POP_AGAIN_AUTO_ACK
    } else {
        POP_AGAIN
    };
    let reply = gateway.node.pop_until(pop, gateway.closing()).await;
    let reply = reply.map_err(|error| error.advising(again))?;
    if reply.lanes.is_empty() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let frames = encode::answer(&queue, &group, reply.lease_id, &reply.lanes);
    let mut response = Response::new(Body::new(PopBody::new(reply, frames)));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Reads and checks the parameters.
pub(crate) fn parse(
    source: PopSource,
    raw_query: &str,
    start_default: GroupStart,
) -> Result<PopRequest, ApiError> {
    let query = Query::parse(raw_query)?;
    let named_group = query.text("consumerGroup");
    match &source {
        PopSource::Queue(queue) => check_names(queue, None, named_group)?,
        PopSource::Lane(queue, lane) => check_names(queue, Some(lane), named_group)?,
        PopSource::Discovery { namespace, task } => {
            check_name("namespace", namespace.as_deref().unwrap_or_default())?;
            check_name("task", task.as_deref().unwrap_or_default())?;
            check_group(named_group.unwrap_or_default())?;
        }
    }
    if query.flag("conflation") {
        return Err(ApiError::not_supported(
            "conflation is not supported by this version",
        ));
    }
    let batch = query.integer("batch", 1..=u64::from(BATCH_MAX))?;
    let lanes_max = query.clamped("partitions", 1..=u64::from(LANES_PER_POP_MAX))?;
    let wait_ms = query
        .clamped("timeout", 1..=WAIT_MS_MAX)?
        .unwrap_or(WAIT_MS_DEFAULT);
    // The contract: a lease length beats the queue's when it is above 0.
    let lease_seconds = query
        .integer("leaseSeconds", 0..=LEASE_SECONDS_MAX)?
        .filter(|&seconds| seconds > 0);
    let pinned = matches!(source, PopSource::Lane(..));
    Ok(PopRequest {
        group: named_group.unwrap_or(GROUP_DEFAULT).into(),
        start: if named_group.is_some() {
            group_start(&query, start_default)?
        } else {
            GroupStart::Beginning
        },
        batch: batch
            .and_then(|batch| u32::try_from(batch).ok())
            .unwrap_or(BATCH_DEFAULT),
        lanes_max: lanes_max
            .filter(|_| !pinned)
            .and_then(|lanes| u16::try_from(lanes).ok())
            .unwrap_or(1),
        wait: query.flag("wait").then(|| Duration::from_millis(wait_ms)),
        auto_ack: query.flag("autoAck"),
        lease_ms: lease_seconds.map(|seconds| seconds * 1000),
        source,
    })
}

/// Where a group begins that this pop registers: an instant beats the mode, an unknown mode is the default.
fn group_start(query: &Query, default: GroupStart) -> Result<GroupStart, ApiError> {
    match query.text("subscriptionFrom") {
        Some("now") => return Ok(GroupStart::Registration),
        Some(text) => {
            let Some(at) = stamp::parse(text) else {
                return Err(ApiError::bad_request(
                    "subscriptionFrom must be now or a time such as 2026-08-01T10:00:00Z",
                ));
            };
            return Ok(GroupStart::At(at));
        }
        None => {}
    }
    Ok(match query.text("subscriptionMode") {
        Some("all") => GroupStart::Beginning,
        Some("new") => GroupStart::Registration,
        _ => default,
    })
}

/// The answer's body. Asking for its first frame counts as delivery; being dropped before gives the claim back.
struct PopBody {
    reply: Option<PopReply>,
    frames: std::vec::IntoIter<Bytes>,
    bytes_left: u64,
}

impl PopBody {
    fn new(reply: PopReply, frames: Vec<Bytes>) -> Self {
        let bytes_left = frames.iter().map(|frame| frame.len() as u64).sum();
        Self {
            reply: Some(reply),
            frames: frames.into_iter(),
            bytes_left,
        }
    }
}

impl http_body::Body for PopBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(mut reply) = self.reply.take() {
            reply.delivered();
        }
        let Some(frame) = self.frames.next() else {
            return Poll::Ready(None);
        };
        self.bytes_left -= frame.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes_left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes_left)
    }
}

#[cfg(test)]
mod tests {
    use laneway_core::time::WallTime;

    use super::*;

    fn read(query: &str) -> Result<PopRequest, ApiError> {
        parse(PopSource::Queue("q".into()), query, GroupStart::Registration)
    }

    #[test]
    fn defaults_are_those_of_the_contract() {
        let pop = read("").unwrap();
        assert_eq!(
            (pop.batch, pop.lanes_max, pop.wait, pop.auto_ack, pop.lease_ms),
            (200, 1, None, false, None)
        );
        assert_eq!(
            (&*pop.group, pop.start),
            ("__QUEUE_MODE__", GroupStart::Beginning)
        );
        let pop = read("wait=true&autopilot=true&frames=true&unknown=%20").unwrap();
        assert_eq!(pop.wait, Some(Duration::from_secs(30)));
        let pop = read("wait=1&autoAck=TRUE").unwrap();
        assert_eq!((pop.wait, pop.auto_ack), (None, false));
    }

    #[test]
    fn numbers_are_clamped_or_refused_as_documented() {
        let pop = read("batch=1000000&partitions=0&wait=true&timeout=0&leaseSeconds=31536000").unwrap();
        assert_eq!(
            (pop.batch, pop.lanes_max, pop.wait),
            (1_000_000, 1, Some(Duration::from_millis(1)))
        );
        assert_eq!(pop.lease_ms, Some(31_536_000_000));
        let pop = read("partitions=1000&wait=true&timeout=99999999999999999999999&leaseSeconds=0").unwrap();
        assert_eq!(
            (pop.lanes_max, pop.wait, pop.lease_ms),
            (64, Some(Duration::from_secs(60)), None)
        );
        let pop = parse(
            PopSource::Lane("q".into(), "p".into()),
            "partitions=9",
            GroupStart::Registration,
        )
        .unwrap();
        assert_eq!(pop.lanes_max, 1);
        for (bad, name) in [
            (
                "leaseSeconds=9e18",
                "leaseSeconds must be an integer from 0 to 31536000",
            ),
            ("leaseSeconds=9223372036854775807", "leaseSeconds"),
            ("leaseSeconds=-1", "leaseSeconds"),
            ("leaseSeconds=ten", "leaseSeconds"),
            ("batch=0", "batch must be an integer from 1 to 1000000"),
            ("batch=-5", "batch"),
            ("batch=1.5", "batch"),
            ("timeout=soon", "timeout must be an integer from 1 to 60000"),
            ("partitions=1e3", "partitions must be an integer from 1 to 64"),
            (
                "consumerGroup=a%00",
                "consumerGroup has the control character U+0000",
            ),
            ("consumerGroup=%zz", "percent-encoding"),
            ("conflation=true", "conflation"),
        ] {
            let error = read(bad).unwrap_err();
            assert_eq!(error.parts().0, 400, "{bad}");
            assert!(error.parts().2.contains(name), "{bad}: {}", error.parts().2);
        }
        assert_eq!(
            read(&format!("consumerGroup={}", "g".repeat(411)))
                .unwrap_err()
                .parts()
                .0,
            413
        );
    }

    #[test]
    fn group_start_is_read_for_named_groups_only() {
        let start = |query: &str| read(query).map(|pop| pop.start).map_err(|error| error.parts().0);
        assert_eq!(start("consumerGroup=g"), Ok(GroupStart::Registration));
        assert_eq!(
            start("consumerGroup=g&subscriptionMode=all"),
            Ok(GroupStart::Beginning)
        );
        assert_eq!(
            start("consumerGroup=g&subscriptionMode=earliest"),
            Ok(GroupStart::Registration)
        );
        assert_eq!(
            start("consumerGroup=g&subscriptionMode=all&subscriptionFrom=now"),
            Ok(GroupStart::Registration)
        );
        let at = GroupStart::At(WallTime(1_785_578_400_000_000));
        assert_eq!(
            start("consumerGroup=g&subscriptionMode=all&subscriptionFrom=2026-08-01T10:00:00Z"),
            Ok(at)
        );
        assert_eq!(
            start("consumerGroup=g&subscriptionFrom=2026-08-01T12:00:00+02:00"),
            Ok(at)
        );
        assert_eq!(start("consumerGroup=g&subscriptionFrom=yesterday"), Err(400));
        assert_eq!(
            start("consumerGroup=&subscriptionMode=new&subscriptionFrom=yesterday"),
            Ok(GroupStart::Beginning)
        );
    }

    #[test]
    fn discovery_needs_a_namespace_or_a_task() {
        let error = discovery("namespace=&task=&batch=1").unwrap_err();
        assert_eq!(
            error.parts(),
            (400, "bad_request", "namespace or task is required")
        );
        let PopSource::Discovery { namespace, task } = discovery("task=a+b").unwrap() else {
            panic!("another source")
        };
        assert_eq!((namespace, task.as_deref()), (None, Some("a b")));
    }
}
