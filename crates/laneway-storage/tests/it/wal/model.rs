//! Random histories over many partitions, against the naive model.

use bytes::Bytes;
use laneway_core::ids::PartitionId;
use laneway_storage::vfs::{Crash, SimVfs};
use laneway_storage::wal::WalOptions;
use proptest::prelude::*;

use super::support::*;

#[derive(Clone, Debug)]
enum Act {
    Append { partition: u16, sizes: Vec<usize> },
    Vote { partition: u16, vote: u8 },
    Truncate { partition: u16, back: u64 },
    Purge { partition: u16, back: u64 },
    Step,
    Release,
    Crash(Crash),
    Reopen,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let partition = 0u16..5;
    let size = prop_oneof![6 => 0usize..200, 3 => 200usize..3000, 1 => 12_000usize..40_000];
    let act = prop_oneof![
        8 => (partition.clone(), proptest::collection::vec(size, 0..5))
            .prop_map(|(partition, sizes)| Act::Append { partition, sizes }),
        1 => (partition.clone(), any::<u8>()).prop_map(|(partition, vote)| Act::Vote { partition, vote }),
        2 => (partition.clone(), 0u64..6).prop_map(|(partition, back)| Act::Truncate { partition, back }),
        2 => (partition, 0u64..6).prop_map(|(partition, back)| Act::Purge { partition, back }),
        6 => Just(Act::Step),
        2 => Just(Act::Release),
        1 => any::<u64>().prop_map(|seed| Act::Crash(Crash::Torn { seed })),
        1 => prop_oneof![Just(Crash::Process), Just(Crash::Synced)].prop_map(Act::Crash),
        1 => Just(Act::Reopen),
    ];
    proptest::collection::vec(act, 1..80)
}

/// A log and what it should hold.
struct Run {
    node: Node,
    term: u64,
    /// As of the last step.
    durable: State,
    /// Queued since.
    pending: Vec<Change>,
}

impl Run {
    fn now(&self) -> State {
        let mut state = self.durable.clone();
        self.pending.iter().for_each(|change| apply(&mut state, change));
        state
    }

    fn act(mut self, act: Act) -> Self {
        match act {
            Act::Append { partition, sizes } => {
                let partition = PartitionId(partition);
                let first = self.node.wal.last(partition).map_or(0, |(index, _, _)| index + 1);
                let entries: Vec<_> = sizes
                    .iter()
                    .zip(first..)
                    .map(|(&bytes, index)| entry(index, self.term, bytes))
                    .collect();
                self.pending.extend(
                    entries
                        .iter()
                        .map(|entry| Change::Append(partition, entry.clone())),
                );
                self.node
                    .wal
                    .append(partition, entries, Box::new(|result| result.unwrap()));
            }
            Act::Vote { partition, vote } => {
                let (partition, vote) = (PartitionId(partition), Bytes::from(vec![vote; 9]));
                self.pending.push(Change::Vote(partition, vote.clone()));
                self.node
                    .wal
                    .save_vote(partition, vote, Box::new(|result| result.unwrap()));
            }
            Act::Truncate { partition, back } => {
                let partition = PartitionId(partition);
                let last = self.node.wal.last(partition);
                let index = last.and_then(|(index, _, _)| index.checked_sub(back));
                self.pending.push(Change::Truncate(partition, index));
                self.node
                    .wal
                    .truncate_after(partition, index, Box::new(|result| result.unwrap()));
                self.term += 1;
            }
            Act::Purge { partition, back } => {
                let partition = PartitionId(partition);
                let Some((last, term, leader)) = self.node.wal.last(partition) else {
                    return self;
                };
                // Sometimes beyond the end.
                let upto = ((last + 1).saturating_sub(back), term, leader);
                self.pending.push(Change::Purge(partition, upto));
                self.node
                    .wal
                    .purge(partition, upto, Box::new(|result| result.unwrap()));
            }
            Act::Step => {
                self.node.writer.step();
                self.durable = self.now();
                self.pending.clear();
            }
            Act::Release => {
                self.node.release_all();
            }
            Act::Crash(crash) => {
                self.node.vfs.crash(crash);
                self.pending.clear();
                return self.reopen();
            }
            Act::Reopen => {
                self.pending.clear();
                return self.reopen();
            }
        }
        self.check_view();
        self
    }

    fn reopen(self) -> Self {
        let node = self.node.reopen(OPTIONS).unwrap();
        assert_eq!(node.dump(), self.durable);
        Self { node, ..self }
    }

    /// Readers see what is queued.
    fn check_view(&self) {
        for (&id, wanted) in &self.now() {
            let first = wanted.entries.first().map_or(0, |entry| entry.index);
            let found = if wanted.entries.is_empty() {
                Vec::new()
            } else {
                self.node.wal.read(id, first..u64::MAX, u64::MAX).unwrap()
            };
            assert_eq!(found, wanted.entries);
            let last = wanted
                .entries
                .last()
                .map(|entry| (entry.index, entry.term, entry.leader));
            assert_eq!(self.node.wal.last(id), last.or(wanted.purged));
            assert_eq!(self.node.wal.purged(id), wanted.purged);
        }
    }
}

const OPTIONS: WalOptions = WalOptions {
    tail_cache_bytes: 2000,
    ..SMALL
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn log_agrees_with_the_model(acts in acts()) {
        let node = Node::open(&SimVfs::new(), OPTIONS).unwrap();
        let mut run = Run { node, term: 1, durable: State::new(), pending: Vec::new() };
        for act in acts {
            run = run.act(act);
        }
        run.act(Act::Step).act(Act::Reopen);
    }
}
