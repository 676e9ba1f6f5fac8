//! Cutting a checkpoint out of a machine that goes on: copy-on-write over keyed rows.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::rows::{Row, RowKey};

/// How many keys of a command or two are remembered.
const RECENT: usize = 4;

/// Some rows of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointStep<K = RowKey, R = Row> {
    /// By key, each once over all steps. `None`: the row is gone since the last checkpoint.
    pub rows: Vec<(K, Option<R>)>,
    /// The checkpoint has no more rows.
    pub done: bool,
}

/// Knows which rows changed since the last cut, and keeps what a cut in progress still has to see.
#[derive(Debug)]
pub(crate) struct Tracker<K, R> {
    /// Rows touched since the last cut; the value tells whether the row was there at that cut.
    changed: BTreeMap<K, bool>,
    cut: Option<Cut<K, R>>,
    /// A few of the keys touched since the last cut: touching them again changes nothing.
    recent: [Option<K>; RECENT],
    recent_next: usize,
}

#[derive(Debug)]
struct Cut<K, R> {
    full: bool,
    /// What was `changed` when the cut was made.
    keys: BTreeMap<K, bool>,
    /// The steps have handed out all rows up to this one.
    done_to: Option<K>,
    /// All rows were handed out; `keys` stays, in case they cannot be written.
    finished: bool,
    /// Rows as of the cut that were touched before their step came.
    saved: BTreeMap<K, Option<R>>,
}

impl<K: Copy, R> Default for Tracker<K, R> {
    fn default() -> Self {
        Self {
            changed: BTreeMap::new(),
            cut: None,
            recent: [None; RECENT],
            recent_next: 0,
        }
    }
}

impl<K: Copy + Ord, R> Cut<K, R> {
    fn awaits(&self, key: K) -> bool {
        !self.finished
            && self.done_to.is_none_or(|done_to| done_to < key)
            && (self.full || self.keys.contains_key(&key))
    }

    fn after(&self) -> (Bound<K>, Bound<K>) {
        (
            self.done_to.map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        )
    }
}

impl<K: Copy + Ord, R> Tracker<K, R> {
    /// Must be called before a row is made, changed or removed; `row` gives it as it is.
    pub(crate) fn touch(&mut self, key: K, exists: impl FnOnce() -> bool, row: impl FnOnce() -> Option<R>) {
        if self.recent.contains(&Some(key)) {
            return;
        }
        self.recent[self.recent_next] = Some(key);
        self.recent_next = (self.recent_next + 1) % RECENT;
        if let Some(cut) = &mut self.cut
            && cut.awaits(key)
        {
            cut.saved.entry(key).or_insert_with(row);
        }
        self.changed.entry(key).or_insert_with(exists);
    }

    /// May be called after a row was removed: one made and removed between two cuts is no change.
    pub(crate) fn removed(&mut self, key: K) {
        if self.changed.get(&key) == Some(&false) {
            self.changed.remove(&key);
            self.recent = [None; RECENT];
        }
    }

    /// Forgets all changes: the rows are those of the newest checkpoint.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Cuts here. A cut that had not handed out all of its rows is abandoned.
    pub(crate) fn begin(&mut self, full: bool) {
        if self.cut.as_ref().is_some_and(|cut| !cut.finished) {
            self.abandon();
        }
        let keys = std::mem::take(&mut self.changed);
        self.recent = [None; RECENT];
        self.cut = Some(Cut {
            full,
            keys,
            done_to: None,
            finished: false,
            saved: BTreeMap::new(),
        });
    }

    /// Takes the last cut back, also one that had handed out all of its rows.
    pub(crate) fn abandon(&mut self) {
        let Some(cut) = self.cut.take() else { return };
        for (key, existed) in cut.keys {
            self.changed.insert(key, existed); // the older cut is the one that counts
        }
    }

    /// The next `rows_max` rows. `live_after` lists the keys of present rows beyond a key, ascending.
    pub(crate) fn step<I: Iterator<Item = K>>(
        &mut self,
        rows_max: usize,
        live_after: impl FnOnce(Option<K>) -> I,
        row: impl Fn(K) -> Option<R>,
    ) -> CheckpointStep<K, R> {
        let rows_max = rows_max.max(1);
        let Some(cut) = self.cut.as_mut().filter(|cut| !cut.finished) else {
            return CheckpointStep {
                rows: Vec::new(),
                done: true,
            };
        };
        let keys: Vec<K> = if cut.full {
            let saved = cut.saved.range(cut.after()).map(|(key, _)| *key);
            Merged::new(live_after(cut.done_to), saved)
                .take(rows_max)
                .collect()
        } else {
            cut.keys
                .range(cut.after())
                .take(rows_max)
                .map(|(key, _)| *key)
                .collect()
        };
        let done = keys.len() < rows_max;
        cut.done_to = keys.last().copied().or(cut.done_to);
        let mut rows = Vec::with_capacity(keys.len());
        for key in keys {
            let value = cut.saved.remove(&key).unwrap_or_else(|| row(key));
            let was_there = !cut.full && cut.keys.get(&key) == Some(&true);
            if value.is_some() || was_there {
                rows.push((key, value));
            }
        }
        if done {
            cut.finished = true;
            cut.saved.clear();
        }
        CheckpointStep { rows, done }
    }
}

/// Two ascending sequences as one, without repeats.
struct Merged<A: Iterator, B: Iterator> {
    left: std::iter::Peekable<A>,
    right: std::iter::Peekable<B>,
}

impl<K: Copy + Ord, A: Iterator<Item = K>, B: Iterator<Item = K>> Merged<A, B> {
    fn new(left: A, right: B) -> Self {
        Self {
            left: left.peekable(),
            right: right.peekable(),
        }
    }
}

impl<K: Copy + Ord, A: Iterator<Item = K>, B: Iterator<Item = K>> Iterator for Merged<A, B> {
    type Item = K;

    fn next(&mut self) -> Option<K> {
        let next = match (self.left.peek().copied(), self.right.peek().copied()) {
            (Some(left), Some(right)) => left.min(right),
            (left, right) => left.or(right)?,
        };
        self.left.next_if_eq(&next);
        self.right.next_if_eq(&next);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Store {
        rows: BTreeMap<u32, u32>,
        tracker: Tracker<u32, u32>,
    }

    impl Store {
        fn new() -> Self {
            Self {
                rows: BTreeMap::new(),
                tracker: Tracker::default(),
            }
        }

        fn set(&mut self, key: u32, value: Option<u32>) {
            let rows = &self.rows;
            self.tracker
                .touch(key, || rows.contains_key(&key), || rows.get(&key).copied());
            match value {
                Some(value) => {
                    self.rows.insert(key, value);
                }
                None => {
                    self.rows.remove(&key);
                    self.tracker.removed(key);
                }
            }
        }

        fn step(&mut self, rows_max: usize) -> CheckpointStep<u32, u32> {
            let rows = &self.rows;
            self.tracker.step(
                rows_max,
                |after| {
                    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
                    rows.range((from, Bound::Unbounded)).map(|(key, _)| *key)
                },
                |key| rows.get(&key).copied(),
            )
        }
    }

    /// Applies a checkpoint taken in small steps, with `between` run after each, to `onto`.
    fn cut(
        store: &mut Store,
        full: bool,
        onto: &mut BTreeMap<u32, u32>,
        between: &mut dyn FnMut(&mut Store),
    ) {
        store.tracker.begin(full);
        if full {
            onto.clear();
        }
        loop {
            let step = store.step(2);
            for (key, value) in step.rows {
                match value {
                    Some(value) => onto.insert(key, value),
                    None => onto.remove(&key),
                };
            }
            if step.done {
                return;
            }
            between(store);
        }
    }

    #[test]
    fn cuts_show_the_moment_of_their_begin() {
        let mut state = 7u32;
        let mut random = move |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        let mut store = Store::new();
        let mut onto = BTreeMap::new();
        for round in 0..300 {
            for _ in 0..random(8) {
                let value = random(4);
                store.set(random(20), (value > 0).then_some(value));
            }
            if random(5) == 0 {
                store.tracker.begin(random(2) == 0);
                for _ in 0..random(12) {
                    store.step(2);
                    store.set(random(20), Some(9));
                }
                store.tracker.abandon();
            }
            let want = store.rows.clone();
            let full = round == 0 || random(4) == 0;
            cut(&mut store, full, &mut onto, &mut |store| {
                let value = random(4);
                store.set(random(20), (value > 0).then_some(value));
            });
            assert_eq!(onto, want, "round {round}");
        }
    }

    #[test]
    fn row_made_and_removed_between_cuts_is_not_written() {
        let mut store = Store::new();
        store.set(1, Some(1));
        store.set(1, None);
        store.tracker.begin(false);
        assert_eq!(
            store.step(10),
            CheckpointStep {
                rows: vec![],
                done: true
            }
        );
    }

    #[test]
    fn step_without_a_cut_is_done() {
        assert_eq!(
            Store::new().step(1),
            CheckpointStep {
                rows: vec![],
                done: true
            }
        );
    }
}
