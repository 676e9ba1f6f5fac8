//! Which nodes, on which ports, with which files; and all that speaks against starting them.

use std::fmt::Write as _;
use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use laneway_node::PARTITIONS_DEFAULT;

use super::{DEV_NODES_MAX, DevNodes};
use crate::config::{RawCluster, parse_cluster};
use crate::run::{absolute, in_use};

/// From a node's HTTP port to its port for the other nodes.
const PEER_PORT_OFFSET: u16 = 1000;

/// Name of the cluster, as of `laneway dev` without `--nodes`.
const CLUSTER: &str = "dev";

/// File that a running parent has locked.
const LOCK_FILE: &str = "dev.lock";

/// First line of the files made here.
const MADE_HERE: &str = "# Written by `laneway dev --nodes` at each start: what is changed here is lost.\n";

/// A node to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedNode {
    pub(super) number: u16,
    pub(super) http: SocketAddr,
    peer: SocketAddr,
    /// Its configuration.
    pub(super) file: PathBuf,
}

/// All nodes to be started.
#[derive(Debug)]
pub(super) struct Plan {
    data: PathBuf,
    partitions: Option<u16>,
    pub(super) nodes: Vec<PlannedNode>,
}

impl Plan {
    /// Ports for all, all of them free. Makes nothing.
    pub(super) fn new(options: &DevNodes) -> Result<Self> {
        let data = absolute(&options.data);
        let addresses = addresses(options.listen, options.nodes)?;
        let nodes = (1..).zip(addresses).map(|(number, (http, peer))| PlannedNode {
            number,
            http,
            peer,
            file: data.join(format!("node-{number}.toml")),
        });
        Ok(Self {
            nodes: nodes.collect(),
            partitions: options.partitions,
            data,
        })
    }

    /// Makes the folder and the files. Returns the lock, which is held while it lives, and what is to be told.
    pub(super) fn prepare(&self) -> Result<(File, Vec<String>)> {
        let found = Found::look(&self.data);
        found.refuse_data_of_one(&self.data)?;
        fs::create_dir_all(&self.data).with_context(|| format!("{}: cannot make it", self.data.display()))?;
        let lock = lock(&self.data)?;
        let partitions = self.partitions(&found)?;
        if let Some(last) = found
            .nodes
            .last()
            .filter(|last| usize::from(**last) > self.nodes.len())
        {
            bail!(
                "{} holds data of node {last}: give --nodes {last}; or take the node out of the cluster with `laneway ctl cluster remove-node {last}` and then delete {}",
                self.data.display(),
                folder_of(&self.data, *last).display()
            );
        }
        self.write_files(partitions)?;
        Ok((lock, self.notes(&found)))
    }

    fn partitions(&self, found: &Found) -> Result<u16> {
        let before = found.cluster.as_ref().map(|cluster| cluster.partitions);
        match (self.partitions, before.filter(|_| !found.nodes.is_empty())) {
            (Some(wanted), Some(made)) if wanted != made => bail!(
                "{} was made with {made} partitions, not {wanted}: leave --partitions out, or give another folder with --data",
                self.data.display()
            ),
            (Some(wanted), _) => Ok(wanted),
            (None, made) => Ok(made.unwrap_or(PARTITIONS_DEFAULT)),
        }
    }

    fn write_files(&self, partitions: u16) -> Result<()> {
        let write = |path: &Path, text: &str| {
            fs::write(path, text).with_context(|| format!("{}: cannot write it", path.display()))
        };
        write(&cluster_file(&self.data), &self.cluster_text(partitions))?;
        for node in &self.nodes {
            write(&node.file, &node.text())?;
        }
        Ok(())
    }

    fn cluster_text(&self, partitions: u16) -> String {
        let mut text = format!("{MADE_HERE}name = \"{CLUSTER}\"\npartitions = {partitions}\n");
        for PlannedNode { number, peer, .. } in &self.nodes {
            let _ = write!(text, "\n[[nodes]]\nnode = {number}\npeer = \"{peer}\"\n");
        }
        text
    }

    /// Nodes that come to a cluster which was founded without them.
    fn notes(&self, found: &Found) -> Vec<String> {
        let Some(first) = found.nodes.first().and_then(|number| self.node(*number)) else {
            return Vec::new();
        };
        let listed = |number: u16| {
            let cluster = found.cluster.as_ref();
            cluster.is_some_and(|cluster| cluster.nodes.iter().any(|node| node.node == number))
        };
        let new = self
            .nodes
            .iter()
            .filter(|node| !found.nodes.contains(&node.number) && !listed(node.number));
        new.map(|node| {
            format!(
                "node {number} is new to this cluster: `laneway ctl --url http://{} cluster add-node {number}` gives it its replicas",
                first.http,
                number = node.number
            )
        })
        .collect()
    }

    fn node(&self, number: u16) -> Option<&PlannedNode> {
        self.nodes.iter().find(|node| node.number == number)
    }
}

impl PlannedNode {
    fn text(&self) -> String {
        let Self { number, http, .. } = self;
        format!("{MADE_HERE}node = {number}\nlisten = \"{http}\"\ndata_dir = \"node-{number}\"\n")
    }
}

/// What is in the folder before a start.
#[derive(Debug)]
struct Found {
    /// A node lives in the folder itself.
    one: bool,
    /// Nodes with data in folders of their own, ascending.
    nodes: Vec<u16>,
    /// The cluster file of an earlier start.
    cluster: Option<RawCluster>,
}

impl Found {
    fn look(data: &Path) -> Self {
        let has_data = |folder: &Path| folder.join("identity").exists();
        let cluster_file = cluster_file(data);
        // A file that is not readable is written anew, like one that is not there.
        let cluster = fs::read_to_string(&cluster_file).ok();
        Self {
            one: has_data(data),
            nodes: (1..=DEV_NODES_MAX)
                .filter(|number| has_data(&folder_of(data, *number)))
                .collect(),
            cluster: cluster.and_then(|text| parse_cluster(&cluster_file, &text).ok()),
        }
    }

    fn refuse_data_of_one(&self, data: &Path) -> Result<()> {
        if !self.one {
            return Ok(());
        }
        let (shown, first) = (data.display(), folder_of(data, 1));
        if self.nodes.is_empty() {
            bail!(
                "{shown} holds the data of one node, from `laneway dev` without --nodes: give another folder with --data; or let it go on as node 1: move all that is in it to {}, start again, and add the other nodes with `laneway ctl cluster add-node`",
                first.display()
            );
        }
        bail!(
            "{shown} holds the data of one node beside that of several: give another folder with --data, or move the files that belong to no node-N away"
        );
    }
}

/// Refuses the folder of `laneway dev --nodes` for a single node: it would start empty beside the data.
pub(crate) fn refuse_data_of_several(data: &Path) -> Result<()> {
    let found = Found::look(data);
    let Some(last) = found.nodes.last().filter(|_| !found.one) else {
        return Ok(());
    };
    bail!(
        "{} holds the data of several nodes: start them with --nodes {last}, or give another folder with --data",
        data.display()
    )
}

fn folder_of(data: &Path, number: u16) -> PathBuf {
    data.join(format!("node-{number}"))
}

fn cluster_file(data: &Path) -> PathBuf {
    data.join("cluster.toml")
}

fn lock(data: &Path) -> Result<File> {
    let path = data.join(LOCK_FILE);
    let file = File::create(&path).with_context(|| format!("{}: cannot make it", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!(
            "{} is in use by another `laneway dev --nodes`: stop it, or give another folder with --data",
            data.display()
        ),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// For each node its HTTP address and its address for the others. Every port is free at this moment.
fn addresses(listen: SocketAddr, nodes: u16) -> Result<Vec<(SocketAddr, SocketAddr)>> {
    if listen.port() == 0 {
        return free_addresses(listen.ip(), nodes);
    }
    // All nodes are on this machine, whoever may use their HTTP ports.
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    let mut addresses = Vec::new();
    for step in 0..nodes {
        let http = listen.port().checked_add(step);
        let peer = http.and_then(|port| port.checked_add(PEER_PORT_OFFSET));
        let (Some(http), Some(peer)) = (http, peer) else {
            let highest = u16::MAX - PEER_PORT_OFFSET - (nodes - 1);
            bail!(
                "port {} leaves no room for {nodes} node(s), which take the ports from it on and those {PEER_PORT_OFFSET} above: give --listen a port up to {highest}",
                listen.port()
            );
        };
        addresses.push((
            SocketAddr::new(listen.ip(), http),
            SocketAddr::new(loopback, peer),
        ));
    }
    for (http, peer) in &addresses {
        for address in [http, peer] {
            TcpListener::bind(address).map_err(|error| not_free(*address, &error))?;
        }
    }
    Ok(addresses)
}

/// Free ports. Somebody else may take one before its node does; the node then says so.
fn free_addresses(ip: IpAddr, nodes: u16) -> Result<Vec<(SocketAddr, SocketAddr)>> {
    let take = |ip| {
        let address = SocketAddr::new(ip, 0);
        TcpListener::bind(address).map_err(|error| not_free(address, &error))
    };
    // All are held until the last is found, so that none is found twice.
    let mut held = Vec::new();
    for _ in 0..nodes {
        held.push((take(ip)?, take(Ipv4Addr::LOCALHOST.into())?));
    }
    let addresses = held
        .iter()
        .map(|(http, peer)| Ok((http.local_addr()?, peer.local_addr()?)));
    addresses
        .collect::<io::Result<_>>()
        .context("a listener has no address")
}

fn not_free(address: SocketAddr, error: &io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::AddrInUse => in_use(address),
        _ => anyhow!("cannot listen on {address}: {error}: choose another address with --listen"),
    }
}

#[cfg(test)]
mod tests;
