//! `GET /health`, `/livez`, `/readyz`

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use laneway_wire::{HealthResponse, ReadyResponse};

use crate::gateway::Gateway;

/// For clients: whether the node can serve.
pub(crate) async fn health(State(gateway): State<Gateway>) -> Response {
    if gateway.node.readiness().ready {
        super::json(StatusCode::OK, &answer("healthy"))
    } else {
        super::json(StatusCode::SERVICE_UNAVAILABLE, &answer("settling"))
    }
}

/// For a supervisor of processes: that this one answers at all.
pub(crate) async fn live() -> Response {
    super::json(StatusCode::OK, &answer("alive"))
}

/// For a load balancer: whether the node serves all partitions, and if not, why.
pub(crate) async fn ready(State(gateway): State<Gateway>) -> Response {
    let readiness = gateway.node.readiness();
    let mut body = ReadyResponse {
        ready: readiness.ready,
        reasons: readiness.reasons,
    };
    if gateway.is_closing() {
        body.ready = false;
        body.reasons.push("shutting down".to_owned());
    }
    super::json(
        if body.ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        },
        &body,
    )
}

fn answer(status: &str) -> HealthResponse {
    HealthResponse {
        status: status.to_owned(),
        engine: "laneway".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}
