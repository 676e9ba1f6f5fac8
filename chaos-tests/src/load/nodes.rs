//! What each node spent in a measured window.

use std::fmt;
use std::time::Duration;

use anyhow::Context;

use crate::peer::Peer;
use crate::server::{Server, Usage};
use crate::stats::{float, median};

/// Counters of one node at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeMark {
    pub(super) usage: Usage,
    /// Since the node's start.
    pub(super) syncs: u64,
    pub(super) requests: u64,
    /// Groups that it leads, the catalog's included.
    pub(super) leads: u64,
}

impl NodeMark {
    pub(super) async fn of(server: &Server) -> anyhow::Result<Self> {
        let status = Peer::new(&server.authority())
            .get_json("/admin/v1/status")
            .await?;
        let count = |path: &str| {
            let value = status.pointer(path).and_then(serde_json::Value::as_u64);
            value.with_context(|| format!("/admin/v1/status shows no {path}"))
        };
        let groups = status["groups"].as_array().into_iter().flatten();
        Ok(Self {
            usage: server.usage()?,
            syncs: count("/storage/wal_syncs")?,
            requests: count("/http/requests")?,
            leads: groups.filter(|group| group["leads"] == true).count() as u64,
        })
    }
}

/// What one node spent, as rates.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct NodeFigures {
    user_cores: f64,
    system_cores: f64,
    /// Of the whole load, whoever took the messages in.
    user_cpu_per_million: f64,
    system_cpu_per_million: f64,
    pub(super) syncs_per_second: f64,
    requests_per_second: f64,
    written_mib_per_second: f64,
    rss_mib: f64,
    leads: f64,
}

impl NodeFigures {
    /// `messages_per_second` of the whole load.
    pub(super) fn between(
        before: &NodeMark,
        after: &NodeMark,
        span: Duration,
        messages_per_second: f64,
    ) -> Self {
        let seconds = span.as_secs_f64();
        let rate = |before: u64, after: u64| float(after.saturating_sub(before)) / seconds;
        let user_cores = (after.usage.user_seconds - before.usage.user_seconds) / seconds;
        let system_cores = (after.usage.system_seconds - before.usage.system_seconds) / seconds;
        Self {
            user_cores,
            system_cores,
            user_cpu_per_million: user_cores / messages_per_second * 1e6,
            system_cpu_per_million: system_cores / messages_per_second * 1e6,
            syncs_per_second: rate(before.syncs, after.syncs),
            requests_per_second: rate(before.requests, after.requests),
            written_mib_per_second: rate(before.usage.written_bytes, after.usage.written_bytes) / MIB,
            rss_mib: float(after.usage.rss_bytes) / MIB,
            leads: float(after.leads),
        }
    }

    /// Medians, figure by figure.
    pub(super) fn median(all: &[Self]) -> Self {
        let of = |field: fn(&Self) -> f64| median(&all.iter().map(field).collect::<Vec<_>>());
        Self {
            user_cores: of(|it| it.user_cores),
            system_cores: of(|it| it.system_cores),
            user_cpu_per_million: of(|it| it.user_cpu_per_million),
            system_cpu_per_million: of(|it| it.system_cpu_per_million),
            syncs_per_second: of(|it| it.syncs_per_second),
            requests_per_second: of(|it| it.requests_per_second),
            written_mib_per_second: of(|it| it.written_mib_per_second),
            rss_mib: of(|it| it.rss_mib),
            leads: of(|it| it.leads),
        }
    }
}

const MIB: f64 = 1_048_576.0;

impl fmt::Display for NodeFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CPU {:>6.2} user + {:>6.2} system CPU-s/M ({:.2} + {:.2} cores)  {:>5.0} syncs/s  {:>6.1} MiB/s written  {:>6.0} \
             requests/s  RSS {:>4.0} MiB  leads {:.0} groups",
            self.user_cpu_per_million,
            self.system_cpu_per_million,
            self.user_cores,
            self.system_cores,
            self.syncs_per_second,
            self.written_mib_per_second,
            self.requests_per_second,
            self.rss_mib,
            self.leads
        )
    }
}

/// Medians of each node over the runs.
pub(super) fn medians<'a>(runs: impl Iterator<Item = &'a [NodeFigures]>) -> Vec<NodeFigures> {
    let mut columns: Vec<Vec<NodeFigures>> = Vec::new();
    for run in runs {
        columns.resize(run.len().max(columns.len()), Vec::new());
        for (column, figures) in columns.iter_mut().zip(run) {
            column.push(*figures);
        }
    }
    columns.iter().map(|column| NodeFigures::median(column)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(user_seconds: f64, system_seconds: f64, syncs: u64) -> NodeMark {
        NodeMark {
            usage: Usage {
                user_seconds,
                system_seconds,
                written_bytes: syncs << 20,
                ..Usage::default()
            },
            syncs,
            requests: 2 * syncs,
            leads: 2,
        }
    }

    #[test]
    fn figures_of_a_node_are_rates() {
        let before = mark(1.0, 1.0, 100);
        let after = mark(3.0, 2.0, 300);
        let figures = NodeFigures::between(&before, &after, Duration::from_secs(2), 1e6);
        let near = |value: f64, wanted: f64| assert!((value - wanted).abs() < 1e-9, "{figures:?}");
        near(figures.user_cores, 1.0);
        near(figures.system_cpu_per_million, 0.5);
        near(figures.syncs_per_second, 100.0);
        near(figures.requests_per_second, 200.0);
        near(figures.written_mib_per_second, 100.0);
        near(figures.leads, 2.0);
    }

    #[test]
    fn medians_go_node_by_node() {
        let of = |syncs_per_second| NodeFigures {
            syncs_per_second,
            ..NodeFigures::default()
        };
        let runs = [[of(1.0), of(10.0)], [of(3.0), of(30.0)], [of(2.0), of(20.0)]];
        let medians = medians(runs.iter().map(<[NodeFigures; 2]>::as_slice));
        assert_eq!(medians, [of(2.0), of(20.0)]);
    }
}
