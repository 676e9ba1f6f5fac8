//! The list of nodes: its checks, and the hash by which nodes see that their cluster files agree.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use laneway_node::PeerNetOptions;
use xxhash_rust::xxh3::xxh3_64;

use super::check::{Checker, quoted};
use super::{ConfigError, RawCluster, RawClusterLimits, RawNode, RawRaft};

/// Most nodes of a cluster: each has a replica of every partition, and every write waits for more than half of them.
const NODES_MAX: usize = 16;

/// Longest host name of DNS, in bytes.
const HOST_BYTES_MAX: usize = 253;

/// First line of what is hashed. Another number means that the rest is written another way.
const CANONICAL_HEADER: &str = "laneway-cluster 1";

/// Checks the list of nodes and this node's place in it. `None` = there is no list.
pub(super) fn options(
    raw_cluster: &RawCluster,
    cluster: &Checker<'_>,
    raw_node: &RawNode,
    node: &Checker<'_>,
) -> Result<Option<PeerNetOptions>, ConfigError> {
    let addresses = addresses(raw_cluster, cluster)?;
    let given = &raw_node.peer_listen;
    if addresses.is_empty() {
        if !given.is_empty() {
            let wanted = "left out as long as the cluster file has no [[nodes]]";
            return Err(node.refusal("peer_listen", quoted(given), wanted));
        }
        return Ok(None);
    }
    let Some(own) = addresses.get(&raw_node.node) else {
        let listed = addresses
            .keys()
            .map(u16::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        let wanted = format!("one of the nodes that the cluster file lists in [[nodes]]: {listed}");
        return Err(node.refusal("node", raw_node.node, wanted));
    };
    let listen = if given.is_empty() { own } else { given };
    if !given.is_empty() && !given.parse::<SocketAddr>().is_ok_and(|given| given.port() != 0) {
        let wanted = "an IP address and a port from 1 to 65535, such as 0.0.0.0:7632";
        return Err(node.refusal("peer_listen", quoted(given), wanted));
    }
    if *listen == raw_node.listen {
        let wanted = format!("another address than the one for the other nodes, {listen}");
        return Err(node.refusal("listen", quoted(listen), wanted));
    }
    Ok(Some(PeerNetOptions {
        listen: listen.clone(),
        addresses,
        fingerprint: fingerprint(raw_cluster),
        takeover_ms: raw_cluster.generation_takeover_ms,
    }))
}

/// The list by number.
fn addresses(raw: &RawCluster, checker: &Checker<'_>) -> Result<BTreeMap<u16, String>, ConfigError> {
    if raw.nodes.len() > NODES_MAX {
        let wanted = format!("at most {NODES_MAX} tables");
        return Err(checker.refusal("[[nodes]]", format_args!("{} tables", raw.nodes.len()), wanted));
    }
    let (mut by_node, mut seen) = (BTreeMap::new(), BTreeSet::new());
    for entry in &raw.nodes {
        checker.at_least("nodes.node", entry.node.into(), 1)?;
        if !is_peer_address(&entry.peer) {
            let wanted = "the host name or IP address and the port that the other nodes connect to, such as 10.0.0.1:7632";
            return Err(checker.refusal("nodes.peer", quoted(&entry.peer), wanted));
        }
        if by_node.insert(entry.node, entry.peer.clone()).is_some() {
            let wanted = "another number in each table of [[nodes]]";
            return Err(checker.refusal("nodes.node", entry.node, wanted));
        }
        if !seen.insert(entry.peer.to_ascii_lowercase()) {
            let wanted = "another address in each table of [[nodes]]";
            return Err(checker.refusal("nodes.peer", quoted(&entry.peer), wanted));
        }
    }
    Ok(by_node)
}

/// `host:port` that others can connect to.
fn is_peer_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    // No sign, no blanks: `u16::from_str` takes a plus.
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || !port.parse::<u16>().is_ok_and(|port| port != 0) {
        return false;
    }
    if let Some(bracketed) = host.strip_prefix('[') {
        let address = bracketed.strip_suffix(']').map(str::parse::<Ipv6Addr>);
        return matches!(address, Some(Ok(address)) if !address.is_unspecified());
    }
    if let Ok(address) = host.parse::<IpAddr>() {
        // An IPv6 address wants brackets.
        return address.is_ipv4() && !address.is_unspecified();
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    // Digits and dots that are no address are a mistyped one, not a name.
    let name = host.chars().any(|c| c.is_ascii_alphabetic());
    name && host.len() <= HOST_BYTES_MAX && host.chars().all(plain)
}

/// Hash of every value that all nodes must have alike: all of the cluster file but the list of nodes, which may change from
/// node to node while a cluster grows or shrinks.
fn fingerprint(raw: &RawCluster) -> u64 {
    xxh3_64(canonical(raw).as_bytes())
}

/// One line for each value, in this order. The patterns name every field, so that a new one cannot be forgotten.
fn canonical(raw: &RawCluster) -> String {
    let RawCluster {
        name,
        partitions,
        generation_takeover_ms,
        limits,
        raft,
        nodes: _,
    } = raw;
    let RawClusterLimits {
        lanes_max,
        queues_max,
        groups_max,
        kept_answers_max,
        kept_answer_ms,
        names_bytes_max,
        transaction_id_bytes_max,
    } = limits;
    let RawRaft {
        heartbeat_ms,
        election_ms_min,
        election_ms_max,
    } = raft;
    let size = |value: &usize| u64::try_from(*value).expect("usize is at most 64 bits");
    let numbers = [
        ("partitions", u64::from(*partitions)),
        ("generation_takeover_ms", *generation_takeover_ms),
        ("limits.lanes_max", (*lanes_max).into()),
        ("limits.queues_max", (*queues_max).into()),
        ("limits.groups_max", (*groups_max).into()),
        ("limits.kept_answers_max", (*kept_answers_max).into()),
        ("limits.kept_answer_ms", *kept_answer_ms),
        ("limits.names_bytes_max", size(names_bytes_max)),
        ("limits.transaction_id_bytes_max", size(transaction_id_bytes_max)),
        ("raft.heartbeat_ms", *heartbeat_ms),
        ("raft.election_ms_min", *election_ms_min),
        ("raft.election_ms_max", *election_ms_max),
    ];
    let mut text = format!("{CANONICAL_HEADER}\nname = {name}\n");
    for (key, value) in numbers {
        let _ = writeln!(text, "{key} = {value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_is_of_all_values_but_the_nodes() {
        let plain = RawCluster::default();
        let changed = |change: fn(&mut RawCluster)| {
            let mut raw = RawCluster::default();
            change(&mut raw);
            fingerprint(&raw)
        };
        let node = |raw: &mut RawCluster| {
            raw.nodes.push(super::super::RawClusterNode {
                node: 1,
                peer: "a:1".to_owned(),
            });
        };
        assert_eq!(changed(node), fingerprint(&plain));
        let others = [
            changed(|raw| raw.name.push('x')),
            changed(|raw| raw.partitions += 1),
            changed(|raw| raw.generation_takeover_ms += 1),
            changed(|raw| raw.limits.kept_answer_ms += 1),
            changed(|raw| raw.raft.heartbeat_ms += 1),
            fingerprint(&plain),
        ];
        assert_eq!(BTreeSet::from(others).len(), others.len());
    }

    /// Nodes of different builds compare it.
    #[test]
    fn fingerprint_is_golden() {
        let raw = RawCluster {
            name: "three".to_owned(),
            partitions: 4,
            generation_takeover_ms: 10_000,
            limits: RawClusterLimits {
                lanes_max: 1,
                queues_max: 2,
                groups_max: 3,
                kept_answers_max: 4,
                kept_answer_ms: 5,
                names_bytes_max: 6,
                transaction_id_bytes_max: 7,
            },
            raft: RawRaft {
                heartbeat_ms: 8,
                election_ms_min: 9,
                election_ms_max: 10,
            },
            nodes: Vec::new(),
        };
        let text = canonical(&raw);
        assert!(
            text.starts_with(
                "laneway-cluster 1\nname = three\npartitions = 4\ngeneration_takeover_ms = 10000\n"
            ),
            "{text}"
        );
        assert!(text.ends_with("raft.election_ms_max = 10\n"), "{text}");
        assert_eq!(fingerprint(&raw), 0x9043_75ef_ada1_17d6);
    }

    #[test]
    fn peer_address_is_host_and_port() {
        for good in [
            "127.0.0.1:7632",
            "node-1.example:1",
            "[::1]:65535",
            "localhost:7632",
            "a_b:7",
            "10.example:1",
        ] {
            assert!(is_peer_address(good), "{good}");
        }
        for bad in [
            "",
            ":",
            ":7632",
            "a",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "a:-1",
            "a: 1",
            "a b:1",
            "::1:7632",
            "[::1]",
            "[::1:7",
            "[a]:1",
            "0.0.0.0:1",
            "[::]:1",
            "127.0.0:1",
            "999.0.0.1:1",
            "http://a:1",
            "é:1",
        ] {
            assert!(!is_peer_address(bad), "{bad}");
        }
        assert!(!is_peer_address(&format!("{}:1", "a".repeat(254))));
    }
}
