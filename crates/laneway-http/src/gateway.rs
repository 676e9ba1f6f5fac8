//! What all handlers share.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use laneway_node::Node;
use laneway_wire::limits::REQUEST_ID_HEADER;
use tokio::sync::watch;
use tracing::{Instrument, debug_span};

use crate::body::{BodyReader, Received};
use crate::counts::{Counts, Verb};
use crate::error::{ApiError, Failure};
use crate::failure_log::FailureLog;
use crate::options::HttpOptions;

/// State of the gateway. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Gateway(Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) node: Node,
    pub(crate) options: HttpOptions,
    pub(crate) bodies: BodyReader,
    pub(crate) counts: Counts,
    pub(crate) failures: FailureLog,
    closing: watch::Receiver<bool>,
}

impl Deref for Gateway {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Gateway {
    /// `closing` turns true when the server shuts down.
    pub(crate) fn new(node: Node, options: HttpOptions, closing: watch::Receiver<bool>) -> Self {
        Self(Arc::new(Shared {
            node,
            bodies: BodyReader::new(&options),
            options,
            counts: Counts::new(),
            failures: FailureLog::default(),
            closing,
        }))
    }

    /// Whether the server shuts down.
    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Resolves when the server shuts down. Cancel safe.
    pub(crate) async fn closing(&self) {
        let mut closing = self.closing.clone();
        // An error means that the server is gone already.
        let _ = closing.wait_for(|closing| *closing).await;
    }

    /// Receives the body of a request.
    pub(crate) async fn receive(&self, request: Request) -> Result<(Parts, Received), ApiError> {
        let (parts, body) = request.into_parts();
        let received = self.bodies.read(&parts.headers, body).await?;
        Ok((parts, received))
    }

    /// Counts an answer, and logs the failure that it may be.
    pub(crate) fn counted(&self, verb: Verb, response: Response) -> Response {
        self.counts.answered(verb, response.status().as_u16());
        if let Some(failure) = response.extensions().get::<Failure>() {
            self.failures.note(verb, failure);
        }
        response
    }
}

/// Middleware of every route: counts and logs its answers.
pub(crate) async fn observe(
    State((gateway, verb)): State<(Gateway, Verb)>,
    request: Request,
    next: Next,
) -> Response {
    let request_id = request
        .headers()
        .get(REQUEST_ID_HEADER)
        .and_then(|value| value.to_str().ok());
    let span = debug_span!("request", verb = verb.name(), request_id);
    let response = next.run(request).instrument(span).await;
    gateway.counted(verb, response)
}
