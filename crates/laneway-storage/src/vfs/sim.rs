//! A file system in memory that keeps only what was promised, for tests and simulation.

mod disk;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::disk::{Coin, Content, Inode, State, power_is_off};
use super::{Vfs, VfsFile, VfsLock};

/// What a disk writes whole: after a power loss each unsynced sector is old or new.
pub const SECTOR_BYTES: usize = 512;

/// How a simulated machine goes down; see [`SimVfs::crash`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies, the machine lives on: whatever was written is still there, synced or not.
    Process,
    /// Power is lost, and with it everything that was not synced.
    Synced,
    /// Power is lost; of what was not synced an arbitrary part is kept: any sectors of each file, and the first few
    /// changes of names.
    Torn {
        /// Decides which.
        seed: u64,
    },
}

/// A file system in memory. Clones share it.
///
/// Every call that changes something is an *operation*, counted from 0, so that a test can crash at each of them.
#[derive(Clone, Debug, Default)]
pub struct SimVfs {
    state: Arc<Mutex<State>>,
}

impl SimVfs {
    /// An empty file system with unlimited space.
    pub fn new() -> Self {
        Self::default()
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Powers the machine off at that operation: it is left undone or half done, and fails, as does every later call
    /// until [`SimVfs::crash`].
    pub fn power_off_at(&self, operation: u64) {
        self.lock().power_off_at = Some(operation);
    }

    /// Number of [`VfsFile::sync_data`] calls so far.
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    /// Makes that [`VfsFile::sync_data`] call (from 0) fail once, as Linux does it: the pages count as clean afterwards
    /// and can still be read, yet never reach the disk unless written anew.
    pub fn fail_sync_at(&self, sync: u64) {
        self.lock().sync_fails_at = Some(sync);
    }

    /// Size of the disk; growth beyond it fails with [`io::ErrorKind::StorageFull`]. `None` is unlimited.
    pub fn set_disk_bytes(&self, bytes: Option<u64>) {
        self.lock().disk_bytes = bytes;
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.lock().used_bytes()
    }

    /// Takes the machine (or only the process) down and up again. Handles and locks from before are dead; a set
    /// [`SimVfs::power_off_at`] is forgotten.
    pub fn crash(&self, crash: Crash) {
        let mut state = self.lock();
        state.epoch += 1;
        state.off = false;
        state.power_off_at = None;
        state.locks.clear();
        let mut coin = match crash {
            Crash::Process => return,
            Crash::Synced => None,
            Crash::Torn { seed } => Some(Coin(seed)),
        };
        state.lose_names(coin.as_mut());
        for inode in state.names.values() {
            inode.lock().lose(coin.as_mut());
        }
    }

    /// Changes bytes on the disk behind everybody's back: bit rot, or a test's own torn write. Grows the file if need be.
    pub fn corrupt(&self, path: &Path, at: usize, bytes: &[u8]) {
        let state = self.lock();
        let mut content = state
            .names
            .get(path)
            .expect("the test names an existing file")
            .lock();
        let end = at + bytes.len();
        if content.bytes.len() < end {
            content.bytes.resize(end, 0);
            content.durable_len = end;
        }
        content.bytes[at..end].copy_from_slice(bytes);
    }

    /// An independent copy of what is there now, all of it durable.
    #[must_use]
    pub fn fork(&self) -> Self {
        let state = self.lock();
        let copy = |inode: &Arc<Inode>| {
            let bytes = inode.lock().bytes.clone();
            let durable_len = bytes.len();
            Arc::new(Inode(Mutex::new(Content {
                bytes,
                durable_len,
                ..Content::default()
            })))
        };
        let names = state
            .names
            .iter()
            .map(|(path, inode)| (path.clone(), copy(inode)))
            .collect();
        let fresh = State {
            names,
            dirs: state.dirs.clone(),
            nonces: state.nonces,
            ..State::default()
        };
        Self {
            state: Arc::new(Mutex::new(fresh)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, state: &State, inode: Arc<Inode>, writable: bool) -> Arc<dyn VfsFile> {
        Arc::new(SimFile {
            vfs: self.clone(),
            inode,
            epoch: state.epoch,
            writable,
        })
    }
}

impl Vfs for SimVfs {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let mut state = self.lock();
        let off = state.operation()?;
        if state.names.contains_key(path) || state.dirs.contains(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if path.parent().is_some_and(|dir| !state.dirs.contains(dir)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inode = Arc::new(Inode::default());
        state.put_name(path, Some(inode.clone()));
        if off {
            Err(power_is_off())
        } else {
            Ok(self.handle(&state, inode, true))
        }
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let state = self.lock();
        let inode = state.file(path)?;
        Ok(self.handle(&state, inode, true))
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let state = self.lock();
        let inode = state.file(path)?;
        Ok(self.handle(&state, inode, false))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.lock();
        let off = state.operation()?;
        let inode = state.names.get(from).cloned().ok_or(io::ErrorKind::NotFound)?;
        state.put_name(from, None);
        state.put_name(to, Some(inode));
        if off { Err(power_is_off()) } else { Ok(()) }
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.lock();
        let off = state.operation()?;
        let inode = state.names.get(from).cloned().ok_or(io::ErrorKind::NotFound)?;
        if state.names.contains_key(to) || state.dirs.contains(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if to.parent().is_some_and(|dir| !state.dirs.contains(dir)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.put_name(to, Some(inode));
        if off { Err(power_is_off()) } else { Ok(()) }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock();
        let off = state.operation()?;
        if !state.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.put_name(path, None);
        if off { Err(power_is_off()) } else { Ok(()) }
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock();
        let off = state.operation()?;
        let inside: Vec<PathBuf> = state
            .names
            .keys()
            .filter(|name| name.starts_with(path))
            .cloned()
            .collect();
        for name in inside {
            state.put_name(&name, None);
        }
        state.dirs.retain(|dir| !dir.starts_with(path));
        if off { Err(power_is_off()) } else { Ok(()) }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.lock();
        state.alive()?;
        if !state.dirs.contains(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inside = state
            .names
            .keys()
            .chain(&state.dirs)
            .filter(|path| path.parent() == Some(dir));
        let mut names: Vec<String> = inside
            .filter_map(|path| path.file_name()?.to_str().map(str::to_owned))
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.lock();
        state.alive()?;
        Ok(state.names.contains_key(path) || state.dirs.contains(path))
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.lock();
        let off = state.operation()?;
        state.dirs.extend(dir.ancestors().map(Path::to_owned));
        if off { Err(power_is_off()) } else { Ok(()) }
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.lock();
        if state.operation()? {
            return Err(power_is_off());
        }
        if !state.dirs.contains(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.unsynced.retain(|change| change.path.parent() != Some(dir));
        Ok(())
    }

    fn lock_exclusive(&self, path: &Path) -> io::Result<Box<dyn VfsLock>> {
        let mut state = self.lock();
        state.alive()?;
        if !state.locks.insert(path.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(SimLock {
            vfs: self.clone(),
            path: path.to_owned(),
            epoch: state.epoch,
        }))
    }

    fn free_bytes(&self, _path: &Path) -> io::Result<u64> {
        let state = self.lock();
        state.alive()?;
        Ok(state
            .disk_bytes
            .map_or(u64::MAX, |disk| disk.saturating_sub(state.used_bytes())))
    }

    fn nonce(&self) -> u64 {
        let mut state = self.lock();
        state.nonces += 1;
        Coin(state.nonces).next()
    }
}

#[derive(Debug)]
struct SimLock {
    vfs: SimVfs,
    path: PathBuf,
    epoch: u64,
}

impl VfsLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut state = self.vfs.lock();
        if state.epoch == self.epoch {
            state.locks.remove(&self.path);
        }
    }
}

#[derive(Debug)]
struct SimFile {
    vfs: SimVfs,
    inode: Arc<Inode>,
    epoch: u64,
    writable: bool,
}

impl SimFile {
    fn alive(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.vfs.lock();
        if state.epoch != self.epoch {
            return Err(power_is_off());
        }
        state.alive()?;
        Ok(state)
    }

    /// The state, this operation counted, and whether the power goes off with it.
    fn operation(&self) -> io::Result<(MutexGuard<'_, State>, bool)> {
        let mut state = self.alive()?;
        if !self.writable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let off = state.operation()?;
        Ok((state, off))
    }
}

impl VfsFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let _state = self.alive()?;
        let content = self.inode.lock();
        let start = usize::try_from(at).map_or(content.bytes.len(), |at| at.min(content.bytes.len()));
        let read = buffer.len().min(content.bytes.len() - start);
        buffer[..read].copy_from_slice(&content.bytes[start..start + read]);
        Ok(read)
    }

    fn write_at(&self, buffer: &[u8], at: u64) -> io::Result<()> {
        self.write_vectored_at(&[buffer], at)
    }

    fn write_vectored_at(&self, buffers: &[&[u8]], at: u64) -> io::Result<()> {
        let (state, off) = self.operation()?;
        let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let mut at = usize::try_from(at).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let end = at.checked_add(total).ok_or(io::ErrorKind::FileTooLarge)?;
        let len = self.inode.lock().bytes.len();
        state.room_for(end.saturating_sub(len))?;
        let mut content = self.inode.lock();
        for buffer in buffers {
            content.write(buffer, at);
            at += buffer.len();
        }
        if off { Err(power_is_off()) } else { Ok(()) }
    }

    fn sync_data(&self) -> io::Result<()> {
        let (mut state, off) = self.operation()?;
        if off {
            return Err(power_is_off());
        }
        let number = state.syncs;
        state.syncs += 1;
        let mut content = self.inode.lock();
        let dirty = std::mem::take(&mut content.dirty);
        if state.sync_fails_at == Some(number) {
            content.lost.extend(dirty);
            return Err(io::Error::other("simulated sync error"));
        }
        content.durable_len = content.bytes.len();
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let (state, off) = self.operation()?;
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let len = self.inode.lock().bytes.len();
        state.room_for(bytes.saturating_sub(len))?;
        self.inode.lock().resize(bytes);
        if off { Err(power_is_off()) } else { Ok(()) }
    }

    fn preallocate(&self, bytes: u64) -> io::Result<()> {
        if self.len()? < bytes {
            self.set_len(bytes)
        } else {
            Ok(())
        }
    }

    fn len(&self) -> io::Result<u64> {
        let _state = self.alive()?;
        Ok(u64::try_from(self.inode.lock().bytes.len()).expect("a length fits u64"))
    }
}
