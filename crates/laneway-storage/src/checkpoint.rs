//! Checkpoints: a partition's machine at one applied index, on disk.
//!
//! One base file holds all rows, up to [`DELTAS_MAX`] delta files the rows changed since, each together with locations of
//! payloads in the WAL. One manifest names them, the dedup files, the applied index and the membership: replacing it by
//! rename is the one atomic step of a checkpoint.
//!
//! **Invariants.** What the manifest names is durable before the manifest is. A file that it names and that is missing or
//! damaged is an error; nothing is served from it. Rows are opaque here.
//!
//! **Deliberately absent**: when to make a checkpoint, and purging the log up to it; the node does both.

mod file;
mod manifest;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use laneway_core::ids::PartitionId;

use crate::dedup::DedupFileName;
use crate::payload::{PayloadCut, WalPosition};
use crate::sealed::{self, FileError, number_of};
use crate::vfs::Vfs;
use crate::wal::LogPosition;

pub(crate) use file::CHECKPOINT_ENDING;
pub use file::{CheckpointFileName, check_checkpoint_bytes};
use file::{FileKind, FileReader, FileWriter};
pub use manifest::{MANIFEST_NAME, Manifest, check_manifest_bytes};

/// Deltas after which a checkpoint is written whole.
pub const DELTAS_MAX: usize = 8;

/// A checkpoint could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// A file failed or is damaged.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file that the manifest names is not there.
    #[error("{} names {file}, which is missing; restore the data directory from a copy, or move it aside and start empty", manifest.display())]
    Missing {
        /// The manifest.
        manifest: PathBuf,
        /// What it names.
        file: CheckpointFileName,
    },
    /// The machine refused a row.
    #[error("{} holds a row that does not fit: {error}; restore the data directory from a copy, or move it aside and start empty", file.display())]
    Row {
        /// The file.
        file: PathBuf,
        /// Why.
        error: Box<dyn Error + Send + Sync>,
    },
    /// There is no base for a delta, or there are [`DELTAS_MAX`] deltas.
    #[error("the next checkpoint must be a full one")]
    NeedsFull,
    /// Another checkpoint was finished since this one was begun.
    #[error("another checkpoint was finished in the meantime")]
    Overtaken,
}

/// Takes one row, or the key of a removed one.
pub type EachRow<'a> = dyn FnMut(&[u8], Option<&[u8]>) -> Result<(), Box<dyn Error + Send + Sync>> + 'a;

/// The checkpoint of one partition, or of the catalog. A cheap handle; calls block.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    partition: PartitionId,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    manifest: Option<Manifest>,
    /// Length of the base and of all deltas.
    base_bytes: u64,
    delta_bytes: u64,
    /// Number of the next file.
    next: u64,
}

impl CheckpointStore {
    /// Opens the store of `partition` in `dir`, which is made if missing and belongs to it. Returns the newest complete
    /// checkpoint. Leftovers of interrupted ones are deleted.
    ///
    /// Errors: the manifest is damaged, or a file that it names is missing or damaged in its header; the rest is checked
    /// by [`CheckpointStore::load`].
    pub fn open(
        vfs: Arc<dyn Vfs>,
        dir: PathBuf,
        partition: PartitionId,
    ) -> Result<(Self, Option<Manifest>), CheckpointError> {
        vfs.create_dir_all(&dir)
            .map_err(|error| FileError::io(&dir, error))?;
        let names = sealed::list_sealed(&*vfs, &dir)?;
        let numbers: Vec<u64> = names
            .iter()
            .filter_map(|name| number_of(name, CHECKPOINT_ENDING))
            .collect();
        let mut state = State {
            manifest: None,
            base_bytes: 0,
            delta_bytes: 0,
            next: numbers.iter().max().map_or(1, |number| number + 1),
        };
        if names.iter().any(|name| name == MANIFEST_NAME) {
            let path = dir.join(MANIFEST_NAME);
            let bytes = vfs.read(&path).map_err(|error| FileError::io(&path, error))?;
            let manifest = Manifest::decode(&bytes, &path)?;
            if manifest.partition != partition {
                return Err(FileError::damaged(&path, 0, "it belongs to another partition").into());
            }
            state.manifest = Some(manifest);
        }
        let store = Self {
            shared: Arc::new(Shared {
                vfs,
                dir,
                partition,
                state: Mutex::new(state),
            }),
        };
        let manifest = store.state().manifest.clone();
        if let Some(manifest) = &manifest {
            store.measure(manifest)?;
            store.remove_unnamed(manifest)?;
        }
        Ok((store, manifest))
    }

    /// Whether the next checkpoint should be a full one: there is no base yet, there are [`DELTAS_MAX`] deltas, or they
    /// outgrew the base.
    pub fn wants_full(&self) -> bool {
        let state = self.state();
        let deltas = state
            .manifest
            .as_ref()
            .map_or(DELTAS_MAX, |manifest| manifest.deltas.len());
        deltas >= DELTAS_MAX || state.delta_bytes > state.base_bytes
    }

    /// Length of all files of the checkpoint in bytes, dedup files not counted.
    pub fn bytes(&self) -> u64 {
        let state = self.state();
        state.base_bytes + state.delta_bytes
    }

    /// Begins a checkpoint: `full`, or of what changed since the last one.
    ///
    /// Nothing is seen of it before [`CheckpointWriter::finish`]; dropping it leaves everything as it was.
    /// Errors: [`CheckpointError::NeedsFull`], or the file system refused.
    pub fn begin(&self, full: bool) -> Result<CheckpointWriter, CheckpointError> {
        let (number, parent) = {
            let mut state = self.state();
            let number = state.next;
            state.next += 1;
            (number, state.manifest.clone())
        };
        let kind = match (&parent, full) {
            (_, true) => FileKind::Base,
            (Some(manifest), false) if manifest.deltas.len() >= DELTAS_MAX => {
                return Err(CheckpointError::NeedsFull);
            }
            (Some(manifest), false) => FileKind::Delta {
                of: manifest.deltas.last().copied().unwrap_or(manifest.base),
            },
            (None, false) => return Err(CheckpointError::NeedsFull),
        };
        let shared = &self.shared;
        let name = CheckpointFileName(number);
        let out = FileWriter::create(&shared.vfs, &shared.dir, shared.partition, name, kind)?;
        Ok(CheckpointWriter {
            store: self.clone(),
            parent,
            name,
            out,
            cut_end: None,
        })
    }

    /// Reads a checkpoint: base rows first, then those of each delta in order, a removed row as `None`.
    ///
    /// Each file is checked on the way. Errors: [`CheckpointError::File`] and [`CheckpointError::Missing`] name what is
    /// damaged; [`CheckpointError::Row`] is an error of `each_row`. What was read before an error must be thrown away.
    pub fn load(
        &self,
        manifest: &Manifest,
        each_row: &mut EachRow<'_>,
    ) -> Result<PayloadCut, CheckpointError> {
        let mut sections = Vec::new();
        let mut before = None;
        for name in std::iter::once(&manifest.base).chain(&manifest.deltas) {
            let mut reader = self.open_file(*name)?;
            let kind = before.map_or(FileKind::Base, |of| FileKind::Delta { of });
            if reader.kind != kind {
                let what = "it does not follow the file that the manifest names before it";
                return Err(FileError::damaged(&reader.path, 0, what).into());
            }
            reader.read(each_row, &mut sections)?;
            before = Some(*name);
        }
        Ok(PayloadCut::of_files(sections, manifest.payload_end))
    }

    fn open_file(&self, name: CheckpointFileName) -> Result<FileReader, CheckpointError> {
        let shared = &self.shared;
        match FileReader::open(&*shared.vfs, &shared.dir, shared.partition, name) {
            Err(error) if error.is_missing() => Err(CheckpointError::Missing {
                manifest: shared.dir.join(MANIFEST_NAME),
                file: name,
            }),
            other => Ok(other?),
        }
    }

    /// Opens every file of a manifest and notes how long they are.
    fn measure(&self, manifest: &Manifest) -> Result<(), CheckpointError> {
        let base = self.open_file(manifest.base)?.bytes;
        let mut deltas = 0;
        for name in &manifest.deltas {
            deltas += self.open_file(*name)?.bytes;
        }
        let mut state = self.state();
        state.base_bytes = base;
        state.delta_bytes = deltas;
        Ok(())
    }

    /// Removes every checkpoint file that the manifest does not name.
    fn remove_unnamed(&self, manifest: &Manifest) -> Result<(), CheckpointError> {
        let shared = &self.shared;
        let names = shared
            .vfs
            .list(&shared.dir)
            .map_err(|error| FileError::io(&shared.dir, error))?;
        for name in names {
            let Some(number) = number_of(&name, CHECKPOINT_ENDING).map(CheckpointFileName) else {
                continue;
            };
            if number != manifest.base && !manifest.deltas.contains(&number) {
                sealed::remove(&*shared.vfs, &shared.dir.join(&name))?;
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared
            .state
            .lock()
            .expect("nobody panicked while changing the state")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.shared.dir.join(name)
    }
}

/// Writes one checkpoint, streaming. See [`CheckpointStore::begin`].
#[derive(Debug)]
pub struct CheckpointWriter {
    store: CheckpointStore,
    parent: Option<Manifest>,
    name: CheckpointFileName,
    out: FileWriter,
    cut_end: Option<WalPosition>,
}

impl CheckpointWriter {
    /// Adds a row, or that a row is gone. Rows may come in any order; of the same key the last one counts.
    pub fn row(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), CheckpointError> {
        Ok(self.out.row(key, value)?)
    }

    /// Adds the locations of payloads in the WAL: all of them in a full checkpoint, else those stored since the last one.
    ///
    /// `cut` must have been made at the machine's cut or later. Once per checkpoint.
    pub fn payload_cut(&mut self, cut: &PayloadCut) -> Result<(), CheckpointError> {
        let from = match (self.out.kind, &self.parent) {
            (FileKind::Delta { .. }, Some(parent)) => parent.payload_end,
            _ => WalPosition::default(),
        };
        let out = &mut self.out;
        cut.each::<FileError>(from, &mut |runs| runs.iter().try_for_each(|run| out.run(run)))?;
        self.cut_end = Some(cut.end);
        Ok(())
    }

    /// Ends the checkpoint, which then is the newest one: `applied` (index, term, leader) is the entry that the machine was
    /// cut behind, `membership` raft's own, `dedup` the list that [`DedupStore::write`](crate::dedup::DedupStore::write)
    /// returned for this cut.
    ///
    /// Durability: after `Ok` it survives power loss, and the log may be purged up to `applied`. After an error either
    /// the old or the new one is found at the next start; both are complete. Then files that are no longer named are removed;
    /// an error of that is logged, and they go with the next checkpoint.
    pub fn finish(
        self,
        applied: LogPosition,
        membership: Bytes,
        dedup: Vec<DedupFileName>,
    ) -> Result<Manifest, CheckpointError> {
        let Self {
            store,
            parent,
            name,
            out,
            cut_end,
        } = self;
        let shared = Arc::clone(&store.shared);
        let kind = out.kind;
        let bytes = out.finish()?;
        let mut state = store.state();
        if state.manifest != parent {
            drop(state);
            sealed::remove(&*shared.vfs, &store.path(&name.to_string()))?;
            return Err(CheckpointError::Overtaken);
        }
        let (base, deltas) = match (&parent, kind) {
            (Some(parent), FileKind::Delta { .. }) => {
                (parent.base, parent.deltas.iter().copied().chain([name]).collect())
            }
            _ => (name, Vec::new()),
        };
        let payload_end = parent
            .as_ref()
            .map_or_else(WalPosition::default, |parent| parent.payload_end);
        let manifest = Manifest {
            partition: shared.partition,
            generation: parent.as_ref().map_or(1, |parent| parent.generation + 1),
            applied,
            membership,
            base,
            deltas,
            dedup,
            payload_end: cut_end.unwrap_or(payload_end),
        };
        manifest.publish(&shared.vfs, &shared.dir)?;
        if matches!(kind, FileKind::Base) {
            state.base_bytes = bytes;
            state.delta_bytes = 0;
        } else {
            state.delta_bytes += bytes;
        }
        state.manifest = Some(manifest.clone());
        drop(state);
        if let Err(error) = store.remove_unnamed(&manifest) {
            tracing::warn!(partition = %shared.partition, %error, "could not remove files of an old checkpoint");
        }
        Ok(manifest)
    }
}

/// Where the file is.
fn path_of(dir: &Path, name: CheckpointFileName) -> PathBuf {
    dir.join(name.to_string())
}
