//! One `laneway` process: started, waited for, measured, killed. Only ever this process is ended, by its handle.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::OpenOptions;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rand::Rng;
use rustix::process::{Pid, Signal, kill_process};

use crate::http::{Call, Connection};

/// Ports tried for the broker: below the range from which the kernel takes outgoing ports, so that a client which
/// connects while the broker is down cannot meet itself.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// Partitions of every cluster that is started here.
pub const PARTITIONS: u16 = 4;

/// Between two looks at `/readyz`.
const READY_POLL: Duration = Duration::from_millis(5);

/// How to start a broker, the same way each time.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The `laneway` binary.
    pub binary: PathBuf,
    /// Data directory.
    pub data: PathBuf,
    /// Standard output and error are appended here.
    pub log: PathBuf,
    /// Port on 127.0.0.1.
    pub port: u16,
    /// Which settings.
    pub settings: Settings,
    /// Its place among several nodes; `None` for one alone.
    pub member: Option<Member>,
    /// Besides the environment of this process.
    pub environment: Vec<(String, String)>,
}

/// A node's place in a cluster.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its number.
    pub node: u16,
    /// Ports on 127.0.0.1 at which the nodes take each other's connections, node 1 first.
    pub peers: Arc<[u16]>,
}

/// Settings of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// `laneway dev`: every default.
    Default,
    /// `laneway serve` with storage bounds so small that a few seconds of load recycle WAL segments, write and compact backlog
    /// files, write dedup files and page payload locations out.
    TightStorage,
}

impl Settings {
    /// Bytes of WAL segments that the broker keeps: `wal_segments_max` times `wal_segment_bytes`.
    pub fn wal_pool_bytes(self) -> u64 {
        match self {
            Self::Default => 8 << 26,
            Self::TightStorage => 3 << 20,
        }
    }
}

/// Storage bounds of [`Settings::TightStorage`].
const TIGHT_STORAGE: &str = "[storage]
wal_segment_bytes = 1048576
wal_segments_max = 3
tail_cache_bytes = 262144
checkpoint_ms_max = 300
runs_in_memory_max = 100
dedup_rows_in_memory_max = 5000
";

impl ServerOptions {
    /// A broker with data and log under `dir`, on a free port.
    pub fn under(dir: &Path, binary: PathBuf) -> anyhow::Result<Self> {
        let (data, log) = (dir.join("data"), dir.join("server.log"));
        Ok(Self {
            binary,
            data,
            log,
            port: free_port()?,
            settings: Settings::Default,
            member: None,
            environment: Vec::new(),
        })
    }

    /// `nodes` nodes of one cluster, each with data and log of its own under `dir`.
    pub fn cluster(dir: &Path, binary: &Path, nodes: u16, settings: Settings) -> anyhow::Result<Vec<Self>> {
        let mut ports = BTreeSet::new();
        while ports.len() < usize::from(nodes) * 2 {
            ports.insert(free_port()?);
        }
        let ports: Vec<u16> = ports.into_iter().collect();
        let (peers, own) = ports.split_at(usize::from(nodes));
        let peers: Arc<[u16]> = peers.into();
        let member = |(node, port): (u16, &u16)| Self {
            binary: binary.to_owned(),
            data: dir.join(format!("node-{node}")),
            log: dir.join(format!("node-{node}.log")),
            port: *port,
            settings,
            member: Some(Member {
                node,
                peers: Arc::clone(&peers),
            }),
            environment: Vec::new(),
        };
        Ok((1..).zip(own).map(member).collect())
    }

    /// Writes the two configuration files beside the data; gives the node's.
    fn write_config(&self) -> anyhow::Result<PathBuf> {
        let node = self.data.with_extension("toml");
        let cluster = self.data.with_extension("cluster.toml");
        std::fs::write(&cluster, self.cluster_text())?;
        let data = self.data.display();
        let listen = self.authority();
        let number = self.member.as_ref().map_or(1, |member| member.node);
        let storage = match self.settings {
            Settings::Default => "",
            Settings::TightStorage => TIGHT_STORAGE,
        };
        let text = format!(
            "cluster_file = {:?}\nnode = {number}\nlisten = {listen:?}\ndata_dir = \"{data}\"\n{storage}",
            cluster.display().to_string()
        );
        std::fs::write(&node, text)?;
        Ok(node)
    }

    fn cluster_text(&self) -> String {
        let mut text = format!("name = \"chaos\"\npartitions = {PARTITIONS}\n");
        let peers = self.member.iter().flat_map(|member| member.peers.iter());
        for (node, port) in (1..).zip(peers) {
            let node: u16 = node;
            let _infallible = write!(text, "\n[[nodes]]\nnode = {node}\npeer = \"127.0.0.1:{port}\"\n");
        }
        text
    }

    /// `host:port`.
    pub fn authority(&self) -> Arc<str> {
        format!("127.0.0.1:{}", self.port).into()
    }
}

/// CPU time, memory and writes of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Seconds of its own code since its start.
    pub user_seconds: f64,
    /// Seconds of the kernel on its behalf.
    pub system_seconds: f64,
    /// Bytes that it caused to be written to disks.
    pub written_bytes: u64,
    /// Resident bytes now.
    pub rss_bytes: u64,
    /// Most resident bytes so far.
    pub rss_bytes_peak: u64,
}

impl Usage {
    /// User and system seconds.
    pub fn cpu_seconds(&self) -> f64 {
        self.user_seconds + self.system_seconds
    }
}

/// A running broker; dropped, it is killed.
#[derive(Debug)]
pub struct Server {
    child: Child,
    authority: Arc<str>,
    started: Instant,
    log: PathBuf,
}

impl Server {
    /// Starts the process; it may not be ready yet.
    pub fn start(options: &ServerOptions) -> anyhow::Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(&options.log)?;
        let started = Instant::now();
        let mut command = Command::new(&options.binary);
        match (options.settings, &options.member) {
            (Settings::Default, None) => command
                .arg("dev")
                .arg("--data")
                .arg(&options.data)
                .arg("--listen")
                .arg(&*options.authority()),
            _ => command.arg("serve").arg("--config").arg(options.write_config()?),
        };
        let environment = options.environment.iter().map(|(key, value)| (key, value));
        let child = command
            .envs(environment)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", options.binary.display()))?;
        Ok(Self {
            child,
            authority: options.authority(),
            started,
            log: options.log.clone(),
        })
    }

    /// Waits until `/readyz` says 200, up to `within` from now; gives the time since the start of the process.
    pub async fn ready(&mut self, within: Duration) -> anyhow::Result<Duration> {
        let asked = Instant::now();
        let mut connection = Connection::new(Arc::clone(&self.authority));
        loop {
            if let Ok(answer) = connection
                .call(Call::get("/readyz", Duration::from_secs(1)))
                .await
                && answer.status == 200
            {
                return Ok(self.started.elapsed());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "the broker ended with {status} before it was ready:\n{}",
                    self.log_tail()
                );
            }
            if asked.elapsed() > within {
                bail!("the broker was not ready within {within:?}:\n{}", self.log_tail());
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    /// `host:port`.
    pub fn authority(&self) -> Arc<str> {
        Arc::clone(&self.authority)
    }

    /// Of the process, while it runs.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, then waits for the end. Errors if the process had ended by itself: it should not have.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.begin_kill()?;
        self.end_kill()
    }

    /// Sends SIGKILL and does not wait. Errors if the process had ended by itself.
    pub fn begin_kill(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the broker ended by itself with {status}:\n{}", self.log_tail());
        }
        self.child.kill()?;
        Ok(())
    }

    /// Waits for the end after [`Self::begin_kill`].
    pub fn end_kill(&mut self) -> anyhow::Result<()> {
        self.child.wait()?;
        Ok(())
    }

    /// SIGSTOP: it keeps its connections and answers nothing.
    pub fn freeze(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub fn thaw(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&mut self, signal: Signal) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the broker ended by itself with {status}:\n{}", self.log_tail());
        }
        // It was not waited for, so the id is still its own.
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(id.context("a process has an id above 0")?, signal)?;
        Ok(())
    }

    /// What the process has used, from `/proc`.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        process_usage(self.child.id())
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        const LINES: usize = 30;
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// CPU time, memory and writes of process `id`.
pub fn process_usage(id: u32) -> anyhow::Result<Usage> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
    let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let io = std::fs::read_to_string(format!("/proc/{id}/io"))?;
    let (user, system) = cpu_ticks(&stat).context("unexpected form of /proc/ID/stat")?;
    let per_second = crate::stats::float(rustix::param::clock_ticks_per_second());
    Ok(Usage {
        user_seconds: crate::stats::float(user) / per_second,
        system_seconds: crate::stats::float(system) / per_second,
        written_bytes: io
            .lines()
            .find_map(|line| line.strip_prefix("write_bytes:")?.trim().parse().ok())
            .unwrap_or(0),
        rss_bytes: status_bytes(&status, "VmRSS:").unwrap_or(0),
        rss_bytes_peak: status_bytes(&status, "VmHWM:").unwrap_or(0),
    })
}

/// User and system ticks: fields 14 and 15 of `/proc/ID/stat`, counted after the name, which may hold spaces.
fn cpu_ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn status_bytes(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn free_port() -> anyhow::Result<u16> {
    const TRIES: usize = 100;
    for _ in 0..TRIES {
        let port = rand::rng().random_range(PORTS);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("found no free port in {PORTS:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_and_memory_are_read_from_proc() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194560 100 0 0 0 250 150 0 0 20 0 8 0 1 1 1";
        assert_eq!(cpu_ticks(stat), Some((250, 150)));
        assert_eq!(cpu_ticks("nothing"), None);
        assert_eq!(
            status_bytes("Name:\tx\nVmRSS:\t  2048 kB\n", "VmRSS:"),
            Some(2048 * 1024)
        );
        let own = process_usage(std::process::id()).unwrap();
        assert!(own.rss_bytes > 0 && own.rss_bytes_peak >= own.rss_bytes);
    }
}
