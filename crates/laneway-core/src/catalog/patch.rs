//! Partial settings, as a `configure` gives them.

use serde::{Deserialize, Serialize};

use crate::settings::QueueSettings;

/// What a `configure` says of one option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Patch<T> {
    /// Nothing.
    #[default]
    Keep,
    /// Back to the default (`null`).
    Reset,
    /// This value.
    Set(T),
}

impl<T: Clone> Patch<T> {
    fn over(&self, base: &T, default: &T) -> T {
        match self {
            Self::Keep => base.clone(),
            Self::Reset => default.clone(),
            Self::Set(value) => value.clone(),
        }
    }
}

/// One patch per field of [`QueueSettings`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsPatch {
    /// Of [`QueueSettings::namespace`].
    pub namespace: Patch<String>,
    /// Of [`QueueSettings::task`].
    pub task: Patch<String>,
    /// Of [`QueueSettings::lease_seconds`].
    pub lease_seconds: Patch<u64>,
    /// Of [`QueueSettings::retry_limit`].
    pub retry_limit: Patch<u32>,
    /// Of [`QueueSettings::retry_delay_ms`].
    pub retry_delay_ms: Patch<u64>,
    /// Of [`QueueSettings::messages_max`].
    pub messages_max: Patch<u64>,
    /// Of [`QueueSettings::ttl_seconds`].
    pub ttl_seconds: Patch<u64>,
    /// Of [`QueueSettings::priority`].
    pub priority: Patch<i64>,
    /// Of [`QueueSettings::dead_letter_queue`].
    pub dead_letter_queue: Patch<bool>,
    /// Of [`QueueSettings::dlq_after_max_retries`].
    pub dlq_after_max_retries: Patch<bool>,
    /// Of [`QueueSettings::delayed_processing_seconds`].
    pub delayed_processing_seconds: Patch<u64>,
    /// Of [`QueueSettings::window_buffer_seconds`].
    pub window_buffer_seconds: Patch<u64>,
    /// Of [`QueueSettings::retention_seconds`].
    pub retention_seconds: Patch<u64>,
    /// Of [`QueueSettings::completed_retention_seconds`].
    pub completed_retention_seconds: Patch<u64>,
    /// Of [`QueueSettings::retention_enabled`].
    pub retention_enabled: Patch<bool>,
    /// Of [`QueueSettings::encryption_enabled`].
    pub encryption_enabled: Patch<bool>,
    /// Of [`QueueSettings::wait_seconds_max`].
    pub wait_seconds_max: Patch<u64>,
    /// Of [`QueueSettings::pop_wait_ms_min`].
    pub pop_wait_ms_min: Patch<u64>,
    /// Of [`QueueSettings::dedup_window_seconds`].
    pub dedup_window_seconds: Patch<u64>,
    /// Of [`QueueSettings::retention_sink_hold`].
    pub retention_sink_hold: Patch<String>,
    /// Of [`QueueSettings::retention_sink_hold_seconds_max`].
    pub retention_sink_hold_seconds_max: Patch<u64>,
}

impl SettingsPatch {
    /// A patch that says nothing.
    pub fn keep() -> Self {
        Self::default()
    }

    /// The settings that it makes of `base`; what it resets becomes that of `defaults`.
    pub fn apply(&self, base: &QueueSettings, defaults: &QueueSettings) -> QueueSettings {
        QueueSettings {
            namespace: self.namespace.over(&base.namespace, &defaults.namespace),
            task: self.task.over(&base.task, &defaults.task),
            lease_seconds: self
                .lease_seconds
                .over(&base.lease_seconds, &defaults.lease_seconds),
            retry_limit: self.retry_limit.over(&base.retry_limit, &defaults.retry_limit),
            retry_delay_ms: self
                .retry_delay_ms
                .over(&base.retry_delay_ms, &defaults.retry_delay_ms),
            messages_max: self.messages_max.over(&base.messages_max, &defaults.messages_max),
            ttl_seconds: self.ttl_seconds.over(&base.ttl_seconds, &defaults.ttl_seconds),
            priority: self.priority.over(&base.priority, &defaults.priority),
            dead_letter_queue: self
                .dead_letter_queue
                .over(&base.dead_letter_queue, &defaults.dead_letter_queue),
            dlq_after_max_retries: self
                .dlq_after_max_retries
                .over(&base.dlq_after_max_retries, &defaults.dlq_after_max_retries),
            delayed_processing_seconds: self.delayed_processing_seconds.over(
                &base.delayed_processing_seconds,
                &defaults.delayed_processing_seconds,
            ),
            window_buffer_seconds: self
                .window_buffer_seconds
                .over(&base.window_buffer_seconds, &defaults.window_buffer_seconds),
            retention_seconds: self
                .retention_seconds
                .over(&base.retention_seconds, &defaults.retention_seconds),
            completed_retention_seconds: self.completed_retention_seconds.over(
                &base.completed_retention_seconds,
                &defaults.completed_retention_seconds,
            ),
            retention_enabled: self
                .retention_enabled
                .over(&base.retention_enabled, &defaults.retention_enabled),
            encryption_enabled: self
                .encryption_enabled
                .over(&base.encryption_enabled, &defaults.encryption_enabled),
            wait_seconds_max: self
                .wait_seconds_max
                .over(&base.wait_seconds_max, &defaults.wait_seconds_max),
            pop_wait_ms_min: self
                .pop_wait_ms_min
                .over(&base.pop_wait_ms_min, &defaults.pop_wait_ms_min),
            dedup_window_seconds: self
                .dedup_window_seconds
                .over(&base.dedup_window_seconds, &defaults.dedup_window_seconds),
            retention_sink_hold: self
                .retention_sink_hold
                .over(&base.retention_sink_hold, &defaults.retention_sink_hold),
            retention_sink_hold_seconds_max: self.retention_sink_hold_seconds_max.over(
                &base.retention_sink_hold_seconds_max,
                &defaults.retention_sink_hold_seconds_max,
            ),
        }
    }
}
