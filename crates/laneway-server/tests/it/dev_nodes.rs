//! `laneway dev --nodes`: processes that are started, restarted and stopped.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::broker::{WAIT_MAX, laneway, output, wait};

/// A running parent; its nodes end with it.
pub(crate) struct Parent {
    child: Child,
    /// Lines of standard output.
    said: Receiver<String>,
    /// Log lines of the nodes.
    logged: Receiver<serde_json::Value>,
    pids: BTreeMap<u64, u32>,
    urls: BTreeMap<u64, String>,
}

/// Sends what `convert` makes of each line.
fn lines<T: Send + 'static>(
    from: impl std::io::Read + Send + 'static,
    convert: impl Fn(String) -> T + Send + 'static,
) -> Receiver<T> {
    let (line_read, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            // A test that failed listens no more.
            let _ = line_read.send(convert(line.unwrap()));
        }
    });
    lines
}

impl Parent {
    /// Starts `nodes` and waits until each listens.
    #[track_caller]
    pub(crate) fn start(data: &Path, nodes: u64) -> Self {
        let mut child = laneway()
            .args(["dev", "--listen", "127.0.0.1:0", "--log-format", "json"])
            .args(["--nodes", &nodes.to_string(), "--data"])
            .arg(data)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = lines(child.stdout.take().unwrap(), |line| line);
        let logged = lines(child.stderr.take().unwrap(), |line| {
            serde_json::from_str(&line).unwrap_or(serde_json::Value::String(line))
        });
        let mut parent = Self {
            child,
            said,
            logged,
            pids: BTreeMap::new(),
            urls: BTreeMap::new(),
        };
        for node in 1..=nodes {
            let line = parent.said(&format!("node {node}: http://127.0.0.1:"));
            parent.pids.insert(node, pid_in(&line));
            parent.urls.insert(node, url_in(&line));
        }
        parent.said(&format!("{nodes} node(s) started"));
        for _ in 0..nodes {
            parent.until_listening();
        }
        parent
    }

    /// Addresses by node.
    pub(crate) fn urls(&self) -> &BTreeMap<u64, String> {
        &self.urls
    }

    /// SIGKILL to a node.
    pub(crate) fn kill(&self, node: u64) {
        signal("-KILL", self.pids[&node]);
    }

    /// Waits until a node that was killed listens again.
    #[track_caller]
    pub(crate) fn until_restarted(&mut self, node: u64) {
        let line = self.said(&format!("node {node}: http://127.0.0.1:"));
        self.pids.insert(node, pid_in(&line));
        assert_eq!(self.until_listening(), node);
    }

    /// Stops all nodes; each must end with code 0.
    #[track_caller]
    pub(crate) fn stop(mut self) {
        self.signal("-TERM");
        for _ in &self.pids {
            let line = self.said("node ");
            assert!(line.ends_with(": stopped, exit status: 0"), "{line}");
        }
        self.said("stopped");
        assert!(wait(&mut self.child).success());
    }

    /// The next line that starts so.
    #[track_caller]
    fn said(&self, start: &str) -> String {
        loop {
            let line = self
                .said
                .recv_timeout(WAIT_MAX)
                .unwrap_or_else(|_| panic!("no line {start:?}"));
            if line.starts_with(start) {
                return line;
            }
        }
    }

    /// The number of the next node that listens.
    #[track_caller]
    fn until_listening(&self) -> u64 {
        loop {
            let event = self.logged.recv_timeout(WAIT_MAX).expect("a node that listens");
            assert_ne!(event["level"], "ERROR", "{event}");
            if event["fields"]["message"] == "listening" {
                return event["node"].as_u64().unwrap();
            }
        }
    }

    fn signal(&self, name: &str) {
        signal(name, self.child.id());
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(name: &str, pid: u32) {
    let sent = Command::new("kill")
        .args([name, &pid.to_string()])
        .status()
        .unwrap();
    assert!(sent.success(), "{name} {pid}");
}

fn pid_in(line: &str) -> u32 {
    let after = line.split_once(", pid ").unwrap().1;
    let digits = after.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    digits.parse().unwrap()
}

fn url_in(line: &str) -> String {
    let after = line.split_once(": ").unwrap().1;
    after.split_once(", pid ").unwrap().0.to_owned()
}

/// Whether the process runs; one that only nobody has waited for does not.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap().trim_start().chars().next();
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

#[test]
fn killed_node_is_started_again_and_all_stop_on_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut parent = Parent::start(&data, 3);
    let killed = parent.pids[&2];
    signal("-KILL", killed);
    let ended = parent.said("node 2: pid");
    let wanted = format!("pid {killed} ended with signal: 9 (SIGKILL); it starts again in 2 s");
    assert!(ended.contains(&wanted), "{ended}");
    let line = parent.said("node 2: http://127.0.0.1:");
    assert!(
        line.contains(&format!("(restarted: pid {killed} ended with signal: 9")),
        "{line}"
    );
    assert_eq!(parent.until_listening(), 2);
    parent.pids.insert(2, pid_in(&line));

    parent.signal("-TERM");
    parent.said("SIGTERM: stopping all nodes");
    for _ in 1..=3 {
        let line = parent.said("node ");
        assert!(line.ends_with(": stopped, exit status: 0"), "{line}");
    }
    parent.said("stopped");
    assert!(wait(&mut parent.child).success());
    assert!(parent.pids.values().all(|pid| !runs(*pid)));

    // The same data serves again.
    let parent = Parent::start(&data, 3);
    parent.signal("-INT");
    parent.said("SIGINT: stopping all nodes");
    parent.said("stopped");
}

#[test]
fn nodes_do_not_outlive_a_killed_parent() {
    let dir = tempfile::tempdir().unwrap();
    let parent = Parent::start(&dir.path().join("data"), 2);
    let pids = parent.pids.clone();
    assert!(pids.values().all(|pid| runs(*pid)));
    parent.signal("-KILL");
    let deadline = std::time::Instant::now() + WAIT_MAX;
    while pids.values().any(|pid| runs(*pid)) {
        assert!(std::time::Instant::now() < deadline, "{pids:?} still run");
        // Nobody here is told of the end of a process that is not a child; this polls for it.
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

#[test]
fn arguments_out_of_range_are_wrong_usage() {
    for nodes in ["0", "10", "-1", "three"] {
        let nodes = format!("--nodes={nodes}");
        assert_eq!(output(&["dev", &nodes]).status.code(), Some(2), "{nodes}");
    }
}

#[test]
fn folder_of_the_other_kind_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let check = |args: &[&str], texts: &[&str]| {
        let output = output(&[&["dev", "--listen", "127.0.0.1:0", "--data", folder], args].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        for text in texts {
            assert!(stderr.contains(text), "{text:?} is not in {stderr:?}");
        }
    };
    fs::create_dir(dir.path().join("node-1")).unwrap();
    fs::write(dir.path().join("node-1/identity"), "").unwrap();
    check(&[], &[folder, "the data of several nodes", "--nodes 1"]);
    fs::rename(dir.path().join("node-1/identity"), dir.path().join("identity")).unwrap();
    check(
        &["--nodes", "3"],
        &[folder, "the data of one node", "node-1", "--data"],
    );
}

#[test]
fn check_config_shows_the_other_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let list =
        "name = \"three\"\n[[nodes]]\nnode = 1\npeer = \"a:7632\"\n[[nodes]]\nnode = 2\npeer = \"b:7632\"\n";
    fs::write(dir.path().join("cluster.toml"), list).unwrap();
    let file = dir.path().join("node.toml");
    fs::write(&file, "node = 2\npeer_listen = \"0.0.0.0:7632\"\n").unwrap();
    let checked = output(&["check-config", file.to_str().unwrap()]);
    let text = String::from_utf8(checked.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        lines[0].contains("ok: cluster three, node 2, listens on 127.0.0.1:6632"),
        "{text}"
    );
    assert!(
        lines[1].starts_with("  listens for other nodes on 0.0.0.0:7632, cluster file "),
        "{text}"
    );
    assert_eq!(lines[2], "  node 1 at a:7632");
}
