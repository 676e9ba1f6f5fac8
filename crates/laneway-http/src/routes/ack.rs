//! `POST /api/v1/ack` and `POST /api/v1/ack/batch`

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use laneway_core::command::AckStatus;
use laneway_core::reply::AckedItem;
use laneway_node::{AckItem, AckOutcome, AckReply, AckRequest, RequestId};
use laneway_wire::limits::{GROUP_DEFAULT, REASON_BYTES_MAX};
use laneway_wire::{AckBatchRequest, AckResult};

use crate::counts::Verb;
use crate::error::ApiError;
use crate::gateway::Gateway;
use crate::names::{check_group, check_transaction_id, request_id};

pub(crate) async fn single(State(gateway): State<Gateway>, request: Request) -> Result<Response, ApiError> {
    let (parts, received) = gateway.receive(request).await?;
    let request = parse_single(request_id(&parts.headers)?, &received.bytes)?;
    answer(&gateway, request).await
}

pub(crate) async fn batch(State(gateway): State<Gateway>, request: Request) -> Result<Response, ApiError> {
    let (parts, received) = gateway.receive(request).await?;
    let request = parse_batch(request_id(&parts.headers)?, &received.bytes)?;
    answer(&gateway, request).await
}

async fn answer(gateway: &Gateway, request: AckRequest) -> Result<Response, ApiError> {
    let ids: Vec<Arc<str>> = request
        .items
        .iter()
        .map(|item| Arc::clone(&item.transaction_id))
        .collect();
    let replies = if ids.is_empty() {
        Vec::new()
    } else {
        gateway.node.ack(request).await?
    };
    if replies.len() != ids.len() {
        return Err(ApiError::internal(
            "the ack was answered for another number of items",
        ));
    }
    for reply in &replies {
        if let AckOutcome::Refused(error) = &reply.outcome {
            gateway
                .failures
                .note(Verb::Ack, &ApiError::from(error.clone()).failure());
        }
    }
    let results: Vec<AckResult<'_>> = ids
        .iter()
        .zip(&replies)
        .enumerate()
        .map(|(index, (id, reply))| result(index, id, reply))
        .collect();
    Ok(super::json(StatusCode::OK, &results))
}

/// Reads and checks the body of a single ack.
pub(crate) fn parse_single(request_id: Option<RequestId>, body: &[u8]) -> Result<AckRequest, ApiError> {
    let given: laneway_wire::AckRequest<'_> = crate::json::parse(body)?;
    let mut groups = Groups::default();
    Ok(AckRequest {
        request_id,
        items: vec![item(&given, None, &mut groups)?],
    })
}

/// Reads and checks the body of a batch ack.
pub(crate) fn parse_batch(request_id: Option<RequestId>, body: &[u8]) -> Result<AckRequest, ApiError> {
    let given: AckBatchRequest<'_> = crate::json::parse(body)?;
    let mut groups = Groups::default();
    let mut items = Vec::with_capacity(given.acknowledgments.len());
    for ack in &given.acknowledgments {
        items.push(item(ack, given.consumer_group.as_deref(), &mut groups)?);
    }
    Ok(AckRequest { request_id, items })
}

/// Group names, each checked and allocated once as long as it does not change.
#[derive(Default)]
struct Groups(Option<Arc<str>>);

impl Groups {
    fn get(&mut self, name: &str) -> Result<Arc<str>, ApiError> {
        if let Some(last) = &self.0
            && **last == *name
        {
            return Ok(Arc::clone(last));
        }
        check_group(name)?;
        Ok(Arc::clone(self.0.insert(name.into())))
    }
}

fn item(
    given: &laneway_wire::AckItem<'_>,
    group: Option<&str>,
    groups: &mut Groups,
) -> Result<AckItem, ApiError> {
    let own_group = given.consumer_group.as_deref();
    let group = own_group
        .or(group)
        .filter(|group| !group.is_empty())
        .unwrap_or(GROUP_DEFAULT);
    check_transaction_id(|| "transactionId".to_owned(), &given.transaction_id)?;
    let lease_id = given.lease_id.as_deref().filter(|lease| !lease.is_empty());
    let status = match laneway_wire::AckStatus::from_word(given.status.as_deref()) {
        laneway_wire::AckStatus::Completed => AckStatus::Completed,
        laneway_wire::AckStatus::Retry => AckStatus::Retry,
        laneway_wire::AckStatus::Failed => AckStatus::Failed,
        laneway_wire::AckStatus::DeadLetter => AckStatus::DeadLetter,
    };
    Ok(AckItem {
        lane: given.partition_id.parse(),
        transaction_id: given.transaction_id.as_str().into(),
        group: groups.get(group)?,
        status,
        lease_id: lease_id.map(str::parse),
        error: given
            .error
            .as_deref()
            .map(|error| Arc::from(&error[..error.floor_char_boundary(REASON_BYTES_MAX)])),
    })
}

fn result<'a>(index: usize, transaction_id: &'a str, reply: &'a AckReply) -> AckResult<'a> {
    let (error, dlq, noop) = match &reply.outcome {
        AckOutcome::Applied(AckedItem::Done) => (None, false, false),
        AckOutcome::Applied(AckedItem::DeadLettered) => (None, true, false),
        AckOutcome::Applied(AckedItem::Noop) => (None, false, true),
        AckOutcome::Applied(AckedItem::LeaseInvalid) => (Some("invalid or expired lease"), false, false),
        AckOutcome::Applied(AckedItem::Unresolvable) => {
            let text = "transaction is unresolvable, already committed, or acknowledgment is stale";
            (Some(text), false, false)
        }
        AckOutcome::Applied(AckedItem::LaneUnknown) => (Some("partition not found"), false, false),
        AckOutcome::Applied(AckedItem::DeadLetterRejected) => (Some("dlq rejected"), false, false),
        AckOutcome::NotALaneId => (Some("partitionId is not a partition id"), false, false),
        AckOutcome::Refused(error) => (Some(error.message.as_str()), false, false),
    };
    AckResult {
        index,
        transaction_id: Cow::Borrowed(transaction_id),
        success: error.is_none(),
        error: error.map(Cow::Borrowed),
        lease_released: error.is_none() && reply.lease_released,
        dlq,
        noop,
    }
}

#[cfg(test)]
mod tests {
    use laneway_core::ids::{LaneId, ParseIdError};
    use laneway_node::{ErrorClass, RequestError};

    use super::*;

    const LEASE: &str = "019fb305-4c95-7000-8400-000000000007";

    #[test]
    fn optional_fields_may_be_null_or_empty() {
        let body = r#"{"transactionId":"t","partitionId":"17","status":null,"consumerGroup":null,"leaseId":"","error":null,"x":1}"#;
        let request = parse_single(None, body.as_bytes()).unwrap();
        let item = &request.items[0];
        assert_eq!(
            (item.lane, &*item.transaction_id, &*item.group),
            (Ok(LaneId(17)), "t", "__QUEUE_MODE__")
        );
        assert_eq!(
            (item.status, item.lease_id, item.error.is_none()),
            (AckStatus::Completed, None, true)
        );
    }

    #[test]
    fn item_group_beats_batch_group() {
        let body = format!(
            r#"{{"acknowledgments":[
                {{"transactionId":"a","partitionId":"1","status":"failed","leaseId":"{LEASE}","error":"boom"}},
                {{"transactionId":"b","partitionId":"x","status":"Completed","leaseId":"nonsense","consumerGroup":"own"}},
                {{"transactionId":"c","partitionId":"2","consumerGroup":null,"status":"dlq"}}],"consumerGroup":"g"}}"#
        );
        let items = parse_batch(None, body.as_bytes()).unwrap().items;
        assert_eq!(
            items.iter().map(|item| &*item.group).collect::<Vec<_>>(),
            ["g", "own", "g"]
        );
        let statuses: Vec<AckStatus> = items.iter().map(|item| item.status).collect();
        assert_eq!(
            statuses,
            [AckStatus::Failed, AckStatus::Failed, AckStatus::DeadLetter]
        );
        assert_eq!(items[0].lease_id, Some(LEASE.parse()));
        assert_eq!(
            (items[1].lane, items[1].lease_id),
            (Err(ParseIdError), Some(Err(ParseIdError)))
        );
        assert_eq!(items[0].error.as_deref(), Some("boom"));
        assert!(
            parse_batch(None, br#"{"acknowledgments":[]}"#)
                .unwrap()
                .items
                .is_empty()
        );
    }

    #[test]
    fn bad_bodies_are_refused() {
        let check = |body: &str, status: u16, part: &str| {
            for error in [
                parse_single(None, body.as_bytes()).unwrap_err(),
                parse_batch(None, body.as_bytes()).unwrap_err(),
            ] {
                assert_eq!(error.parts().0, status, "{body}");
                assert!(error.parts().2.contains(part), "{}", error.parts().2);
            }
        };
        check("{}", 400, "missing field");
        check("", 400, "EOF");
        check("{", 400, "EOF");
        check(r#"{"transactionId":5,"acknowledgments":5}"#, 400, "invalid type");
        let single = |body: &str| parse_single(None, body.as_bytes()).map(|_| ()).unwrap_err();
        assert!(
            single(r#"{"transactionId":"t"}"#)
                .parts()
                .2
                .contains("partitionId")
        );
        assert!(
            single(r#"{"transactionId":"t","partitionId":17}"#)
                .parts()
                .2
                .contains("bad body at partitionId")
        );
        assert_eq!(
            single(r#"{"transactionId":"t","partitionId":"1","consumerGroup":"a\n"}"#)
                .parts()
                .0,
            400
        );
        let long = "g".repeat(412);
        assert_eq!(
            single(&format!(
                r#"{{"transactionId":"t","partitionId":"1","consumerGroup":"{long}"}}"#
            ))
            .parts()
            .0,
            413
        );
        let long = "t".repeat(65_536);
        assert_eq!(
            single(&format!(r#"{{"transactionId":"{long}","partitionId":"1"}}"#))
                .parts()
                .0,
            413
        );
        let nested = r#"{"acknowledgments":[{"transactionId":"t","partitionId":"1"},{"transactionId":"t","partitionId":"1","status":{}}]}"#;
        let error = parse_batch(None, nested.as_bytes()).unwrap_err();
        assert!(
            error
                .parts()
                .2
                .starts_with("bad body at acknowledgments[1].status: "),
            "{}",
            error.parts().2
        );
    }

    #[test]
    fn long_reasons_are_cut() {
        let body = format!(
            r#"{{"transactionId":"t","partitionId":"1","error":"{}"}}"#,
            "é".repeat(40_000)
        );
        let reason = parse_single(None, body.as_bytes()).unwrap().items[0]
            .error
            .clone()
            .unwrap();
        assert_eq!(reason.len(), REASON_BYTES_MAX - 1);
    }

    #[test]
    fn answers_are_golden() {
        let check = |outcome, lease_released, expected: &str| {
            let reply = AckReply {
                outcome,
                lease_released,
            };
            let result = result(3, "order-1", &reply);
            let start = r#"{"index":3,"transactionId":"order-1","#;
            assert_eq!(
                serde_json::to_string(&result).unwrap(),
                format!("{start}{expected}}}")
            );
        };
        let applied = AckOutcome::Applied;
        check(
            applied(AckedItem::Done),
            true,
            r#""success":true,"error":null,"leaseReleased":true,"dlq":false,"noop":false"#,
        );
        check(
            applied(AckedItem::Done),
            false,
            r#""success":true,"error":null,"leaseReleased":false,"dlq":false,"noop":false"#,
        );
        check(
            applied(AckedItem::DeadLettered),
            true,
            r#""success":true,"error":null,"leaseReleased":true,"dlq":true,"noop":false"#,
        );
        check(
            applied(AckedItem::Noop),
            false,
            r#""success":true,"error":null,"leaseReleased":false,"dlq":false,"noop":true"#,
        );
        let refused = |outcome, text: &str| {
            let rest = r#""leaseReleased":false,"dlq":false,"noop":false"#;
            check(
                outcome,
                true,
                &format!(r#""success":false,"error":"{text}",{rest}"#),
            );
        };
        refused(applied(AckedItem::LeaseInvalid), "invalid or expired lease");
        refused(
            applied(AckedItem::Unresolvable),
            "transaction is unresolvable, already committed, or acknowledgment is stale",
        );
        refused(applied(AckedItem::LaneUnknown), "partition not found");
        refused(applied(AckedItem::DeadLetterRejected), "dlq rejected");
        refused(AckOutcome::NotALaneId, "partitionId is not a partition id");
        let overloaded = RequestError::new(ErrorClass::Overloaded, "overloaded", "why; repeat it");
        refused(AckOutcome::Refused(overloaded), "why; repeat it");
    }
}
