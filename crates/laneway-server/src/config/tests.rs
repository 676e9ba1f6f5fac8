use super::*;

#[track_caller]
fn check(cluster: &str, node: &str, wanted: Result<(), &str>) {
    let path = Path::new("x.toml");
    let result = parse_cluster(path, cluster).and_then(|cluster| {
        parse_node(path, node).and_then(|node| Config::check(&cluster, path, &node, path))
    });
    match (result, wanted) {
        (Ok(_), Ok(())) => {}
        (Err(error), Err(text)) => {
            let message = error.to_string();
            assert!(message.contains(text), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
        (result, wanted) => panic!("{result:?}, wanted {wanted:?}"),
    }
}

#[test]
fn empty_files_mean_the_defaults() {
    check("", "", Ok(()));
}

#[test]
fn unknown_keys_are_refused_by_name_and_line() {
    check(
        "",
        "node = 1\nlisten_port = 6632\n",
        Err("x.toml:2: unknown field `listen_port`"),
    );
    check(
        "[limits]\nlanes = 1\n",
        "",
        Err("x.toml:2: unknown field `lanes`"),
    );
    check(
        "",
        "[storage]\nwal_segments = 3\n",
        Err("unknown field `wal_segments`"),
    );
    check("", "[nodes]\n", Err("unknown field `nodes`"));
}

#[test]
fn wrong_types_are_refused() {
    check(
        "partitions = \"four\"",
        "",
        Err("x.toml:1: partitions: invalid type"),
    );
    check(
        "partitions = -1",
        "",
        Err("x.toml:1: partitions: invalid value: integer `-1`, expected a whole number from 0 to 65535:"),
    );
    check(
        "partitions = 99999999999999999999",
        "",
        Err("x.toml:1: partitions: "),
    );
    check("", "node = 1.5", Err("x.toml:1: node: invalid type"));
    check("", "node = ", Err("x.toml:1: node: "));
    check("", "listen = 6632", Err("x.toml:1: listen: invalid type"));
    check("", "limits = 1", Err("x.toml:1: limits: invalid type"));
}

#[test]
fn refused_values_are_named_with_their_table() {
    check(
        "[limits]\nlanes_max = 1\n\n# [raft]\n[ raft ] \n heartbeat_ms='5'",
        "",
        Err("x.toml:6: raft.heartbeat_ms: invalid type"),
    );
    check(
        "",
        "node = 1\nhttp = { body_bytes_max = 9, connections_max = true }",
        Err("x.toml:2: connections_max: invalid type"),
    );
    check(
        "",
        "node = 1\nnode = 2",
        Err("x.toml:2: node: it was given before"),
    );
    check("", "node", Err("x.toml:1: "));
}

#[test]
fn values_out_of_range_are_refused() {
    check(
        "partitions = 0",
        "",
        Err("partitions = 0: it must be from 1 to 1024"),
    );
    check(
        "name = \"a b\"",
        "",
        Err("name = \"a b\": it must be 1 to 64 letters"),
    );
    check(
        "[raft]\nelection_ms_min = 60",
        "",
        Err("raft.election_ms_min = 60: it must be from 100 (twice raft.heartbeat_ms) to 300000"),
    );
    check(
        "[raft]\nheartbeat_ms = 100",
        "",
        Err("raft.election_ms_min = 150: it must be from 200 (twice raft.heartbeat_ms) to 300000"),
    );
    check(
        "[raft]\nelection_ms_max = 150",
        "",
        Err("raft.election_ms_max = 150: it must be from 151 (above raft.election_ms_min) to 600000"),
    );
    check(
        "[raft]\nheartbeat_ms = 9000000000000000000",
        "",
        Err("raft.heartbeat_ms = 9000000000000000000: it must be from 1 to 150000"),
    );
    check("", "node = 0", Err("node = 0"));
    check(
        "",
        "data_dir = \"\"",
        Err("data_dir = \"\": it must be the path of a folder"),
    );
    check(
        "",
        "data_dir = \"a\\u0000b\"",
        Err("data_dir = \"a\\0b\": it must be"),
    );
    check(
        "",
        "listen = \"localhost\"",
        Err("listen = \"localhost\": it must be an IP address and a port"),
    );
    check("", "listen = \"127.0.0.1:66320\"", Err("a port up to 65535"));
    check(
        "",
        "[storage]\nwal_segment_bytes = 4096",
        Err("storage.wal_segment_bytes = 4096: it must be from 1048576 to 1073741824"),
    );
    check(
        "",
        "[http]\ngroup_start_default = \"old\"",
        Err("x.toml:2: http.group_start_default: unknown variant `old`"),
    );
    check(
        "",
        "[limits]\nin_flight_bytes_max = 5",
        Err("limits.in_flight_bytes_max = 5: it must be at least 1048576, limits.entry_bytes_max"),
    );
    check(
        "",
        "[http]\nbody_bytes_max = 0",
        Err("http.body_bytes_max = 0: it must be at least 1"),
    );
}

/// A cluster file with these (node, peer) pairs.
fn nodes(list: &[(u32, &str)]) -> String {
    let table = |(node, peer): &(u32, &str)| format!("[[nodes]]\nnode = {node}\npeer = {peer:?}\n");
    list.iter().map(table).collect()
}

#[test]
fn lists_of_nodes_are_checked() {
    let check_nodes = |list: &[(u32, &str)], wanted| check(&nodes(list), "", wanted);
    check_nodes(&[(1, "127.0.0.1:7632")], Ok(()));
    check_nodes(&[(1, "a.example:7632"), (65_535, "[::1]:1")], Ok(()));
    check_nodes(
        &[(0, "a:1"), (1, "b:1")],
        Err("nodes.node = 0: it must be at least 1"),
    );
    check_nodes(
        &[(65_536, "a:1")],
        Err("x.toml:2: nodes.node: invalid value: integer `65536`, expected a whole number from 0 to 65535"),
    );
    check_nodes(
        &[(1, "a:1"), (1, "b:1")],
        Err("nodes.node = 1: it must be another number in each table of [[nodes]]"),
    );
    check_nodes(
        &[(1, "a:1"), (2, "A:1")],
        Err("nodes.peer = \"A:1\": it must be another address in each table of [[nodes]]"),
    );
    check_nodes(
        &[(1, "a")],
        Err("nodes.peer = \"a\": it must be the host name or IP address and the port"),
    );
    check_nodes(&[(1, "a:0")], Err("nodes.peer = \"a:0\": it must be"));
    check_nodes(
        &[(2, "a:1"), (3, "b:1")],
        Err("node = 1: it must be one of the nodes that the cluster file lists in [[nodes]]: 2, 3"),
    );
    let many: Vec<_> = (1..=17).map(|node| (node, format!("a:{node}"))).collect();
    let many: Vec<_> = many.iter().map(|(node, peer)| (*node, &**peer)).collect();
    check_nodes(&many[..16], Ok(()));
    check_nodes(&many, Err("[[nodes]] = 17 tables: it must be at most 16 tables"));
    check("[[nodes]]\nnode = 1", "", Err("x.toml:1: missing field `peer`"));
    check(
        "[[nodes]]\nnode = 1\nport = 5",
        "",
        Err("x.toml:3: unknown field `port`"),
    );
    check("[nodes]\nnode = 1", "", Err("x.toml:1: "));
}

#[test]
fn peer_listener_is_an_address_of_this_machine() {
    let list = nodes(&[(1, "a.example:7632"), (2, "b.example:7632")]);
    let check_listen = |node: &str, wanted| check(&list, node, wanted);
    check_listen("peer_listen = \"0.0.0.0:7632\"", Ok(()));
    for bad in ["a.example:7632", "127.0.0.1", "127.0.0.1:0", "7632"] {
        check_listen(
            &format!("peer_listen = {bad:?}"),
            Err("it must be an IP address and a port from 1 to 65535"),
        );
    }
    check_listen(
        "listen = \"10.0.0.1:7632\"\npeer_listen = \"10.0.0.1:7632\"",
        Err("listen = \"10.0.0.1:7632\": it must be another address than the one for the other nodes"),
    );
    check(
        "",
        "peer_listen = \"0.0.0.0:7632\"",
        Err("it must be left out as long as the cluster file has no [[nodes]]"),
    );
}

#[test]
fn peers_are_those_of_the_list() {
    let path = Path::new("x.toml");
    let of = |cluster: &str, node: &str| {
        let (cluster, node) = (
            parse_cluster(path, cluster).unwrap(),
            parse_node(path, node).unwrap(),
        );
        Config::check(&cluster, path, &node, path).unwrap().node.peers
    };
    assert!(of("", "").is_none());
    let list = nodes(&[(2, "b:2"), (1, "a:1")]);
    let takeover = "generation_takeover_ms = 500\n";
    let peers = of(&format!("{takeover}{list}"), "node = 2").unwrap();
    assert_eq!((peers.listen.as_str(), peers.takeover_ms), ("b:2", 500));
    let addresses: Vec<_> = peers
        .addresses
        .iter()
        .map(|(node, peer)| (*node, peer.as_str()))
        .collect();
    assert_eq!(addresses, [(1, "a:1"), (2, "b:2")]);
    let elsewhere = of(
        &format!("{takeover}{list}"),
        "node = 1\npeer_listen = \"0.0.0.0:9\"",
    )
    .unwrap();
    assert_eq!(elsewhere.listen, "0.0.0.0:9");
    assert_eq!(elsewhere.fingerprint, peers.fingerprint);
    assert_ne!(of(&list, "").unwrap().fingerprint, peers.fingerprint);
}

#[test]
fn paths_are_relative_to_the_node_file() {
    let dir = tempfile::tempdir().unwrap();
    let node_file = dir.path().join("node-1.toml");
    fs::write(&node_file, "cluster_file = \"c.toml\"\ndata_dir = \"data/1\"\n").unwrap();
    let missing = Config::load(&node_file).unwrap_err().to_string();
    assert!(
        missing.contains("c.toml") && missing.contains("cluster_file"),
        "{missing}"
    );
    fs::write(dir.path().join("c.toml"), "name = \"here\"\npartitions = 2\n").unwrap();
    let config = Config::load(&node_file).unwrap();
    assert_eq!(config.node.data_dir, dir.path().join("data/1"));
    assert_eq!(
        (config.node.cluster.as_str(), config.node.partitions),
        ("here", 2)
    );
}

#[test]
fn shipped_files_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cluster-config");
    for (name, nodes) in [("one", 1), ("three", 3), ("five", 5)] {
        let mut addresses = std::collections::BTreeSet::new();
        for node in 1..=nodes {
            let config = Config::load(&folder.join(name).join(format!("node-{node}.toml"))).unwrap();
            assert_eq!((config.node.node, config.node.cluster.as_str()), (node, name));
            assert!(addresses.insert(config.listen.to_string()));
            let peers = config.node.peers.unwrap();
            assert_eq!(peers.addresses.len(), usize::from(nodes));
            assert!(addresses.insert(peers.listen));
        }
    }
}

/// `Default: …` of each key's comment is what the key really defaults to.
#[test]
fn documented_defaults_are_the_defaults() {
    let cluster = toml::Value::try_from(RawCluster::default()).unwrap();
    let node = toml::Value::try_from(RawNode::default()).unwrap();
    let structs = [
        ("RawCluster", &cluster),
        ("RawClusterLimits", &cluster["limits"]),
        ("RawRaft", &cluster["raft"]),
        ("RawNode", &node),
        ("RawNodeLimits", &node["limits"]),
        ("RawStorage", &node["storage"]),
        ("RawHttp", &node["http"]),
    ];
    let mut keys = 0;
    for (name, values) in structs {
        for (key, _, default) in documented(name) {
            assert_eq!(values[&key].to_string(), default, "{name}.{key}");
            keys += 1;
        }
    }
    let leaves = |value: &toml::Value| {
        value
            .as_table()
            .unwrap()
            .values()
            .filter(|v| !v.is_table() && !v.is_array())
            .count()
    };
    assert_eq!(
        keys,
        structs.iter().map(|(_, values)| leaves(values)).sum::<usize>(),
        "a key has no `Default:`"
    );
}

/// `from A to B` or `at most B` of each key's comment is what is accepted.
#[test]
fn documented_ranges_are_the_ranges() {
    let files = [
        ("RawCluster", "", true),
        ("RawClusterLimits", "[limits]\n", true),
        ("RawRaft", "[raft]\n", true),
        ("RawNode", "", false),
        ("RawNodeLimits", "[limits]\n", false),
        ("RawStorage", "[storage]\n", false),
        ("RawHttp", "[http]\n", false),
    ];
    let mut ranges = 0;
    for (name, table, in_cluster) in files {
        for (key, unit, _) in documented(name) {
            let set = |value: u64, wanted| {
                let text = format!("{table}{key} = {value}");
                let (cluster, node) = if in_cluster { (&*text, "") } else { ("", &*text) };
                check(cluster, node, wanted);
            };
            if let Some(min) = number_after(&unit, "from ") {
                ranges += 1;
                set(min, Ok(()));
                if min > 0 {
                    set(min - 1, Err(key.as_str()));
                }
            }
            let max = number_after(&unit, "from ").and_then(|_| number_after(&unit, " to "));
            if let Some(max) = max.or_else(|| number_after(&unit, "at most ")) {
                set(max + 1, Err(key.as_str()));
            }
        }
    }
    assert!(ranges > 30, "only {ranges} keys have a range");
}

fn number_after(text: &str, word: &str) -> Option<u64> {
    let digits = text
        .split_once(word)?
        .1
        .split(|c: char| !c.is_ascii_digit())
        .next()?;
    digits.parse().ok()
}

/// The keys of a struct of raw.rs with the units and defaults that their comments name.
fn documented(name: &str) -> Vec<(String, String, String)> {
    let source = include_str!("raw.rs");
    let body = source
        .split_once(&format!("pub struct {name} {{"))
        .unwrap()
        .1
        .split_once("\n}")
        .unwrap()
        .0;
    let mut found = Vec::new();
    let mut default = None;
    for line in body.lines().map(str::trim) {
        if let Some((unit, rest)) = line.split_once(" Default: `") {
            default = Some((unit.to_owned(), rest.split_once('`').unwrap().0.to_owned()));
        } else if let (Some(key), Some((unit, default))) = (line.strip_prefix("pub "), default.take()) {
            found.push((key.split_once(':').unwrap().0.to_owned(), unit, default));
        }
    }
    found
}
