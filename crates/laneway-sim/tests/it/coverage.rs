//! The random plans are worth something: they reach every answer.

use std::collections::BTreeMap;

use laneway_core::ids::PartitionId;
use laneway_core::reply::{AckedItem, Reply};
use laneway_sim::model::{Model, ModelLimits};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::commands::{Bounds, Plan, plan};
use crate::world::{World, given};

/// How many are looked at.
const PLANS: u32 = 80;

pub(crate) fn model_limits(bounds: Bounds) -> ModelLimits {
    ModelLimits {
        lanes_max: usize::from(bounds.lanes_max),
        kept_answers_max: usize::from(bounds.kept_answers_max),
        kept_answer_ms: u64::from(bounds.kept_answer_ms),
        expire_max: usize::from(bounds.expire_max),
    }
}

fn words(reply: &Reply) -> Vec<String> {
    match reply {
        Reply::Acked(acked) => {
            let item = |item: &AckedItem| format!("acked {item:?}, released: {}", acked.lease_released);
            acked.items.iter().map(item).collect()
        }
        Reply::Claimed(claimed) => vec![format!("claimed {}", claimed.lanes.len())],
        Reply::Pushed(pushed) => pushed
            .items
            .iter()
            .map(|item| format!("pushed, duplicate: {}", item.duplicate))
            .collect(),
        Reply::Extended(extended) => vec![format!(
            "extended {}",
            extended.as_ref().map_or(0, |it| it.renewed)
        )],
        Reply::Released(count) => vec![format!("released {count}")],
        Reply::Replayed(_) => vec!["replayed".to_owned()],
        other => vec![format!("{other:?}")],
    }
}

fn count(plan: &Plan, seen: &mut BTreeMap<String, u32>) {
    let mut model = Model::new(PartitionId(1), model_limits(plan.bounds));
    let mut world = World::default();
    model.begin_entry(given(model.stamps(), 1, 1));
    for command in world.opening() {
        model.apply(command);
    }
    for entry in &plan.entries {
        model.begin_entry(given(model.stamps(), entry.lease_ms, entry.wall_ms));
        for act in &entry.acts {
            let Some(command) = world.command(act, &model.dump()) else {
                continue;
            };
            *seen.entry("commands".to_owned()).or_default() += 1;
            let reply = model.apply(command).reply;
            for word in words(&reply) {
                *seen.entry(word).or_default() += 1;
            }
            world.saw(&reply, &model.dump());
        }
    }
}

#[test]
fn random_plans_reach_every_answer() {
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeMap::new();
    for _ in 0..PLANS {
        count(
            &plan()
                .new_tree(&mut runner)
                .expect("the strategy rejects nothing")
                .current(),
            &mut seen,
        );
    }
    let wanted = [
        "acked DeadLetterRejected, released: false",
        "acked DeadLettered, released: true",
        "acked Done, released: false",
        "acked Done, released: true",
        "acked LaneUnknown, released: false",
        "acked LeaseInvalid, released: false",
        "acked Noop, released: false",
        "acked Unresolvable, released: false",
        "acked Unresolvable, released: true",
        "claimed 0",
        "claimed 1",
        "claimed 2",
        "extended 0",
        "extended 1",
        "extended 2",
        "pushed, duplicate: false",
        "pushed, duplicate: true",
        "released 0",
        "released 1",
        "released 2",
        "replayed",
        "CatalogTaken",
        "DeadLetterDeleted",
        "Refused(DeadLetterGone)",
        "Refused(GroupUnknown)",
        "Refused(LanesFull)",
        "Refused(PlanOutdated)",
        "Refused(QueueGone)",
        "Refused(RequestIdReused)",
        "Swept { more: false }",
        "Swept { more: true }",
        "Ticked",
        "Trimmed",
    ];
    for word in wanted {
        assert!(
            seen.get(word).copied().unwrap_or_default() >= 3,
            "hardly any {word}: {seen:#?}"
        );
    }
    assert!(seen["commands"] >= PLANS * 90, "too few commands: {seen:#?}");
}
