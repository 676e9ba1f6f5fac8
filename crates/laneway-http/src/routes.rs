//! The table of routes. The router matches raw paths; handlers decode segments themselves ([`crate::names::Segments`]).

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};

use crate::body::discard;
use crate::counts::Verb;
use crate::error::ApiError;
use crate::gateway::{Gateway, observe};

pub(crate) mod ack;
mod admin;
pub(crate) mod cluster;
pub(crate) mod configure;
pub(crate) mod extend;
mod health;
pub(crate) mod message;
mod metrics;
pub(crate) mod pop;
pub(crate) mod push;
mod queue;
pub(crate) mod redrive;

/// All routes. A queue or lane may have the empty name, which a pattern does not match: hence the paths with empty segments.
pub(crate) fn router(gateway: &Gateway) -> Router {
    let on = |verb: Verb, methods: MethodRouter<Gateway>| {
        methods.layer(from_fn_with_state((gateway.clone(), verb), observe))
    };
    let pop_queue = || on(Verb::Pop, get(pop::queue));
    let pop_lane = || on(Verb::Pop, get(pop::lane));
    let one_queue = || on(Verb::Queues, get(queue::one)).merge(on(Verb::DeleteQueue, delete(queue::delete)));
    Router::new()
        .route("/api/v1/push", on(Verb::Push, post(push::push)))
        .route("/api/v1/pop", on(Verb::Pop, get(pop::discover)))
        .route("/api/v1/pop/queue/", pop_queue())
        .route("/api/v1/pop/queue/{queue}", pop_queue())
        .route("/api/v1/pop/queue//partition/", pop_lane())
        .route("/api/v1/pop/queue//partition/{lane}", pop_lane())
        .route("/api/v1/pop/queue/{queue}/partition/", pop_lane())
        .route("/api/v1/pop/queue/{queue}/partition/{lane}", pop_lane())
        .route("/api/v1/ack", on(Verb::Ack, post(ack::single)))
        .route("/api/v1/ack/batch", on(Verb::Ack, post(ack::batch)))
        .route(
            "/api/v1/lease/{lease}/extend",
            on(Verb::Extend, post(extend::extend)),
        )
        .route(
            "/api/v1/configure",
            on(Verb::Configure, post(configure::configure)),
        )
        .route("/api/v1/resources/queues", on(Verb::Queues, get(queue::list)))
        .route("/api/v1/resources/queues/", one_queue())
        .route("/api/v1/resources/queues/{queue}", one_queue())
        .route(
            "/api/v1/messages/{lane}/{transaction}",
            on(Verb::Message, get(message::detail)).merge(on(Verb::DeadLetters, delete(redrive::delete))),
        )
        .route(
            "/api/v1/messages/{lane}/{transaction}/retry",
            on(Verb::Replay, post(redrive::retry)),
        )
        .route("/api/v1/dlq", on(Verb::DeadLetters, get(redrive::list)))
        .route(
            "/api/v1/dlq/{row}/replay",
            on(Verb::Replay, post(redrive::replay)),
        )
        .route("/admin/v1/status", on(Verb::Status, get(admin::status)))
        .route("/admin/v1/digest", on(Verb::Status, get(admin::digest)))
        .route("/admin/v1/cluster", on(Verb::Cluster, get(cluster::status)))
        .route(
            "/admin/v1/cluster/changes",
            on(Verb::Cluster, post(cluster::change)),
        )
        .route("/health", on(Verb::Health, get(health::health)))
        .route("/livez", on(Verb::Health, get(health::live)))
        .route("/readyz", on(Verb::Health, get(health::ready)))
        .route("/metrics", on(Verb::Metrics, get(metrics::negotiated)))
        .route("/metrics/prometheus", on(Verb::Metrics, get(metrics::text)))
        .fallback(no_such_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(gateway.clone())
}

async fn no_such_route(State(gateway): State<Gateway>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    discard(&parts.headers, body).await;
    gateway.counted(
        Verb::Other,
        ApiError::no_such_route(parts.uri.path()).into_response(),
    )
}

async fn wrong_method(State(gateway): State<Gateway>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    discard(&parts.headers, body).await;
    gateway.counted(
        Verb::Other,
        ApiError::wrong_method(parts.uri.path()).into_response(),
    )
}

/// Writes an answer's JSON.
fn json<T: serde::Serialize>(status: axum::http::StatusCode, body: &T) -> Response {
    (status, axum::Json(body)).into_response()
}

/// Writes an answer's JSON that takes about `bytes`: room for it is made once.
fn json_of_size<T: serde::Serialize>(status: axum::http::StatusCode, body: &T, bytes: usize) -> Response {
    let mut text = Vec::with_capacity(bytes);
    serde_json::to_writer(&mut text, body).expect("plain data is written to memory");
    let json = axum::http::HeaderValue::from_static("application/json");
    (status, [(axum::http::header::CONTENT_TYPE, json)], text).into_response()
}
