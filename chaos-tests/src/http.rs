//! One keep-alive HTTP/1.1 connection, used by one task at a time.
//!
//! The task that waits for an answer also drives the connection: no task of its own, no wake-ups between tasks, so that the
//! generator costs as little as it can beside the broker it measures.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Header by which the outcome of a write is kept for its repeat.
pub const REQUEST_ID_HEADER: &str = "x-laneway-request-id";

type Driver = http1::Connection<TokioIo<TcpStream>, Full<Bytes>>;

/// One request.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// GET, POST or DELETE.
    pub method: Method,
    /// Path with query, percent-encoded.
    pub path: &'a str,
    /// JSON, or empty.
    pub body: Bytes,
    /// Sent as [`REQUEST_ID_HEADER`].
    pub request_id: Option<&'a str>,
    /// For connecting, sending and the whole answer.
    pub deadline: Duration,
}

impl<'a> Call<'a> {
    /// A GET.
    pub fn get(path: &'a str, deadline: Duration) -> Self {
        Self {
            method: Method::GET,
            path,
            body: Bytes::new(),
            request_id: None,
            deadline,
        }
    }

    /// A POST.
    pub fn post(path: &'a str, body: impl Into<Bytes>, deadline: Duration) -> Self {
        Self {
            method: Method::POST,
            path,
            body: body.into(),
            request_id: None,
            deadline,
        }
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Body, whole.
    pub body: Bytes,
}

impl Answer {
    /// Status and the beginning of the body, for a message.
    pub fn brief(&self) -> String {
        let shown = &self.body[..self.body.len().min(300)];
        format!("{} {}", self.status, String::from_utf8_lossy(shown))
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No byte of the request left: it has surely no effect.
    #[error("not sent: {0}")]
    NotSent(String),
    /// The connection broke; it may have arrived.
    #[error("no answer: {0}")]
    Broken(String),
    /// Nothing came in time; it may have arrived.
    #[error("no answer: {0}")]
    Silent(String),
}

/// A connection that is opened when first needed and again after it broke.
#[derive(Debug)]
pub struct Connection {
    authority: Arc<str>,
    open: Option<Open>,
}

struct Open {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: Pin<Box<Driver>>,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Open")
    }
}

impl Connection {
    /// To `authority` (`host:port`); connects with the first call.
    pub fn new(authority: impl Into<Arc<str>>) -> Self {
        Self {
            authority: authority.into(),
            open: None,
        }
    }

    /// Sends one request and waits for its whole answer.
    ///
    /// Cancel safety: dropping the future closes the connection; the request may have taken effect.
    pub async fn call(&mut self, call: Call<'_>) -> Result<Answer, CallError> {
        let started = tokio::time::Instant::now();
        let open = match tokio::time::timeout(call.deadline, self.take_open()).await {
            Ok(open) => open.map_err(|error| CallError::NotSent(error.to_string()))?,
            Err(_) => return Err(CallError::NotSent("no connection within the deadline".to_owned())),
        };
        let request = self.request(&call)?;
        let left = call.deadline.saturating_sub(started.elapsed());
        match tokio::time::timeout(left, exchange(open, request)).await {
            Ok(Ok((answer, open))) => {
                self.open = open;
                Ok(answer)
            }
            Ok(Err(error)) => Err(CallError::Broken(error.to_string())),
            Err(_) => Err(CallError::Silent(format!("nothing within {:?}", call.deadline))),
        }
    }

    fn request(&self, call: &Call<'_>) -> Result<Request<Full<Bytes>>, CallError> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(call.path)
            .header(header::HOST, &*self.authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(id) = call.request_id {
            request = request.header(REQUEST_ID_HEADER, id);
        }
        request
            .body(Full::new(call.body.clone()))
            .map_err(|error| CallError::NotSent(error.to_string()))
    }

    async fn take_open(&mut self) -> std::io::Result<Open> {
        if let Some(mut open) = self.open.take() {
            // Did the other side close it while nobody looked?
            let alive = poll_fn(|context| Poll::Ready(open.driver.as_mut().poll(context).is_pending())).await;
            if alive && !open.sender.is_closed() {
                return Ok(open);
            }
        }
        let stream = TcpStream::connect(&*self.authority).await?;
        stream.set_nodelay(true)?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(std::io::Error::other)?;
        Ok(Open {
            sender,
            driver: Box::pin(driver),
        })
    }
}

/// Drives the connection until the answer is whole; gives the connection back if it is still open.
async fn exchange(open: Open, request: Request<Full<Bytes>>) -> Result<(Answer, Option<Open>), hyper::Error> {
    let Open {
        mut sender,
        mut driver,
    } = open;
    let mut asking = Box::pin(async move {
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        Ok::<_, hyper::Error>((Answer { status, body }, sender))
    });
    tokio::select! {
        asked = &mut asking => {
            let (answer, sender) = asked?;
            Ok((answer, Some(Open { sender, driver })))
        }
        _ended = driver.as_mut() => {
            // While the driver lives, even ended, the other side waits for it.
            drop(driver);
            let (answer, _) = asking.await?;
            Ok((answer, None))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeBroker;

    const DEADLINE: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn connection_is_reused_and_reopened_after_a_close() {
        let fake = FakeBroker::start(|request| (200, format!("{} {}", request.method, request.path))).await;
        let mut connection = Connection::new(fake.address());
        for _ in 0..3 {
            let answer = connection.call(Call::get("/health", DEADLINE)).await.unwrap();
            assert_eq!((answer.status, &answer.body[..]), (200, &b"GET /health"[..]));
        }
        assert_eq!(fake.connections(), 1);
        fake.drop_connections();
        let asked = std::time::Instant::now();
        let answer = connection.call(Call::post("/x?y=1", "{}", DEADLINE)).await;
        assert!(
            asked.elapsed() < DEADLINE,
            "a closed connection answers nothing, and at once"
        );
        // Either the close was seen before sending (a new connection) or the request got no answer: never a hang.
        match answer {
            Ok(answer) => assert_eq!(&answer.body[..], b"POST /x?y=1"),
            Err(error) => assert!(matches!(error, CallError::Broken(_))),
        }
        let answer = connection.call(Call::get("/again", DEADLINE)).await.unwrap();
        assert_eq!(&answer.body[..], b"GET /again");
        assert_eq!(fake.connections(), 2);
    }

    #[tokio::test]
    async fn refused_connection_is_not_sent_and_silence_is_no_answer() {
        let fake = FakeBroker::start(|_| (0, String::new())).await; // status 0: the fake keeps silent
        let mut connection = Connection::new(fake.address());
        let error = connection
            .call(Call::get("/", Duration::from_millis(50)))
            .await
            .unwrap_err();
        assert!(matches!(error, CallError::Silent(_)), "{error}");
        let address = fake.address().to_owned();
        fake.stop().await;
        let mut connection = Connection::new(address);
        let error = connection.call(Call::get("/", DEADLINE)).await.unwrap_err();
        assert!(matches!(error, CallError::NotSent(_)), "{error}");
    }
}
