//! `POST /api/v1/configure`

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::value::{Given, Int, Text};

/// Body of a configure. Options may stand under `options` or, as older clients write them, at the top level.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConfigureRequest<'a> {
    /// Queue name; required.
    pub queue: Text<'a>,
    /// Used when not empty and `options` has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Text<'a>>,
    /// Used when not empty and `options` has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<Text<'a>>,
    /// What to change.
    pub options: QueueOptionsPatch<'a>,
    /// `replace` (also when absent) or `merge`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Text<'a>>,
}

/// Options of a configure. What each does is in the configuration reference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueOptionsPatch<'a> {
    /// Text.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub namespace: Given<Text<'a>>,
    /// Text.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub task: Given<Text<'a>>,
    /// Seconds.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub lease_time: Given<Int>,
    /// Charged failures allowed.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub retry_limit: Given<Int>,
    /// Milliseconds.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub retry_delay: Given<Int>,
    /// Messages.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub max_size: Given<Int>,
    /// Seconds.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub ttl: Given<Int>,
    /// Any integer.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub priority: Given<Int>,
    /// Switch.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub dead_letter_queue: Given<bool>,
    /// Switch.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub dlq_after_max_retries: Given<bool>,
    /// Seconds.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub delayed_processing: Given<Int>,
    /// Seconds.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub window_buffer: Given<Int>,
    /// Seconds.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub retention_seconds: Given<Int>,
    /// Seconds.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub completed_retention_seconds: Given<Int>,
    /// Switch.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub retention_enabled: Given<bool>,
    /// Switch.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub encryption_enabled: Given<bool>,
    /// Seconds.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub max_wait_time_seconds: Given<Int>,
    /// Milliseconds, clamped to 0 ..= 60 000.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub min_pop_wait_time: Given<Int>,
    /// Seconds, below 0 means 0.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub dedup_window_seconds: Given<Int>,
    /// `[A-Za-z0-9._-]{0,64}`.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub retention_sink_hold: Given<Text<'a>>,
    /// Seconds.
    #[serde(skip_serializing_if = "Given::is_absent")]
    pub retention_sink_hold_max_seconds: Given<Int>,
}

impl<'a> QueueOptionsPatch<'a> {
    /// Reads the value of `key` if that is an option; false leaves it unread.
    fn read<'de: 'a, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "namespace" => once(key, &mut self.namespace, map)?,
            "task" => once(key, &mut self.task, map)?,
            "leaseTime" => once(key, &mut self.lease_time, map)?,
            "retryLimit" => once(key, &mut self.retry_limit, map)?,
            "retryDelay" => once(key, &mut self.retry_delay, map)?,
            "maxSize" => once(key, &mut self.max_size, map)?,
            "ttl" => once(key, &mut self.ttl, map)?,
            "priority" => once(key, &mut self.priority, map)?,
            "deadLetterQueue" => once(key, &mut self.dead_letter_queue, map)?,
            "dlqAfterMaxRetries" => once(key, &mut self.dlq_after_max_retries, map)?,
            "delayedProcessing" => once(key, &mut self.delayed_processing, map)?,
            "windowBuffer" => once(key, &mut self.window_buffer, map)?,
            "retentionSeconds" => once(key, &mut self.retention_seconds, map)?,
            "completedRetentionSeconds" => once(key, &mut self.completed_retention_seconds, map)?,
            "retentionEnabled" => once(key, &mut self.retention_enabled, map)?,
            "encryptionEnabled" => once(key, &mut self.encryption_enabled, map)?,
            "maxWaitTimeSeconds" => once(key, &mut self.max_wait_time_seconds, map)?,
            "minPopWaitTime" => once(key, &mut self.min_pop_wait_time, map)?,
            "dedupWindowSeconds" => once(key, &mut self.dedup_window_seconds, map)?,
            "retentionSinkHold" => once(key, &mut self.retention_sink_hold, map)?,
            "retentionSinkHoldMaxSeconds" => once(key, &mut self.retention_sink_hold_max_seconds, map)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Takes from `other` what is absent here.
    fn fill_from(&mut self, other: Self) {
        fn fill<T: Default>(mine: &mut Given<T>, other: Given<T>) {
            *mine = std::mem::take(mine).or(other);
        }
        fill(&mut self.namespace, other.namespace);
        fill(&mut self.task, other.task);
        fill(&mut self.lease_time, other.lease_time);
        fill(&mut self.retry_limit, other.retry_limit);
        fill(&mut self.retry_delay, other.retry_delay);
        fill(&mut self.max_size, other.max_size);
        fill(&mut self.ttl, other.ttl);
        fill(&mut self.priority, other.priority);
        fill(&mut self.dead_letter_queue, other.dead_letter_queue);
        fill(&mut self.dlq_after_max_retries, other.dlq_after_max_retries);
        fill(&mut self.delayed_processing, other.delayed_processing);
        fill(&mut self.window_buffer, other.window_buffer);
        fill(&mut self.retention_seconds, other.retention_seconds);
        fill(
            &mut self.completed_retention_seconds,
            other.completed_retention_seconds,
        );
        fill(&mut self.retention_enabled, other.retention_enabled);
        fill(&mut self.encryption_enabled, other.encryption_enabled);
        fill(&mut self.max_wait_time_seconds, other.max_wait_time_seconds);
        fill(&mut self.min_pop_wait_time, other.min_pop_wait_time);
        fill(&mut self.dedup_window_seconds, other.dedup_window_seconds);
        fill(&mut self.retention_sink_hold, other.retention_sink_hold);
        fill(
            &mut self.retention_sink_hold_max_seconds,
            other.retention_sink_hold_max_seconds,
        );
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for QueueOptionsPatch<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OptionsVisitor;

        impl<'de> Visitor<'de> for OptionsVisitor {
            type Value = QueueOptionsPatch<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with queue options")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut options = QueueOptionsPatch::default();
                while let Some(key) = map.next_key::<Text<'de>>()? {
                    if !options.read(&key, &mut map)? {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(options)
            }
        }

        deserializer.deserialize_map(OptionsVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for ConfigureRequest<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RequestVisitor;

        impl<'de> Visitor<'de> for RequestVisitor {
            type Value = ConfigureRequest<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut queue = Given::Absent;
                let mut mode = Given::Absent;
                let mut inner: Given<QueueOptionsPatch<'de>> = Given::Absent;
                let mut outer = QueueOptionsPatch::default();
                while let Some(key) = map.next_key::<Text<'de>>()? {
                    match key.as_str() {
                        "queue" => once("queue", &mut queue, &mut map)?,
                        "mode" => once("mode", &mut mode, &mut map)?,
                        "options" => once("options", &mut inner, &mut map)?,
                        other => {
                            if !outer.read(other, &mut map)? {
                                map.next_value::<IgnoredAny>()?;
                            }
                        }
                    }
                }
                let queue = queue.value().ok_or_else(|| A::Error::missing_field("queue"))?;
                let namespace = not_empty(std::mem::take(&mut outer.namespace));
                let task = not_empty(std::mem::take(&mut outer.task));
                let mut options = inner.value().unwrap_or_default();
                options.fill_from(outer);
                Ok(ConfigureRequest {
                    queue,
                    namespace,
                    task,
                    options,
                    mode: mode.value(),
                })
            }
        }

        deserializer.deserialize_map(RequestVisitor)
    }
}

/// Reads the value of a key that may stand there once: which of two would be meant nobody knows.
fn once<'de, A: MapAccess<'de>, T: Deserialize<'de>>(
    key: &str,
    field: &mut Given<T>,
    map: &mut A,
) -> Result<(), A::Error> {
    if !field.is_absent() {
        return Err(A::Error::custom(format_args!("duplicate field `{key}`")));
    }
    *field = map.next_value()?;
    Ok(())
}

fn not_empty(text: Given<Text<'_>>) -> Option<Text<'_>> {
    match text {
        Given::Value(text) if !text.is_empty() => Some(text),
        Given::Value(_) | Given::Null | Given::Absent => None,
    }
}

/// Every option of a queue with its stored value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueOptions<'a> {
    /// For pops by namespace and task.
    pub namespace: Cow<'a, str>,
    /// For pops by namespace and task.
    pub task: Cow<'a, str>,
    /// Seconds.
    pub lease_time: u64,
    /// Charged failures allowed.
    pub retry_limit: u32,
    /// Milliseconds.
    pub retry_delay: u64,
    /// Messages.
    pub max_size: u64,
    /// Seconds.
    pub ttl: u64,
    /// Any integer.
    pub priority: i64,
    /// Switch.
    pub dead_letter_queue: bool,
    /// Switch.
    pub dlq_after_max_retries: bool,
    /// Seconds.
    pub delayed_processing: u64,
    /// Seconds.
    pub window_buffer: u64,
    /// Seconds.
    pub retention_seconds: u64,
    /// Seconds.
    pub completed_retention_seconds: u64,
    /// Switch.
    pub retention_enabled: bool,
    /// Switch.
    pub encryption_enabled: bool,
    /// Seconds.
    pub max_wait_time_seconds: u64,
    /// Milliseconds.
    pub min_pop_wait_time: u64,
    /// Seconds.
    pub dedup_window_seconds: u64,
    /// Name of a sink.
    pub retention_sink_hold: Cow<'a, str>,
    /// Seconds.
    pub retention_sink_hold_max_seconds: u64,
}

/// Answer of a configure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigureResponse<'a> {
    /// Always true.
    pub configured: bool,
    /// UUID of the incarnation.
    pub queue_id: String,
    /// Always null: configure makes no lane.
    pub partition_id: Option<String>,
    /// Its name.
    pub queue: Cow<'a, str>,
    /// Stored namespace.
    pub namespace: Cow<'a, str>,
    /// Stored task.
    pub task: Cow<'a, str>,
    /// Always `segments`.
    pub storage: Cow<'a, str>,
    /// Every option.
    pub options: QueueOptions<'a>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stand_inside_or_outside_and_inside_wins() {
        let body = r#"{"queue":"q","leaseTime":7,"ttl":8,"namespace":"out","task":"","x":[1],
            "options":{"leaseTime":5,"priority":null,"unknown":{"deep":[[]]}}}"#;
        let request: ConfigureRequest<'_> = serde_json::from_str(body).unwrap();
        assert_eq!(request.options.lease_time, Given::Value(Int(5)));
        assert_eq!(request.options.ttl, Given::Value(Int(8)));
        assert_eq!(request.options.priority, Given::Null);
        assert_eq!(request.options.retry_limit, Given::Absent);
        assert_eq!(request.namespace.as_deref(), Some("out"));
        assert_eq!(request.task, None);
        assert_eq!(request.options.namespace, Given::Absent);
    }

    #[test]
    fn request_reads_back_as_it_was_written() {
        let request = ConfigureRequest {
            queue: "q".into(),
            namespace: Some("ns".into()),
            options: QueueOptionsPatch {
                lease_time: Given::Value(Int(5)),
                task: Given::Null,
                dead_letter_queue: Given::Value(false),
                retention_sink_hold: Given::Value("s3".into()),
                ..QueueOptionsPatch::default()
            },
            mode: Some("merge".into()),
            ..ConfigureRequest::default()
        };
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(
            text,
            r#"{"queue":"q","namespace":"ns","options":{"task":null,"leaseTime":5,"deadLetterQueue":false,"retentionSinkHold":"s3"},"mode":"merge"}"#
        );
        assert_eq!(
            serde_json::from_str::<ConfigureRequest<'_>>(&text).unwrap(),
            request
        );
    }

    #[test]
    fn queue_is_required() {
        let error = serde_json::from_str::<ConfigureRequest<'_>>("{}").unwrap_err();
        assert!(error.to_string().starts_with("missing field `queue`"), "{error}");
        assert!(serde_json::from_str::<ConfigureRequest<'_>>("[]").is_err());
        assert!(serde_json::from_str::<ConfigureRequest<'_>>(r#"{"queue":null}"#).is_err());
    }
}
