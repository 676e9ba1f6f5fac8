//! docs/configuration.md, made from the doc comments of the configuration keys.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::Breach;
use crate::repo::{self, say};

/// Where the keys are documented.
const SOURCE: &str = "crates/laneway-server/src/config/raw.rs";

/// The page made from it.
const PAGE: &str = "docs/configuration.md";

/// The structs of the source in the order of the page, with their headings.
const SECTIONS: [(&str, &str); 8] = [
    ("RawCluster", "Cluster file"),
    ("RawClusterLimits", "Cluster file, table `[limits]`"),
    ("RawRaft", "Cluster file, table `[raft]`"),
    ("RawClusterNode", "Cluster file, tables `[[nodes]]`"),
    ("RawNode", "Node file"),
    ("RawNodeLimits", "Node file, table `[limits]`"),
    ("RawStorage", "Node file, table `[storage]`"),
    ("RawHttp", "Node file, table `[http]`"),
];

const INTRODUCTION: &str = "\
# Configuration

<!-- Made by `cargo xtask config-reference` from crates/laneway-server/src/config/raw.rs; do not edit. -->

`laneway serve --config cluster-config/three/node-1.toml` reads the node's file and the cluster file that its `cluster_file`
names; `laneway check-config` with the same path reads and checks them, shows the other nodes, and starts nothing.
[cluster-config/](../cluster-config/three/cluster.toml) holds files to start from, for one, three and five nodes. Both files
may be empty, but both must exist: every key has a default, those of `[[nodes]]` excepted. An unknown key, a wrong type or a
value out of its range refuses to start, with one line that names the file and the key or line.

The **cluster file** is the same on every node; the **node file** holds what belongs to one machine. A change takes effect
at the next start. `laneway dev` uses the defaults below and the cluster name `dev`; with `--nodes` it writes such files for
its nodes, beside their data.

Nodes compare a hash, the *fingerprint*, of the cluster file's values, defaults included: of `name`, `partitions`,
`generation_takeover_ms`, and all of `[limits]` and `[raft]`. Two nodes that differ refuse each other, and the log of both says
so; to change such a value, stop all nodes, change all files, and start them. The list `[[nodes]]` is not part of it, so that it
can be changed on one node after the other while the rest serve; nodes that are not in a node's list are refused by it.

The environment variable `LANEWAY_LOG` filters the log, such as `LANEWAY_LOG=laneway_node=debug,info`; `--log-format json`
writes one JSON object per line.
";

struct Key {
    name: String,
    effect: String,
    facts: String,
}

/// Writes the page.
pub(crate) fn write() -> Result<()> {
    fs::write(repo::root().join(PAGE), render()?).context("cannot write the page")?;
    say(format_args!("wrote {PAGE}"));
    Ok(())
}

/// Whether the page is what the comments give.
pub(crate) fn check() -> Result<Vec<Breach>> {
    let present = repo::read(Path::new(PAGE)).unwrap_or_default();
    if present == render()? {
        return Ok(Vec::new());
    }
    let text = "not what the comments give: run cargo xtask config-reference".to_owned();
    Ok(vec![Breach {
        path: PAGE.into(),
        line: 0,
        text,
    }])
}

fn render() -> Result<String> {
    let source = repo::read(Path::new(SOURCE))?;
    let mut page = INTRODUCTION.to_owned();
    for (name, heading) in SECTIONS {
        let (about, keys) = section(&source, name)?;
        write!(page, "\n## {heading}\n\n{about}\n\n")?;
        page.push_str("| Key | Effect | Unit, default, since |\n| --- | --- | --- |\n");
        for key in keys {
            writeln!(page, "| `{}` | {} | {} |", key.name, key.effect, key.facts)?;
        }
    }
    Ok(page)
}

/// The first paragraph of a struct's comment, and its keys.
fn section(source: &str, name: &str) -> Result<(String, Vec<Key>)> {
    let Some((before, rest)) = source.split_once(&format!("pub struct {name} {{\n")) else {
        bail!("{SOURCE} has no struct {name}");
    };
    let about: Vec<&str> = before.lines().rev().take_while(|line| !line.is_empty()).collect();
    let about = about
        .iter()
        .rev()
        .filter_map(|line| line.strip_prefix("///"))
        .map(str::trim)
        .collect::<Vec<_>>()
        .join(" ");
    let (body, _) = rest.split_once("\n}").context("a struct without an end")?;
    let mut keys = Vec::new();
    let mut comment = Vec::new();
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            comment.push(text.trim());
        } else if let Some(field) = line.strip_prefix("pub ") {
            keys.extend(key(field, &std::mem::take(&mut comment))?);
        }
    }
    Ok((about, keys))
}

/// A documented key; `None` for a field that is a table of its own.
fn key(field: &str, comment: &[&str]) -> Result<Option<Key>> {
    if comment.is_empty() {
        return Ok(None);
    }
    let (name, _) = field.split_once(':').context("a field without a type")?;
    let Some(gap) = comment.iter().position(|line| line.is_empty()) else {
        bail!("{SOURCE}: the comment of {name} has no paragraph with unit, default and since");
    };
    let effect = comment[..gap].join(" ");
    let facts = comment[gap + 1..].join(" ");
    for parts in [&["Unit: "][..], &["Default: `", "Required."], &["Since v"]] {
        if !parts.iter().any(|part| facts.contains(part)) {
            bail!("{SOURCE}: the comment of {name} lacks \"{}\"", parts[0]);
        }
    }
    Ok(Some(Key {
        name: name.to_owned(),
        effect,
        facts,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE_TEXT: &str = "\
/// About the file.
#[derive(Clone)]
pub struct RawX {
    /// What it does.
    ///
    /// Unit: ms. Default: `5`. Since v0.1.
    pub wait_ms: u64,
    #[serde(rename = \"limits\")]
    pub limits: Limits,
}
";

    #[test]
    fn keys_are_read_from_comments() {
        let (about, keys) = section(SOURCE_TEXT, "RawX").unwrap();
        assert_eq!(about, "About the file.");
        assert_eq!(keys.len(), 1);
        assert_eq!(
            (keys[0].name.as_str(), keys[0].effect.as_str()),
            ("wait_ms", "What it does.")
        );
        assert_eq!(keys[0].facts, "Unit: ms. Default: `5`. Since v0.1.");
    }

    #[test]
    fn keys_without_a_default_are_refused() {
        assert!(section(&SOURCE_TEXT.replace("Default: `5`. ", ""), "RawX").is_err());
    }
}
