//! Who surely holds what: from the answer until the lease could have ended by its holder's own reckoning.

use std::collections::{BTreeMap, BTreeSet};

use super::super::history::{Op, Outcome, Reply};
use super::{AckFact, Evidence, GroupKey};

/// One lane of one leased answer.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Hold<'a> {
    pub(in super::super) op: usize,
    pub(in super::super) of: GroupKey<'a>,
    pub(in super::super) lease_id: &'a str,
    pub(in super::super) invoked: u64,
    /// When the answer came: it is surely held from here ...
    pub(in super::super) from: u64,
    /// ... to here by the clock alone, extensions included ...
    pub(in super::super) clock_until: u64,
    /// ... but only to here, as then somebody began something that may have ended it.
    pub(in super::super) until: u64,
}

/// The sure part of a lease: clocks may differ by 0.1 %.
fn sure_us(lease_ms: u64) -> u64 {
    let length = lease_ms.saturating_mul(1000);
    length - length / 1000
}

impl<'a> Evidence<'a> {
    pub(super) fn note_holds(&mut self) {
        let mut extends: BTreeMap<&str, Vec<(u64, u64, u64)>> = BTreeMap::new();
        for operation in self.operations {
            if let (Op::Extend { lease_id, lease_ms }, Outcome::Ok(Reply::Extended(1..))) =
                (&operation.op, &operation.outcome)
            {
                let sure = (operation.invoked, operation.returned, *lease_ms);
                extends.entry(lease_id).or_default().push(sure);
            }
        }
        for extends in extends.values_mut() {
            extends.sort_unstable();
        }
        for (op, operation) in self.operations.iter().enumerate() {
            let Op::Pop {
                queue,
                group,
                lease_ms,
                auto_ack: false,
                ..
            } = &operation.op
            else {
                continue;
            };
            let Outcome::Ok(Reply::Popped(popped)) = &operation.outcome else {
                continue;
            };
            let lanes: BTreeSet<&'a str> = popped
                .messages
                .iter()
                .map(|message| message.lane.as_str())
                .collect();
            for lane in lanes {
                let mut hold = Hold {
                    op,
                    of: GroupKey {
                        lane: super::LaneKey { queue, lane },
                        group,
                    },
                    lease_id: &popped.lease_id,
                    invoked: operation.invoked,
                    from: operation.returned,
                    clock_until: operation.invoked.saturating_add(sure_us(*lease_ms)),
                    until: 0,
                };
                self.lengthen(
                    &mut hold,
                    extends.get(popped.lease_id.as_str()).map_or(&[], Vec::as_slice),
                );
                self.holds_of.entry(hold.of).or_default().push(self.holds.len());
                self.holds.push(hold);
            }
        }
        for order in self.holds_of.values_mut() {
            order.sort_by_key(|&at| self.holds[at].from);
        }
    }

    /// Extensions lengthen a hold, acks may end it.
    fn lengthen(&self, hold: &mut Hold<'a>, extends: &[(u64, u64, u64)]) {
        // An unknown ack may apply at any time.
        let may_end = |ack: &&AckFact<'a>| !ack.known || ack.released && ack.returned >= hold.invoked;
        let own = self.acks_under(hold.of, Some(hold.lease_id));
        let acks = own.chain(self.acks_under(hold.of, None)).filter(may_end);
        let ended = acks
            .map(|ack| ack.invoked.max(hold.from))
            .min()
            .unwrap_or(u64::MAX);
        for &(invoked, returned, lease_ms) in extends {
            // It was live all the while, so this lane's lease is among the renewed ones.
            if returned <= hold.clock_until && returned < ended {
                hold.clock_until = hold.clock_until.max(invoked.saturating_add(sure_us(lease_ms)));
            }
        }
        hold.until = hold.clock_until.min(ended).max(hold.from);
    }
}
