//! The processes of one cluster, and what they say of themselves.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::http::{Call, Connection};
use crate::server::{Server, ServerOptions, Settings};
use crate::workload::client::Address;

/// Longest wait for an answer of an admin route.
const ADMIN_DEADLINE: Duration = Duration::from_secs(3);

/// Between two looks at the same thing.
const POLL: Duration = Duration::from_millis(20);

/// Name of the catalog's group.
pub(crate) const CATALOG: &str = "catalog";

/// What a node says of its groups.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Status {
    pub(crate) groups: Vec<GroupStatus>,
}

/// One group there.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct GroupStatus {
    pub(crate) partition: String,
    pub(crate) term: u64,
    pub(crate) leads: bool,
    pub(crate) commit_index: u64,
    pub(crate) applied_index: u64,
}

/// What a node says of the cluster.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ClusterView {
    pub(crate) groups: Vec<GroupView>,
}

/// One group there.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct GroupView {
    pub(crate) partition: String,
    pub(crate) members: Vec<MemberView>,
}

/// One member there.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct MemberView {
    pub(crate) node: u16,
    pub(crate) generation: String,
    pub(crate) voter: bool,
}

/// A digest as a node gives it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct GroupDigest {
    pub(crate) partition: String,
    pub(crate) applied_index: u64,
    pub(crate) digest: String,
}

#[derive(Debug, Deserialize)]
struct Digests {
    groups: Vec<GroupDigest>,
}

#[derive(Debug)]
struct Slot {
    node: u16,
    options: ServerOptions,
    server: Option<Server>,
    frozen: bool,
}

/// The nodes, numbered from 1; dropped, all are killed.
#[derive(Debug)]
pub(crate) struct Nodes {
    slots: Vec<Slot>,
}

impl Nodes {
    /// Nothing is started yet.
    pub(crate) fn new(dir: &Path, binary: &Path, nodes: u16, settings: Settings) -> anyhow::Result<Self> {
        let options = ServerOptions::cluster(dir, binary, nodes, settings)?;
        let slots = (1..).zip(options).map(|(node, options)| Slot {
            node,
            options,
            server: None,
            frozen: false,
        });
        Ok(Self {
            slots: slots.collect(),
        })
    }

    pub(crate) fn addresses(&self) -> Vec<Address> {
        let address = |slot: &Slot| Address {
            node: slot.node,
            authority: slot.options.authority(),
        };
        self.slots.iter().map(address).collect()
    }

    /// All numbers.
    pub(crate) fn all(&self) -> Vec<u16> {
        self.slots.iter().map(|slot| slot.node).collect()
    }

    /// Those that run and are not frozen.
    pub(crate) fn lively(&self) -> Vec<u16> {
        let lively = self
            .slots
            .iter()
            .filter(|slot| slot.server.is_some() && !slot.frozen);
        lively.map(|slot| slot.node).collect()
    }

    /// The others that are lively.
    pub(crate) fn others(&self, node: u16) -> Vec<u16> {
        self.lively().into_iter().filter(|other| *other != node).collect()
    }

    fn slot(&mut self, node: u16) -> anyhow::Result<&mut Slot> {
        let slot = self.slots.iter_mut().find(|slot| slot.node == node);
        slot.with_context(|| format!("there is no node {node}"))
    }

    fn server(&mut self, node: u16) -> anyhow::Result<&mut Server> {
        let slot = self.slot(node)?;
        slot.server
            .as_mut()
            .with_context(|| format!("node {node} does not run"))
    }

    pub(crate) fn servers(&self) -> impl Iterator<Item = &Server> {
        self.slots.iter().filter_map(|slot| slot.server.as_ref())
    }

    pub(crate) fn start(&mut self, node: u16) -> anyhow::Result<()> {
        let slot = self.slot(node)?;
        ensure!(slot.server.is_none(), "node {node} runs already");
        slot.server = Some(Server::start(&slot.options)?);
        slot.frozen = false;
        Ok(())
    }

    pub(crate) fn process_id(&mut self, node: u16) -> anyhow::Result<u32> {
        Ok(self.server(node)?.process_id())
    }

    /// Starts all that do not run.
    pub(crate) fn start_all(&mut self) -> anyhow::Result<()> {
        for node in self.all() {
            if self.slot(node)?.server.is_none() {
                self.start(node)?;
            }
        }
        Ok(())
    }

    /// SIGKILL to all of these; gives the moment of the first. [`Self::end_kill`] must follow.
    pub(crate) fn begin_kill(&mut self, nodes: &[u16]) -> anyhow::Result<Instant> {
        let at = Instant::now();
        for node in nodes {
            let killed = self.server(*node)?.begin_kill();
            killed.with_context(|| format!("node {node}"))?;
        }
        Ok(at)
    }

    /// Waits for their ends.
    pub(crate) fn end_kill(&mut self, nodes: &[u16]) -> anyhow::Result<()> {
        for node in nodes {
            self.server(*node)?.end_kill()?;
            let slot = self.slot(*node)?;
            slot.server = None;
            slot.frozen = false;
        }
        Ok(())
    }

    /// Both.
    pub(crate) fn kill(&mut self, nodes: &[u16]) -> anyhow::Result<()> {
        self.begin_kill(nodes)?;
        self.end_kill(nodes)
    }

    /// SIGSTOP; gives the moment.
    pub(crate) fn freeze(&mut self, node: u16) -> anyhow::Result<Instant> {
        let at = Instant::now();
        self.server(node)?.freeze()?;
        self.slot(node)?.frozen = true;
        Ok(at)
    }

    /// SIGCONT.
    pub(crate) fn thaw(&mut self, node: u16) -> anyhow::Result<()> {
        self.server(node)?.thaw()?;
        self.slot(node)?.frozen = false;
        Ok(())
    }

    /// Besides this process's own, from the node's next start on.
    pub(crate) fn set_environment(
        &mut self,
        node: u16,
        environment: Vec<(String, String)>,
    ) -> anyhow::Result<()> {
        self.slot(node)?.options.environment = environment;
        Ok(())
    }

    /// Removes the data of a node that does not run.
    pub(crate) fn wipe(&mut self, node: u16) -> anyhow::Result<()> {
        let slot = self.slot(node)?;
        ensure!(slot.server.is_none(), "node {node} still runs");
        let data = &slot.options.data;
        std::fs::remove_dir_all(data).with_context(|| data.display().to_string())
    }

    /// Waits until the node says that it serves; gives the time since its start.
    pub(crate) async fn ready(&mut self, node: u16, within: Duration) -> anyhow::Result<Duration> {
        let ready = self.server(node)?.ready(within).await;
        ready.with_context(|| format!("node {node}"))
    }

    /// Waits for all that run; gives the longest time since a start.
    pub(crate) async fn ready_all(&mut self, within: Duration) -> anyhow::Result<Duration> {
        let mut longest = Duration::ZERO;
        for node in self.lively() {
            longest = longest.max(self.ready(node, within).await?);
        }
        Ok(longest)
    }

    async fn get<T: DeserializeOwned>(&self, node: u16, path: &str) -> anyhow::Result<T> {
        let slot = self.slots.iter().find(|slot| slot.node == node);
        let slot = slot.with_context(|| format!("there is no node {node}"))?;
        let mut connection = Connection::new(slot.options.authority());
        let answer = connection.call(Call::get(path, ADMIN_DEADLINE)).await?;
        ensure!(answer.status == 200, "{path} of node {node}: {}", answer.brief());
        serde_json::from_slice(&answer.body).with_context(|| format!("{path} of node {node}"))
    }

    pub(crate) async fn status(&self, node: u16) -> anyhow::Result<Status> {
        self.get(node, "/admin/v1/status").await
    }

    pub(crate) async fn view(&self, node: u16) -> anyhow::Result<ClusterView> {
        self.get(node, "/admin/v1/cluster").await
    }

    pub(crate) async fn digests(&self, node: u16) -> anyhow::Result<Vec<GroupDigest>> {
        let digests: Digests = self.get(node, "/admin/v1/digest").await?;
        Ok(digests.groups)
    }

    /// Who leads each group now, by the nodes' own word: of several the one of the highest term.
    pub(crate) async fn leaders(&self) -> BTreeMap<String, u16> {
        let mut leaders: BTreeMap<String, (u64, u16)> = BTreeMap::new();
        for node in self.lively() {
            let Ok(status) = self.status(node).await else {
                continue;
            };
            for group in status.groups.into_iter().filter(|group| group.leads) {
                let leader = leaders.entry(group.partition).or_insert((group.term, node));
                *leader = (group.term, node).max(*leader);
            }
        }
        leaders
            .into_iter()
            .map(|(group, (_, node))| (group, node))
            .collect()
    }

    /// Waits until the group has a leader.
    pub(crate) async fn leader_of(&self, group: &str, within: Duration) -> anyhow::Result<u16> {
        let started = Instant::now();
        loop {
            if let Some(leader) = self.leaders().await.get(group) {
                return Ok(*leader);
            }
            if started.elapsed() > within {
                bail!("{group} had no leader within {within:?}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Partitions (not the catalog) that the node leads.
    pub(crate) async fn led_by(&self, node: u16) -> Vec<u16> {
        let leaders = self.leaders().await.into_iter();
        leaders
            .filter(|(_, leader)| *leader == node)
            .filter_map(|(group, _)| group.parse().ok())
            .collect()
    }

    /// Asks `at` to let `to` lead the group.
    pub(crate) async fn transfer(&self, at: u16, group: &str, to: u16) -> anyhow::Result<()> {
        let slot = self.slots.iter().find(|slot| slot.node == at);
        let slot = slot.with_context(|| format!("there is no node {at}"))?;
        let body = serde_json::json!({"change": "transfer_leader", "node": to, "partition": group});
        let call = Call::post(
            "/admin/v1/cluster/changes",
            Bytes::from(body.to_string()),
            ADMIN_DEADLINE,
        );
        let answer = Connection::new(slot.options.authority()).call(call).await?;
        ensure!(answer.status == 200, "transfer of {group}: {}", answer.brief());
        Ok(())
    }

    /// Terms of all groups: the highest that any lively node has seen.
    pub(crate) async fn terms(&self) -> BTreeMap<String, u64> {
        let mut terms: BTreeMap<String, u64> = BTreeMap::new();
        for node in self.lively() {
            let Ok(status) = self.status(node).await else {
                continue;
            };
            for group in status.groups {
                let term = terms.entry(group.partition).or_default();
                *term = group.term.max(*term);
            }
        }
        terms
    }

    /// Length of the node's log.
    pub(crate) fn log_bytes(&self, node: u16) -> usize {
        self.log(node).len()
    }

    /// Lines of the node's log that contain this, from a byte on.
    pub(crate) fn log_lines(&self, node: u16, from: usize, wanted: &str) -> Vec<String> {
        let text = self.log(node);
        let text = String::from_utf8_lossy(text.get(from..).unwrap_or_default());
        let lines = text.lines().filter(|line| line.contains(wanted));
        lines.map(str::to_owned).collect()
    }

    fn log(&self, node: u16) -> Vec<u8> {
        let slot = self.slots.iter().find(|slot| slot.node == node);
        let text = slot.and_then(|slot| std::fs::read(&slot.options.log).ok());
        text.unwrap_or_default()
    }

    /// Lines of the nodes' logs that a healthy broker never writes: panics and errors. All are counted, the first given.
    pub(crate) fn bad_log_lines(&self, shown_max: usize) -> (usize, Vec<String>) {
        let (mut count, mut shown) = (0, Vec::new());
        for slot in &self.slots {
            let text = std::fs::read(&slot.options.log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let bad = |line: &&str| line.contains("ERROR") || line.contains("panicked at");
            for line in text.lines().filter(bad) {
                count += 1;
                if shown.len() < shown_max {
                    shown.push(format!("node {}: {line}", slot.node));
                }
            }
        }
        (count, shown)
    }
}
