//! The machine gives the model's answers and state, whatever is done to it: also while a checkpoint is being cut, after a
//! restart from one, and when its whole log is replayed.

use laneway_core::command::Command;
use laneway_core::dump::StateDump;
use laneway_core::ids::{LaneId, PartitionId, QueueId};
use laneway_core::partition::{LaneCounts, Limits, PartitionMachine};
use laneway_core::reply::{Effect, Outcome};
use laneway_core::rows::{Row, RowKey};
use laneway_core::time::Stamps;
use laneway_sim::model::{Counts, Model};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use crate::commands::{Bounds, EXPIRE_ALL, Maintenance, Plan, plan};
use crate::coverage::model_limits;
use crate::shrink::shrink;
use crate::world::{World, given};

const PARTITION: PartitionId = PartitionId(1);

type Rows = Vec<(RowKey, Option<Row>)>;

/// One entry of the log and what it gave.
struct Logged {
    stamps: Stamps,
    commands: Vec<Command>,
    outcomes: Vec<Outcome>,
    digest: u64,
}

/// A checkpoint being written.
struct Cut {
    after: usize,
    full: bool,
    rows_per_step: usize,
    rows: Rows,
}

/// The newest complete checkpoint: a base, then deltas, and how many entries they hold.
struct Stored {
    after: usize,
    files: Vec<Rows>,
}

struct Run {
    bounds: Bounds,
    machine: PartitionMachine,
    model: Model,
    world: World,
    /// Of the model, now.
    dump: StateDump,
    log: Vec<Logged>,
    cut: Option<Cut>,
    stored: Option<Stored>,
}

fn limits(bounds: Bounds) -> Limits {
    Limits {
        lanes_max: u32::from(bounds.lanes_max),
        kept_answers_max: u32::from(bounds.kept_answers_max),
        kept_answer_ms: u64::from(bounds.kept_answer_ms),
        expire_max: u32::from(bounds.expire_max),
    }
}

fn counts(machine: &PartitionMachine, lane: LaneId) -> Counts {
    let LaneCounts {
        total,
        pending,
        processing,
        completed,
        dead_letters,
        consumed,
    } = machine.lane_counts(lane);
    Counts {
        total,
        pending,
        processing,
        completed,
        dead_letters,
        consumed,
    }
}

fn sorted(effects: &[Effect]) -> Vec<String> {
    let mut words: Vec<String> = effects.iter().map(|effect| format!("{effect:?}")).collect();
    words.sort();
    words
}

impl Run {
    fn new(bounds: Bounds) -> Self {
        let model = Model::new(PARTITION, model_limits(bounds));
        Self {
            bounds,
            dump: model.dump(),
            machine: PartitionMachine::new(PARTITION, limits(bounds)),
            model,
            world: World::default(),
            log: Vec::new(),
            cut: None,
            stored: None,
        }
    }

    fn begin(&mut self, lease_ms: i64, wall_ms: i64) -> TestCaseResult {
        let stamps = given(self.model.stamps(), lease_ms, wall_ms);
        let targets = self.targets();
        let foretold = targets
            .iter()
            .map(|(queue, group, lane)| self.machine.claimable(*queue, group, *lane, stamps));
        let foretold: Vec<bool> = foretold.collect();
        let (did, should) = (self.machine.begin_entry(stamps), self.model.begin_entry(stamps));
        prop_assert_eq!(
            sorted(&did),
            sorted(&should),
            "effects of the entry's head at {:?}",
            stamps
        );
        for ((queue, group, lane), foretold) in targets.iter().zip(foretold) {
            // Which of many due lanes the head of an entry sweeps is only known to the sweep itself.
            if lane.is_none() && self.bounds.expire_max < EXPIRE_ALL {
                continue;
            }
            let finds = self.model.would_find(*queue, group, *lane);
            prop_assert_eq!(
                foretold,
                finds,
                "claimable({}, {:?}, {:?}) at {:?}",
                queue,
                group,
                lane,
                stamps
            );
        }
        self.dump = self.model.dump();
        self.log.push(Logged {
            stamps,
            commands: Vec::new(),
            outcomes: Vec::new(),
            digest: 0,
        });
        Ok(())
    }

    /// Everything that can be claimed from.
    fn targets(&self) -> Vec<(QueueId, String, Option<LaneId>)> {
        let groups = self.dump.queues.iter().flat_map(|queue| {
            queue
                .groups
                .iter()
                .map(|group| (queue.row.id, group.name.clone(), None))
        });
        let lanes = self.dump.lanes.iter().flat_map(|lane| {
            lane.groups
                .iter()
                .map(|group| (lane.queue, group.name.clone(), Some(lane.id)))
        });
        groups.chain(lanes).collect()
    }

    fn apply(&mut self, command: Command) -> TestCaseResult {
        let (did, should) = (
            self.machine.apply(command.clone()),
            self.model.apply(command.clone()),
        );
        prop_assert_eq!(&did.reply, &should.reply, "reply to {:#?}", command);
        prop_assert_eq!(&did.changes, &should.changes, "store changes of {:#?}", command);
        prop_assert_eq!(
            sorted(&did.effects),
            sorted(&should.effects),
            "effects of {:#?}",
            command
        );
        self.dump = self.model.dump();
        self.world.saw(&should.reply, &self.dump);
        let logged = self.log.last_mut().expect("an entry was begun");
        logged.commands.push(command);
        logged.outcomes.push(did);
        self.write_some()
    }

    fn end(&mut self) -> TestCaseResult {
        prop_assert_eq!(&self.machine.dump(), &self.dump);
        prop_assert_eq!(
            self.machine.next_lease_deadline(),
            self.model.next_lease_deadline()
        );
        prop_assert_eq!(self.machine.next_ripening(), self.model.next_ripening());
        for lane in &self.dump.lanes {
            prop_assert_eq!(
                counts(&self.machine, lane.id),
                self.model.counts(lane.id),
                "counts of {}",
                lane.id
            );
        }
        self.log.last_mut().expect("an entry was begun").digest = self.machine.digest();
        Ok(())
    }

    /// One step of the checkpoint being written.
    fn write_some(&mut self) -> TestCaseResult {
        let Some(mut cut) = self.cut.take() else {
            return Ok(());
        };
        let step = self.machine.checkpoint_step(cut.rows_per_step);
        prop_assert!(
            step.rows.len() <= cut.rows_per_step,
            "a step of {} rows",
            step.rows.len()
        );
        cut.rows.extend(step.rows);
        if !step.done {
            self.cut = Some(cut);
            return Ok(());
        }
        let mut files = match self.stored.take() {
            Some(stored) if !cut.full => stored.files,
            _ => Vec::new(),
        };
        files.push(cut.rows);
        self.stored = Some(Stored {
            after: cut.after,
            files,
        });
        // What was just written is read at once.
        self.restored().map(|_| ())
    }

    fn maintain(&mut self, what: Maintenance) -> TestCaseResult {
        match what {
            Maintenance::Nothing => {}
            Maintenance::Checkpoint { full, rows } => {
                if self.cut.is_none() {
                    let full = full || self.stored.is_none();
                    self.machine.begin_checkpoint(full);
                    let rows_per_step = usize::from(rows);
                    self.cut = Some(Cut {
                        after: self.log.len(),
                        full,
                        rows_per_step,
                        rows: Vec::new(),
                    });
                }
            }
            Maintenance::Abandon => {
                if self.cut.take().is_some() {
                    self.machine.abandon_checkpoint();
                }
            }
            Maintenance::Restart => {
                if self.stored.is_some() {
                    self.cut = None;
                    let mut machine = self.restored()?;
                    let after = self.stored.as_ref().map_or(0, |stored| stored.after);
                    replay(&mut machine, &self.log[after..])?;
                    self.machine = machine;
                    prop_assert_eq!(&self.machine.dump(), &self.dump);
                }
            }
        }
        Ok(())
    }

    /// A machine as of the newest complete checkpoint.
    fn restored(&self) -> Result<PartitionMachine, TestCaseError> {
        let stored = self.stored.as_ref().expect("called with one");
        let mut machine = PartitionMachine::new(PARTITION, limits(self.bounds));
        for (key, row) in stored.files.iter().flatten() {
            machine.load_row(*key, row.clone());
        }
        if let Err(error) = machine.finish_load() {
            return Err(TestCaseError::fail(format!(
                "its own checkpoint is refused: {error}"
            )));
        }
        let digest = self.log[stored.after - 1].digest;
        prop_assert_eq!(
            machine.digest(),
            digest,
            "checkpoint after {} entries",
            stored.after
        );
        Ok(machine)
    }
}

fn replay(machine: &mut PartitionMachine, log: &[Logged]) -> TestCaseResult {
    for entry in log {
        machine.begin_entry(entry.stamps);
        for (command, outcome) in entry.commands.iter().zip(&entry.outcomes) {
            let again = machine.apply(command.clone());
            prop_assert_eq!(&again, outcome, "replayed {:#?}", command);
        }
        if entry.digest != 0 {
            prop_assert_eq!(
                machine.digest(),
                entry.digest,
                "replayed up to {:?}",
                entry.stamps
            );
        }
    }
    Ok(())
}

/// Runs a plan; notes each entry's stamps and commands as it goes.
fn check(plan: &Plan, notes: &mut Vec<String>) -> TestCaseResult {
    let mut run = Run::new(plan.bounds);
    run.begin(1, 1)?;
    for command in run.world.opening() {
        notes.push(format!("  {command:?}"));
        run.apply(command)?;
    }
    run.end()?;
    for entry in &plan.entries {
        notes.push(format!(
            "{:?}",
            given(run.model.stamps(), entry.lease_ms, entry.wall_ms)
        ));
        run.begin(entry.lease_ms, entry.wall_ms)?;
        for act in &entry.acts {
            if let Some(command) = run.world.command(act, &run.dump) {
                notes.push(format!("  {command:?}"));
                run.apply(command)?;
            }
        }
        run.end()?;
        notes.push(format!("  {:?}", entry.then));
        run.maintain(entry.then)?;
    }
    replay(
        &mut PartitionMachine::new(PARTITION, limits(plan.bounds)),
        &run.log,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn machine_and_model_agree_over_checkpoints_restarts_and_replay(plan in plan()) {
        if check(&plan, &mut Vec::new()).is_err() {
            let small = shrink(&plan, |plan| check(plan, &mut Vec::new()).is_err());
            let mut notes = Vec::new();
            let error = check(&small, &mut notes).expect_err("shrinking keeps it failing");
            panic!("{:?}\n{}\n{error}", small.bounds, notes.join("\n"));
        }
    }
}
