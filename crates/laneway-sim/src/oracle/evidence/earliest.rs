//! Of all things from some moment on, the one that ended first.

/// Sorted by `from`; each holds the least `value` of itself and all after it.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Earliest {
    suffix: Vec<(u64, (u64, usize))>,
}

impl Earliest {
    /// Of (from, (value, operation)).
    pub(in super::super) fn new(mut all: Vec<(u64, (u64, usize))>) -> Self {
        all.sort_unstable();
        for at in (1..all.len()).rev() {
            all[at - 1].1 = all[at - 1].1.min(all[at].1);
        }
        Self { suffix: all }
    }

    /// The least value, with its operation, of those at or after `from`.
    pub(in super::super) fn at_or_after(&self, from: u64) -> Option<(u64, usize)> {
        let at = self.suffix.partition_point(|(at, _)| *at < from);
        self.suffix.get(at).map(|(_, least)| *least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_value_from_a_moment_on_is_found() {
        let earliest = Earliest::new(vec![(5, (50, 1)), (1, (70, 2)), (9, (60, 3))]);
        assert_eq!(earliest.at_or_after(0), Some((50, 1)));
        assert_eq!(earliest.at_or_after(5), Some((50, 1)));
        assert_eq!(earliest.at_or_after(6), Some((60, 3)));
        assert_eq!(earliest.at_or_after(10), None);
    }
}
