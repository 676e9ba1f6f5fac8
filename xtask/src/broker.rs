//! A release build of the broker, running for a task.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::repo;

/// A running broker on a free port with a fresh data directory; ends, and its files go, when dropped.
pub(crate) struct Broker {
    child: Child,
    folder: PathBuf,
    /// Its base address.
    pub(crate) url: String,
}

impl Broker {
    /// Starts one and waits until it listens. `task` names its folder under the target folder.
    pub(crate) fn start(task: &str, binary: &Path) -> Result<Self> {
        let folder = scratch(task)?;
        let log = fs::File::create(folder.join("broker.log"))?;
        let mut command = Command::new(binary);
        command
            .args(["dev", "--listen", "127.0.0.1:0", "--log-format", "json", "--data"])
            .arg(folder.join("data"));
        let mut child = command
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the broker")?;
        let stderr = child.stderr.take().expect("it is piped");
        let mut broker = Self {
            child,
            folder,
            url: String::new(),
        };
        broker.url = follow(BufReader::new(stderr), log)?;
        Ok(broker)
    }

    /// Where its log is, while it runs.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("broker.log")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A fresh, empty folder under the target folder.
pub(crate) fn scratch(task: &str) -> Result<PathBuf> {
    let folder = repo::target_dir()
        .join("xtask")
        .join(format!("{task}-{}", std::process::id()));
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Reads the log up to the line that names the address; a thread writes that and the rest to `log`.
fn follow(mut stderr: impl BufRead + Send + 'static, mut log: fs::File) -> Result<String> {
    use std::io::Write;
    let mut line = String::new();
    let mut seen = String::new();
    loop {
        line.clear();
        if stderr.read_line(&mut line)? == 0 {
            bail!("the broker did not start: {seen}");
        }
        log.write_all(line.as_bytes())?;
        seen.push_str(&line);
        let event: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        let fields = &event["fields"];
        if fields["message"] == "listening" {
            let address = fields["address"].as_str().context("the log names no address")?;
            let url = format!("http://{address}");
            std::thread::spawn(move || std::io::copy(&mut stderr, &mut log));
            return Ok(url);
        }
    }
}
