//! A client that writes requests byte by byte, so that tests can send what no HTTP library would.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than any request of these tests may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// One connection.
#[derive(Debug)]
pub(crate) struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// The body as JSON; null when there is none.
    pub(crate) fn json(&self) -> Value {
        if self.body.is_empty() {
            return Value::Null;
        }
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find_map(|(key, value)| key.eq_ignore_ascii_case(name).then(|| value.trim()))
    }

    /// Insists on a status.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// Insists on an error of the contract's form.
    #[track_caller]
    pub(crate) fn expect_error(self, status: u16, code: &str) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        let body = self.json();
        assert_eq!(body["code"], code, "{self:?}");
        assert!(
            body["error"].as_str().is_some_and(|text| !text.is_empty()),
            "{self:?}"
        );
        self
    }
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            unread: Vec::new(),
        }
    }

    /// Sends bytes as they are.
    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        // The server may have closed already; what it said is read next.
        let _ = self.stream.write_all(bytes).await;
    }

    /// Sends a request with a body (none for `""`) and extra header lines (each ended by CRLF).
    pub(crate) async fn send_with(&mut self, method: &str, target: &str, headers: &str, body: &str) {
        let length = if body.is_empty() {
            String::new()
        } else {
            format!("content-length: {}\r\n", body.len())
        };
        self.write(
            format!("{method} {target} HTTP/1.1\r\nhost: test\r\n{headers}{length}\r\n{body}").as_bytes(),
        )
        .await;
    }

    pub(crate) async fn request(&mut self, method: &str, target: &str, body: &str) -> Answer {
        self.send_with(method, target, "", body).await;
        self.answer(method).await
    }

    /// Reads the next answer.
    pub(crate) async fn answer(&mut self, method: &str) -> Answer {
        self.try_answer(method)
            .await
            .expect("the server closed the connection instead of answering")
    }

    /// Reads the next answer, or `None` when the server closes the connection.
    pub(crate) async fn try_answer(&mut self, method: &str) -> Option<Answer> {
        let head = loop {
            if let Some(end) = find(&self.unread, b"\r\n\r\n") {
                let head: Vec<u8> = self.unread.drain(..end + 4).collect();
                break String::from_utf8(head).unwrap();
            }
            if !self.read_more().await {
                return None;
            }
        };
        let status: u16 = head[9..12].parse().unwrap();
        let mut answer = Answer {
            status,
            head,
            body: String::new(),
        };
        assert_eq!(answer.header("transfer-encoding"), None, "{answer:?}");
        let length: usize = answer
            .header("content-length")
            .map_or(0, |text| text.parse().unwrap());
        if method != "HEAD" {
            while self.unread.len() < length {
                assert!(self.read_more().await, "cut off after {answer:?}");
            }
            let body: Vec<u8> = self.unread.drain(..length).collect();
            answer.body = String::from_utf8(body).unwrap();
        }
        Some(answer)
    }

    async fn read_more(&mut self) -> bool {
        let read = timeout(PATIENCE, self.stream.read_buf(&mut self.unread))
            .await
            .expect("no answer in time");
        read.is_ok_and(|bytes| bytes > 0)
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
