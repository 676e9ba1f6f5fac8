//! The simulated file system keeps what was promised and nothing else.

use std::path::Path;

use laneway_storage::vfs::{Crash, SimVfs, Vfs};

const DIR: &str = "/d";

fn path(name: &str) -> std::path::PathBuf {
    Path::new(DIR).join(name)
}

fn disk() -> SimVfs {
    let vfs = SimVfs::new();
    vfs.create_dir_all(Path::new(DIR)).unwrap();
    vfs
}

#[test]
fn unsynced_names_and_bytes_are_lost() {
    let vfs = disk();
    let file = vfs.create(&path("a")).unwrap();
    file.write_at(b"one", 0).unwrap();
    file.sync_data().unwrap();
    vfs.crash(Crash::Synced);
    assert!(!vfs.exists(&path("a")).unwrap(), "its directory was not synced");
    assert!(file.read_at(&mut [0], 0).is_err(), "handles die with the machine");

    let file = vfs.create(&path("a")).unwrap();
    file.write_at(b"one", 0).unwrap();
    file.sync_data().unwrap();
    vfs.sync_dir(Path::new(DIR)).unwrap();
    file.write_at(b"two and more", 0).unwrap();
    vfs.rename(&path("a"), &path("b")).unwrap();
    let process = vfs.fork();
    vfs.crash(Crash::Synced);
    assert_eq!(vfs.list(Path::new(DIR)).unwrap(), vec!["a"]);
    assert_eq!(vfs.read(&path("a")).unwrap(), b"one");
    assert_eq!(process.read(&path("b")).unwrap(), b"two and more");
}

#[test]
fn torn_crash_mixes_sectors() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..64 {
        let vfs = disk();
        let file = vfs.create(&path("a")).unwrap();
        file.write_at(&[1; 1024], 0).unwrap();
        file.sync_data().unwrap();
        vfs.sync_dir(Path::new(DIR)).unwrap();
        file.write_at(&[2; 1024], 0).unwrap();
        vfs.crash(Crash::Torn { seed });
        let bytes = vfs.read(&path("a")).unwrap();
        assert!(bytes[..512].iter().all(|&byte| byte == bytes[0]));
        seen.insert((bytes[0], bytes[1023]));
    }
    assert_eq!(seen.len(), 4);
}

#[test]
fn failed_sync_leaves_clean_pages_that_never_reach_the_disk() {
    let vfs = disk();
    let file = vfs.create(&path("a")).unwrap();
    file.write_at(&[1; 10], 0).unwrap();
    file.sync_data().unwrap();
    vfs.sync_dir(Path::new(DIR)).unwrap();
    file.write_at(&[2; 10], 0).unwrap();
    vfs.fail_sync_at(vfs.syncs());
    assert!(file.sync_data().is_err());
    file.sync_data().unwrap();
    assert_eq!(vfs.read(&path("a")).unwrap(), [2; 10]);
    vfs.crash(Crash::Synced);
    assert_eq!(vfs.read(&path("a")).unwrap(), [1; 10]);
}

#[test]
fn full_disk_refuses_growth_only() {
    let vfs = disk();
    vfs.set_disk_bytes(Some(100));
    let file = vfs.create(&path("a")).unwrap();
    file.preallocate(80).unwrap();
    let full = file.write_at(&[1; 30], 80).unwrap_err();
    assert!(laneway_storage::vfs::is_full(&full));
    file.write_at(&[1; 80], 0).unwrap();
    assert_eq!(vfs.free_bytes(Path::new(DIR)).unwrap(), 20);
    vfs.remove(&path("a")).unwrap();
    assert_eq!(vfs.free_bytes(Path::new(DIR)).unwrap(), 100);
}

#[test]
fn power_off_stops_everything_until_the_crash() {
    let vfs = disk();
    let file = vfs.create(&path("a")).unwrap();
    vfs.power_off_at(vfs.operations());
    assert!(file.write_at(b"x", 0).is_err());
    assert!(file.sync_data().is_err() && vfs.list(Path::new(DIR)).is_err());
    vfs.crash(Crash::Process);
    assert_eq!(vfs.read(&path("a")).unwrap(), b"x");
}
