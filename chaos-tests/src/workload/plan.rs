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

impl GroupPlan {
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
        keeps_dead_letters: true,
        dedup_window_seconds: 3600,
        transaction_ids: true,
        trims: false,
        producers: 3,
        groups: &[
            GroupPlan {
                name: QUEUE_MODE_GROUP,
                fails: true,
                auto_ack_percent: 0,
                bare_acks: false,
                consumers: 4,
                late: false,
            },
            GroupPlan {
                name: "late",
                fails: false,
                auto_ack_percent: 20,
                bare_acks: false,
                consumers: 1,
                late: true,
            },
        ],
    },
    QueuePlan {
        name: "events",
        lanes: 4,
        retry_limit: 1,
        keeps_dead_letters: true,
        dedup_window_seconds: 600,
        transaction_ids: true,
        trims: false,
        producers: 2,
        groups: &[
            GroupPlan {
                name: "billing",
                fails: true,
                auto_ack_percent: 0,
                bare_acks: false,
                consumers: 3,
                late: false,
            },
            GroupPlan {
                name: "audit",
                fails: false,
                auto_ack_percent: 100,
                bare_acks: false,
                consumers: 2,
                late: false,
            },
            GroupPlan {
                name: "mixed",
                fails: false,
                auto_ack_percent: 40,
                bare_acks: true,
                consumers: 2,
                late: false,
            },
        ],
    },
    QueuePlan {
        name: "lossy",
        lanes: 3,
        retry_limit: 1,
        keeps_dead_letters: false,
        dedup_window_seconds: 3600,
        transaction_ids: true,
        trims: false,
        producers: 1,
        groups: &[GroupPlan {
            name: "droppers",
            fails: true,
            auto_ack_percent: 0,
            bare_acks: false,
            consumers: 2,
            late: false,
        }],
    },
    QueuePlan {
        name: "plain",
        lanes: 3,
        retry_limit: 3,
        keeps_dead_letters: true,
        dedup_window_seconds: 0,
        transaction_ids: false,
        trims: false,
        producers: 2,
        groups: &[GroupPlan {
            name: "workers",
            fails: true,
            auto_ack_percent: 0,
            bare_acks: false,
            consumers: 3,
            late: false,
        }],
    },
    QueuePlan {
        name: "trimmed",
        lanes: 3,
        retry_limit: 0,
        keeps_dead_letters: true,
        dedup_window_seconds: 3600,
        transaction_ids: true,
        trims: true,
        producers: 2,
        groups: &[
            GroupPlan {
                name: "first",
                fails: true,
                auto_ack_percent: 0,
                bare_acks: false,
                consumers: 2,
                late: false,
            },
            GroupPlan {
                name: "second",
                fails: false,
                auto_ack_percent: 50,
                bare_acks: false,
                consumers: 2,
                late: false,
            },
        ],
    },
];

/// Name of a lane.
pub(crate) fn lane_name(number: u32) -> String {
    format!("lane-{number}")
}
