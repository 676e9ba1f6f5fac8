//! Which crate may depend on which: the table of the style guide, as data.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::Breach;
use crate::repo::cargo;

/// For each crate of ours the crates of ours that it may depend on. A new arrow needs a decision record in docs/adr/.
const ARROWS: [(&str, &[&str]); 11] = [
    ("laneway-core", &[]),
    ("laneway-wire", &[]),
    ("laneway-storage", &["laneway-core"]),
    ("laneway-raft", &["laneway-core", "laneway-storage"]),
    (
        "laneway-node",
        &["laneway-core", "laneway-raft", "laneway-storage"],
    ),
    ("laneway-http", &["laneway-core", "laneway-node", "laneway-wire"]),
    ("laneway-client", &["laneway-wire"]),
    (
        "laneway-server",
        &[
            "laneway-core",
            "laneway-wire",
            "laneway-node",
            "laneway-http",
            "laneway-client",
        ],
    ),
    (
        "laneway-sim",
        &["laneway-core", "laneway-storage", "laneway-raft", "laneway-node"],
    ),
    ("chaos-tests", &["laneway-client", "laneway-wire", "laneway-sim"]),
    (
        "xtask",
        &[
            "laneway-storage",
            "laneway-raft",
            "laneway-http",
            "laneway-server",
        ],
    ),
];

/// Heavy dependencies and the crates that own them. Tests (dev-dependencies) are free.
const OWNERS: [(&str, &[&str]); 15] = [
    ("sled", &["laneway-storage"]),
    ("bincode", &["laneway-storage"]),
    ("libc", &["laneway-storage", "chaos-tests"]),
    ("mimalloc", &["laneway-server"]),
    ("openraft", &["laneway-raft"]),
    ("ractor", &["laneway-node"]),
    ("axum", &["laneway-http"]),
    ("hyper", &["laneway-http", "chaos-tests"]),
    ("tracing-subscriber", &["laneway-server"]),
    ("clap", &["laneway-server", "xtask", "chaos-tests"]),
    ("anyhow", &["laneway-server", "xtask", "chaos-tests"]),
    ("toml", &["laneway-server"]),
    ("reqwest", &["laneway-client", "chaos-tests"]),
    (
        "rand",
        &["laneway-raft", "laneway-node", "laneway-sim", "chaos-tests"],
    ),
    ("turmoil", &["laneway-sim"]),
];

/// Crates whose whole list of outside dependencies is fixed: they stay pure data and pure machines.
const CLOSED: [(&str, &[&str]); 2] = [
    ("laneway-core", &["bytes", "serde", "thiserror", "xxhash-rust"]),
    ("laneway-wire", &["serde", "serde_json"]),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `null` = normal, else `dev` or `build`.
    kind: Option<String>,
}

pub(super) fn check() -> Result<Vec<Breach>> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()?;
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("cargo metadata is not readable")?;
    Ok(metadata.packages.iter().flat_map(breaches).collect())
}

fn breaches(package: &Package) -> Vec<Breach> {
    let breach = |text: String| Breach {
        path: package.manifest_path.clone(),
        line: 0,
        text,
    };
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package.name) else {
        return vec![breach(format!(
            "{} is not in the table of xtask/src/tidy/arrows.rs",
            package.name
        ))];
    };
    let closed = CLOSED
        .iter()
        .find(|(name, _)| *name == package.name)
        .map(|(_, names)| *names);
    let mut found = Vec::new();
    for dependency in package
        .dependencies
        .iter()
        .filter(|d| d.kind.as_deref() != Some("dev"))
    {
        let name = dependency.name.as_str();
        let ours = ARROWS.iter().any(|(of_ours, _)| *of_ours == name);
        if ours && !allowed.contains(&name) {
            found.push(breach(format!("{} must not depend on {name}", package.name)));
        }
        let owners = OWNERS
            .iter()
            .find(|(heavy, _)| *heavy == name)
            .map(|(_, owners)| *owners);
        if let Some(owners) = owners.filter(|owners| !owners.contains(&package.name.as_str())) {
            found.push(breach(format!(
                "{name} belongs to {}, not to {}",
                owners.join(", "),
                package.name
            )));
        }
        if !ours && closed.is_some_and(|names| !names.contains(&name)) {
            found.push(breach(format!(
                "{} is closed: {name} is not among its dependencies",
                package.name
            )));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Package {
        let dependencies = dependencies
            .iter()
            .map(|(name, kind)| Dependency {
                name: (*name).to_owned(),
                kind: kind.map(str::to_owned),
            })
            .collect();
        Package {
            name: name.to_owned(),
            manifest_path: PathBuf::from("Cargo.toml"),
            dependencies,
        }
    }

    #[track_caller]
    fn check(name: &str, dependencies: &[(&str, Option<&str>)], texts: &[&str]) {
        let found: Vec<_> = breaches(&package(name, dependencies))
            .into_iter()
            .map(|b| b.text)
            .collect();
        assert_eq!(found, texts);
    }

    #[test]
    fn arrows_point_one_way() {
        check(
            "laneway-raft",
            &[("laneway-storage", None), ("openraft", None)],
            &[],
        );
        check(
            "laneway-storage",
            &[("laneway-raft", None)],
            &["laneway-storage must not depend on laneway-raft"],
        );
        check(
            "laneway-http",
            &[("sled", None)],
            &["sled belongs to laneway-storage, not to laneway-http"],
        );
        check("laneway-http", &[("sled", Some("dev"))], &[]);
        check(
            "laneway-core",
            &[("log", None)],
            &["laneway-core is closed: log is not among its dependencies"],
        );
        check(
            "laneway-utils",
            &[],
            &["laneway-utils is not in the table of xtask/src/tidy/arrows.rs"],
        );
    }
}
