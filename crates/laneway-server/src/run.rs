//! A node from start to stop: port, data, HTTP, signals.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use laneway_node::Node;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::config::Config;

/// File descriptors wanted: one per client connection, and the node's files.
const OPEN_FILES_WANTED: u64 = 65_536;

/// How often the node is asked whether its log still works.
const FAILURE_LOOK_EVERY: Duration = Duration::from_millis(200);

/// Runs a node until SIGTERM or SIGINT.
///
/// Errors: one line that says why the node did not start and what to do.
pub fn run(config: Config) -> Result<()> {
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime
        .context("cannot start the runtime")?
        .block_on(serve(config))
}

async fn serve(config: Config) -> Result<()> {
    let Config {
        listen,
        node: options,
        http,
    } = config;
    info!(version = env!("CARGO_PKG_VERSION"), data_dir = %options.data_dir.display(), "laneway starts");
    // The port comes first: when it is taken nothing on disk is touched.
    let listener = bind(listen).await?;
    let address = listener.local_addr().context("the listener has no address")?;
    let (node, recovered) = Node::start(options)
        .await
        .map_err(|refusal| anyhow!("{refusal}"))?;
    info!(%recovered, "recovered");
    let (stop, stopped) = oneshot::channel();
    let serving = tokio::spawn(laneway_http::serve(listener, node.clone(), http, async move {
        // A sender that is gone means stop, too.
        let _ = stopped.await;
    }));
    info!(%address, "listening");
    let failure = tokio::select! {
        signal = wait_for_signal() => {
            info!(signal = signal?, "stopping");
            None
        }
        failure = wait_for_failure(&node) => Some(failure),
    };
    let _ = stop.send(());
    let served = serving.await;
    node.shutdown().await;
    served
        .context("the gateway panicked")?
        .context("the gateway failed")?;
    if let Some(failure) = failure {
        bail!("{failure}: everything acknowledged is on disk; mend the disk and start again");
    }
    info!("stopped");
    Ok(())
}

async fn bind(listen: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(listen)
        .await
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                anyhow!("{listen} is in use: stop the process that listens there or choose another address")
            }
            _ => anyhow!("cannot listen on {listen}: {error}: choose an address of this machine"),
        })
}

async fn wait_for_signal() -> Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch SIGINT")?;
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}

/// Resolves when the node's log has failed, with the reason: nothing works from then on.
async fn wait_for_failure(node: &Node) -> String {
    let mut looks = tokio::time::interval(FAILURE_LOOK_EVERY);
    loop {
        looks.tick().await;
        if let Some(failure) = node.failure() {
            return failure;
        }
    }
}

/// Takes as many file descriptors as the hard limit gives, up to [`OPEN_FILES_WANTED`].
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(OPEN_FILES_WANTED, |maximum| maximum.min(OPEN_FILES_WANTED));
    if current.is_none_or(|current| current >= wanted) {
        return;
    }
    if let Err(error) = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(wanted),
            maximum,
        },
    ) {
        warn!(%error, wanted, "limit of open files stays low");
    }
}
