//! The machine goes down at every single operation of a run; what was acknowledged is there afterwards, what was deleted
//! is not.

use laneway_storage::payload::PayloadOptions;
use laneway_storage::vfs::Crash;

use super::world::{OPTIONS, Op, SPILLING, World};

/// Pushes, deletions, pins, checkpoints, evacuations and compactions. Stops at the first error, which must come from the
/// power going off.
fn script(world: &mut World) -> Result<(), Box<dyn std::error::Error>> {
    for round in 0..3u8 {
        for step in 0..18u8 {
            world.run(Op::Push {
                lane: step % 3,
                sizes: vec![400; 1 + usize::from(step % 4)],
            })?;
            if step % 6 == 5 {
                world.run(Op::Pin {
                    lane: step % 2,
                    ahead: 2,
                })?;
                world.run(Op::Trim {
                    lane: step % 2,
                    count: 9,
                })?;
            }
        }
        world.checkpoint(round == 0)?;
        world.evacuate(round == 1)?;
        world.run(Op::Trim {
            lane: round % 3,
            count: 12,
        })?;
        world.run(Op::Unpin { which: 0 })?;
        if round == 2 {
            world.run(Op::Drop { lane: 1 })?;
        }
        world.store.compact()?;
    }
    world.checkpoint(true)?;
    world.evacuate(false)?;
    world.store.compact()?;
    Ok(())
}

fn crash_everywhere(options: PayloadOptions, stride: u64) {
    let mut world = World::new(options);
    let start = world.vfs.operations();
    script(&mut world).unwrap();
    world.check();
    let end = world.vfs.operations();
    assert!(end - start > 150);
    for at in (start..=end).step_by(usize::try_from(stride).unwrap()) {
        for crash in [Crash::Process, Crash::Synced, Crash::Torn { seed: at }] {
            let mut world = World::new(options);
            world.vfs.power_off_at(at);
            let ended = script(&mut world);
            // The last operations only take away what is no longer needed: an error of those is no failure.
            assert!(ended.is_err() || at + 8 > end, "operation {at} of {start}..{end}");
            let applied = world.twin.applied;
            let mut world = world.crash(crash);
            assert!(world.twin.applied >= applied, "an acknowledged entry is gone");
            world.check();
            // And it goes on from there.
            world
                .run(Op::Push {
                    lane: 0,
                    sizes: vec![50; 3],
                })
                .unwrap();
            world.checkpoint(false).unwrap();
            world.evacuate(false).unwrap();
            world.store.compact().unwrap();
            world.check();
            world.reopen().check();
        }
    }
}

#[test]
fn power_loss_at_every_operation_loses_and_resurrects_nothing() {
    crash_everywhere(OPTIONS, 1);
}

#[test]
fn power_loss_with_runs_in_rows_loses_and_resurrects_nothing() {
    crash_everywhere(SPILLING, 3);
}
