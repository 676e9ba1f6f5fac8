//! From failure to answer: status, code, `Retry-After`, body and log level, all decided here.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use laneway_node::{ErrorClass, RequestError};
use laneway_wire::{ErrorBody, PopFailure};
use tracing::Level;

/// Seconds after which a client should come back, in `Retry-After` of the retryable failures.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// A request that failed.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    retry: bool,
    level: Level,
    shape: Shape,
}

/// The failure of a response, left among its extensions for the log.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) level: Level,
}

/// What the body looks like.
#[derive(Debug)]
enum Shape {
    /// `{"error","code"}`
    Plain,
    /// `{"error","code","path"}`
    Path(String),
    /// `{"error","code","success":false}`
    Success,
    /// `{"success":false,"error","code","messages":[]}`
    Pop,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            retry: false,
            level: Level::DEBUG,
            shape: Shape::Plain,
        }
    }

    /// The body is not what the route takes.
    pub(crate) fn bad_body(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_body", message)
    }

    /// Path, query, header or a value of the body is not what the route takes.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// Something known, but not built.
    pub(crate) fn not_supported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "not_supported", message)
    }

    /// A name or id is over its bound.
    pub(crate) fn name_too_long(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "name_too_long", message).warned()
    }

    /// The body is over its bound.
    pub(crate) fn payload_too_large(bytes_max: usize) -> Self {
        let message = format!(
            "the body is larger than {bytes_max} bytes, the limit of this broker; split it into several requests"
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message).warned()
    }

    /// The body stopped coming.
    pub(crate) fn body_timeout() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            "the body stopped coming before it was whole; nothing was done, repeat the request",
        )
        .warned()
    }

    /// The caller may not do this.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    /// There is no such object.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// There is no such route.
    pub(crate) fn no_such_route(path: &str) -> Self {
        Self {
            shape: Shape::Path(path.to_owned()),
            ..Self::new(StatusCode::NOT_FOUND, "no_such_route", "not found")
        }
    }

    /// The route is there, but not with this method.
    pub(crate) fn wrong_method(path: &str) -> Self {
        Self {
            shape: Shape::Path(path.to_owned()),
            ..Self::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "method not allowed",
            )
        }
    }

    /// A bound of the gateway was met.
    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        RequestError {
            class: ErrorClass::Overloaded,
            code: "overloaded",
            message: message.into(),
        }
        .into()
    }

    /// A fault of the broker.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        RequestError {
            class: ErrorClass::Internal,
            code: "internal",
            message: message.into(),
        }
        .into()
    }

    fn warned(self) -> Self {
        Self {
            level: Level::WARN,
            ..self
        }
    }

    /// The same failure in the body of the pop routes.
    pub(crate) fn on_pop(self) -> Self {
        Self {
            shape: Shape::Pop,
            ..self
        }
    }

    /// The same failure in the body of the routes whose answers have a `success` key.
    pub(crate) fn with_success_key(self) -> Self {
        Self {
            shape: Shape::Success,
            ..self
        }
    }

    /// Whether the request was refused while its body was still coming.
    pub(crate) fn leaves_body(&self) -> bool {
        matches!(
            self.status,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS
        )
    }

    /// What the log says of it.
    pub(crate) fn failure(&self) -> Failure {
        Failure {
            code: self.code,
            message: self.message.clone(),
            level: self.level,
        }
    }

    #[cfg(test)]
    pub(crate) fn parts(&self) -> (u16, &'static str, &str) {
        (self.status.as_u16(), self.code, &self.message)
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let (status, retry, level) = match error.class {
            ErrorClass::Invalid => (StatusCode::BAD_REQUEST, false, Level::DEBUG),
            ErrorClass::NotFound => (StatusCode::NOT_FOUND, false, Level::DEBUG),
            ErrorClass::Conflict => (StatusCode::CONFLICT, false, Level::DEBUG),
            ErrorClass::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, false, Level::WARN),
            ErrorClass::StorageFull => (StatusCode::INSUFFICIENT_STORAGE, false, Level::WARN),
            ErrorClass::Overloaded => (StatusCode::TOO_MANY_REQUESTS, true, Level::WARN),
            ErrorClass::Unavailable | ErrorClass::OutcomeUnknown => {
                (StatusCode::SERVICE_UNAVAILABLE, true, Level::WARN)
            }
            ErrorClass::Internal => (StatusCode::INTERNAL_SERVER_ERROR, false, Level::ERROR),
        };
        Self {
            status,
            code: error.code,
            message: error.message,
            retry,
            level,
            shape: Shape::Plain,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let failure = self.failure();
        let (error, code) = (self.message, self.code.to_owned());
        let mut response = match self.shape {
            Shape::Plain => Json(ErrorBody {
                error,
                code,
                path: None,
                success: None,
            })
            .into_response(),
            Shape::Path(path) => Json(ErrorBody {
                error,
                code,
                path: Some(path),
                success: None,
            })
            .into_response(),
            Shape::Success => Json(ErrorBody {
                error,
                code,
                path: None,
                success: Some(false),
            })
            .into_response(),
            Shape::Pop => Json(PopFailure {
                success: false,
                error,
                code,
                messages: [],
            })
            .into_response(),
        };
        *response.status_mut() = self.status;
        if self.retry {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        response.extensions_mut().insert(failure);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_one_status() {
        let check = |class, status: u16, retry: bool| {
            let response = ApiError::from(RequestError::new(class, "internal", "text")).into_response();
            assert_eq!(response.status().as_u16(), status, "{class:?}");
            assert_eq!(
                response.headers().contains_key(header::RETRY_AFTER),
                retry,
                "{class:?}"
            );
        };
        check(ErrorClass::Invalid, 400, false);
        check(ErrorClass::NotFound, 404, false);
        check(ErrorClass::Conflict, 409, false);
        check(ErrorClass::TooLarge, 413, false);
        check(ErrorClass::StorageFull, 507, false);
        check(ErrorClass::Overloaded, 429, true);
        check(ErrorClass::Unavailable, 503, true);
        check(ErrorClass::OutcomeUnknown, 503, true);
        check(ErrorClass::Internal, 500, false);
    }
}
