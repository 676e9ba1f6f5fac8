//! The oracle's verdict on a history file, for people.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::Context;
use laneway_sim::oracle::history::{History, Record};
use laneway_sim::oracle::{self, Verdict};

use crate::stats::say;

/// Violations printed with their operations; the others are only counted.
const SHOWN_MAX: usize = 10;

/// Operations printed of one violation.
const OPERATIONS_SHOWN_MAX: usize = 6;

/// What is judged, by its number in the list of invariants.
const INVARIANTS: [(u8, &str); 17] = [
    (1, "no acked push is lost or doubled"),
    (2, "nothing is read that was not pushed"),
    (3, "one offset, one value"),
    (4, "lanes are first in, first out"),
    (7, "one live lease per lane and group"),
    (8, "a settled lease changes nothing"),
    (9, "no lease ends early"),
    (13, "no cursor passes an unsettled message"),
    (14, "acked is never redelivered"),
    (15, "retry counters are exact up to unknown outcomes"),
    (16, "expiry and retry never charge"),
    (17, "each dead letter is filed once, with its payload"),
    (18, "after the drain each push is settled or dead"),
    (19, "a replay moves exactly once"),
    (21, "a transaction id names one message"),
    (24, "replicas at one index are in one state"),
    (25, "no answer of success is stale"),
];

/// Verdict with what it takes to show it.
#[derive(Debug)]
pub struct Judgement {
    verdict: Verdict,
    history: History,
}

/// Reads a history and has it judged.
pub fn judge(path: &Path) -> anyhow::Result<Judgement> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let history = History::read(BufReader::with_capacity(1 << 20, file))?;
    let verdict = oracle::judge(&history);
    Ok(Judgement { verdict, history })
}

impl Judgement {
    /// No violation, and nothing undecided.
    pub fn passed(&self) -> bool {
        self.verdict.violations.is_empty() && self.verdict.counts.retry_counters_unjudged == 0
    }

    /// Violations of any invariant.
    pub fn violations(&self) -> usize {
        self.verdict.violations.len()
    }

    /// What the history holds.
    pub fn counts(&self) -> oracle::Counts {
        self.verdict.counts
    }

    /// Prints counts, a line for each invariant and the first violations with their operations.
    pub fn print(&self) {
        let counts = self.verdict.counts;
        say(format_args!(
            "judged {} operations ({} unknown): {} messages pushed, {} deliveries, {} acked, {} dead-lettered, {} replayed",
            counts.operations,
            counts.unknown,
            counts.messages_pushed,
            counts.messages_delivered,
            counts.items_acked,
            counts.items_dead_lettered,
            counts.replayed
        ));
        say(format_args!(
            "and {} empty answers of pops, {} digests",
            counts.empty_pops_judged, counts.digests
        ));
        for (invariant, name) in INVARIANTS {
            let violations = self.violations_of(invariant);
            let word = if violations == 0 { "PASS" } else { "FAIL" };
            say(format_args!(
                "{word} invariant {invariant:>2}: {name} ({violations} violations)"
            ));
        }
        let unjudged = counts.retry_counters_unjudged;
        let word = if unjudged == 0 { "PASS" } else { "FAIL" };
        say(format_args!(
            "{word} nothing is undecided ({unjudged} retry counters could not be followed)"
        ));
        self.print_violations();
    }

    fn violations_of(&self, invariant: u8) -> usize {
        self.verdict
            .violations
            .iter()
            .filter(|violation| violation.invariant == invariant)
            .count()
    }

    fn print_violations(&self) {
        for violation in self.verdict.violations.iter().take(SHOWN_MAX) {
            say(format_args!(
                "VIOLATION of invariant {}: {}",
                violation.invariant, violation.what
            ));
            for index in violation.operations.iter().take(OPERATIONS_SHOWN_MAX) {
                let Some(operation) = self.history.operations.get(*index) else {
                    continue;
                };
                let mut line = Vec::new();
                let _infallible = Record::Operation(operation.clone()).write(&mut line);
                say(format_args!("  {}", String::from_utf8_lossy(&line).trim_end()));
            }
        }
        let hidden = self.verdict.violations.len().saturating_sub(SHOWN_MAX);
        if hidden > 0 {
            say(format_args!("and {hidden} more"));
        }
    }
}
