//! `laneway dev --nodes N`: a cluster of processes of this binary on this machine, looked after by their parent.
//!
//! **Invariants.** Nothing is started, and no file made, while a port is taken. A node that ends is started again after
//! [`RESTART_PAUSE`]; the parent ends when all nodes have. A node whose parent is gone stops by itself: it reads the pipe
//! that is its standard input, and the pipe ends with the parent, however that died.
//!
//! What the parent has to say goes to standard output, the nodes' log lines to standard error, each with its node.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::logging::LogFormat;
use crate::run::{Signals, raise_open_files};
use lines::{Prefix, forward};
pub(crate) use plan::refuse_data_of_several;
use plan::{Plan, PlannedNode};

mod lines;
mod plan;

/// Most nodes of a development cluster.
pub const DEV_NODES_MAX: u16 = 9;

/// Between the end of a node and its next start.
const RESTART_PAUSE: Duration = Duration::from_secs(2);

/// Longest time that a node gets to stop, more than it takes with default settings.
const STOP_WAIT: Duration = Duration::from_secs(30);

/// What `laneway dev --nodes` is started with.
#[derive(Debug)]
pub struct DevNodes {
    /// Folder of all nodes' folders.
    pub data: PathBuf,
    /// Number of nodes, from 1 to [`DEV_NODES_MAX`].
    pub nodes: u16,
    /// HTTP address of the first one; the others have the ports after it.
    pub listen: SocketAddr,
    /// Number of partitions of new data.
    pub partitions: Option<u16>,
    /// Form of the nodes' log lines.
    pub log_format: LogFormat,
}

/// What the nodes' keepers are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Run,
    /// Ask nicely, wait for [`STOP_WAIT`].
    Stop,
    /// At once.
    Kill,
}

/// Runs the nodes until SIGTERM or SIGINT.
///
/// Errors: one line that says why nothing was started and what to do.
pub fn run(options: &DevNodes) -> Result<()> {
    raise_open_files();
    let plan = Plan::new(options)?;
    let (_lock, notes) = plan.prepare()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime
        .context("cannot start the runtime")?
        .block_on(supervise(plan, options.log_format, notes))
}

async fn supervise(plan: Plan, log_format: LogFormat, notes: Vec<String>) -> Result<()> {
    // Before there is anything to stop.
    let mut signals = Signals::watch(false)?;
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let (phase, phases) = watch::channel(Phase::Run);
    let mut keepers = JoinSet::new();
    for node in plan.nodes {
        let keeper = Keeper {
            program: program.clone(),
            node,
            log_format,
            phases: phases.clone(),
        };
        // The first one here, so that a program that cannot be started is told at once and in order.
        let running = keeper.start()?;
        say(format_args!("{}", running.started()));
        keepers.spawn(keeper.keep(running));
    }
    for note in notes {
        say(note);
    }
    let count = keepers.len();
    say(format_args!("{count} node(s) started; Ctrl-C stops them"));
    let mut next = Phase::Stop;
    loop {
        tokio::select! {
            signal = signals.next() => {
                match next {
                    Phase::Stop => say(format_args!("{signal}: stopping all nodes; once more kills them")),
                    _ => say(format_args!("{signal}: killing all nodes")),
                }
                phase.send_replace(next);
                next = Phase::Kill;
            }
            ended = keepers.join_next() => match ended {
                Some(ended) => ended.context("a keeper of a node panicked")?,
                None => break,
            },
        }
    }
    say("stopped");
    Ok(())
}

/// Looks after one node.
struct Keeper {
    program: PathBuf,
    node: PlannedNode,
    log_format: LogFormat,
    phases: watch::Receiver<Phase>,
}

/// A started process.
struct Running {
    child: Child,
    pid: u32,
    number: u16,
    url: String,
    /// Never written to: it ends when this process does, and the node with it.
    _pipe: Option<tokio::process::ChildStdin>,
}

impl Running {
    fn started(&self) -> String {
        format!("node {}: {}, pid {}", self.number, self.url, self.pid)
    }
}

impl Keeper {
    fn start(&self) -> Result<Running> {
        let number = self.node.number;
        let log_format = match self.log_format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        let mut command = Command::new(&self.program);
        command
            .args([
                "serve",
                "--until-input-ends",
                "--log-format",
                log_format,
                "--config",
            ])
            .arg(&self.node.file)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            // Ctrl-C is for the parent, which then stops each.
            .process_group(0)
            .kill_on_drop(true);
        let started = command.spawn();
        let mut child =
            started.with_context(|| format!("node {number}: cannot start {}", self.program.display()))?;
        let pid = child.id().context("a process without an id")?;
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(forward(stderr, Prefix::new(number, self.log_format)));
        }
        Ok(Running {
            pid,
            number,
            url: format!("http://{}", self.node.http),
            _pipe: child.stdin.take(),
            child,
        })
    }

    /// Starts it again whenever it ends, until told to stop.
    async fn keep(mut self, mut running: Running) {
        loop {
            let ended = tokio::select! {
                status = running.child.wait() => said(status),
                phase = told(&mut self.phases) => return self.stop(running, phase).await,
            };
            let before = format!("pid {} ended with {ended}", running.pid);
            let seconds = RESTART_PAUSE.as_secs();
            say(format_args!(
                "node {}: {before}; it starts again in {seconds} s",
                self.node.number
            ));
            running = loop {
                tokio::select! {
                    () = tokio::time::sleep(RESTART_PAUSE) => {}
                    _ = told(&mut self.phases) => return,
                }
                match self.start() {
                    Ok(running) => break running,
                    Err(error) => say(format_args!("{error:#}; next try in {seconds} s")),
                }
            };
            say(format_args!("{} (restarted: {before})", running.started()));
        }
    }

    async fn stop(mut self, mut running: Running, phase: Phase) {
        let (number, pid) = (running.number, running.pid);
        if phase == Phase::Stop {
            terminate(pid);
            let killed = self.phases.wait_for(|phase| *phase == Phase::Kill);
            let stopped = tokio::select! {
                status = timeout(STOP_WAIT, running.child.wait()) => status.ok(),
                _ = killed => None,
            };
            match stopped {
                Some(status) => {
                    let status = said(status);
                    return say(format_args!("node {number}: stopped, {status}"));
                }
                None if *self.phases.borrow() == Phase::Kill => {}
                None => say(format_args!(
                    "node {number}: pid {pid} did not stop within {} s",
                    STOP_WAIT.as_secs()
                )),
            }
        }
        // An error means that it has ended by itself.
        let _ = running.child.start_kill();
        let status = said(running.child.wait().await);
        say(format_args!("node {number}: pid {pid} was killed, {status}"));
    }
}

/// Resolves when the nodes are to end; a parent that is gone says so, too.
async fn told(phases: &mut watch::Receiver<Phase>) -> Phase {
    match phases.wait_for(|phase| *phase != Phase::Run).await {
        Ok(phase) => *phase,
        Err(_) => Phase::Kill,
    }
}

fn terminate(pid: u32) {
    use rustix::process::{Pid, Signal, kill_process};
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It is not waited for yet, so the id is still its own; an error means that it has ended by itself.
        let _ = kill_process(pid, Signal::TERM);
    }
}

fn said(status: std::io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => status.to_string(),
        Err(error) => format!("an unknown status ({error})"),
    }
}

/// One line of standard output.
fn say(line: impl std::fmt::Display) {
    // Nobody need listen: a closed standard output stops no node.
    let _ = writeln!(std::io::stdout(), "{line}");
}
