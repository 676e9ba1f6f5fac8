//! What the disk itself can do: 4 KiB writes into a preallocated file, each made durable before the next.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const BLOCK_BYTES: usize = 4096;
const FILE_BLOCKS: u64 = 4096;

/// `write` + `fdatasync` pairs per second on the file system of `dir`, over about `span`.
pub fn sync_rate(dir: &Path, span: Duration) -> io::Result<f64> {
    let path = dir.join("sync-rate.tmp");
    let rate = measure(&path, span);
    std::fs::remove_file(&path)?;
    rate
}

fn measure(path: &Path, span: Duration) -> io::Result<f64> {
    let file = prefilled(path)?;
    let block = [0x5A; BLOCK_BYTES];
    let started = Instant::now();
    let mut syncs = 0_u32;
    while started.elapsed() < span {
        let at = u64::from(syncs) % FILE_BLOCKS * BLOCK_BYTES as u64;
        file.write_all_at(&block, at)?;
        file.sync_data()?;
        syncs += 1;
    }
    Ok(f64::from(syncs) / started.elapsed().as_secs_f64())
}

/// A file whose blocks are all written, so that no sync has to allocate one.
fn prefilled(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .open(path)?;
    let zeros = vec![0; 1 << 20];
    for _ in 0..(FILE_BLOCKS * BLOCK_BYTES as u64) >> 20 {
        file.write_all(&zeros)?;
    }
    file.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_positive_and_the_file_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        assert!(sync_rate(dir.path(), Duration::from_millis(20)).unwrap() > 0.0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
