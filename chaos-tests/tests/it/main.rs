//! A short run of the whole chain against the real binary: start, load, kill, restart, drain, judge.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use chaos_tests::server::Settings;
use chaos_tests::{cluster, kill9};
use laneway_sim::oracle;
use laneway_sim::oracle::history::{History, Op, Operation, Outcome, Popped, Reply};

/// The broker's binary in the target folder of this test: a test of another package has no `CARGO_BIN_EXE`. A test run of the
/// whole workspace has just built it; else it is built now.
fn laneway() -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its own path");
    let profile = own.ancestors().nth(2).expect("<target>/<profile>/deps/<test>");
    let binary = profile.join("laneway");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("a member is in a workspace");
    let sources = changed(&root.join("crates")).max(changed(&root.join("Cargo.lock")));
    if changed(&binary) > sources {
        return binary;
    }
    let mut build = Command::new(env!("CARGO"));
    build.args([
        "build",
        "--package",
        "laneway-server",
        "--bin",
        "laneway",
        "--target-dir",
    ]);
    build.arg(profile.parent().expect("a profile's folder has a parent"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(
        build.status().is_ok_and(|status| status.success()),
        "the broker does not build"
    );
    binary
}

/// The newest change at or below a path; `None` when there is nothing.
fn changed(path: &Path) -> Option<SystemTime> {
    let below = std::fs::read_dir(path).into_iter().flatten().flatten();
    let newest = below.filter_map(|entry| changed(&entry.path())).max();
    newest.max(path.metadata().ok()?.modified().ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_killed_under_load_loses_and_doubles_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = kill9::Options {
        binary: laneway(),
        settings: Settings::TightStorage,
        rounds: 3,
        seconds_per_round: 2.0,
        seed: 1,
        dir: dir.path().to_owned(),
    };
    let report = match kill9::run(&options).await {
        Ok(report) => report,
        Err(error) => panic!("{error:#}; kept: {}", dir.keep().display()),
    };
    report.print();
    if !report.passed() {
        panic!("see above; kept: {}", dir.keep().display());
    }
    assert!(report.counts.ok > 50, "{:?}", report.counts);
    assert_tampering_is_found(&dir.path().join("history.jsonl"));
    assert!(
        report.judgement.counts().items_dead_lettered > 0,
        "the load must reach the dead letters"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_lose_nothing_when_a_leader_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let options = cluster::Options {
        binary: laneway(),
        settings: Settings::TightStorage,
        nodes: 3,
        fault: cluster::Fault::KillLeader,
        rounds: 2,
        seconds_per_round: 2.0,
        stop_seconds: 1.0,
        lag_mib: 1,
        seed: 1,
        dir: dir.path().to_owned(),
    };
    let mut report = match cluster::run(&options).await {
        Ok(report) => report,
        Err(error) => panic!("{error:#}; kept: {}", dir.keep().display()),
    };
    report.print();
    if !report.passed() {
        panic!("see above; kept: {}", dir.keep().display());
    }
    assert!(
        report.counts.ok > 50 && report.judgement.counts().digests > 0,
        "{:?}",
        report.counts
    );
}

/// What passed must not pass any more once a stored message was never delivered, or a lease given out a second time.
fn assert_tampering_is_found(path: &Path) {
    let file = File::open(path).expect("a run writes its history");
    let history = History::read(BufReader::new(file)).expect("a history was written");

    let mut lost = history.clone();
    let stored = lost
        .operations
        .iter()
        .find_map(|operation| match (&operation.op, &operation.outcome) {
            (Op::Push { queue, lane, .. }, Outcome::Ok(Reply::Pushed(items))) if queue == "orders" => {
                Some((lane.clone(), items.first()?.offset))
            }
            _ => None,
        });
    let (lane, offset) = stored.expect("something was pushed to orders");
    for (queue, popped) in lost.operations.iter_mut().filter_map(popped) {
        if queue == "orders" {
            popped
                .messages
                .retain(|message| message.lane != lane || message.offset != offset);
        }
    }
    assert!(violated(&lost).contains(&1));

    let mut doubled = history;
    let claimed = doubled.operations.iter().position(|operation| {
        matches!(&operation.outcome, Outcome::Ok(Reply::Popped(popped)) if !popped.lease_id.is_empty())
    });
    let mut second = doubled.operations[claimed.expect("something was popped")].clone();
    second.client = u32::MAX;
    doubled.operations.push(second);
    assert!(violated(&doubled).contains(&7));
}

fn popped(operation: &mut Operation) -> Option<(&str, &mut Popped)> {
    match (&operation.op, &mut operation.outcome) {
        (Op::Pop { queue, .. }, Outcome::Ok(Reply::Popped(popped))) => Some((queue, popped)),
        _ => None,
    }
}

fn violated(history: &History) -> BTreeSet<u8> {
    oracle::judge(history)
        .violations
        .iter()
        .map(|violation| violation.invariant)
        .collect()
}
