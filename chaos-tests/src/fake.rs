//! A responder for unit tests of the tools: answers what a closure says, with no state of its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What the fake was asked.
pub(crate) struct FakeRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) request_id: Option<String>,
    pub(crate) body: Vec<u8>,
}

type Respond = dyn Fn(FakeRequest) -> (u16, String) + Send + Sync;

/// Listens on a free port of 127.0.0.1 until dropped.
pub(crate) struct FakeBroker {
    address: String,
    accepted: Arc<AtomicUsize>,
    tasks: Arc<Mutex<Vec<JoinHandle<()>>>>,
    listener: JoinHandle<()>,
}

impl FakeBroker {
    pub(crate) async fn start(
        respond: impl Fn(FakeRequest) -> (u16, String) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accepted = Arc::new(AtomicUsize::new(0));
        let tasks = Arc::new(Mutex::new(Vec::new()));
        let respond: Arc<Respond> = Arc::new(respond);
        let accepting = {
            let (accepted, tasks) = (Arc::clone(&accepted), Arc::clone(&tasks));
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    accepted.fetch_add(1, Ordering::Relaxed);
                    let task = tokio::spawn(serve(stream, Arc::clone(&respond)));
                    tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
                }
            })
        };
        Self {
            address,
            accepted,
            tasks,
            listener: accepting,
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn connections(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    pub(crate) fn drop_connections(&self) {
        for task in self
            .tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            task.abort();
        }
    }

    pub(crate) async fn stop(self) {
        self.drop_connections();
        self.listener.abort();
        let _aborted = self.listener.await;
    }
}

async fn serve(stream: TcpStream, respond: Arc<Respond>) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read_request(&mut stream).await {
        let (status, body) = respond(request);
        if status == 0 {
            std::future::pending::<()>().await;
        }
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
        if stream
            .write_all(format!("{head}{body}").as_bytes())
            .await
            .is_err()
        {
            return;
        }
    }
}

async fn read_request(stream: &mut BufReader<TcpStream>) -> Option<FakeRequest> {
    let mut line = String::new();
    if stream.read_line(&mut line).await.ok()? == 0 {
        return None;
    }
    let mut words = line.split_ascii_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut length, mut request_id) = (0, None);
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).await.ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            crate::http::REQUEST_ID_HEADER => request_id = Some(value.to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(FakeRequest {
        method,
        path,
        request_id,
        body,
    })
}
