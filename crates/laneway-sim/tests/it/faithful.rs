//! The oracle finds nothing wrong with a broker without faults, whatever its clients do and however many answers are lost;
//! and it finds each of several faults.

use std::collections::BTreeMap;

use laneway_core::settings::QueueSettings;
use laneway_sim::oracle::history::{
    AckItem, AckStatus, History, Op, Operation, Outcome, Popped, PushItem, Reply,
};
use laneway_sim::oracle::{Verdict, judge};

use crate::broker::{Broker, Fault, GROUPS, QUEUE};

const LEASE_MS: u64 = 1000;
const CLIENTS: u32 = 7;
const CLIENT_STOP_US: u64 = 12_000_000;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % sides
    }

    fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }
}

/// What is due at a moment.
enum Due {
    /// The client begins its next call.
    Call(u32),
    /// A call takes effect; whoever waits for it is at this place in the history, with this delay of the answer.
    Effect { place: usize, answer_us: Option<u64> },
}

/// A client between two calls.
#[derive(Default)]
struct Client {
    /// A call whose outcome it did not learn, and may try again.
    retry: Option<(Op, Option<String>)>,
    /// What it holds: per lane the transaction ids still to be acked.
    held: Option<(String, String, BTreeMap<String, Vec<String>>)>,
}

struct Run {
    dice: Dice,
    broker: Broker,
    due: BTreeMap<(u64, u64), Due>,
    events: u64,
    history: History,
    clients: Vec<Client>,
    named: u64,
}

fn strings(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

impl Run {
    fn new(seed: u64, fault: Fault) -> Self {
        let mut dice = Dice(seed);
        let settings = QueueSettings {
            retry_limit: u32::try_from(dice.roll(3)).expect("small"),
            dead_letter_queue: !dice.one_in(4),
            dlq_after_max_retries: false,
            dedup_window_seconds: 60 * dice.roll(2),
            ..QueueSettings::configured()
        };
        let broker = Broker::new(settings, fault);
        let history = History {
            queues: vec![broker.facts()],
            ..History::default()
        };
        let clients = (0..CLIENTS).map(|_| Client::default()).collect();
        let due = BTreeMap::new();
        let mut run = Self {
            dice,
            broker,
            due,
            events: 0,
            history,
            clients,
            named: 0,
        };
        for client in 0..CLIENTS {
            run.at(u64::from(client) + 1, Due::Call(client));
        }
        run
    }

    fn at(&mut self, moment: u64, due: Due) {
        self.events += 1;
        self.due.insert((moment, self.events), due);
    }

    fn name(&mut self, prefix: &str) -> String {
        self.named += 1;
        format!("{prefix}{}", self.named)
    }

    fn go(&mut self) {
        while let Some(((now, _), due)) = self.due.pop_first() {
            match due {
                Due::Call(client) => self.call(client, now),
                Due::Effect { place, answer_us } => self.take_effect(place, answer_us, now),
            }
            if self.dice.one_in(400) {
                self.broker.downtime += self
                    .dice
                    .roll(now.saturating_sub(self.broker.downtime).min(300_000) + 1);
            }
        }
    }

    /// Begins a call: its answer arrives, or is lost, with or without its effect, which may come late.
    fn call(&mut self, client: u32, now: u64) {
        let stopped = now > CLIENT_STOP_US;
        let Some((op, request_id)) = (!stopped).then(|| self.next_call(client)).flatten() else {
            if !stopped {
                let pause = 1000 + self.dice.roll(40_000);
                self.at(now + pause, Due::Call(client));
            }
            return;
        };
        let place = self.history.operations.len();
        let unknown = Outcome::Unknown("lost".to_owned());
        let node = 1;
        let returned = now + 50_000;
        let operation = Operation {
            client,
            op,
            request_id,
            node,
            invoked: now,
            returned,
            outcome: unknown,
        };
        self.history.operations.push(operation);
        let effect = now + 1 + self.dice.roll(4000);
        match self.dice.roll(20) {
            0 => self.at(returned + 1, Due::Call(client)),
            1 => {
                let late = if self.dice.one_in(3) {
                    self.dice.roll(2_500_000)
                } else {
                    0
                };
                self.at(
                    effect + late,
                    Due::Effect {
                        place,
                        answer_us: None,
                    },
                );
                self.at(returned + 1, Due::Call(client));
            }
            _ => {
                let answer_us = Some(1 + self.dice.roll(4000));
                self.at(effect, Due::Effect { place, answer_us });
            }
        }
        let operation = &self.history.operations[place];
        self.clients[client as usize].retry = Some((operation.op.clone(), operation.request_id.clone()));
    }

    fn take_effect(&mut self, place: usize, answer_us: Option<u64>, now: u64) {
        let operation = &self.history.operations[place];
        let outcome = self
            .broker
            .execute(now, &operation.op, operation.request_id.as_deref());
        let Some(answer_us) = answer_us else { return };
        let returned = now + answer_us;
        let client = operation.client;
        self.learn(client, place, &outcome);
        let operation = &mut self.history.operations[place];
        (operation.returned, operation.outcome) = (returned, outcome);
        // Now and then a client sleeps over its lease.
        let pause = if self.dice.one_in(12) {
            self.dice.roll(2_000_000)
        } else {
            self.dice.roll(5000)
        };
        self.at(returned + 1 + pause, Due::Call(client));
    }

    fn learn(&mut self, client: u32, place: usize, outcome: &Outcome) {
        let op = &self.history.operations[place].op;
        let client = &mut self.clients[client as usize];
        client.retry = None;
        if let (Op::Pop { group, .. }, Outcome::Ok(Reply::Popped(popped))) = (op, outcome)
            && !popped.lease_id.is_empty()
        {
            client.held = Some((popped.lease_id.clone(), group.clone(), by_lane(popped)));
        }
    }

    fn next_call(&mut self, client: u32) -> Option<(Op, Option<String>)> {
        let again = self.clients[client as usize].retry.take();
        if again.is_some() && !self.dice.one_in(3) {
            return again.filter(|(op, _)| !matches!(op, Op::Pop { .. }));
        }
        let request_id = if self.dice.one_in(2) {
            Some(self.name("r"))
        } else {
            None
        };
        match client {
            0 | 1 => Some((self.push(), request_id)),
            2 => self.tend_dead_letters().map(|op| (op, request_id)),
            _ => self.consume(client).map(|op| (op, request_id)),
        }
    }

    fn push(&mut self) -> Op {
        let lane = format!("l{}", self.dice.roll(3));
        let mut items = Vec::new();
        for _ in 0..=self.dice.roll(3) {
            let transaction_id = match self.dice.roll(8) {
                0 => None,
                1 => Some(format!("t{}", self.dice.roll(self.named + 1))),
                _ => Some(self.name("t")),
            };
            self.named += 1;
            items.push(PushItem {
                transaction_id,
                payload_hash: self.named,
            });
        }
        Op::Push {
            queue: QUEUE.to_owned(),
            lane,
            items,
        }
    }

    fn tend_dead_letters(&mut self) -> Option<Op> {
        let listings = self.history.operations.iter().rev();
        let mut listings = listings.filter_map(|operation| match &operation.outcome {
            Outcome::Ok(Reply::DeadLetters(rows)) => Some(rows),
            _ => None,
        });
        let rows: Vec<String> = listings
            .next()
            .into_iter()
            .flatten()
            .map(|row| row.id.clone())
            .collect();
        let row = if rows.is_empty() {
            0
        } else {
            self.dice.roll(rows.len() as u64)
        };
        let row = rows.get(usize::try_from(row).expect("small")).cloned();
        match (self.dice.roll(8), row) {
            (0, _) => Some(Op::ListDeadLetters {
                queue: QUEUE.to_owned(),
            }),
            (1, Some(dead_letter_id)) => Some(Op::Replay { dead_letter_id }),
            (2, Some(dead_letter_id)) if self.dice.one_in(4) => Some(Op::DeleteDeadLetter { dead_letter_id }),
            _ => None,
        }
    }

    fn consume(&mut self, client: u32) -> Option<Op> {
        let Some((lease_id, group, mut lanes)) = self.clients[client as usize].held.take() else {
            let group = GROUPS[client as usize % 2].to_owned();
            let lane = self.dice.one_in(4).then(|| format!("l{}", self.dice.roll(3)));
            let auto_ack = self.dice.one_in(15);
            return Some(Op::Pop {
                queue: QUEUE.to_owned(),
                group,
                lane,
                auto_ack,
                lease_ms: LEASE_MS,
            });
        };
        if self.dice.one_in(8) {
            let extend = Op::Extend {
                lease_id: lease_id.clone(),
                lease_ms: LEASE_MS + self.dice.roll(500),
            };
            self.clients[client as usize].held = Some((lease_id, group, lanes));
            return Some(extend);
        }
        let (lane, mut ids) = lanes.pop_first()?;
        let count = 1 + usize::try_from(self.dice.roll(ids.len() as u64)).expect("small");
        let rest = ids.split_off(count);
        let fails = self.dice.one_in(3);
        let items = ids.iter().map(|id| self.ack_item(id, fails)).collect();
        if !rest.is_empty() {
            lanes.insert(lane.clone(), rest);
        }
        if !lanes.is_empty() {
            self.clients[client as usize].held = Some((lease_id.clone(), group.clone(), lanes));
        }
        let lease_id = (!self.dice.one_in(40)).then_some(lease_id);
        Some(Op::Ack {
            queue: QUEUE.to_owned(),
            lane_id: lane.clone(),
            lane,
            group,
            lease_id,
            items,
        })
    }

    fn ack_item(&mut self, id: &str, fails: bool) -> AckItem {
        let status = match self.dice.roll(6) {
            0 | 1 if fails => AckStatus::Failed,
            2 if fails => AckStatus::Retry,
            3 if fails => AckStatus::Dlq,
            _ => AckStatus::Completed,
        };
        let error = (status != AckStatus::Completed && self.dice.one_in(2)).then(|| self.name("e"));
        AckItem {
            transaction_id: id.to_owned(),
            status,
            error,
        }
    }

    /// One call after the other, none lost.
    fn call_now(&mut self, now: &mut u64, op: Op) -> Outcome {
        let invoked = *now;
        let outcome = self.broker.execute(*now + 1, &op, None);
        *now += 3;
        let (client, returned, request_id, node) = (CLIENTS, *now - 1, None, 1);
        let recorded = outcome.clone();
        self.history.operations.push(Operation {
            client,
            op,
            request_id,
            node,
            invoked,
            returned,
            outcome,
        });
        recorded
    }

    fn drain(&mut self) {
        let mut now = CLIENT_STOP_US + 30_000_000;
        for group in GROUPS {
            // An id that is in a batch twice is acked once: the rest comes again when the lease has lapsed.
            let mut empty = 0;
            while empty < 2 {
                let (queue, group) = (QUEUE.to_owned(), group.to_owned());
                let pop = Op::Pop {
                    queue,
                    group: group.clone(),
                    lane: None,
                    auto_ack: false,
                    lease_ms: LEASE_MS,
                };
                let Outcome::Ok(Reply::Popped(popped)) = self.call_now(&mut now, pop) else {
                    panic!("a lost pop")
                };
                if popped.messages.is_empty() {
                    empty += 1;
                    now += LEASE_MS * 1000;
                    continue;
                }
                empty = 0;
                for (lane, ids) in by_lane(&popped) {
                    let error = None;
                    let items = ids.into_iter().map(|transaction_id| AckItem {
                        transaction_id,
                        status: AckStatus::Completed,
                        error: error.clone(),
                    });
                    let ack = Op::Ack {
                        queue: QUEUE.to_owned(),
                        lane_id: lane.clone(),
                        lane,
                        group: group.clone(),
                        lease_id: Some(popped.lease_id.clone()),
                        items: items.collect(),
                    };
                    self.call_now(&mut now, ack);
                }
            }
        }
        for group in strings(&GROUPS) {
            let drained = Op::Drained {
                queue: QUEUE.to_owned(),
                group,
                from_beginning: true,
            };
            self.call_now(&mut now, drained);
        }
        self.call_now(
            &mut now,
            Op::ListDeadLetters {
                queue: QUEUE.to_owned(),
            },
        );
    }
}

fn by_lane(popped: &Popped) -> BTreeMap<String, Vec<String>> {
    let mut lanes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in &popped.messages {
        lanes
            .entry(message.lane.clone())
            .or_default()
            .push(message.transaction_id.clone());
    }
    lanes
}

fn run(seed: u64, fault: Fault) -> (History, Verdict) {
    let mut run = Run::new(seed, fault);
    run.go();
    run.drain();
    let verdict = judge(&run.history);
    (run.history, verdict)
}

#[test]
fn a_broker_without_faults_is_judged_sound() {
    let mut unknown = 0;
    let mut filed = 0;
    let mut replayed = 0;
    for seed in 0..40 {
        let (history, verdict) = run(seed, Fault::None);
        if let Some(first) = verdict.violations.first() {
            let shown = first
                .operations
                .iter()
                .map(|&at| format!("{at}: {:?}", history.operations[at]));
            let shown: Vec<String> = shown.collect();
            panic!(
                "seed {seed}, {:?}: {first:#?}\n{}",
                history.queues,
                shown.join("\n")
            );
        }
        unknown += verdict.counts.unknown;
        filed += verdict.counts.items_dead_lettered;
        replayed += verdict.counts.replayed;
    }
    assert!(
        unknown > 500 && filed > 200 && replayed > 50,
        "{unknown} unknown, {filed} filed, {replayed} replayed"
    );
}

/// The fault is found in some short run, by the rule that names it.
fn check_found(fault: Fault, invariant: u8) {
    let mut found = Vec::new();
    for seed in 0..40 {
        let (_, verdict) = run(seed, fault);
        found.extend(verdict.violations.iter().map(|violation| violation.invariant));
        if found.contains(&invariant) {
            return;
        }
    }
    found.sort_unstable();
    found.dedup();
    panic!("{fault:?} breaks {invariant}, but only {found:?} were found");
}

#[test]
fn faults_of_a_broker_are_found() {
    check_found(Fault::PushLost, 1);
    check_found(Fault::PayloadSwapped, 3);
    check_found(Fault::LeaseTimeJumps, 9);
    check_found(Fault::LeaseUnchecked, 8);
    check_found(Fault::AckLost, 14);
    check_found(Fault::BudgetShort, 15);
    check_found(Fault::RowLost, 17);
    check_found(Fault::RowStays, 19);
    check_found(Fault::DedupForgets, 21);
}
