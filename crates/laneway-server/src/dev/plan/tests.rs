use super::*;
use crate::config::Config;
use crate::logging::LogFormat;

fn options(data: &Path, nodes: u16) -> DevNodes {
    DevNodes {
        data: data.to_owned(),
        nodes,
        listen: "127.0.0.1:0".parse().unwrap(),
        partitions: None,
        log_format: LogFormat::Text,
    }
}

/// Prepares a start and gives what is to be told.
fn prepared(options: &DevNodes) -> Result<Vec<String>> {
    Plan::new(options)?.prepare().map(|(_, notes)| notes)
}

#[track_caller]
fn refused(options: &DevNodes, texts: &[&str]) {
    let message = format!("{:#}", prepared(options).unwrap_err());
    for text in texts {
        assert!(message.contains(text), "{text:?} is not in {message:?}");
    }
    assert!(!message.contains('\n'), "{message}");
}

fn give_data(data: &Path, numbers: &[u16]) {
    for number in numbers {
        let folder = folder_of(data, *number);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("identity"), "").unwrap();
    }
}

/// The first port of a range that is free for three nodes.
fn free_range() -> u16 {
    let free = |port: &u16| addresses(SocketAddr::from(([127, 0, 0, 1], *port)), 3).is_ok();
    (20_000..30_000).step_by(10).find(free).unwrap()
}

#[test]
fn ports_follow_the_first_one() {
    let port = free_range();
    let everywhere = SocketAddr::from(([0, 0, 0, 0], port));
    let addresses = addresses(everywhere, 3).unwrap();
    let texts: Vec<_> = addresses
        .iter()
        .map(|(http, peer)| format!("{http} {peer}"))
        .collect();
    let wanted = |step| {
        let (http, peer) = (port + step, port + 1000 + step);
        format!("0.0.0.0:{http} 127.0.0.1:{peer}")
    };
    assert_eq!(texts, [wanted(0), wanted(1), wanted(2)]);
}

#[test]
fn ports_without_room_above_are_refused() {
    let check = |port: u16, nodes, wanted: &str| {
        let error = addresses(SocketAddr::from(([127, 0, 0, 1], port)), nodes).unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    };
    check(65_535, 1, "a port up to 64535");
    check(64_534, 3, "a port up to 64533");
}

#[test]
fn taken_port_is_refused_by_name_and_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let port = free_range();
    for taken in [port, port + 1, port + 1002] {
        let _taken = TcpListener::bind(("127.0.0.1", taken)).unwrap();
        let options = DevNodes {
            listen: SocketAddr::from(([127, 0, 0, 1], port)),
            ..options(&data, 3)
        };
        refused(
            &options,
            &[&format!("127.0.0.1:{taken} is in use"), "stop the process"],
        );
        assert!(!data.exists());
    }
}

#[test]
fn files_made_are_a_cluster_of_all_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().canonicalize().unwrap().join("data");
    let plan = Plan::new(&options(&data, 3)).unwrap();
    let (_lock, notes) = plan.prepare().unwrap();
    assert_eq!(notes, Vec::<String>::new());
    let mut fingerprints = Vec::new();
    for node in &plan.nodes {
        let config = Config::load(&node.file).unwrap();
        assert_eq!((config.node.node, config.listen), (node.number, node.http));
        assert_eq!(
            (config.node.cluster.as_str(), config.node.partitions),
            ("dev", PARTITIONS_DEFAULT)
        );
        assert_eq!(config.node.data_dir, data.join(format!("node-{}", node.number)));
        let peers = config.node.peers.unwrap();
        assert_eq!(peers.listen, node.peer.to_string());
        assert_eq!(peers.addresses.len(), 3);
        fingerprints.push(peers.fingerprint);
    }
    assert!(fingerprints.iter().all(|one| *one == fingerprints[0]));
}

#[test]
fn number_of_partitions_stays_that_of_the_data() {
    let dir = tempfile::tempdir().unwrap();
    let of = |partitions| DevNodes {
        partitions,
        ..options(dir.path(), 1)
    };
    let made = || {
        let text = fs::read_to_string(cluster_file(dir.path())).unwrap();
        parse_cluster(Path::new("c"), &text).unwrap().partitions
    };
    prepared(&of(Some(8))).unwrap();
    assert_eq!(made(), 8);
    // Nothing was made with it yet.
    prepared(&of(Some(2))).unwrap();
    give_data(dir.path(), &[1]);
    prepared(&of(None)).unwrap();
    assert_eq!(made(), 2);
    refused(
        &of(Some(3)),
        &["made with 2 partitions, not 3", "leave --partitions out"],
    );
}

#[test]
fn data_of_a_single_node_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("identity"), "").unwrap();
    let options = options(dir.path(), 3);
    refused(
        &options,
        &[
            "the data of one node",
            "move all that is in it to",
            "node-1",
            "add-node",
        ],
    );
    give_data(dir.path(), &[1]);
    refused(&options, &["beside that of several"]);
}

#[test]
fn single_node_is_refused_on_data_of_several() {
    let dir = tempfile::tempdir().unwrap();
    refuse_data_of_several(dir.path()).unwrap();
    give_data(dir.path(), &[1, 3]);
    let error = refuse_data_of_several(dir.path()).unwrap_err().to_string();
    assert!(error.contains("start them with --nodes 3"), "{error}");
    // It has data of its own; then that is what is meant.
    fs::write(dir.path().join("identity"), "").unwrap();
    refuse_data_of_several(dir.path()).unwrap();
}

#[test]
fn fewer_nodes_than_have_data_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    give_data(dir.path(), &[1, 2, 3]);
    refused(
        &options(dir.path(), 2),
        &["data of node 3", "give --nodes 3", "remove-node 3"],
    );
}

#[test]
fn nodes_new_to_a_founded_cluster_are_told() {
    let dir = tempfile::tempdir().unwrap();
    prepared(&options(dir.path(), 2)).unwrap();
    give_data(dir.path(), &[1]);
    // Node 2 was there before and lost its data: it comes back by itself.
    let notes = prepared(&options(dir.path(), 3)).unwrap();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].contains("node 3 is new") && notes[0].contains("cluster add-node 3"),
        "{notes:?}"
    );
}

#[test]
fn folder_is_for_one_parent_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), 1);
    let (lock, _) = Plan::new(&options).unwrap().prepare().unwrap();
    refused(&options, &["in use by another", "--data"]);
    drop(lock);
    prepared(&options).unwrap();
}
