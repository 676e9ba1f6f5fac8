//! A running `laneway` process for a test.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait for a process to do what it should.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// The binary under test.
pub(crate) fn laneway() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laneway"));
    command.env_remove("LANEWAY_LOG");
    command
}

/// Runs a command line that ends by itself.
#[track_caller]
pub(crate) fn output(args: &[&str]) -> Output {
    let mut child = laneway()
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let status = wait(&mut child);
    let mut output = Output {
        status,
        stdout: Vec::new(),
        stderr: Vec::new(),
    };
    child
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut output.stdout)
        .unwrap();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_end(&mut output.stderr)
        .unwrap();
    output
}

/// `laneway serve` with a data directory; killed when dropped.
pub(crate) struct Broker {
    child: Child,
    log: Arc<Mutex<Vec<serde_json::Value>>>,
    log_ended: Receiver<()>,
    pub(crate) url: String,
    pub(crate) data: PathBuf,
}

impl Broker {
    /// Starts one on a free port and waits until it listens. Log segments are small, so that starts are quick.
    #[track_caller]
    pub(crate) fn start(data: &Path) -> Self {
        Self::start_with(data, &[])
    }

    /// Starts it with more in its environment.
    #[track_caller]
    pub(crate) fn start_with(data: &Path, environment: &[(&str, &str)]) -> Self {
        let folder = data.parent().unwrap();
        let node = format!(
            "listen = \"127.0.0.1:0\"\ndata_dir = {data:?}\n[storage]\nwal_segment_bytes = 1048576\n"
        );
        std::fs::write(folder.join("node.toml"), node).unwrap();
        std::fs::write(folder.join("cluster.toml"), "name = \"dev\"\n").unwrap();
        let mut command = laneway();
        command
            .args(["serve", "--log-format", "json", "--config"])
            .arg(folder.join("node.toml"));
        command.envs(environment.iter().copied());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let (address_found, address) = channel();
        let (log_end, log_ended) = channel();
        let lines = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in stderr.lines() {
                let line = line.unwrap();
                let event = serde_json::from_str(&line).unwrap_or(serde_json::Value::String(line));
                let listening = event["fields"]["message"] == "listening";
                let address = event["fields"]["address"].as_str().unwrap_or_default().to_owned();
                lines.lock().unwrap().push(event);
                if listening {
                    address_found.send(address).unwrap();
                }
            }
            let _ = log_end.send(());
        });
        let Ok(address) = address.recv_timeout(WAIT_MAX) else {
            let _ = child.kill();
            panic!("it does not listen; log: {:#?}", log.lock().unwrap());
        };
        Self {
            child,
            log,
            log_ended,
            url: format!("http://{address}"),
            data: data.to_path_buf(),
        }
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the process to have ended itself, not by an exit code.
    #[cfg(feature = "failpoints")]
    #[track_caller]
    pub(crate) fn aborted(mut self) {
        let status = wait(&mut self.child);
        assert_eq!(status.code(), None, "{status}");
    }

    /// SIGTERM; the process must end soon, with code 0 and no warning or error in its log.
    #[track_caller]
    pub(crate) fn stop(mut self) -> Duration {
        let started = Instant::now();
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .unwrap()
                .success()
        );
        let status = wait(&mut self.child);
        self.log_ended.recv_timeout(WAIT_MAX).unwrap();
        let log = self.log.lock().unwrap();
        assert!(status.success(), "{status}: {log:#?}");
        let loud = |event: &&serde_json::Value| event["level"] != "INFO";
        let loud: Vec<_> = log.iter().filter(loud).collect();
        assert!(loud.is_empty(), "unexpected lines: {loud:#?}");
        started.elapsed()
    }

    /// Messages of the log with their fields.
    pub(crate) fn logged(&self, message: &str) -> Vec<serde_json::Value> {
        let log = self.log.lock().unwrap();
        log.iter()
            .map(|event| &event["fields"])
            .filter(|fields| fields["message"] == message)
            .cloned()
            .collect()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a process to end.
#[track_caller]
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("the process does not end");
        }
        // A child's end has no portable wait with a time-out; this polls for it.
        std::thread::park_timeout(Duration::from_millis(10));
    }
}
