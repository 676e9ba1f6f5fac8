//! Long lists against a plain vector.

use proptest::prelude::*;

use super::*;

fn run(first: u64, count: u32, place: u32) -> Run {
    let stored = Stored {
        place: PlaceSlot(place),
        at: u32::try_from(first).unwrap(),
        bytes: count * 10,
    };
    Run::new(
        Offset(first),
        0,
        count,
        WallTime(first + u64::from(count)),
        stored,
    )
}

/// Neighbouring runs of these lengths from offset 0 on.
fn runs(counts: &[u32]) -> Vec<Run> {
    let mut first = 0;
    let mut runs = Vec::new();
    for (number, count) in counts.iter().enumerate() {
        runs.push(run(first, *count, u32::try_from(number % 3).unwrap()));
        first += u64::from(*count);
    }
    runs
}

fn list(runs: &[Run]) -> LaneRuns {
    let mut list = LaneRuns::One(runs[0]);
    runs[1..].iter().for_each(|run| list.push(*run));
    list
}

/// Everything that can be asked gives the same answer.
fn check(list: &LaneRuns, naive: &[Run]) {
    assert_eq!(list.from(Offset(0)).copied().collect::<Vec<_>>(), naive);
    assert_eq!(
        (list.len(), *list.first(), *list.last()),
        (naive.len(), naive[0], naive[naive.len() - 1])
    );
    assert_eq!(
        list.bytes(),
        naive.iter().map(|run| u64::from(run.bytes)).sum::<u64>()
    );
    assert_eq!(matches!(list, LaneRuns::One(_)), naive.len() == 1);
    if let LaneRuns::Many(list) = list {
        assert!(
            list.chunks
                .iter()
                .all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK_RUNS)
        );
    }
    let end = naive[naive.len() - 1].end().0;
    for offset in (0..end + 3).step_by(usize::try_from(end / 50 + 1).unwrap()) {
        let found = naive
            .iter()
            .find(|run| run.first().0 <= offset && offset < run.end().0);
        assert_eq!(list.find(Offset(offset)), found);
        let rest = naive.iter().find(|run| run.end().0 > offset);
        assert_eq!(list.from(Offset(offset)).next(), rest);
        let wall = WallTime(offset);
        assert_eq!(
            list.since(wall).next(),
            naive.iter().find(|run| run.wall_last >= wall)
        );
        assert_eq!(
            list.last_older_than(wall),
            naive.iter().rev().find(|run| run.wall_last < wall)
        );
    }
}

fn naive_pop(naive: &mut Vec<Run>, head: Offset) {
    naive.retain(|run| run.end() > head);
    if let Some(front) = naive.first_mut() {
        *front = front.clipped(head, front.end()).unwrap();
    }
}

fn pop(list: &mut LaneRuns, head: Offset) -> (Vec<Run>, bool) {
    let mut gone = Vec::new();
    loop {
        let popped = list.pop_below(head);
        gone.extend(popped.gone);
        if !popped.more {
            return (gone, popped.empty);
        }
    }
}

proptest! {
    #[test]
    fn long_list_is_a_vector(
        counts in prop::collection::vec(1u32..20, 1..1500),
        steps in prop::collection::vec((0u8..3, any::<prop::sample::Index>(), 1usize..700, 1u32..5000), 1..12),
    ) {
        let mut naive = runs(&counts);
        let mut list = list(&naive);
        check(&list, &naive);
        for (kind, at, length, size) in steps {
            let at = at.index(naive.len());
            match kind {
                0 => {
                    let head = Offset(naive[at].first().0 + u64::from(size % 3));
                    if head < naive[naive.len() - 1].end() {
                        let gone = naive.iter().filter(|run| run.end() <= head).copied().collect::<Vec<_>>();
                        naive_pop(&mut naive, head);
                        prop_assert_eq!(pop(&mut list, head), (gone, false));
                    }
                }
                1 => {
                    // Some neighbours become runs of another length, in another place.
                    let last = (at + length).min(naive.len()) - 1;
                    let (from, to) = (naive[at].first().0, naive[last].end().0);
                    let mut new = Vec::new();
                    let mut first = from;
                    while first < to {
                        let count = u64::from(size).min(to - first);
                        new.push(run(first, u32::try_from(count).unwrap(), 9));
                        first += count;
                    }
                    let replaced = list.replace(Offset(from)..Offset(to), |run| run.first().0 < to, &new);
                    prop_assert_eq!(&replaced.gone[..], &naive[at..=last]);
                    prop_assert_eq!(&replaced.put, &new);
                    naive.splice(at..=last, new);
                }
                _ if naive.len() > 1 => {
                    let taken = naive.remove(at);
                    prop_assert_eq!(list.take(taken.first()), (Some(taken), false));
                    if size % 2 == 0 {
                        check(&list, &naive);
                        list.insert(taken);
                        naive.insert(at, taken);
                    }
                }
                _ => {}
            }
            check(&list, &naive);
        }
        let end = naive[naive.len() - 1].end();
        prop_assert_eq!(pop(&mut list, end), (naive, true));
    }
}

#[test]
fn replacing_piece_by_piece_keeps_the_rest_of_a_long_run() {
    // One run of a hundred messages becomes ten of ten, three at a time; meanwhile the head is at 15.
    let mut list = list(&[run(0, 100, 1), run(100, 50, 2)]);
    pop(&mut list, Offset(15));
    let new: Vec<Run> = (0..10).map(|number| run(number * 10, 10, 9)).collect();
    for part in new.chunks(3) {
        let range = part[0].first()..part[part.len() - 1].end();
        list.replace(range, |run| run.place == PlaceSlot(1), part);
        let covered: u64 = list.from(Offset(0)).map(|run| u64::from(run.count)).sum();
        assert_eq!(covered, 135);
    }
    let found: Vec<_> = list
        .from(Offset(0))
        .map(|run| (run.first().0, run.skip(), run.count))
        .collect();
    assert_eq!(found[..2], [(15, 5, 5), (20, 0, 10)]);
    assert_eq!(found.len(), 10);
}

#[test]
fn emptied_list_gives_its_memory_back() {
    let mut list = list(&runs(&[1; 5000]));
    pop(&mut list, Offset(4990));
    let LaneRuns::Many(inner) = &list else {
        panic!("ten runs are left")
    };
    let capacity: usize = inner.chunks.iter().map(VecDeque::capacity).sum();
    assert!(capacity <= 64, "{capacity}");
    pop(&mut list, Offset(4999));
    assert!(matches!(list, LaneRuns::One(_)));
}
