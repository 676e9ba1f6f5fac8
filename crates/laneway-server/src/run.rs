//! A node from start to stop: port, data, HTTP, signals.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use laneway_node::{Node, StartError};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::config::Config;

/// File descriptors wanted: one per client connection, and the node's files.
const OPEN_FILES_WANTED: u64 = 65_536;

/// How often the node is asked whether its log still works.
const FAILURE_LOOK_EVERY: Duration = Duration::from_millis(200);

/// Runs a node until SIGTERM or SIGINT, or, with `until_input_ends`, until standard input ends: a parent process holds the
/// other end, which closes however the parent dies.
///
/// Errors: one line that says why the node did not start and what to do.
pub fn run(config: Config, until_input_ends: bool) -> Result<()> {
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime
        .context("cannot start the runtime")?
        .block_on(serve(config, until_input_ends))
}

async fn serve(config: Config, until_input_ends: bool) -> Result<()> {
    let Config {
        listen,
        node: mut options,
        http,
    } = config;
    options.data_dir = absolute(&options.data_dir);
    // Before anything can refuse to start, so that a report of a refusal has the version.
    info!(version = env!("CARGO_PKG_VERSION"), data_dir = %options.data_dir.display(), "starting");
    // Before anybody may send one: until then it would end the process without a word.
    let mut signals = Signals::watch(until_input_ends)?;
    // The port comes first: when it is taken nothing on disk is touched.
    let listener = bind(listen).await?;
    let address = listener.local_addr().context("the listener has no address")?;
    let (node, recovered) = tokio::select! {
        started = Node::start(options) => started.map_err(|refusal| told(&refusal))?,
        signal = signals.next() => {
            // Nobody was served yet; what the start was doing is as safe as at a crash.
            info!(signal, "stopped while starting");
            return Ok(());
        }
    };
    info!(found = %recovered, "recovered");
    let (stop, stopped) = oneshot::channel();
    let serving = tokio::spawn(laneway_http::serve(listener, node.clone(), http, async move {
        // A sender that is gone means stop, too.
        let _ = stopped.await;
    }));
    info!(%address, "listening");
    let failure = tokio::select! {
        signal = signals.next() => {
            info!(signal, "stopping");
            // While requests are still taken: they go to the new leaders.
            node.hand_over().await;
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
        bail!("{failure}");
    }
    info!("stopped");
    Ok(())
}

/// The refusal as one line.
fn told(refusal: &StartError) -> anyhow::Error {
    match refusal {
        StartError::Io { .. } => {
            anyhow!("{refusal}: the data directory must be a folder that this user may read and write")
        }
        _ => anyhow!("{refusal}"),
    }
}

/// Where a path leads, from the root and without detours. What is not there yet keeps the name that it was given.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    let Ok(full) = std::path::absolute(path) else {
        return path.to_path_buf();
    };
    let real = |ancestor: &Path| {
        let rest = full.strip_prefix(ancestor).ok()?;
        // Joining an empty rest would add a slash.
        let real = ancestor.canonicalize().ok()?;
        Some(if rest.as_os_str().is_empty() {
            real
        } else {
            real.join(rest)
        })
    };
    full.ancestors().find_map(real).unwrap_or_else(|| full.clone())
}

async fn bind(listen: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(listen)
        .await
        .map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => in_use(listen),
            _ => anyhow!("cannot listen on {listen}: {error}: choose an address of this machine"),
        })
}

/// The refusal of an address that somebody has.
pub(crate) fn in_use(address: SocketAddr) -> anyhow::Error {
    anyhow!("{address} is in use: stop the process that listens there or choose another address")
}

/// What asks for a stop.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    input_end: Option<oneshot::Receiver<()>>,
}

impl Signals {
    /// From now on they are kept for [`Signals::next`] instead of ending the process.
    pub(crate) fn watch(until_input_ends: bool) -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot watch SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot watch SIGINT")?,
            input_end: until_input_ends.then(watch_input),
        })
    }

    /// The next one. Cancel safe.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            () = ended(&mut self.input_end) => "end of standard input",
        }
    }
}

/// Reads standard input to its end, on a thread of its own: a read of it can neither be cancelled nor waited for at a stop.
fn watch_input() -> oneshot::Receiver<()> {
    let (end, ended) = oneshot::channel();
    std::thread::spawn(move || {
        // A read that fails is an end, too. The node may have stopped by then.
        drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
        drop(end);
    });
    ended
}

/// Resolves once, when the input has ended.
async fn ended(input_end: &mut Option<oneshot::Receiver<()>>) {
    if let Some(end) = input_end {
        // The sender is only ever dropped.
        let _ = end.await;
        *input_end = None;
    } else {
        std::future::pending().await
    }
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
pub(crate) fn raise_open_files() {
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
