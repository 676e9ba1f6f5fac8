//! Makes a failing plan small: leaves out entries and acts as long as it goes on failing.
//!
//! Plans have a least size, so that every run is worth its time; proptest's own shrinking would stop there.

use crate::commands::{Maintenance, Plan};

/// The smallest plan found for which `fails` still holds.
pub(crate) fn shrink(plan: &Plan, fails: impl Fn(&Plan) -> bool) -> Plan {
    let mut plan = plan.clone();
    loop {
        let size = size(&plan);
        drop_entries(&mut plan, &fails);
        drop_acts(&mut plan, &fails);
        drop_maintenance(&mut plan, &fails);
        if self::size(&plan) == size {
            return plan;
        }
    }
}

fn size(plan: &Plan) -> usize {
    let busy = |then: &Maintenance| usize::from(!matches!(then, Maintenance::Nothing));
    plan.entries
        .iter()
        .map(|entry| 1 + entry.acts.len() + busy(&entry.then))
        .sum()
}

fn drop_entries(plan: &mut Plan, fails: &impl Fn(&Plan) -> bool) {
    let mut chunk = plan.entries.len();
    while chunk > 0 {
        let mut at = 0;
        while at < plan.entries.len() {
            let mut smaller = plan.clone();
            smaller.entries.drain(at..(at + chunk).min(plan.entries.len()));
            if fails(&smaller) {
                *plan = smaller;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
}

fn drop_acts(plan: &mut Plan, fails: &impl Fn(&Plan) -> bool) {
    for entry in 0..plan.entries.len() {
        let mut act = 0;
        while act < plan.entries[entry].acts.len() {
            let mut smaller = plan.clone();
            smaller.entries[entry].acts.remove(act);
            if fails(&smaller) {
                *plan = smaller;
            } else {
                act += 1;
            }
        }
    }
}

fn drop_maintenance(plan: &mut Plan, fails: &impl Fn(&Plan) -> bool) {
    for entry in 0..plan.entries.len() {
        let mut smaller = plan.clone();
        smaller.entries[entry].then = Maintenance::Nothing;
        if fails(&smaller) {
            *plan = smaller;
        }
    }
}
