//! Digests of the replicas: sampled into the history, and at the end compared until all are equal.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use laneway_sim::oracle::history::DigestSeen;

use super::nodes::Nodes;
use crate::recorder::Recorder;

/// Longest wait for equal digests.
const CONVERGE_MAX: Duration = Duration::from_secs(60);

/// Between two rounds of questions.
const CONVERGE_POLL: Duration = Duration::from_millis(50);

/// Asks all lively nodes and writes down what they say. A node that does not answer is left out.
pub(crate) async fn sample(nodes: &Nodes, recorder: &Recorder) -> Vec<DigestSeen> {
    let mut seen = Vec::new();
    for node in nodes.lively() {
        let Ok(digests) = nodes.digests(node).await else {
            continue;
        };
        for group in digests {
            let digest = DigestSeen {
                at: recorder.now(),
                node: node.into(),
                partition: group.partition,
                applied_index: group.applied_index,
                digest: group.digest,
            };
            recorder.digest(digest.clone());
            seen.push(digest);
        }
    }
    seen
}

/// Waits until all nodes showed the same digest of every group at the same applied index. Errors: what differs.
pub(crate) async fn converge(nodes: &Nodes, recorder: &Recorder) -> Result<Duration, String> {
    let started = Instant::now();
    let mut seen: BTreeMap<(String, u64), BTreeMap<u64, String>> = BTreeMap::new();
    let mut last = Vec::new();
    while started.elapsed() < CONVERGE_MAX {
        last = sample(nodes, recorder).await;
        for digest in &last {
            let at = (digest.partition.clone(), digest.applied_index);
            seen.entry(at)
                .or_default()
                .insert(digest.node, digest.digest.clone());
        }
        let differing = seen.iter().find(|(_, of_nodes)| {
            of_nodes
                .values()
                .any(|digest| Some(digest) != of_nodes.values().next())
        });
        if let Some((at, of_nodes)) = differing {
            return Err(format!("replicas differ at {at:?}: {of_nodes:?}"));
        }
        if all_agree(&seen, &last, nodes.all().len()) {
            return Ok(started.elapsed());
        }
        tokio::time::sleep(CONVERGE_POLL).await;
    }
    Err(format!(
        "replicas never stood at one index within {CONVERGE_MAX:?}; last seen: {last:?}"
    ))
}

fn all_agree(
    seen: &BTreeMap<(String, u64), BTreeMap<u64, String>>,
    last: &[DigestSeen],
    nodes: usize,
) -> bool {
    !last.is_empty()
        && last.iter().all(|digest| {
            let of_group = seen
                .iter()
                .filter(|((partition, _), _)| *partition == digest.partition);
            of_group.into_iter().any(|(_, of_nodes)| of_nodes.len() == nodes)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreement_needs_every_node_at_one_index_of_each_group() {
        let digest = |node, partition: &str, applied_index| DigestSeen {
            at: 0,
            node,
            partition: partition.to_owned(),
            applied_index,
            digest: "d".to_owned(),
        };
        let mut seen: BTreeMap<(String, u64), BTreeMap<u64, String>> = BTreeMap::new();
        let last = vec![digest(1, "0", 5), digest(2, "0", 6)];
        for digest in &last {
            let at = (digest.partition.clone(), digest.applied_index);
            seen.entry(at).or_default().insert(digest.node, "d".to_owned());
        }
        assert!(!all_agree(&seen, &last, 2));
        seen.entry(("0".to_owned(), 6))
            .or_default()
            .insert(1, "d".to_owned());
        assert!(all_agree(&seen, &last, 2));
        assert!(!all_agree(&seen, &[], 2));
        assert!(!all_agree(&seen, &[digest(1, "1", 6)], 2));
    }
}
