//! `POST /api/v1/lease/:leaseId/extend`

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use laneway_core::ids::LeaseId;
use laneway_node::ExtendReply;
use laneway_wire::limits::{EXTEND_SECONDS_DEFAULT, LEASE_SECONDS_MAX};
use laneway_wire::{ExtendRequest, ExtendResponse, Int};

use crate::error::ApiError;
use crate::gateway::Gateway;
use crate::names::{Segments, request_id};
use crate::stamp;

pub(crate) async fn extend(State(gateway): State<Gateway>, request: Request) -> Result<Response, ApiError> {
    let lease_text = Segments::of(request.uri().path()).get(3)?;
    let (parts, received) = gateway.receive(request).await?;
    let lease_ms = parse(&received.bytes)?;
    let request_id = request_id(&parts.headers)?;
    let reply = match lease_text.parse::<LeaseId>() {
        Ok(lease) => gateway.node.extend(request_id, lease, lease_ms).await?,
        // A text that is no lease id is the id of no live lease.
        Err(_) => ExtendReply {
            renewed: 0,
            expires: None,
        },
    };
    Ok(super::json(StatusCode::OK, &answer(lease_text, reply)))
}

/// Reads and checks a body; the length in ms.
pub(crate) fn parse(body: &[u8]) -> Result<u64, ApiError> {
    let request: ExtendRequest = crate::json::parse(body)?;
    let Some(Int(seconds)) = request.seconds else {
        return Ok(EXTEND_SECONDS_DEFAULT * 1000);
    };
    match u64::try_from(seconds) {
        Ok(seconds) if (1..=LEASE_SECONDS_MAX).contains(&seconds) => Ok(seconds * 1000),
        _ => Err(ApiError::bad_request(format!(
            "seconds must be an integer from 1 to {LEASE_SECONDS_MAX}"
        ))),
    }
}

fn answer(lease_id: String, reply: ExtendReply) -> ExtendResponse {
    let expires = reply.expires.filter(|_| reply.renewed > 0).map(stamp::micros);
    ExtendResponse {
        lease_id,
        success: reply.renewed > 0,
        renewed: reply.renewed,
        new_expires_at: expires.clone(),
        expires_at: expires.clone(),
        lease_expires_at: expires,
    }
}

#[cfg(test)]
mod tests {
    use laneway_core::time::WallTime;

    use super::*;

    #[test]
    fn nothing_said_means_sixty_seconds() {
        for body in ["{}", r#"{"seconds":null}"#, r#"{"other":1}"#] {
            assert_eq!(parse(body.as_bytes()).unwrap(), 60_000, "{body}");
        }
        assert_eq!(parse(br#"{"seconds":1}"#).unwrap(), 1000);
        assert_eq!(parse(br#"{"seconds":31536000}"#).unwrap(), 31_536_000_000);
    }

    #[test]
    fn absurd_lengths_are_refused() {
        for bad in ["0", "-1", "9e18", "9223372036854775807", "31536001"] {
            let error = parse(format!(r#"{{"seconds":{bad}}}"#).as_bytes()).unwrap_err();
            assert_eq!(
                error.parts(),
                (
                    400,
                    "bad_request",
                    "seconds must be an integer from 1 to 31536000"
                ),
                "{bad}"
            );
        }
        for bad in ["\"5\"", "1.5", "true", "[]"] {
            let error = parse(format!(r#"{{"seconds":{bad}}}"#).as_bytes()).unwrap_err();
            assert_eq!((error.parts().0, error.parts().1), (400, "bad_body"), "{bad}");
            assert!(
                error.parts().2.starts_with("bad body at seconds: "),
                "{}",
                error.parts().2
            );
        }
    }

    #[test]
    fn answers_are_golden() {
        let text = |reply| serde_json::to_string(&answer("L".to_owned(), reply)).unwrap();
        let at = "2026-07-30T12:34:56.000001Z";
        let expires = Some(WallTime(1_785_414_896_000_001));
        assert_eq!(
            text(ExtendReply { renewed: 2, expires }),
            format!(
                r#"{{"leaseId":"L","success":true,"renewed":2,"newExpiresAt":"{at}","expiresAt":"{at}","lease_expires_at":"{at}"}}"#
            )
        );
        assert_eq!(
            text(ExtendReply {
                renewed: 0,
                expires: None
            }),
            r#"{"leaseId":"L","success":false,"renewed":0,"newExpiresAt":null,"expiresAt":null,"lease_expires_at":null}"#
        );
    }
}
