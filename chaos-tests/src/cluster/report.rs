//! What a run against several nodes gave.

use std::time::Duration;

use super::Fault;
use crate::judge::Judgement;
use crate::recorder::Counts;
use crate::stats::{Latencies, median, millis, say};

/// What the faults did.
#[derive(Debug, Default)]
pub struct Tally {
    /// Rounds done.
    pub rounds: u32,
    /// Processes killed.
    pub kills: u32,
    /// From a fault to the next acked push, for each partition that it hit.
    pub gaps: Latencies,
    /// Partitions that acked nothing for half a minute.
    pub gaps_endless: u32,
    /// From starting a process to `/readyz`.
    pub restarts: Vec<Duration>,
    /// From starting a node that was behind to its having caught up, or being a voter again.
    pub catch_ups: Vec<Duration>,
    /// Longest time under load without a success of any client or probe.
    pub silence: Duration,
    /// Growth of all groups' terms.
    pub elections: u64,
    /// Answers of frozen nodes to what was asked as they thawed: success, refused, unknown.
    pub at_thaw: [u32; 3],
    /// Transfers of leadership that were refused or did not come about.
    pub transfers_failed: u32,
}

/// What a run gave.
#[derive(Debug)]
pub struct Report {
    /// What was done to the nodes.
    pub fault: Fault,
    /// Operations by outcome.
    pub counts: Counts,
    /// What the faults did.
    pub tally: Tally,
    /// How long the replicas took to one digest, or how they differ.
    pub replicas: Result<Duration, String>,
    /// Breaches of the wire contract, the first few.
    pub faults: Vec<String>,
    /// Lines of panics and errors in the nodes' logs.
    pub bad_lines: usize,
    /// How late the machine woke a sleeping thread.
    pub scheduling: Latencies,
    /// Verdicts of the oracle.
    pub judgement: Judgement,
}

impl Report {
    /// Nothing was violated and nothing left undecided.
    pub fn passed(&self) -> bool {
        self.judgement.passed()
            && self.counts.faults == 0
            && self.replicas.is_ok()
            && self.tally.gaps_endless == 0
    }

    /// Prints figures and verdicts, the table's line last.
    pub fn print(&mut self) {
        self.judgement.print();
        for fault in &self.faults {
            say(format_args!("FAULT {fault}"));
        }
        match &self.replicas {
            Ok(took) => say(format_args!(
                "PASS replicas came to one digest within {:.1} s",
                took.as_secs_f64()
            )),
            Err(why) => say(format_args!("FAIL {why}")),
        }
        if self.tally.gaps_endless > 0 {
            say(format_args!(
                "FAIL {} times a partition acked nothing for 30 s",
                self.tally.gaps_endless
            ));
        }
        self.print_fault_figures();
        let counts = self.counts;
        let (gaps, late) = (&mut self.tally.gaps, &mut self.scheduling);
        say(format_args!(
            "| fault | rounds | kills | operations | ok | refused | unknown | violations | gaps | gap p50 ms | p95 | worst | wake-up late p50 ms | p99 | worst |"
        ));
        say(format_args!(
            "| {:?} | {} | {} | {} | {} | {} | {} | {} | {} | {:.0} | {:.0} | {:.0} | {:.2} | {:.1} | {:.0} |",
            self.fault,
            self.tally.rounds,
            self.tally.kills,
            counts.ok + counts.refused + counts.unknown,
            counts.ok,
            counts.refused,
            counts.unknown,
            self.judgement.violations(),
            gaps.count(),
            millis(gaps.percentile(500)),
            millis(gaps.percentile(950)),
            millis(gaps.percentile(1000)),
            millis(late.percentile(500)),
            millis(late.percentile(990)),
            millis(late.percentile(1000))
        ));
    }

    fn print_fault_figures(&self) {
        let tally = &self.tally;
        say(format_args!(
            "elections {}; breaches of the contract {}; error lines in the logs {}; longest time without a success {:.0} ms",
            tally.elections,
            self.counts.faults,
            self.bad_lines,
            millis(tally.silence)
        ));
        say_times("from start to ready", &tally.restarts);
        say_times("from start to caught up", &tally.catch_ups);
        let [ok, refused, unknown] = tally.at_thaw;
        if ok + refused + unknown > 0 {
            say(format_args!(
                "asked as they thawed: {ok} answered, {refused} refused, {unknown} unknown"
            ));
        }
        if tally.transfers_failed > 0 {
            say(format_args!("transfers that failed: {}", tally.transfers_failed));
        }
    }
}

fn say_times(what: &str, times: &[Duration]) {
    if times.is_empty() {
        return;
    }
    let times: Vec<f64> = times.iter().copied().map(millis).collect();
    let most = times.iter().copied().fold(0.0, f64::max);
    say(format_args!(
        "{what} in ms: median {:.0}, max {most:.0} ({} times)",
        median(&times),
        times.len()
    ));
}
