//! One HTTP exchange.

use std::sync::Arc;
use std::time::Duration;

use laneway_wire::ErrorBody;
use laneway_wire::limits::REQUEST_ID_HEADER;
use reqwest::{Method, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{ClientError, Refusal};

/// Longest wait for an answer, beyond a pop's own wait.
const ANSWER_WAIT_DEFAULT: Duration = Duration::from_secs(35);

/// Longest wait for a connection.
const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// Bytes of an unreadable answer that are shown.
const SHOWN_BYTES_MAX: usize = 200;

/// A client of one node. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Arc<str>,
    request_id: Option<Arc<str>>,
    answer_wait: Duration,
}

impl Client {
    /// A client of the node at `base`, such as `http://127.0.0.1:6632`. Connects with the first call.
    pub fn new(base: &str) -> Result<Self, ClientError> {
        let bad = || ClientError::BadUrl { url: base.to_owned() };
        let trimmed = base.trim_end_matches('/');
        let url = reqwest::Url::parse(trimmed).map_err(|_| bad())?;
        if url.scheme() != "http" || url.host_str().is_none() {
            return Err(bad());
        }
        let builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_WAIT)
            .no_proxy();
        let http = builder.build().map_err(|_| bad())?;
        Ok(Self {
            http,
            base: trimmed.into(),
            request_id: None,
            answer_wait: ANSWER_WAIT_DEFAULT,
        })
    }

    /// The same client with a longest wait for answers.
    #[must_use]
    pub fn with_answer_wait(mut self, wait: Duration) -> Self {
        self.answer_wait = wait;
        self
    }

    /// The same client, its calls named by `id` (1 to 64 visible ASCII bytes): the broker keeps the outcome for a while, and a
    /// repeat with the same id gets it instead of being carried out again. Use a new id for each new call.
    #[must_use]
    pub fn with_request_id(&self, id: &str) -> Self {
        Self {
            request_id: Some(id.into()),
            ..self.clone()
        }
    }

    /// The node's base address.
    pub fn base(&self) -> &str {
        &self.base
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        decode(self.send(Method::GET, path, None::<&()>, Duration::ZERO).await?)
    }

    /// A GET whose answer may take `extra` longer; `None` is 204.
    pub(crate) async fn get_waiting<T: DeserializeOwned>(
        &self,
        path: &str,
        extra: Duration,
    ) -> Result<Option<T>, ClientError> {
        let answer = self.send(Method::GET, path, None::<&()>, extra).await?;
        if answer.status == StatusCode::NO_CONTENT {
            Ok(None)
        } else {
            decode(answer).map(Some)
        }
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        decode(self.send(Method::POST, path, Some(body), Duration::ZERO).await?)
    }

    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        decode(
            self.send(Method::DELETE, path, None::<&()>, Duration::ZERO)
                .await?,
        )
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        extra: Duration,
    ) -> Result<Answer, ClientError> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        request = request.timeout(self.answer_wait + extra);
        if let Some(id) = &self.request_id {
            request = request.header(REQUEST_ID_HEADER, &**id);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let failed = |error: &reqwest::Error| self.failed(error);
        let response = request.send().await.map_err(|error| failed(&error))?;
        let status = response.status();
        let retry_after = retry_after(&response);
        let body = response.bytes().await.map_err(|error| failed(&error))?.to_vec();
        let answer = Answer { status, body };
        if status.is_success() {
            Ok(answer)
        } else {
            Err(ClientError::Refused(answer.refusal(retry_after)))
        }
    }

    fn failed(&self, error: &reqwest::Error) -> ClientError {
        let url = self.base.to_string();
        let reason = innermost(error);
        if error.is_connect() || error.is_builder() {
            ClientError::Connect { url, reason }
        } else {
            ClientError::NoAnswer { url, reason }
        }
    }
}

struct Answer {
    status: StatusCode,
    body: Vec<u8>,
}

impl Answer {
    fn refusal(&self, retry_after: Option<u64>) -> Refusal {
        let status = self.status.as_u16();
        match serde_json::from_slice::<ErrorBody>(&self.body) {
            Ok(body) => Refusal {
                status,
                code: body.code,
                message: body.error,
                retry_after,
            },
            Err(_) => Refusal {
                status,
                code: String::new(),
                message: self.shown(),
                retry_after,
            },
        }
    }

    fn shown(&self) -> String {
        let shown = &self.body[..self.body.len().min(SHOWN_BYTES_MAX)];
        String::from_utf8_lossy(shown).into_owned()
    }
}

fn decode<T: DeserializeOwned>(answer: Answer) -> Result<T, ClientError> {
    let unreadable = |error: serde_json::Error| ClientError::BadAnswer {
        status: answer.status.as_u16(),
        reason: format!("{error}: {}", answer.shown()),
    };
    serde_json::from_slice(&answer.body).map_err(unreadable)
}

fn retry_after(response: &Response) -> Option<u64> {
    response.headers().get("retry-after")?.to_str().ok()?.parse().ok()
}

/// What the system says, without the layers above it.
fn innermost(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
