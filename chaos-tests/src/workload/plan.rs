//! Queues, lanes and groups of the load: between them every way in which a group can treat a message.
//!
//! At most one group of a queue fails messages, so that a message has at most one dead letter and the routes that name a
//! dead letter by lane and transaction id mean exactly one row.

use crate::api::QUEUE_MODE_GROUP;

/// Lease of a pop that asks for none.
pub(crate) const QUEUE_LEASE_SECONDS: u64 = 2;

/// Longest lease that any client asks for.
pub(crate) const LEASE_SECONDS_MAX: u64 = 3;

/// One queue of the load.
#[derive(Debug)]
pub(crate) struct QueuePlan {
    pub(crate) name: &'static str,
    pub(crate) lanes: u32,
    pub(crate) retry_limit: u32,
    pub(crate) keeps_dead_letters: bool,
    pub(crate) dedup_window_seconds: u64,
    /// Producers name their messages; else only request ids make a repeat safe.
    pub(crate) transaction_ids: bool,
    /// Messages that every group has settled are deleted a second later.
    pub(crate) trims: bool,
    pub(crate) producers: u32,
    pub(crate) groups: &'static [GroupPlan],
}

/// One consumer group.
#[derive(Debug)]
pub(crate) struct GroupPlan {
    pub(crate) name: &'static str,
    /// Its consumers fail messages and send them to the dead letters.
    pub(crate) fails: bool,
    /// Share of its pops that settle at delivery, in percent.
    pub(crate) auto_ack_percent: u32,
    /// Its consumers sometimes ack without a lease: the oracle then cannot tell what such a group missed.
    pub(crate) bare_acks: bool,
    pub(crate) consumers: u32,
    /// It is registered in mid-run, with mode `new`.
    pub(crate) late: bool,
}

impl QueuePlan {
    /// A queue that the load leaves alone: whoever adds it pushes and pops by himself. Messages are named and dead letters kept.
    pub(crate) const BASE: Self = Self {
        name: "",
        lanes: 1,
        retry_limit: 3,
        keeps_dead_letters: true,
        dedup_window_seconds: 3600,
        transaction_ids: true,
        trims: false,
        producers: 0,
        groups: &[],
    };
}

impl GroupPlan {
    /// A group without consumers of its own that reads from the beginning and settles all it gets, under leases.
    pub(crate) const BASE: Self = Self {
        name: "",
        fails: false,
        auto_ack_percent: 0,
        bare_acks: false,
        consumers: 0,
        late: false,
    };

    /// As a pop's parameter: queue mode is the absence of a name.
    pub(crate) fn parameter(&self) -> Option<&'static str> {
        (self.name != QUEUE_MODE_GROUP).then_some(self.name)
    }
}

pub(crate) const QUEUES: &[QueuePlan] = &[
    QueuePlan {
        name: "orders",
        lanes: 6,
        retry_limit: 2,
        producers: 3,
        groups: &[
            GroupPlan {
                name: QUEUE_MODE_GROUP,
                fails: true,
                consumers: 4,
                ..GroupPlan::BASE
            },
            GroupPlan {
                name: "late",
                auto_ack_percent: 20,
                consumers: 1,
                late: true,
                ..GroupPlan::BASE
            },
        ],
        ..QueuePlan::BASE
    },
    QueuePlan {
        name: "events",
        lanes: 4,
        retry_limit: 1,
        dedup_window_seconds: 600,
        producers: 2,
        groups: &[
            GroupPlan {
                name: "billing",
                fails: true,
                consumers: 3,
                ..GroupPlan::BASE
            },
            GroupPlan {
                name: "audit",
                auto_ack_percent: 100,
                consumers: 2,
                ..GroupPlan::BASE
            },
            GroupPlan {
                name: "mixed",
                auto_ack_percent: 40,
                bare_acks: true,
                consumers: 2,
                ..GroupPlan::BASE
            },
        ],
        ..QueuePlan::BASE
    },
    QueuePlan {
        name: "lossy",
        lanes: 3,
        retry_limit: 1,
        keeps_dead_letters: false,
        producers: 1,
        groups: &[GroupPlan {
            name: "droppers",
            fails: true,
            consumers: 2,
            ..GroupPlan::BASE
        }],
        ..QueuePlan::BASE
    },
    QueuePlan {
        name: "plain",
        lanes: 3,
        dedup_window_seconds: 0,
        transaction_ids: false,
        producers: 2,
        groups: &[GroupPlan {
            name: "workers",
            fails: true,
            consumers: 3,
            ..GroupPlan::BASE
        }],
        ..QueuePlan::BASE
    },
    QueuePlan {
        name: "trimmed",
        lanes: 3,
        retry_limit: 0,
        trims: true,
        producers: 2,
        groups: &[
            GroupPlan {
                name: "first",
                fails: true,
                consumers: 2,
                ..GroupPlan::BASE
            },
            GroupPlan {
                name: "second",
                auto_ack_percent: 50,
                consumers: 2,
                ..GroupPlan::BASE
            },
        ],
        ..QueuePlan::BASE
    },
];

/// Name of a lane.
pub(crate) fn lane_name(number: u32) -> String {
    format!("lane-{number}")
}
