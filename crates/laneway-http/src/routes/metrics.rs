//! `GET /metrics` (JSON, or text for who prefers it) and `/metrics/prometheus` (text)

use std::sync::atomic::Ordering;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use laneway_node::{Histogram, Metrics, NodeStatus, QueueMetrics};
use laneway_wire::{
    CpuMetrics, HistogramMetrics, MemoryMetrics, MessageMetrics, MetricsResponse, RequestMetrics,
};

use super::admin::{group_status, storage};
use crate::gateway::Gateway;
use crate::metrics::{GatewayFigures, prometheus};

/// The text format's version that is written.
const TEXT_TYPE: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

pub(crate) async fn negotiated(State(gateway): State<Gateway>, request: Request) -> Response {
    if prefers_text(request.headers()) {
        return text(State(gateway)).await;
    }
    let (status, metrics) = (gateway.node.status().await, gateway.node.metrics().await);
    super::json(StatusCode::OK, &answer(&status, metrics, &figures(&gateway)))
}

pub(crate) async fn text(State(gateway): State<Gateway>) -> Response {
    let (status, metrics) = (gateway.node.status().await, gateway.node.metrics().await);
    let text = prometheus(&status, &metrics, &figures(&gateway), &gateway.counts);
    ([(header::CONTENT_TYPE, TEXT_TYPE)], text).into_response()
}

fn figures(gateway: &Gateway) -> GatewayFigures {
    GatewayFigures {
        requests: gateway.counts.total(),
        request_rate: gateway.counts.rate(),
        connections: gateway.counts.connections.load(Ordering::Relaxed),
        body_bytes: gateway.bodies.held_bytes(),
    }
}

/// Whether `Accept` prefers text (as Prometheus does) to JSON. A bare `*/*` gets JSON, which the published clients read.
fn prefers_text(headers: &HeaderMap) -> bool {
    let (mut text, mut json) = (0.0f32, 0.0f32);
    for value in headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
    {
        for range in value.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let weight = parts
                .find_map(|part| part.strip_prefix("q="))
                .map_or(1.0, |q| q.parse().unwrap_or(0.0));
            match kind {
                "text/plain" | "application/openmetrics-text" => text = text.max(weight),
                "application/json" => json = json.max(weight),
                _ => {}
            }
        }
    }
    text > json
}

fn answer(status: &NodeStatus, metrics: Metrics, figures: &GatewayFigures) -> MetricsResponse {
    let sum = |of: fn(&QueueMetrics) -> u64| metrics.queues.iter().map(of).sum();
    MetricsResponse {
        uptime: status.uptime.as_secs_f64(),
        requests: RequestMetrics {
            total: figures.requests,
            rate: figures.request_rate,
        },
        messages: MessageMetrics {
            pushed: metrics.pushed,
            duplicates: metrics.duplicates,
            delivered: metrics.delivered,
            settled: metrics.settled,
            dead_lettered: metrics.dead_lettered,
            expired_leases: metrics.expired_leases,
            ready: sum(|queue| queue.ready),
            leased: sum(|queue| queue.leased),
            dead: sum(|queue| queue.dead),
        },
        memory: MemoryMetrics {
            rss: metrics.memory_bytes,
        },
        cpu: CpuMetrics {
            user: metrics.cpu_seconds.0,
            system: metrics.cpu_seconds.1,
        },
        parked_pops: status.parked_pops,
        connections: figures.connections,
        disk_free_bytes: status.disk_free_bytes,
        queues: metrics.queues.into_iter().map(queue).collect(),
        partitions: status.groups.iter().map(group_status).collect(),
        storage: storage(&status.storage),
        sync_seconds: histogram(metrics.sync_seconds),
        commit_seconds: histogram(metrics.commit_seconds),
    }
}

fn queue(queue: QueueMetrics) -> laneway_wire::QueueMetrics {
    laneway_wire::QueueMetrics {
        queue: queue.queue,
        ready: queue.ready,
        leased: queue.leased,
        dead: queue.dead,
        lanes: queue.lanes,
    }
}

fn histogram(histogram: Histogram) -> HistogramMetrics {
    HistogramMetrics {
        bounds: histogram.bounds,
        counts: histogram.counts,
        sum: histogram.sum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_prefers_text_gets_it() {
        let check = |accept: &str, text: bool| {
            let mut headers = HeaderMap::new();
            if !accept.is_empty() {
                headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
            }
            assert_eq!(prefers_text(&headers), text, "{accept}");
        };
        check("", false);
        check("*/*", false);
        check("application/json", false);
        check("application/json, text/plain, */*", false);
        check("text/plain", true);
        check("text/plain;version=0.0.4;q=0.5,application/json;q=0.4", true);
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        check(prometheus, true);
        check("text/plain;q=x", false);
        check(",;,q=", false);
    }
}
