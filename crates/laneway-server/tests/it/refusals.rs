//! What keeps a node from starting: one line on standard error that says what to do, and an exit code.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use crate::broker::{Broker, output};

/// Runs a command line that is refused with `code`; its standard error is one line, which is returned.
#[track_caller]
fn refused(args: &[&str], code: i32) -> String {
    let output = output(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    // Log lines come before it; they carry a level.
    let lines: Vec<&str> = stderr
        .lines()
        .filter(|line| line.starts_with("laneway: "))
        .collect();
    assert_eq!(lines.len(), 1, "{stderr}");
    assert!(
        stderr.trim_end().ends_with(lines[0]),
        "the refusal is the last line: {stderr}"
    );
    assert!(!stderr.contains("panic"), "{stderr}");
    lines[0].to_owned()
}

#[track_caller]
fn check(args: &[&str], wanted: &[&str]) {
    let line = refused(args, 1);
    for text in wanted {
        assert!(line.contains(text), "{text:?} is not in {line:?}");
    }
}

fn dev<'a>(data: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["dev", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()];
    args.extend(more);
    args
}

#[test]
fn wrong_usage_has_exit_code_2() {
    for args in [
        &["dev", "--partitions", "0"][..],
        &["serve"],
        &["ctl"],
        &["nonsense"],
        &["dev", "--listen", "x"],
    ] {
        assert_eq!(output(args).status.code(), Some(2), "{args:?}");
    }
    assert_eq!(output(&["--version"]).status.code(), Some(0));
}

#[test]
fn unknown_configuration_key_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.toml");
    fs::write(dir.path().join("cluster.toml"), "").unwrap();
    fs::write(&file, "node = 1\ndata = \"x\"\n").unwrap();
    let file = file.to_str().unwrap();
    check(
        &["check-config", file],
        &["node.toml:2", "unknown field `data`", "docs/configuration.md"],
    );
    check(
        &["serve", "--config", file],
        &["node.toml:2", "unknown field `data`"],
    );
    fs::write(file, "node = 1\n").unwrap();
    let checked = output(&["check-config", file]);
    assert!(checked.status.success());
    assert!(
        String::from_utf8(checked.stdout)
            .unwrap()
            .contains("ok: cluster laneway, node 1")
    );
    assert!(!dir.path().join("laneway-data").exists(), "a check makes nothing");
}

#[test]
fn cluster_of_another_name_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(&dir.path().join("data"));
    broker.stop();
    fs::write(dir.path().join("cluster.toml"), "name = \"other\"\n").unwrap();
    let file = dir.path().join("node.toml");
    check(
        &["serve", "--config", file.to_str().unwrap()],
        &["dev", "other", "choose another directory"],
    );
}

#[test]
fn unreadable_configuration_file_is_refused() {
    let line = refused(&["serve", "--config", "no-such-file.toml"], 1);
    assert_eq!(
        line,
        "laneway: no-such-file.toml: No such file or directory (os error 2): give the path of a readable TOML file"
    );
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    check(
        &["check-config", folder],
        &[folder, "it is not a file", "give the path"],
    );
    let file = dir.path().join("node.toml");
    fs::write(&file, b"node = 1 # \xff\n").unwrap();
    let file = file.to_str().unwrap();
    check(
        &["check-config", file],
        &[file, "it is not UTF-8 text", "give the path"],
    );
    fs::write(file, "").unwrap();
    check(
        &["check-config", file],
        &["cluster.toml", "No such file", "cluster_file"],
    );
}

#[test]
fn refused_start_says_its_version_and_where_its_data_is() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let command = Command::new(env!("CARGO_BIN_EXE_laneway"))
        .args(["dev", "--data", "../data", "--listen", &address])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8(command.stderr).unwrap();
    let data = dir.path().canonicalize().unwrap().with_file_name("data");
    let data = format!("data_dir={}", data.display());
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{stderr}");
    for text in ["INFO", "starting", env!("CARGO_PKG_VERSION"), &data] {
        assert!(lines[0].contains(text), "{text:?} is not in {stderr}");
    }
    assert!(lines[1].starts_with("laneway: "), "{stderr}");
}

#[test]
fn taken_port_is_refused_before_any_file_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let data_text = data.to_str().unwrap();
    check(
        &["dev", "--listen", &address, "--data", data_text],
        &[&address, "in use", "choose another"],
    );
    assert!(!data.exists());
}

#[test]
fn second_process_on_a_data_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(&dir.path().join("data"));
    let wanted = [
        broker.data.to_str().unwrap(),
        "is in use by another process",
        "stop it",
    ];
    check(&dev(&broker.data, &[]), &wanted);
    broker.stop();
}

#[test]
fn data_directory_that_is_no_folder_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    check(&dev(&file, &[]), &[file.to_str().unwrap(), "must be a folder"]);
}

#[test]
fn other_number_of_partitions_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(&dir.path().join("data"));
    let data = broker.data.clone();
    broker.stop();
    check(
        &dev(&data, &["--partitions", "8"]),
        &["4 partitions, not 8", "partitions = 4", "leave --partitions out"],
    );
    Broker::start(&data).stop();
}

#[tokio::test]
async fn damaged_file_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start(&dir.path().join("data"));
    let data = broker.data.clone();
    let client = laneway_client::Client::new(&broker.url).unwrap();
    for n in 0..20 {
        client
            .push(&[laneway_client::Push::new("q", &n).unwrap()])
            .await
            .unwrap();
    }
    broker.kill();
    let segment = first_segment(&data);
    let mut bytes = fs::read(&segment).unwrap();
    // Well before the end of what was written, so that later drains prove that it is no torn tail.
    let written = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    for byte in &mut bytes[written / 2..written / 2 + 16] {
        *byte ^= 0xff;
    }
    fs::write(&segment, bytes).unwrap();
    let name = segment.file_name().unwrap().to_str().unwrap();
    check(&dev(&data, &[]), &[name, "damaged"]);
}

/// The largest file of the data directory that has content.
fn first_segment(data: &Path) -> std::path::PathBuf {
    let mut files = Vec::new();
    let mut folders = vec![data.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_str().unwrap().contains("wal")
                && fs::read(&path).unwrap().iter().any(|b| *b != 0)
            {
                files.push(path);
            }
        }
    }
    files.sort();
    files.swap_remove(0)
}
