//! Popping messages.

use std::time::Duration;

use laneway_wire::PopResponse;

use crate::path::{push_query, push_segment};
use crate::{Client, ClientError};

/// What to pop. The default values are the broker's.
#[derive(Clone, Debug, Default)]
pub struct Pop {
    /// Queue name.
    pub queue: String,
    /// Only this lane.
    pub lane: Option<String>,
    /// Consumer group; `None` = queue mode.
    pub group: Option<String>,
    /// Most messages.
    pub batch: Option<u32>,
    /// Most lanes.
    pub lanes_max: Option<u16>,
    /// How long to wait when nothing is there; `None` = not at all.
    pub wait: Option<Duration>,
    /// Settle at delivery: no lease, nothing to ack.
    pub auto_ack: bool,
    /// Lease length; `None` = the queue's.
    pub lease_seconds: Option<u64>,
    /// Where the group starts if this pop is its first.
    pub start: Option<Start>,
}

/// Where a new group starts.
#[derive(Clone, Debug)]
pub enum Start {
    /// With what is pushed from now on.
    New,
    /// With the oldest message kept.
    All,
    /// With the first message pushed at or after this RFC 3339 time.
    From(String),
}

impl Pop {
    /// A pop of `queue` in queue mode that does not wait.
    pub fn new(queue: &str) -> Self {
        Self {
            queue: queue.to_owned(),
            ..Self::default()
        }
    }

    fn path(&self) -> String {
        let mut path = String::from("/api/v1/pop/queue");
        push_segment(&mut path, &self.queue);
        if let Some(lane) = &self.lane {
            path.push_str("/partition");
            push_segment(&mut path, lane);
        }
        let numbers = [
            ("batch", self.batch.map(u64::from)),
            ("partitions", self.lanes_max.map(u64::from)),
            ("leaseSeconds", self.lease_seconds),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                push_query(&mut path, name, &number.to_string());
            }
        }
        if let Some(group) = &self.group {
            push_query(&mut path, "consumerGroup", group);
        }
        if let Some(wait) = self.wait {
            push_query(&mut path, "wait", "true");
            push_query(&mut path, "timeout", &wait.as_millis().to_string());
        }
        if self.auto_ack {
            push_query(&mut path, "autoAck", "true");
        }
        match &self.start {
            None => {}
            Some(Start::New) => push_query(&mut path, "subscriptionMode", "new"),
            Some(Start::All) => push_query(&mut path, "subscriptionMode", "all"),
            Some(Start::From(time)) => push_query(&mut path, "subscriptionFrom", time),
        }
        path
    }
}

impl Client {
    /// Pops messages; `None` when nothing was deliverable until the wait ran out.
    pub async fn pop(&self, pop: &Pop) -> Result<Option<PopResponse>, ClientError> {
        self.get_waiting(&pop.path(), pop.wait.unwrap_or_default()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_given_stands_in_the_query() {
        assert_eq!(Pop::new("a/b").path(), "/api/v1/pop/queue/a%2Fb");
        let pop = Pop {
            lane: Some("eu".to_owned()),
            group: Some("g 1".to_owned()),
            batch: Some(5),
            wait: Some(Duration::from_secs(2)),
            start: Some(Start::All),
            ..Pop::new("q")
        };
        let path = "/api/v1/pop/queue/q/partition/eu?batch=5&consumerGroup=g%201&wait=true&timeout=2000&subscriptionMode=all";
        assert_eq!(pop.path(), path);
    }
}
