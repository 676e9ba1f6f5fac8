//! `GET /admin/v1/cluster`, `POST /admin/v1/cluster/changes`: answered to peers on the loopback interface only.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use laneway_core::ids::PartitionId;
use laneway_node::{ClusterChange, ClusterStatus};
use laneway_wire::{
    ClusterChangeRequest, ClusterChangeResponse, ClusterGroup, ClusterMember, ClusterNode, ClusterResponse,
    Int,
};

use super::admin::require_loopback;
use crate::error::ApiError;
use crate::gateway::Gateway;
use crate::names::request_id;

pub(crate) async fn status(State(gateway): State<Gateway>, request: Request) -> Result<Response, ApiError> {
    require_loopback(request).await?;
    Ok(super::json(StatusCode::OK, &answer(gateway.node.cluster().await)))
}

pub(crate) async fn change(State(gateway): State<Gateway>, request: Request) -> Result<Response, ApiError> {
    let request = require_loopback(request).await?;
    let (parts, received) = gateway.receive(request).await?;
    // A change is idempotent: the id is checked like on every write, but needs no kept answer.
    request_id(&parts.headers)?;
    let change = parse(&received.bytes)?;
    let done = gateway.node.change_cluster(change).await?;
    let note = if done.changed.is_empty() {
        let is_known = gateway.node.knows_node(change.node());
        Some(note(change, is_known))
    } else {
        None
    };
    let answer = ClusterChangeResponse {
        note,
        changed: done.changed.iter().map(PartitionId::to_string).collect(),
    };
    Ok(super::json(StatusCode::OK, &answer))
}

/// What was so before. `is_known`: the node is in the cluster file.
fn note(change: ClusterChange, is_known: bool) -> String {
    match change {
        ClusterChange::AddNode(node) => format!("node {node} votes in every group already"),
        ClusterChange::RemoveNode(node) if !is_known => format!(
            "node {node} is no member of any group, nor is it in the cluster file of the asked node: is the number right?"
        ),
        ClusterChange::RemoveNode(node) => format!("node {node} is no member of any group"),
        ClusterChange::TransferLeader(None, node) => format!("node {node} leads every group already"),
        ClusterChange::TransferLeader(Some(PartitionId::CATALOG), node) => {
            format!("node {node} leads the catalog already")
        }
        ClusterChange::TransferLeader(Some(group), node) => {
            format!("node {node} leads partition {group} already")
        }
    }
}

/// Reads and checks a body.
pub(crate) fn parse(body: &[u8]) -> Result<ClusterChange, ApiError> {
    let request: ClusterChangeRequest<'_> = crate::json::parse(body)?;
    let Int(number) = request.node;
    let Some(node) = u16::try_from(number).ok().filter(|node| *node > 0) else {
        return Err(ApiError::bad_request("node must be an integer from 1 to 65535"));
    };
    let partition = request.partition.as_deref();
    let change = match request.change.as_str() {
        "add_node" => ClusterChange::AddNode(node),
        "remove_node" => ClusterChange::RemoveNode(node),
        "transfer_leader" => return Ok(ClusterChange::TransferLeader(group(partition)?, node)),
        _ => {
            return Err(ApiError::bad_request(
                "change must be add_node, remove_node or transfer_leader",
            ));
        }
    };
    if partition.is_some() {
        // Nothing else is done by halves: a node has a replica of every group or of none.
        return Err(ApiError::bad_request("partition goes with transfer_leader only"));
    }
    Ok(change)
}

/// A group by the name that answers give it; `None` = all.
fn group(text: Option<&str>) -> Result<Option<PartitionId>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    if text == PartitionId::CATALOG.to_string() {
        return Ok(Some(PartitionId::CATALOG));
    }
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(number) if digits && PartitionId(number) != PartitionId::CATALOG => Ok(Some(PartitionId(number))),
        _ => Err(ApiError::bad_request(
            "partition must be the number of a partition, as text, or catalog",
        )),
    }
}

fn answer(status: ClusterStatus) -> ClusterResponse {
    let node = |node: laneway_node::ClusterNode| ClusterNode {
        node: node.node,
        address: node.address,
        connected: node.connected,
        generation: node.generation,
        trouble: node.trouble,
    };
    let member = |member: laneway_node::ClusterMember| ClusterMember {
        node: member.node,
        generation: member.generation,
        voter: member.voter,
        matched: member.matched,
    };
    let group = |group: laneway_node::ClusterGroup| ClusterGroup {
        partition: group.partition.to_string(),
        term: group.term,
        leader: group.leader,
        members: group.members.into_iter().map(member).collect(),
    };
    // As other answers have it: the catalog first.
    let (catalog, partitions): (Vec<_>, Vec<_>) = status
        .groups
        .into_iter()
        .partition(|group| group.partition == PartitionId::CATALOG);
    ClusterResponse {
        cluster: status.cluster,
        cluster_id: status.cluster_id,
        node: status.node,
        nodes: status.nodes.into_iter().map(node).collect(),
        groups: catalog.into_iter().chain(partitions).map(group).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read() {
        let check = |body: &str, wanted| assert_eq!(parse(body.as_bytes()).unwrap(), wanted, "{body}");
        check(r#"{"change":"add_node","node":2}"#, ClusterChange::AddNode(2));
        check(
            r#"{"change":"remove_node","node":65535,"partition":null}"#,
            ClusterChange::RemoveNode(65_535),
        );
        check(
            r#"{"change":"transfer_leader","node":1}"#,
            ClusterChange::TransferLeader(None, 1),
        );
        check(
            r#"{"change":"transfer_leader","node":1,"partition":"catalog"}"#,
            ClusterChange::TransferLeader(Some(PartitionId::CATALOG), 1),
        );
        check(
            r#"{"change":"transfer_leader","node":1,"partition":"3"}"#,
            ClusterChange::TransferLeader(Some(PartitionId(3)), 1),
        );
    }

    #[test]
    fn what_was_so_already_is_said() {
        let check = |change, wanted: &str| assert_eq!(note(change, true), wanted);
        assert!(note(ClusterChange::RemoveNode(9), false).ends_with("is the number right?"));
        check(ClusterChange::RemoveNode(9), "node 9 is no member of any group");
        check(ClusterChange::AddNode(2), "node 2 votes in every group already");
        let lead = |group| ClusterChange::TransferLeader(group, 1);
        check(lead(None), "node 1 leads every group already");
        check(lead(Some(PartitionId(3))), "node 1 leads partition 3 already");
        check(
            lead(Some(PartitionId::CATALOG)),
            "node 1 leads the catalog already",
        );
    }

    #[test]
    fn malformed_changes_are_refused() {
        let check = |body: &str, code: &str, text: &str| {
            let error = parse(body.as_bytes()).unwrap_err();
            assert_eq!((error.parts().0, error.parts().1), (400, code), "{body}");
            assert!(error.parts().2.contains(text), "{}", error.parts().2);
        };
        check("{}", "bad_body", "missing field `change`");
        check(r#"{"change":"add_node"}"#, "bad_body", "missing field `node`");
        check(r#"{"change":"add_node","node":"1"}"#, "bad_body", "node");
        check(
            r#"{"change":"grow","node":1}"#,
            "bad_request",
            "add_node, remove_node or",
        );
        for node in ["0", "-1", "65536", "9e18"] {
            let body = format!(r#"{{"change":"add_node","node":{node}}}"#);
            check(&body, "bad_request", "from 1 to 65535");
        }
        check(
            r#"{"change":"add_node","node":1,"partition":"3"}"#,
            "bad_request",
            "transfer_leader only",
        );
        for partition in ["", "+1", "x", "65535", "65536", "-1", "1.0"] {
            let body = format!(r#"{{"change":"transfer_leader","node":1,"partition":"{partition}"}}"#);
            check(&body, "bad_request", "or catalog");
        }
    }
}
