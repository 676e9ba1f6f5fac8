//! Times of day on the wire: RFC 3339 UTC, of one fixed width.

use laneway_core::time::WallTime;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The last moment that four digits of a year can show, in µs.
const STAMP_MAX: u64 = 253_402_300_799_999_999;

/// `2026-07-30T12:34:56.789012Z`
pub(crate) fn micros(wall: WallTime) -> String {
    let micros = wall.0.min(STAMP_MAX);
    format!("{}.{:06}Z", seconds_text(micros / 1_000_000), micros % 1_000_000)
}

/// `2026-07-30T12:34:56.789Z`
pub(crate) fn millis(wall: WallTime) -> String {
    let micros = wall.0.min(STAMP_MAX);
    format!(
        "{}.{:03}Z",
        seconds_text(micros / 1_000_000),
        micros % 1_000_000 / 1000
    )
}

fn seconds_text(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).expect("bounded by STAMP_MAX");
    let at = OffsetDateTime::from_unix_timestamp(seconds).expect("a year of four digits");
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}",
        at.hour(),
        at.minute(),
        at.second()
    )
}

/// Reads RFC 3339 with `Z` or an offset, with or without fraction. What is before 1970 counts as 1970.
pub(crate) fn parse(text: &str) -> Option<WallTime> {
    // The `+` of an offset that was not percent-encoded arrives in a query as a space.
    let text = text.replace(' ', "+");
    let nanos = OffsetDateTime::parse(&text, &Rfc3339)
        .ok()?
        .unix_timestamp_nanos();
    Some(WallTime(u64::try_from(nanos / 1000).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: WallTime = WallTime(1_785_414_896_789_012);

    #[test]
    fn width_is_fixed() {
        assert_eq!(micros(AT), "2026-07-30T12:34:56.789012Z");
        assert_eq!(millis(AT), "2026-07-30T12:34:56.789Z");
        assert_eq!(micros(WallTime(0)), "1970-01-01T00:00:00.000000Z");
        assert_eq!(micros(WallTime(u64::MAX)), "9999-12-31T23:59:59.999999Z");
    }

    #[test]
    fn every_rfc_3339_form_is_read() {
        let second = WallTime(AT.0 / 1_000_000 * 1_000_000);
        assert_eq!(parse("2026-07-30T12:34:56Z"), Some(second));
        assert_eq!(parse("2026-07-30T12:34:56.789012Z"), Some(AT));
        assert_eq!(parse("2026-07-30T14:34:56.789012345+02:00"), Some(AT));
        assert_eq!(parse("2026-07-30T14:34:56 02:00"), Some(second));
        assert_eq!(parse("1970-01-01T00:00:00Z"), Some(WallTime(0)));
        assert_eq!(parse("1960-01-01T00:00:00Z"), Some(WallTime(0)));
        for bad in [
            "",
            "now",
            "2026-07-30",
            "2026-13-30T12:34:56Z",
            "1785414896",
            "2026-07-30T12:34:56",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
