//! `GET /admin/v1/status` and `/admin/v1/digest`: answered to peers on the loopback interface only.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use laneway_node::{GroupDigest, GroupStatus, NodeStatus, Readiness, StorageStatus};
use laneway_wire::{DigestResponse, HttpStatus, StatusResponse};

use crate::body::discard;
use crate::error::ApiError;
use crate::gateway::Gateway;

pub(crate) async fn status(State(gateway): State<Gateway>, request: Request) -> Result<Response, ApiError> {
    require_loopback(request).await?;
    let status = gateway.node.status().await;
    let http = HttpStatus {
        connections: gateway.counts.connections.load(Ordering::Relaxed),
        requests: gateway.counts.total(),
        body_bytes: gateway.bodies.held_bytes(),
    };
    Ok(super::json(
        StatusCode::OK,
        &answer(status, gateway.node.readiness(), http),
    ))
}

pub(crate) async fn digest(State(gateway): State<Gateway>, request: Request) -> Result<Response, ApiError> {
    require_loopback(request).await?;
    let digests = gateway.node.digests().await?;
    Ok(super::json(
        StatusCode::OK,
        &DigestResponse {
            groups: digests.iter().map(group_digest).collect(),
        },
    ))
}

/// Lets requests of this machine pass.
pub(super) async fn require_loopback(request: Request) -> Result<Request, ApiError> {
    if is_near(&request) {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    discard(&parts.headers, body).await;
    Err(ApiError::forbidden(
        "admin routes answer only to this machine (127.0.0.1 or ::1)",
    ))
}

fn is_near(request: &Request) -> bool {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    peer.is_some_and(|ConnectInfo(peer)| peer.ip().to_canonical().is_loopback())
}

fn answer(status: NodeStatus, readiness: Readiness, http: HttpStatus) -> StatusResponse {
    StatusResponse {
        version: status.version.to_owned(),
        cluster: status.cluster,
        cluster_id: status.cluster_id,
        node: status.node,
        uptime_seconds: status.uptime.as_secs_f64(),
        ready: readiness.ready,
        reasons: readiness.reasons,
        data_dir: status.data_dir,
        disk_free_bytes: status.disk_free_bytes,
        disk_low: status.disk_low,
        parked_pops: status.parked_pops,
        groups: status.groups.iter().map(group_status).collect(),
        storage: storage(&status.storage),
        http,
    }
}

pub(super) fn group_status(group: &GroupStatus) -> laneway_wire::GroupStatus {
    laneway_wire::GroupStatus {
        partition: group.partition.to_string(),
        term: group.term,
        leader: group.leader,
        leads: group.leads,
        last_index: group.last_index,
        commit_index: group.commit_index,
        applied_index: group.applied_index,
        checkpoint_index: group.checkpoint_index,
        stopped: group.stopped.clone(),
    }
}

pub(super) fn storage(storage: &StorageStatus) -> laneway_wire::StorageStatus {
    laneway_wire::StorageStatus {
        wal_bytes: storage.wal_bytes,
        backlog_bytes: storage.backlog_bytes,
        backlog_live_bytes: storage.backlog_live_bytes,
        dedup_bytes: storage.dedup_bytes,
        checkpoint_bytes: storage.checkpoint_bytes,
        wal_syncs: storage.wal_syncs,
    }
}

fn group_digest(digest: &GroupDigest) -> laneway_wire::GroupDigest {
    laneway_wire::GroupDigest {
        partition: digest.partition.to_string(),
        applied_index: digest.applied_index,
        digest: format!("{:016x}", digest.digest),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use laneway_core::ids::PartitionId;

    use super::*;

    #[test]
    fn only_loopback_peers_pass() {
        let check = |peer: Option<&str>| {
            let mut request = Request::new(Body::empty());
            if let Some(peer) = peer {
                request
                    .extensions_mut()
                    .insert(ConnectInfo(peer.parse::<SocketAddr>().unwrap()));
            }
            is_near(&request)
        };
        for near in ["127.0.0.1:5", "127.9.9.9:5", "[::1]:5", "[::ffff:127.0.0.1]:5"] {
            assert!(check(Some(near)), "{near}");
        }
        for far in [
            None,
            Some("10.0.0.1:5"),
            Some("0.0.0.0:5"),
            Some("[fe80::1]:5"),
            Some("[::ffff:10.0.0.1]:5"),
        ] {
            assert!(!check(far), "{far:?}");
        }
    }

    #[test]
    fn digest_is_shown_in_hex() {
        let digest = GroupDigest {
            partition: PartitionId::CATALOG,
            applied_index: 9,
            digest: 0xab,
        };
        assert_eq!(
            serde_json::to_string(&group_digest(&digest)).unwrap(),
            r#"{"partition":"catalog","applied_index":9,"digest":"00000000000000ab"}"#
        );
    }
}
