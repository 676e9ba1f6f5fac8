//! Raft node ids: which node, and which life of its data.

/// Largest generation of a data directory (48 bits).
pub const GENERATION_MAX: u64 = (1 << 48) - 1;

/// The raft node id of a node's data: `node (16 bits) ‖ generation (48 bits)`.
///
/// A data directory that was lost and made anew has another generation, so it never passes for the one that voted before.
/// `generation` is at most [`GENERATION_MAX`]; higher bits are an error of the caller and panic.
#[must_use]
pub fn node_id(node: u16, generation: u64) -> u64 {
    assert!(
        generation <= GENERATION_MAX,
        "generation {generation:#x} is wider than 48 bits"
    );
    u64::from(node) << 48 | generation
}

/// The node number inside a raft node id.
#[must_use]
pub fn node_number(id: u64) -> u16 {
    u16::try_from(id >> 48).expect("64 bits less 48 are 16")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_id_carries_node_and_generation() {
        for (node, generation) in [(0, 0), (1, 7), (u16::MAX, GENERATION_MAX)] {
            let id = node_id(node, generation);
            assert_eq!(node_number(id), node);
            assert_eq!(id & GENERATION_MAX, generation);
        }
    }

    #[test]
    #[should_panic(expected = "wider than 48 bits")]
    fn wide_generation_is_refused() {
        let _ = node_id(1, GENERATION_MAX + 1);
    }
}
