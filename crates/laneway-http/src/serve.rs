//! Connections: accepting, bounding and ending them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use laneway_node::Node;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::{debug, error, warn};

use crate::gateway::Gateway;
use crate::options::HttpOptions;
use crate::routes;

/// Pause after a failed accept that says something of this process (no file descriptors left), not of one peer.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Serves the API of `node` on `listener` until `shutdown` resolves.
///
/// Then it accepts no more, answers waiting pops with 204 at once, lets running requests finish for
/// [`HttpOptions::shutdown_timeout`], and returns. The node is not shut down. Cancel safety: dropping the future cuts every
/// connection. Errors: none for now; a failed accept is logged and tried again.
pub async fn serve(
    listener: TcpListener,
    node: Node,
    options: HttpOptions,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let (close, closing) = watch::channel(false);
    let gateway = Gateway::new(node, options, closing.clone());
    let router = routes::router(&gateway);
    let permits = Arc::new(Semaphore::new(
        gateway.options.connections_max.clamp(1, Semaphore::MAX_PERMITS),
    ));
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(ended) = connections.join_next() => report(ended),
            (stream, peer, permit) = accept(&listener, &permits) => {
                let connection = Connection { stream, peer, gateway: gateway.clone(), router: router.clone() };
                let closing = closing.clone();
                connections.spawn(async move {
                    connection.run(closing).await;
                    drop(permit);
                });
            }
        }
    }
    drop(listener);
    close.send_replace(true);
    let drained = timeout(gateway.options.shutdown_timeout, async {
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    });
    if drained.await.is_err() {
        warn!(connections = connections.len(), "connections cut at shutdown");
        connections.shutdown().await;
    }
    Ok(())
}

/// The next connection, once there is room for it. Cancel safe.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    let permit = Arc::clone(permits)
        .acquire_owned()
        .await
        .expect("the semaphore is never closed");
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return (stream, peer, permit),
            Err(error) if concerns_peer(&error) => debug!(%error, "connection lost before it was accepted"),
            Err(error) => {
                warn!(%error, "cannot accept connections");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

fn concerns_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

fn report(ended: Result<(), JoinError>) {
    if let Err(failed) = ended
        && failed.is_panic()
    {
        error!(error = %failed, "a request handler panicked");
    }
}

struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    gateway: Gateway,
    router: Router,
}

impl Connection {
    async fn run(self, mut closing: watch::Receiver<bool>) {
        let Self {
            stream,
            peer,
            gateway,
            router,
        } = self;
        let _open = Open::new(&gateway);
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%peer, %error, "cannot set nodelay");
        }
        let router = TowerToHyperService::new(router);
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            router.call(request)
        });
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(gateway.options.head_read_timeout)
                .serve_connection(TokioIo::new(stream), service)
        );
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = closed(&mut closing) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            debug!(%peer, %error, "connection ended");
        }
    }
}

/// Resolves when the server shuts down, or is gone.
async fn closed(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Counts an open connection.
struct Open<'a>(&'a Gateway);

impl<'a> Open<'a> {
    fn new(gateway: &'a Gateway) -> Self {
        gateway.counts.connections.fetch_add(1, Ordering::Relaxed);
        Self(gateway)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.counts.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
