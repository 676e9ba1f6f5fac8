//! What this data directory is to the cluster: kept in the identity file, told to peers.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use laneway_raft::{NodeIntroduction, Peers};
use laneway_storage::vfs::Vfs;

use crate::identity::{Identity, IdentityError, write_whole};

/// The identity, which gets its cluster once.
#[derive(Debug)]
pub(crate) struct Standing {
    identity: Mutex<Identity>,
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    fingerprint: u64,
    /// Drawn at each start.
    process: u64,
}

impl Standing {
    pub(super) fn new(identity: Identity, vfs: Arc<dyn Vfs>, dir: PathBuf, fingerprint: u64) -> Self {
        Self {
            identity: Mutex::new(identity),
            vfs,
            dir,
            fingerprint,
            process: rand::random(),
        }
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// How this node introduces itself now.
    pub(super) fn introduction(&self) -> NodeIntroduction {
        let identity = self.identity();
        NodeIntroduction {
            cluster_id: identity.cluster_id,
            fingerprint: self.fingerprint,
            raft_id: identity.raft_id(),
            process: self.process,
            founded: identity.cluster_id != 0,
            cluster: identity.cluster,
        }
    }

    /// Writes a file beside the identity, whole or not at all. Blocking.
    pub(super) fn write_beside(&self, file: &str, bytes: &[u8]) -> std::io::Result<()> {
        // One at a time: two leaders may condemn the data at once.
        let _writing = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        write_whole(&*self.vfs, &self.dir, &self.dir.join(file), bytes)
    }

    /// Belongs to `cluster_id` from now on, durably; as its founder with these voters. False: it belongs to another.
    /// Blocking.
    pub(super) fn join(
        &self,
        peers: &Peers,
        cluster_id: u64,
        voters: Vec<u64>,
    ) -> Result<bool, IdentityError> {
        let mut identity = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        if identity.cluster_id != 0 {
            return Ok(identity.cluster_id == cluster_id);
        }
        let joined = Identity {
            cluster_id,
            voters,
            ..identity.clone()
        };
        joined.write(&*self.vfs, &self.dir)?;
        *identity = joined;
        drop(identity);
        peers.introduce_as(self.introduction());
        tracing::info!(
            cluster_id = format!("{cluster_id:016x}"),
            "belongs to the cluster"
        );
        Ok(true)
    }
}
