//! The parsers: how each is run, what its behaviour is, what inputs to start from.

use std::fs;

use bytes::Bytes;
use laneway_raft::check_peer_bytes;
use laneway_server::config::{Config, parse_cluster, parse_node};
use laneway_storage::checkpoint::{check_checkpoint_bytes, check_manifest_bytes};
use laneway_storage::codec::{decode_catalog_entry, decode_entry, frames};
use laneway_storage::dedup::check_dedup_bytes;
use laneway_storage::wal::fuzz_segment;

use super::{TargetName, hash, repair};
use crate::repo;

/// Folder of the golden files: whole, sound inputs.
const GOLDEN: &str = "crates/laneway-storage/tests/golden";

/// A parser under test.
pub(super) struct Target {
    /// Runs it; the value stands for what it did (which refusal, how far it came).
    pub(super) execute: fn(&[u8]) -> u64,
    /// Makes checksums fit again, so that what is behind them is reached.
    pub(super) repair: Option<fn(&mut [u8])>,
    /// Words of the format.
    pub(super) tokens: &'static [&'static [u8]],
    /// Beginnings of the names of its golden files.
    golden: &'static [&'static str],
}

impl Target {
    /// Inputs beside the kept corpus.
    pub(super) fn seeds(&self) -> Vec<Vec<u8>> {
        let Ok(folder) = fs::read_dir(repo::root().join(GOLDEN)) else {
            return Vec::new();
        };
        let mut paths: Vec<_> = folder.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let name = |path: &std::path::PathBuf| {
            path.file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        };
        paths.retain(|path| self.golden.iter().any(|start| name(path).starts_with(start)));
        paths.iter().flat_map(fs::read).collect()
    }
}

pub(super) fn target(name: TargetName) -> Target {
    match name {
        TargetName::HttpBodies => Target {
            execute: http_body,
            repair: None,
            tokens: HTTP_TOKENS,
            golden: &[],
        },
        TargetName::Wal => {
            let execute = |input: &[u8]| u64::try_from(fuzz_segment(input)).unwrap_or(u64::MAX);
            Target {
                execute,
                repair: Some(repair::wal),
                tokens: &[b"LANEWAL\0"],
                golden: &["wal-segment-"],
            }
        }
        TargetName::Checkpoint => Target {
            execute: checkpoint,
            repair: Some(repair::checkpoint),
            tokens: &[b"LWcp\x01", b"LWmf\x01"],
            golden: &["checkpoint-", "manifest-"],
        },
        TargetName::Backlog => Target {
            execute: |input| behaviour(&laneway_storage::check_backlog_bytes(input)),
            repair: Some(repair::backlog),
            tokens: &[b"LWbl\x01", b"lbWL"],
            golden: &["backlog-"],
        },
        TargetName::Dedup => Target {
            execute: |input| behaviour(&check_dedup_bytes(input)),
            repair: Some(repair::dedup),
            tokens: &[b"LWdd\x01", b"ddWL"],
            golden: &["dedup-"],
        },
        TargetName::Entry => Target {
            execute: entry,
            repair: None,
            tokens: &[],
            golden: &["entry-", "catalog-entry-"],
        },
        TargetName::Config => Target {
            execute: config,
            repair: None,
            tokens: CONFIG_TOKENS,
            golden: &[],
        },
        TargetName::Peer => Target {
            execute: |input| behaviour(&check_peer_bytes(input)),
            repair: Some(repair::peer),
            tokens: &[
                b"laneway\0\x02\0",
                b"\x01\0\0\0",
                b"\x02\0\x03\0",
                b"\x05\0\x03\0",
            ],
            golden: &[],
        },
    }
}

const HTTP_TOKENS: &[&[u8]] = &[
    b"{\"items\":[",
    b"\"queue\":",
    b"\"partition\":",
    b"\"payload\":",
    b"\"transactionId\":",
    b"\"acknowledgments\":",
    b"\"partitionId\":",
    b"\"leaseId\":",
    b"\"status\":",
    b"\"options\":{",
    b"\"leaseTime\":",
    b"\"mode\":\"merge\"",
    b"\"change\":\"transfer_leader\",\"node\":",
    b"null",
    b"9e18",
    b"-1",
    b"\\u0000",
    b"\\ud800",
    b"[[[[[[[[",
    b"%2F",
    b"%zz",
    b"batch=",
    b"&wait=true&timeout=",
    b"subscriptionFrom=2026-02-30T25:61:61.999999999+99:99",
];

const CONFIG_TOKENS: &[&[u8]] = &[
    b"[limits]\n",
    b"[storage]\n",
    b"[http]\n",
    b"[raft]\n",
    b"[[nodes]]\nnode = 1\npeer = \"",
    b"partitions = ",
    b"wal_segments_max = ",
    b"listen = \"",
    b"\"\"\"",
    b"0x",
    b"1e999",
    b"inf",
    b"nan",
];

/// The first byte chooses the route.
fn http_body(input: &[u8]) -> u64 {
    let (route, body) = input
        .split_first()
        .map_or((0, input), |(route, body)| (*route, body));
    laneway_http::fuzz_body(route, body);
    let routes = u8::try_from(laneway_http::FUZZ_ROUTES.len()).expect("few routes");
    // The readers tell nothing; how JSON fails is a rough measure of how far they came.
    let json = serde_json::from_slice::<serde::de::IgnoredAny>(body);
    behaviour(
        &json
            .map(|_| ())
            .map_err(|error| (error.classify(), error.to_string())),
    ) ^ u64::from(route % routes)
}

fn checkpoint(input: &[u8]) -> u64 {
    behaviour(&check_checkpoint_bytes(input)) ^ behaviour(&check_manifest_bytes(input).map(|_| ()))
}

fn entry(input: &[u8]) -> u64 {
    let body = Bytes::copy_from_slice(input);
    let catalog = decode_catalog_entry(&body).map(|(_, entry)| entry.commands.len());
    let partition = decode_entry(&body).map(|(_, entry, _)| {
        let messages = frames(&entry.blob).take_while(Result::is_ok).count();
        (entry.commands.len(), messages)
    });
    hash(format!("{catalog:?}{partition:?}").as_bytes())
}

fn config(input: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(input);
    let path = std::path::Path::new("x.toml");
    let (cluster, node) = (parse_cluster(path, &text), parse_node(path, &text));
    let cluster_result = cluster.as_ref().map(|_| ()).map_err(ToString::to_string);
    let node_result = node.as_ref().map(|_| ()).map_err(ToString::to_string);
    let checked = match (cluster, node) {
        (Ok(cluster), Ok(node)) => Config::check(&cluster, path, &node, path)
            .map(|_| ())
            .map_err(|e| e.to_string()),
        (Ok(cluster), Err(_)) => Config::check(&cluster, path, &Default::default(), path)
            .map(|_| ())
            .map_err(|e| e.to_string()),
        (Err(_), Ok(node)) => Config::check(&Default::default(), path, &node, path)
            .map(|_| ())
            .map_err(|e| e.to_string()),
        (Err(_), Err(_)) => Ok(()),
    };
    behaviour(&(cluster_result, node_result, checked))
}

/// A value for a result: its text without numbers, so that positions in the input make no difference.
fn behaviour(result: &impl std::fmt::Debug) -> u64 {
    let text: String = format!("{result:?}")
        .chars()
        .filter(|c| !c.is_ascii_digit())
        .take(400)
        .collect();
    hash(text.as_bytes())
}
