//! Who a data directory belongs to: one small text file, written when the directory is made and when its cluster is founded.

use std::fmt;
use std::path::{Path, PathBuf};

use laneway_storage::vfs::Vfs;
use xxhash_rust::xxh3::xxh3_64;

const FILE: &str = "identity";
const HEADER: &str = "laneway-identity 2";
/// Without voters: of a cluster of this one node.
const HEADER_1: &str = "laneway-identity 1";

/// Identity of a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Name of the cluster.
    pub(crate) cluster: String,
    /// Minted when the cluster is founded; 0 while the directory belongs to none.
    pub(crate) cluster_id: u64,
    /// The node's number.
    pub(crate) node: u16,
    /// Random, minted with this data directory: 48 bits.
    pub(crate) generation: u64,
    /// Number of partitions.
    pub(crate) partitions: u16,
    /// Raft ids that this node founds the cluster with; empty on all nodes but the one that founds it.
    pub(crate) voters: Vec<u64>,
}

/// What is wrong with an identity file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    /// Not readable as one.
    #[error("{} is damaged: {what}", .file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// Not accessible.
    #[error("{}: {source}", .file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl Identity {
    /// Raft's id of this node and data generation.
    pub(crate) fn raft_id(&self) -> u64 {
        laneway_raft::node_id(self.node, self.generation)
    }

    /// Reads the file; `None` when the directory has none.
    pub(crate) fn read(vfs: &dyn Vfs, dir: &Path) -> Result<Option<Self>, IdentityError> {
        let file = dir.join(FILE);
        let bytes = match vfs.read(&file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(IdentityError::Io { file, source }),
        };
        let damaged = |what| IdentityError::Damaged {
            file: file.clone(),
            what,
        };
        let text = std::str::from_utf8(&bytes).map_err(|_| damaged("it is not text"))?;
        let (body, sum) = text
            .rsplit_once("sum ")
            .ok_or_else(|| damaged("it has no checksum"))?;
        if u64::from_str_radix(sum.trim_end(), 16).ok() != Some(xxh3_64(body.as_bytes())) {
            return Err(damaged("its checksum is wrong"));
        }
        Self::parse(body)
            .map(Some)
            .ok_or_else(|| damaged("it has unknown contents"))
    }

    fn parse(body: &str) -> Option<Self> {
        let mut lines = body.lines();
        let header = lines.next()?;
        if header != HEADER && header != HEADER_1 {
            return None;
        }
        let mut field = |name: &str| {
            lines
                .next()?
                .strip_prefix(name)?
                .strip_prefix(' ')
                .map(str::to_owned)
        };
        let cluster = field("cluster")?;
        let cluster_id = u64::from_str_radix(&field("cluster-id")?, 16).ok()?;
        let node = field("node")?.parse().ok()?;
        let generation = u64::from_str_radix(&field("generation")?, 16).ok()?;
        if generation > laneway_raft::GENERATION_MAX {
            return None;
        }
        let partitions = field("partitions")?.parse().ok()?;
        let voters = if header == HEADER_1 {
            vec![laneway_raft::node_id(node, generation)]
        } else {
            let voters = field("voters")?;
            let ids = voters.split_ascii_whitespace();
            ids.map(|id| u64::from_str_radix(id, 16))
                .collect::<Result<_, _>>()
                .ok()?
        };
        Some(Self {
            cluster,
            cluster_id,
            node,
            generation,
            partitions,
            voters,
        })
    }

    /// Writes the file durably: it is there whole or not at all.
    pub(crate) fn write(&self, vfs: &dyn Vfs, dir: &Path) -> Result<(), IdentityError> {
        let body = self.to_string();
        let text = format!("{body}sum {:016x}\n", xxh3_64(body.as_bytes()));
        let file = dir.join(FILE);
        write_whole(vfs, dir, &file, text.as_bytes()).map_err(|source| IdentityError::Io { file, source })
    }
}

/// Write, sync, rename, sync the directory: the file is there whole or not at all. What a crash in the middle left is written
/// over.
pub(crate) fn write_whole(vfs: &dyn Vfs, dir: &Path, file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let unfinished = file.with_extension("tmp");
    if vfs.exists(&unfinished)? {
        vfs.remove(&unfinished)?;
    }
    let out = vfs.create(&unfinished)?;
    out.write_at(bytes, 0)?;
    out.sync_data()?;
    vfs.rename(&unfinished, file)?;
    vfs.sync_dir(dir)
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        writeln!(f, "cluster {}", self.cluster)?;
        writeln!(f, "cluster-id {:016x}", self.cluster_id)?;
        writeln!(f, "node {}", self.node)?;
        writeln!(f, "generation {:012x}", self.generation)?;
        writeln!(f, "partitions {}", self.partitions)?;
        let voters: Vec<String> = self.voters.iter().map(|id| format!("{id:016x}")).collect();
        writeln!(f, "voters {}", voters.join(" "))
    }
}
