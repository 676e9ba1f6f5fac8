//! `POST /api/v1/configure`

use std::borrow::Cow;
use std::ops::RangeInclusive;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use laneway_core::catalog::{Patch, SettingsPatch};
use laneway_core::settings::{QueueRow, QueueSettings};
use laneway_node::ConfigureRequest;
use laneway_wire::limits::{
    COUNT_MAX, LEASE_SECONDS_MAX, NAMES_BYTES_MAX, PRIORITY_MAX, RETRY_LIMIT_MAX, SECONDS_MAX,
    SINK_HOLD_BYTES_MAX, SINK_HOLD_SECONDS, WAIT_MS_MAX,
};
use laneway_wire::{ConfigureResponse, Given, Int, QueueOptions, QueueOptionsPatch, Text};

use crate::error::ApiError;
use crate::gateway::Gateway;
use crate::names::{check_name, check_names, request_id};

pub(crate) async fn configure(
    State(gateway): State<Gateway>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, received) = gateway.receive(request).await?;
    // Configuring twice is the same as once: the id is checked like on every write, but needs no kept answer.
    request_id(&parts.headers)?;
    let row = gateway.node.configure(parse(&received.bytes)?).await;
    let row = row.map_err(|error| error.advising("repeat it: done twice is the same as once"))?;
    Ok(super::json(StatusCode::OK, &answer(&row)))
}

/// Reads and checks a body.
pub(crate) fn parse(body: &[u8]) -> Result<ConfigureRequest, ApiError> {
    let request: laneway_wire::ConfigureRequest<'_> = crate::json::parse(body)?;
    check_names(&request.queue, None, None)?;
    let merge = match request.mode.as_deref() {
        None | Some("replace") => false,
        Some("merge") => true,
        Some(_) => return Err(ApiError::bad_request("mode must be merge or replace")),
    };
    let mut patch = patch(&request.options)?;
    for (given, own) in [
        (&request.namespace, &mut patch.namespace),
        (&request.task, &mut patch.task),
    ] {
        if let (Some(text), Patch::Keep | Patch::Reset) = (given, &*own) {
            *own = Patch::Set(label("namespace or task", text)?);
        }
    }
    Ok(ConfigureRequest {
        queue: request.queue.as_str().into(),
        patch,
        merge,
    })
}

fn patch(options: &QueueOptionsPatch<'_>) -> Result<SettingsPatch, ApiError> {
    let seconds = || 0..=SECONDS_MAX;
    Ok(SettingsPatch {
        namespace: text(&options.namespace, |text| label("options.namespace", text))?,
        task: text(&options.task, |text| label("options.task", text))?,
        lease_seconds: number("leaseTime", &options.lease_time, 1..=LEASE_SECONDS_MAX)?,
        retry_limit: retry_limit(&options.retry_limit)?,
        retry_delay_ms: number("retryDelay", &options.retry_delay, 0..=COUNT_MAX)?,
        messages_max: number("maxSize", &options.max_size, 0..=COUNT_MAX)?,
        ttl_seconds: number("ttl", &options.ttl, seconds())?,
        priority: priority(&options.priority)?,
        dead_letter_queue: switch(&options.dead_letter_queue),
        dlq_after_max_retries: switch(&options.dlq_after_max_retries),
        delayed_processing_seconds: number("delayedProcessing", &options.delayed_processing, seconds())?,
        window_buffer_seconds: number("windowBuffer", &options.window_buffer, seconds())?,
        retention_seconds: number("retentionSeconds", &options.retention_seconds, seconds())?,
        completed_retention_seconds: number(
            "completedRetentionSeconds",
            &options.completed_retention_seconds,
            seconds(),
        )?,
        retention_enabled: switch(&options.retention_enabled),
        encryption_enabled: switch(&options.encryption_enabled),
        wait_seconds_max: number("maxWaitTimeSeconds", &options.max_wait_time_seconds, seconds())?,
        pop_wait_ms_min: clamped(&options.min_pop_wait_time, WAIT_MS_MAX),
        dedup_window_seconds: number(
            "dedupWindowSeconds",
            &at_least_zero(&options.dedup_window_seconds),
            seconds(),
        )?,
        retention_sink_hold: text(&options.retention_sink_hold, sink)?,
        retention_sink_hold_seconds_max: number(
            "retentionSinkHoldMaxSeconds",
            &options.retention_sink_hold_max_seconds,
            SINK_HOLD_SECONDS.0..=SINK_HOLD_SECONDS.1,
        )?,
    })
}

fn map<T, U>(
    given: &Given<T>,
    convert: impl FnOnce(&T) -> Result<U, ApiError>,
) -> Result<Patch<U>, ApiError> {
    Ok(match given {
        Given::Absent => Patch::Keep,
        Given::Null => Patch::Reset,
        Given::Value(value) => Patch::Set(convert(value)?),
    })
}

fn number(name: &str, given: &Given<Int>, range: RangeInclusive<u64>) -> Result<Patch<u64>, ApiError> {
    map(given, |&Int(number)| match u64::try_from(number) {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(out_of_range(name, range.start(), range.end())),
    })
}

fn retry_limit(given: &Given<Int>) -> Result<Patch<u32>, ApiError> {
    map(given, |&Int(number)| match u32::try_from(number) {
        Ok(number) if number <= RETRY_LIMIT_MAX => Ok(number),
        _ => Err(out_of_range("retryLimit", &0, &RETRY_LIMIT_MAX)),
    })
}

fn priority(given: &Given<Int>) -> Result<Patch<i64>, ApiError> {
    map(given, |&Int(number)| {
        let range = -PRIORITY_MAX..=PRIORITY_MAX;
        if range.contains(&number) {
            Ok(number)
        } else {
            Err(out_of_range("priority", range.start(), range.end()))
        }
    })
}

fn out_of_range(name: &str, first: &impl std::fmt::Display, last: &impl std::fmt::Display) -> ApiError {
    ApiError::bad_request(format!(
        "options.{name} must be an integer from {first} to {last}"
    ))
}

fn clamped(given: &Given<Int>, last: u64) -> Patch<u64> {
    match given {
        Given::Absent => Patch::Keep,
        Given::Null => Patch::Reset,
        Given::Value(Int(number)) => Patch::Set(u64::try_from(*number).unwrap_or(0).min(last)),
    }
}

fn at_least_zero(given: &Given<Int>) -> Given<Int> {
    match given {
        Given::Value(Int(number)) => Given::Value(Int((*number).max(0))),
        other => other.clone(),
    }
}

fn switch(given: &Given<bool>) -> Patch<bool> {
    match given {
        Given::Absent => Patch::Keep,
        Given::Null => Patch::Reset,
        Given::Value(on) => Patch::Set(*on),
    }
}

fn text(
    given: &Given<Text<'_>>,
    check: impl FnOnce(&str) -> Result<String, ApiError>,
) -> Result<Patch<String>, ApiError> {
    map(given, |text| check(text))
}

/// A namespace or task: bounded like a name.
fn label(name: &str, text: &str) -> Result<String, ApiError> {
    check_name(name, text)?;
    if text.len() > NAMES_BYTES_MAX {
        let bytes = text.len();
        return Err(ApiError::name_too_long(format!(
            "{name} has {bytes} bytes, the limit is {NAMES_BYTES_MAX}"
        )));
    }
    Ok(text.to_owned())
}

fn sink(text: &str) -> Result<String, ApiError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if text.len() > SINK_HOLD_BYTES_MAX || !text.bytes().all(allowed) {
        let message =
            format!("options.retentionSinkHold must be at most {SINK_HOLD_BYTES_MAX} of A-Z a-z 0-9 . _ -");
        return Err(ApiError::bad_request(message));
    }
    Ok(text.to_owned())
}

fn answer(row: &QueueRow) -> ConfigureResponse<'_> {
    ConfigureResponse {
        configured: true,
        queue_id: row.id.to_uuid_text(),
        partition_id: None,
        queue: Cow::Borrowed(&row.name),
        namespace: Cow::Borrowed(&row.settings.namespace),
        task: Cow::Borrowed(&row.settings.task),
        storage: Cow::Borrowed(super::queue::STORAGE),
        options: options(&row.settings),
    }
}

/// Every option with its stored value.
pub(super) fn options(settings: &QueueSettings) -> QueueOptions<'_> {
    QueueOptions {
        namespace: Cow::Borrowed(&settings.namespace),
        task: Cow::Borrowed(&settings.task),
        lease_time: settings.lease_seconds,
        retry_limit: settings.retry_limit,
        retry_delay: settings.retry_delay_ms,
        max_size: settings.messages_max,
        ttl: settings.ttl_seconds,
        priority: settings.priority,
        dead_letter_queue: settings.dead_letter_queue,
        dlq_after_max_retries: settings.dlq_after_max_retries,
        delayed_processing: settings.delayed_processing_seconds,
        window_buffer: settings.window_buffer_seconds,
        retention_seconds: settings.retention_seconds,
        completed_retention_seconds: settings.completed_retention_seconds,
        retention_enabled: settings.retention_enabled,
        encryption_enabled: settings.encryption_enabled,
        max_wait_time_seconds: settings.wait_seconds_max,
        min_pop_wait_time: settings.pop_wait_ms_min,
        dedup_window_seconds: settings.dedup_window_seconds,
        retention_sink_hold: Cow::Borrowed(&settings.retention_sink_hold),
        retention_sink_hold_max_seconds: settings.retention_sink_hold_seconds_max,
    }
}

#[cfg(test)]
mod tests {
    use laneway_core::ids::{CatalogVersion, QueueId};
    use laneway_core::time::WallTime;

    use super::*;

    fn read(body: &str) -> Result<ConfigureRequest, ApiError> {
        parse(body.as_bytes())
    }

    fn stored(body: &str) -> QueueSettings {
        let defaults = QueueSettings::configured();
        read(body).unwrap().patch.apply(&defaults, &defaults)
    }

    #[test]
    fn every_option_is_taken() {
        let body = r#"{"queue":"q","mode":"merge","options":{"namespace":"n","task":"t","leaseTime":1,"retryLimit":0,
            "retryDelay":2500,"maxSize":4,"ttl":5,"priority":-6,"deadLetterQueue":false,"dlqAfterMaxRetries":false,
            "delayedProcessing":7,"windowBuffer":8,"retentionSeconds":9,"completedRetentionSeconds":10,
            "retentionEnabled":true,"encryptionEnabled":true,"maxWaitTimeSeconds":11,"minPopWaitTime":12,
            "dedupWindowSeconds":13,"retentionSinkHold":"s3.a_b-C","retentionSinkHoldMaxSeconds":60,"unknown":"x"}}"#;
        assert!(read(body).unwrap().merge);
        let expected = QueueSettings {
            namespace: "n".to_owned(),
            task: "t".to_owned(),
            lease_seconds: 1,
            retry_limit: 0,
            retry_delay_ms: 2500,
            messages_max: 4,
            ttl_seconds: 5,
            priority: -6,
            dead_letter_queue: false,
            dlq_after_max_retries: false,
            delayed_processing_seconds: 7,
            window_buffer_seconds: 8,
            retention_seconds: 9,
            completed_retention_seconds: 10,
            retention_enabled: true,
            encryption_enabled: true,
            wait_seconds_max: 11,
            pop_wait_ms_min: 12,
            dedup_window_seconds: 13,
            retention_sink_hold: "s3.a_b-C".to_owned(),
            retention_sink_hold_seconds_max: 60,
        };
        assert_eq!(stored(body), expected);
    }

    #[test]
    fn absent_keeps_and_null_resets() {
        let request =
            read(r#"{"queue":"","options":{"leaseTime":null,"task":null},"namespace":"","task":"t"}"#)
                .unwrap();
        assert!(!request.merge);
        let expected = SettingsPatch {
            lease_seconds: Patch::Reset,
            task: Patch::Set("t".to_owned()),
            ..SettingsPatch::keep()
        };
        assert_eq!((&*request.queue, request.patch), ("", expected));
        assert_eq!(
            stored(r#"{"queue":"q","namespace":"out","options":{"namespace":"in"}}"#).namespace,
            "in"
        );
        assert_eq!(
            stored(r#"{"queue":"q","leaseTime":7,"options":null,"mode":null}"#).lease_seconds,
            7
        );
    }

    #[test]
    fn two_options_are_clamped() {
        for (given, kept) in [("90000", 60_000), ("-5", 0), ("9e18", 60_000), ("60000", 60_000)] {
            assert_eq!(
                stored(&format!(
                    r#"{{"queue":"q","options":{{"minPopWaitTime":{given}}}}}"#
                ))
                .pop_wait_ms_min,
                kept
            );
        }
        assert_eq!(
            stored(r#"{"queue":"q","options":{"dedupWindowSeconds":-1}}"#).dedup_window_seconds,
            0
        );
    }

    #[test]
    fn absurd_values_are_refused_with_name_and_range() {
        let long_sink = format!(r#""retentionSinkHold":"{}""#, "a".repeat(65));
        for (option, code, part) in [
            (
                r#""leaseTime":9e18"#,
                "bad_request",
                "options.leaseTime must be an integer from 1 to 31536000",
            ),
            (r#""leaseTime":-1"#, "bad_request", "options.leaseTime"),
            (r#""leaseTime":0"#, "bad_request", "options.leaseTime"),
            (
                r#""leaseTime":"5""#,
                "bad_body",
                "bad body at options.leaseTime: ",
            ),
            (r#""leaseTime":1.5"#, "bad_body", "options.leaseTime"),
            (r#""leaseTime":true"#, "bad_body", "options.leaseTime"),
            (
                r#""retryLimit":-1"#,
                "bad_request",
                "options.retryLimit must be an integer from 0 to 2147483647",
            ),
            (r#""retryLimit":4294967296"#, "bad_request", "options.retryLimit"),
            (
                r#""priority":-9e18"#,
                "bad_request",
                "options.priority must be an integer from -2147483647 to",
            ),
            (
                r#""delayedProcessing":99999999999"#,
                "bad_request",
                "options.delayedProcessing",
            ),
            (
                r#""retentionSeconds":-1"#,
                "bad_request",
                "options.retentionSeconds",
            ),
            (
                r#""dedupWindowSeconds":9e18"#,
                "bad_request",
                "options.dedupWindowSeconds",
            ),
            (
                r#""retentionSinkHoldMaxSeconds":59"#,
                "bad_request",
                "from 60 to 31536000",
            ),
            (
                r#""retentionSinkHold":"a b""#,
                "bad_request",
                "options.retentionSinkHold",
            ),
            (&long_sink, "bad_request", "at most 64"),
            (
                r#""deadLetterQueue":"true""#,
                "bad_body",
                "bad body at options.deadLetterQueue: ",
            ),
            (
                r#""namespace":"a\n""#,
                "bad_request",
                "options.namespace has the control character U+000A",
            ),
            (r#""namespace":5"#, "bad_body", "options.namespace"),
        ] {
            let error = read(&format!(r#"{{"queue":"q","options":{{{option}}}}}"#)).unwrap_err();
            assert_eq!((error.parts().0, error.parts().1), (400, code), "{option}");
            assert!(error.parts().2.contains(part), "{}", error.parts().2);
        }
    }

    #[test]
    fn bad_requests_are_refused() {
        let status = |body: &str| read(body).unwrap_err().parts().0;
        assert_eq!(status("{}"), 400);
        assert_eq!(status(r#"{"queue":5}"#), 400);
        assert_eq!(status(r#"{"queue":"q","mode":"upsert"}"#), 400);
        assert_eq!(status(r#"{"queue":"q","options":[]}"#), 400);
        assert_eq!(status(r#"{"queue":"\u0000"}"#), 400);
        assert_eq!(status(&format!(r#"{{"queue":"{}"}}"#, "q".repeat(412))), 413);
        assert_eq!(
            status(&format!(
                r#"{{"queue":"q","options":{{"task":"{}"}}}}"#,
                "q".repeat(412)
            )),
            413
        );
    }

    #[test]
    fn answer_is_golden() {
        let row = QueueRow {
            id: QueueId(7),
            name: "orders".to_owned(),
            settings: QueueSettings::configured(),
            version: CatalogVersion(9),
            listed: true,
            created: WallTime(0),
        };
        assert_eq!(
            serde_json::to_string(&answer(&row)).unwrap(),
            format!(
                concat!(
                    r#"{{"configured":true,"queueId":"{}","partitionId":null,"queue":"orders","namespace":"","task":"","#,
                    r#""storage":"segments","options":{{"namespace":"","task":"","leaseTime":300,"retryLimit":3,"#,
                    r#""retryDelay":1000,"maxSize":0,"ttl":3600,"priority":0,"deadLetterQueue":true,"dlqAfterMaxRetries":true,"#,
                    r#""delayedProcessing":0,"windowBuffer":0,"retentionSeconds":0,"completedRetentionSeconds":0,"#,
                    r#""retentionEnabled":false,"encryptionEnabled":false,"maxWaitTimeSeconds":0,"minPopWaitTime":0,"#,
                    r#""dedupWindowSeconds":3600,"retentionSinkHold":"","retentionSinkHoldMaxSeconds":604800}}}}"#
                ),
                QueueId(7).to_uuid_text()
            )
        );
    }
}
