//! A short run of the whole chain against the real binary: start, load, kill, restart, drain, judge.

use std::path::PathBuf;
use std::process::Command;

use chaos_tests::kill9;

/// The broker's binary in the target folder of this test, built now: a test of another package has no `CARGO_BIN_EXE`.
fn laneway() -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its own path");
    let profile = own.ancestors().nth(2).expect("<target>/<profile>/deps/<test>");
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
    profile.join("laneway")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_killed_under_load_loses_and_doubles_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = kill9::Options {
        binary: laneway(),
        rounds: 3,
        seconds_per_round: 2.0,
        seed: 1,
        dir: dir.path().to_owned(),
    };
    let report = kill9::run(&options).await.unwrap();
    report.print();
    if !report.passed() {
        panic!("see above; kept: {}", dir.keep().display());
    }
    assert!(report.counts.ok > 500, "{:?}", report.counts);
    assert!(
        report.judgement.counts().items_dead_lettered > 0,
        "the load must reach the dead letters"
    );
}
