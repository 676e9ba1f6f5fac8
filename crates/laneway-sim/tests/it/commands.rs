//! Random plans: what to do next, in terms of whatever the machine holds by then, so that they shrink well.

use laneway_core::command::AckStatus;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) bounds: Bounds,
    pub(crate) entries: Vec<EntryPlan>,
}

/// More than a run has leases and lanes.
pub(crate) const EXPIRE_ALL: u8 = 200;

/// Bounds of the machine, small enough to be met.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) lanes_max: u8,
    pub(crate) kept_answers_max: u8,
    pub(crate) kept_answer_ms: u16,
    pub(crate) expire_max: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct EntryPlan {
    /// By how much the leader's clocks differ from the last stamps, in ms.
    pub(crate) lease_ms: i64,
    pub(crate) wall_ms: i64,
    pub(crate) acts: Vec<Act>,
    pub(crate) then: Maintenance,
}

/// What the node does to the machine between two entries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Maintenance {
    Nothing,
    /// Cut a checkpoint; it is written in steps of so many rows, one after each command.
    Checkpoint {
        full: bool,
        rows: u8,
    },
    Abandon,
    /// Go on with a machine made from the last complete checkpoint and the log after it.
    Restart,
}

/// A pick among what there is: taken modulo its number.
pub(crate) type Pick = u8;

#[derive(Clone, Debug)]
pub(crate) enum Act {
    Push {
        queue: Pick,
        lane: Pick,
        items: Vec<Item>,
        rider: Rider,
        request: Option<Request>,
    },
    Claim {
        queue: Pick,
        group: Pick,
        lane: Option<Pick>,
        lanes: u8,
        messages: u8,
        lease_ms: Option<u64>,
        auto_ack: bool,
    },
    Ack {
        at: Target,
        lease: LeaseChoice,
        items: Vec<Signal>,
        request: Option<Request>,
    },
    /// An earlier ack, word for word but for its request id.
    AckAgain {
        which: Pick,
        request: Option<Request>,
    },
    Extend {
        lease: Pick,
        lease_ms: u64,
        request: Option<Request>,
    },
    Release {
        lease: Pick,
        ends: Vec<(Pick, Option<i8>)>,
    },
    Replay {
        letter: Pick,
        request: Option<Request>,
    },
    DeleteLetter {
        letter: Pick,
        request: Option<Request>,
    },
    /// A change of settings; withheld, it reaches the machine as a rider or as late as the next change.
    Configure {
        queue: Pick,
        settings: Settings,
        withheld: bool,
    },
    DeleteQueue {
        queue: Pick,
    },
    Register {
        queue: Pick,
        group: Pick,
        start: Start,
        starts: Vec<(Pick, u8)>,
    },
    /// A catalog change from before.
    CatalogAgain {
        which: Pick,
    },
    Tick,
    Sweep {
        rows: u8,
    },
    Trim {
        queue: Pick,
        completed_only: bool,
        lanes: Vec<(Pick, u8)>,
    },
    /// Retention takes so many messages from the head of a leased batch.
    TrimLeased {
        at: Pick,
        count: u8,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
    Store,
    Duplicate { offset: u8 },
    Repeat(u8),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Rider {
    None,
    Newest,
    Older(Pick),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) id: u8,
    pub(crate) part: u8,
    pub(crate) content: u8,
}

/// Which (lane, group) to ack.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// One with a live lease, if there is one.
    Leased(Pick),
    Any {
        lane: Pick,
        group: Pick,
    },
    DeadLane(Pick),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaseChoice {
    /// The live one, or else the last.
    Own,
    Bare,
    Other(Pick),
}

#[derive(Clone, Debug)]
pub(crate) struct Signal {
    pub(crate) status: AckStatus,
    /// Relative to the cursor.
    pub(crate) candidates: Vec<i8>,
    pub(crate) error: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) lease_seconds: u8,
    pub(crate) retry_limit: u8,
    pub(crate) dead_letter_queue: bool,
    pub(crate) dlq_after_max_retries: bool,
    pub(crate) delay: u8,
    pub(crate) window: u8,
    pub(crate) dedup: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    Beginning,
    Registration,
    /// Seconds from now.
    At(i8),
}

pub(crate) fn plan() -> impl Strategy<Value = Plan> {
    (bounds(), vec(entry(), 40..48)).prop_map(|(bounds, entries)| Plan { bounds, entries })
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let keep = prop_oneof![Just(500_u16), Just(4000), Just(60_000)];
    let expire = prop_oneof![1..4_u8, Just(EXPIRE_ALL)];
    (3..10_u8, 1..12_u8, keep, expire).prop_map(
        |(lanes_max, kept_answers_max, kept_answer_ms, expire_max)| Bounds {
            lanes_max,
            kept_answers_max,
            kept_answer_ms,
            expire_max,
        },
    )
}

fn entry() -> impl Strategy<Value = EntryPlan> {
    let lease_ms = prop_oneof![
        6 => Just(0_i64), 6 => 1..60_i64, 4 => 100..1500_i64, 2 => 1500..6000_i64, 1 => Just(70_000), 1 => -5000..0_i64
    ];
    let wall_ms = prop_oneof![
        4 => Just(0_i64), 6 => 1..600_i64, 3 => 600..1500_i64, 2 => 1500..6000_i64, 1 => -9000..0_i64
    ];
    let then = prop_oneof![
        14 => Just(Maintenance::Nothing),
        4 => (any::<bool>(), 1..6_u8).prop_map(|(full, rows)| Maintenance::Checkpoint { full, rows }),
        1 => Just(Maintenance::Abandon),
        2 => Just(Maintenance::Restart),
    ];
    (lease_ms, wall_ms, vec(act(), 2..5), then).prop_map(|(lease_ms, wall_ms, acts, then)| EntryPlan {
        lease_ms,
        wall_ms,
        acts,
        then,
    })
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        14 => push(),
        14 => claim(),
        14 => ack(),
        2 => (any::<Pick>(), request()).prop_map(|(which, request)| Act::AckAgain { which, request }),
        3 => (any::<Pick>(), lease_ms(), request())
            .prop_map(|(lease, lease_ms, request)| Act::Extend { lease, lease_ms, request }),
        3 => (any::<Pick>(), vec((any::<Pick>(), option::of(-1..4_i8)), 1..4))
            .prop_map(|(lease, ends)| Act::Release { lease, ends }),
        2 => (any::<Pick>(), request()).prop_map(|(letter, request)| Act::Replay { letter, request }),
        1 => (any::<Pick>(), request()).prop_map(|(letter, request)| Act::DeleteLetter { letter, request }),
        5 => catalog(),
        1 => Just(Act::Tick),
        1 => (0..4_u8).prop_map(|rows| Act::Sweep { rows }),
        2 => (any::<Pick>(), any::<bool>(), vec((any::<Pick>(), 0..12_u8), 1..4))
            .prop_map(|(queue, completed_only, lanes)| Act::Trim { queue, completed_only, lanes }),
        2 => (any::<Pick>(), 1..4_u8).prop_map(|(at, count)| Act::TrimLeased { at, count }),
    ]
}

fn push() -> impl Strategy<Value = Act> {
    let item = prop_oneof![
        9 => Just(Item::Store),
        1 => (0..10_u8).prop_map(|offset| Item::Duplicate { offset }),
        1 => (0..3_u8).prop_map(Item::Repeat),
    ];
    let rider = prop_oneof![
        6 => Just(Rider::None), 3 => Just(Rider::Newest), 1 => any::<Pick>().prop_map(Rider::Older)
    ];
    let items = prop_oneof![1 => Just(Vec::new()), 30 => vec(item, 1..5)];
    (any::<Pick>(), any::<Pick>(), items, rider, request()).prop_map(
        |(queue, lane, items, rider, request)| Act::Push {
            queue,
            lane,
            items,
            rider,
            request,
        },
    )
}

fn claim() -> impl Strategy<Value = Act> {
    let lane = option::weighted(0.3, any::<Pick>());
    let auto_ack = prop::bool::weighted(0.15);
    (
        any::<Pick>(),
        any::<Pick>(),
        lane,
        1..4_u8,
        1..7_u8,
        option::of(lease_ms()),
        auto_ack,
    )
        .prop_map(
            |(queue, group, lane, lanes, messages, lease_ms, auto_ack)| Act::Claim {
                queue,
                group,
                lane,
                lanes,
                messages,
                lease_ms,
                auto_ack,
            },
        )
}

fn lease_ms() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0_u64), 8 => 1..300_u64, 8 => 300..6000_u64, 1 => Just(u64::MAX)]
}

fn ack() -> impl Strategy<Value = Act> {
    let at = prop_oneof![
        12 => any::<Pick>().prop_map(Target::Leased),
        3 => (any::<Pick>(), any::<Pick>()).prop_map(|(lane, group)| Target::Any { lane, group }),
        1 => any::<Pick>().prop_map(Target::DeadLane),
    ];
    let lease = prop_oneof![
        8 => Just(LeaseChoice::Own), 2 => Just(LeaseChoice::Bare), 1 => any::<Pick>().prop_map(LeaseChoice::Other)
    ];
    (at, lease, vec(signal(), 1..5), request()).prop_map(|(at, lease, items, request)| Act::Ack {
        at,
        lease,
        items,
        request,
    })
}

fn signal() -> impl Strategy<Value = Signal> {
    let status = prop_oneof![
        5 => Just(AckStatus::Completed),
        1 => Just(AckStatus::Retry),
        3 => Just(AckStatus::Failed),
        1 => Just(AckStatus::DeadLetter),
    ];
    let candidates = prop_oneof![
        1 => Just(vec![]), 9 => (-1..5_i8).prop_map(|at| vec![at]), 2 => vec(-4..9_i8, 2..4)
    ];
    (status, candidates, any::<bool>()).prop_map(|(status, candidates, error)| Signal {
        status,
        candidates,
        error,
    })
}

fn catalog() -> impl Strategy<Value = Act> {
    let settings = (
        1..5_u8,
        0..3_u8,
        any::<bool>(),
        any::<bool>(),
        hold_seconds(),
        hold_seconds(),
        any::<bool>(),
    );
    let settings = settings.prop_map(
        |(lease_seconds, retry_limit, dead_letter_queue, dlq_after_max_retries, delay, window, dedup)| {
            Settings {
                lease_seconds,
                retry_limit,
                dead_letter_queue,
                dlq_after_max_retries,
                delay,
                window,
                dedup,
            }
        },
    );
    let start = prop_oneof![
        Just(Start::Beginning),
        Just(Start::Registration),
        (-5..8_i8).prop_map(Start::At)
    ];
    let starts = vec((any::<Pick>(), 0..12_u8), 0..4);
    prop_oneof![
        4 => (any::<Pick>(), settings, prop::bool::weighted(0.3))
            .prop_map(|(queue, settings, withheld)| Act::Configure { queue, settings, withheld }),
        1 => any::<Pick>().prop_map(|queue| Act::DeleteQueue { queue }),
        4 => (any::<Pick>(), any::<Pick>(), start, starts)
            .prop_map(|(queue, group, start, starts)| Act::Register { queue, group, start, starts }),
        1 => any::<Pick>().prop_map(|which| Act::CatalogAgain { which }),
    ]
}

fn hold_seconds() -> impl Strategy<Value = u8> {
    prop_oneof![6 => Just(0_u8), 2 => 1..4_u8]
}

fn request() -> impl Strategy<Value = Option<Request>> {
    let request = (0..5_u8, 0..2_u8, prop::sample::select(vec![0, 0, 0, 1_u8]));
    option::weighted(
        0.2,
        request.prop_map(|(id, part, content)| Request { id, part, content }),
    )
}
