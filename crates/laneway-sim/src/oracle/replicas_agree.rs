//! Invariant 24: replicas that have applied the same entries are in the same state, whether they applied them one by one or
//! took a snapshot in between.

use std::collections::BTreeMap;

use super::Violation;
use super::evidence::violation;
use super::history::DigestSeen;

pub(super) fn check(digests: &[DigestSeen]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut first: BTreeMap<(&str, u64), &DigestSeen> = BTreeMap::new();
    for seen in digests {
        let at = (seen.partition.as_str(), seen.applied_index);
        let first = first.entry(at).or_insert(seen);
        if first.digest != seen.digest {
            let what = format!(
                "partition {} at applied index {}: node {} had digest {} at {}, node {} has {} at {}",
                seen.partition,
                seen.applied_index,
                first.node,
                first.digest,
                first.at,
                seen.node,
                seen.digest,
                seen.at
            );
            violations.push(violation(24, &[], what));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(node: u64, partition: &str, applied_index: u64, digest: &str) -> DigestSeen {
        DigestSeen {
            at: 0,
            node,
            partition: partition.to_owned(),
            applied_index,
            digest: digest.to_owned(),
        }
    }

    #[test]
    fn other_indexes_and_other_groups_may_differ() {
        let digests = [
            seen(1, "0", 5, "a"),
            seen(2, "0", 5, "a"),
            seen(3, "0", 6, "b"),
            seen(1, "1", 5, "c"),
            seen(3, "catalog", 5, "d"),
        ];
        assert_eq!(check(&digests), Vec::new());
    }

    #[test]
    fn two_digests_of_one_index_differ_even_on_one_node() {
        let between_nodes = check(&[seen(1, "0", 5, "a"), seen(2, "0", 5, "b")]);
        let over_a_restart = check(&[seen(1, "0", 5, "a"), seen(1, "0", 5, "b")]);
        for violations in [between_nodes, over_a_restart] {
            assert_eq!(violations.len(), 1, "{violations:?}");
            assert_eq!(violations[0].invariant, 24);
        }
    }
}
