//! Files that are found damaged while the node runs: the others have what was in them.
//!
//! A replica cannot mend one file: what it holds is its own selection of the log. So the node gives its data up as a whole and learns
//! it anew, like one that is damaged at the start, but only while the others can do without it.

use std::time::Duration;

use laneway_raft::node_number;
use tokio::time::Instant;

use crate::node::{Node, VOTERS_MIN};

/// Damage is told to the others for so long before anything is done about it: of two damaged nodes each must know of the other, and
/// neither gives up what the other may need.
const SETTLES: Duration = Duration::from_secs(3);

/// Damage on this node, from round to round.
#[derive(Debug, Default)]
pub(super) struct Mender {
    since: Option<Instant>,
}

impl Mender {
    /// Gives the data up, if it is damaged and the others are whole.
    pub(super) async fn look(&mut self, node: &Node) {
        let Some((partition, damaged)) = node.damaged_files().next() else {
            self.since = None;
            return;
        };
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= SETTLES && node.others_can_do_without() {
            node.condemn(format!("partition {partition}: {damaged}")).await;
        }
    }
}

impl Node {
    /// Every group has so many voters that the next start moves the data aside, is led by another one, and all others answer and are whole.
    fn others_can_do_without(&self) -> bool {
        let us = self.inner.standing.identity().raft_id();
        self.group_ids().all(|id| {
            let Some(group) = self.group(id) else { return false };
            let (members, leadership) = (group.members(), group.leadership());
            let is_whole = |id: u64| {
                let node = node_number(id);
                id == us || self.raft_id_of(node) == Some(id) && self.inner.pulses.is_fit(node)
            };
            members.voters.len() >= VOTERS_MIN
                && !members.joint
                && leadership.leader.is_some_and(|leader| leader != us)
                && members.voters.into_iter().all(is_whole)
        })
    }
}
