//! Several nodes of a release build, running for a task.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::broker::scratch;
use crate::repo::{run, say};

/// Longest wait for a node to start, to be ready, or to stop.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Between two looks.
const POLL: Duration = Duration::from_millis(20);

/// Longest wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// `laneway dev --nodes` on free ports with fresh data; ends, and its files go, when dropped.
pub(crate) struct Cluster {
    parent: Child,
    /// Lines of the parent's standard output.
    said: Receiver<String>,
    folder: PathBuf,
    nodes: Vec<Node>,
}

struct Node {
    url: String,
    pid: u32,
}

impl Cluster {
    /// Starts them and waits until each is ready. `task` names their folder under the target folder.
    pub(crate) fn start(task: &str, binary: &Path, nodes: u16) -> Result<Self> {
        let folder = scratch(task)?;
        let log = fs::File::create(folder.join("nodes.log"))?;
        let mut parent = Command::new(binary)
            .args(["dev", "--listen", "127.0.0.1:0", "--nodes", &nodes.to_string()])
            .arg("--data")
            .arg(folder.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let stdout = parent.stdout.take().expect("it is piped");
        let (line_read, said) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Once nobody listens any more, lines are read all the same, so that the parent can write.
                let _ = line_read.send(line);
            }
        });
        let mut cluster = Self {
            parent,
            said,
            folder,
            nodes: Vec::new(),
        };
        for number in 1..=usize::from(nodes) {
            let node = cluster.until_started(number)?;
            cluster.nodes.push(node);
        }
        for number in 1..=usize::from(nodes) {
            cluster.ready(number)?;
        }
        Ok(cluster)
    }

    /// Addresses, node 1 first.
    pub(crate) fn urls(&self) -> Vec<&str> {
        self.nodes.iter().map(|node| node.url.as_str()).collect()
    }

    /// What the nodes have logged, while they run.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("nodes.log")).unwrap_or_default()
    }

    /// `kill -9` of node `number` (from 1).
    pub(crate) fn kill(&self, number: usize) -> Result<()> {
        let node = self.node(number)?;
        say(format_args!("kill -9 of node {number}, pid {}", node.pid));
        run(Command::new("kill").args(["-KILL", &node.pid.to_string()]))
    }

    /// Waits until a node that was killed runs and serves again.
    pub(crate) fn restarted(&mut self, number: usize) -> Result<()> {
        let node = self.until_started(number)?;
        let place = number.checked_sub(1).and_then(|at| self.nodes.get_mut(at));
        *place.with_context(|| format!("there is no node {number}"))? = node;
        self.ready(number)
    }

    fn node(&self, number: usize) -> Result<&Node> {
        let node = number.checked_sub(1).and_then(|at| self.nodes.get(at));
        node.with_context(|| format!("there is no node {number}"))
    }

    /// The next line that tells of a start of the node.
    fn until_started(&self, number: usize) -> Result<Node> {
        let start = format!("node {number}: http://");
        loop {
            let line = self
                .said
                .recv_timeout(WAIT_MAX)
                .with_context(|| format!("node {number} does not start; log:\n{}", self.log()))?;
            if line.starts_with(&start) {
                return started_in(&line).with_context(|| format!("unexpected line: {line}"));
            }
        }
    }

    fn ready(&self, number: usize) -> Result<()> {
        let url = &self.node(number)?.url;
        let started = Instant::now();
        while !is_ready(url) {
            ensure!(
                started.elapsed() < WAIT_MAX,
                "node {number} is not ready after {WAIT_MAX:?}; log:\n{}",
                self.log()
            );
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// SIGTERM to the parent, which stops all nodes.
    fn stop(&mut self) -> Result<()> {
        run(Command::new("kill").args(["-TERM", &self.parent.id().to_string()]))?;
        let started = Instant::now();
        while self.parent.try_wait()?.is_none() {
            if started.elapsed() > WAIT_MAX {
                bail!("the nodes do not stop");
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let ended = matches!(self.parent.try_wait(), Ok(Some(_)));
        if !ended && self.stop().is_err() {
            // Nodes whose parent is gone stop by themselves.
            let _ = self.parent.kill();
            let _ = self.parent.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Reads `node N: URL, pid P`, and what may follow.
fn started_in(line: &str) -> Option<Node> {
    let (_, after) = line.split_once(": ")?;
    let (url, after) = after.split_once(", pid ")?;
    let digits = after.split(|c: char| !c.is_ascii_digit()).next()?;
    Some(Node {
        url: url.to_owned(),
        pid: digits.parse().ok()?,
    })
}

/// Whether `/readyz` says 200.
fn is_ready(url: &str) -> bool {
    ask(url).is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

fn ask(url: &str) -> Result<String> {
    let authority = url.strip_prefix("http://").context("not an http address")?;
    let mut stream = TcpStream::connect(authority)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    write!(
        stream,
        "GET /readyz HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_and_process_are_read_from_the_line_of_a_start() {
        let check = |line, wanted: Option<(&str, u32)>| {
            let node = started_in(line);
            let found = node.as_ref().map(|node| (node.url.as_str(), node.pid));
            assert_eq!(found, wanted, "{line}");
        };
        check(
            "node 2: http://127.0.0.1:6633, pid 17",
            Some(("http://127.0.0.1:6633", 17)),
        );
        check(
            "node 2: http://127.0.0.1:6633, pid 18 (restarted: pid 17 ended with signal: 9)",
            Some(("http://127.0.0.1:6633", 18)),
        );
        check("node 2: pid 17 ended; it starts again in 2 s", None);
        check("3 node(s) started", None);
    }
}
