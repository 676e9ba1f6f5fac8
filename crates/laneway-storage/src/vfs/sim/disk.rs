//! What is on a simulated disk, and what a crash leaves of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::SECTOR_BYTES;

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) names: BTreeMap<PathBuf, Arc<Inode>>,
    pub(super) dirs: BTreeSet<PathBuf>,
    pub(super) unsynced: Vec<NameChange>,
    pub(super) locks: BTreeSet<PathBuf>,
    /// Handles of an earlier epoch are dead.
    pub(super) epoch: u64,
    pub(super) operations: u64,
    pub(super) power_off_at: Option<u64>,
    pub(super) off: bool,
    pub(super) sync_fails_at: Option<u64>,
    pub(super) syncs: u64,
    pub(super) disk_bytes: Option<u64>,
    pub(super) nonces: u64,
}

/// A change of the names in one directory; those of one operation share its number and survive together.
#[derive(Debug)]
pub(super) struct NameChange {
    pub(super) operation: u64,
    pub(super) path: PathBuf,
    pub(super) before: Option<Arc<Inode>>,
}

#[derive(Default)]
pub(super) struct Inode(pub(super) Mutex<Content>);

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inode").finish_non_exhaustive()
    }
}

pub(super) type Sector = [u8; SECTOR_BYTES];

#[derive(Default)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) durable_len: usize,
    /// Durable content of every sector written since the last sync.
    pub(super) dirty: BTreeMap<usize, Sector>,
    /// The same of sectors whose sync failed: clean for the kernel, never written to the disk.
    pub(super) lost: BTreeMap<usize, Sector>,
}

impl State {
    /// Counts an operation. `Err` once the power is off; `Ok(true)` if it goes off with this very operation.
    pub(super) fn operation(&mut self) -> io::Result<bool> {
        self.alive()?;
        let number = self.operations;
        self.operations += 1;
        self.off = self.power_off_at.is_some_and(|at| number >= at);
        Ok(self.off)
    }

    pub(super) fn alive(&self) -> io::Result<()> {
        if self.off { Err(power_is_off()) } else { Ok(()) }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        let sum: usize = self.names.values().map(|inode| inode.lock().bytes.len()).sum();
        u64::try_from(sum).expect("a length fits u64")
    }

    pub(super) fn room_for(&self, more: usize) -> io::Result<()> {
        let more = u64::try_from(more).expect("a length fits u64");
        match self.disk_bytes {
            Some(disk) if more > 0 && self.used_bytes() + more > disk => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn put_name(&mut self, path: &Path, inode: Option<Arc<Inode>>) {
        let before = match inode {
            Some(inode) => self.names.insert(path.to_owned(), inode),
            None => self.names.remove(path),
        };
        self.unsynced.push(NameChange {
            operation: self.operations,
            path: path.to_owned(),
            before,
        });
    }

    pub(super) fn lose_names(&mut self, coin: Option<&mut Coin>) {
        let changes = std::mem::take(&mut self.unsynced);
        // A journal keeps an unbroken run from the start.
        let operations: BTreeSet<u64> = changes.iter().map(|change| change.operation).collect();
        let kept = coin.map_or(0, |coin| coin.below(operations.len() + 1));
        let first_lost = operations.iter().nth(kept).copied().unwrap_or(u64::MAX);
        for change in changes
            .into_iter()
            .rev()
            .filter(|change| change.operation >= first_lost)
        {
            match change.before {
                Some(inode) => self.names.insert(change.path, inode),
                None => self.names.remove(&change.path),
            };
        }
    }

    pub(super) fn file(&self, path: &Path) -> io::Result<Arc<Inode>> {
        self.alive()?;
        self.names
            .get(path)
            .cloned()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Inode {
    pub(super) fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    /// Remembers what is durable of the sectors of `[from, to)`.
    pub(super) fn soil(&mut self, from: usize, to: usize) {
        for number in from / SECTOR_BYTES..to.div_ceil(SECTOR_BYTES) {
            if let Some(durable) = self.lost.remove(&number) {
                self.dirty.insert(number, durable);
            } else if !self.dirty.contains_key(&number) {
                let start = (number * SECTOR_BYTES).min(self.bytes.len());
                let end = (start + SECTOR_BYTES).min(self.bytes.len());
                let mut durable = [0; SECTOR_BYTES];
                durable[..end - start].copy_from_slice(&self.bytes[start..end]);
                self.dirty.insert(number, durable);
            }
        }
    }

    pub(super) fn resize(&mut self, bytes: usize) {
        let (low, high) = (self.bytes.len().min(bytes), self.bytes.len().max(bytes));
        if bytes < self.bytes.len() {
            self.soil(low, high);
        }
        self.bytes.resize(bytes, 0);
    }

    pub(super) fn write(&mut self, buffer: &[u8], at: usize) {
        let end = at + buffer.len();
        if end > self.bytes.len() {
            self.resize(end);
        }
        self.soil(at, end);
        self.bytes[at..end].copy_from_slice(buffer);
    }

    pub(super) fn lose(&mut self, mut coin: Option<&mut Coin>) {
        let mut toss = |()| coin.as_mut().is_some_and(|coin| coin.below(2) == 1);
        let len = if toss(()) {
            self.bytes.len()
        } else {
            self.durable_len
        };
        let mut old = std::mem::take(&mut self.lost);
        old.extend(std::mem::take(&mut self.dirty).into_iter().filter(|_| !toss(())));
        self.bytes.resize(len, 0);
        for (number, durable) in old {
            let start = (number * SECTOR_BYTES).min(len);
            let end = (start + SECTOR_BYTES).min(len);
            self.bytes[start..end].copy_from_slice(&durable[..end - start]);
        }
        self.durable_len = len;
    }
}

/// A small deterministic generator (splitmix64).
#[derive(Debug)]
pub(super) struct Coin(pub(super) u64);

impl Coin {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("a length fits u64");
        usize::try_from(self.next() % bound).expect("below a usize")
    }
}

pub(super) fn power_is_off() -> io::Error {
    io::Error::other("simulated power is off")
}
