//! Times of day as the broker writes them: `2026-07-30T12:34:56.789Z`.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error, Visitor};

/// Days from 0001-01-01 to 1970-01-01.
const DAYS_TO_1970: u64 = 719_162;

/// Days before each month of a year that is no leap year.
const DAYS_BEFORE_MONTH: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

/// Milliseconds since 1970 of RFC 3339 text in UTC with milliseconds; `None` for any other text.
pub(crate) fn read_ms(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    let form = [
        (4, b'-'),
        (7, b'-'),
        (10, b'T'),
        (13, b':'),
        (16, b':'),
        (19, b'.'),
        (23, b'Z'),
    ];
    if bytes.len() != 24 || form.iter().any(|(at, byte)| bytes[*at] != *byte) {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<u64> {
        let digits = &bytes[from..to];
        let digit = |sum: u64, byte: &u8| byte.is_ascii_digit().then(|| sum * 10 + u64::from(byte - b'0'));
        digits.iter().try_fold(0, digit)
    };
    let days = days_since_1970(number(0, 4)?, number(5, 7)?, number(8, 10)?)?;
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    Some(seconds * 1000 + number(20, 23)?)
}

fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let before = year.checked_sub(1)?;
    let month = usize::try_from(month.checked_sub(1)?).ok()?;
    let leap_day = u64::from(is_leap && month >= 2);
    let of_year = DAYS_BEFORE_MONTH.get(month)? + leap_day + day.checked_sub(1)?;
    (before * 365 + before / 4 - before / 100 + before / 400 + of_year).checked_sub(DAYS_TO_1970)
}

/// For serde fields; makes no copy of the text.
pub(crate) fn deserialize_ms<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct Utc;
    impl Visitor<'_> for Utc {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("RFC 3339 in UTC with milliseconds")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
            read_ms(text)
                .ok_or_else(|| E::custom(format_args!("{text:?} is not RFC 3339 in UTC with milliseconds")))
        }
    }
    deserializer.deserialize_str(Utc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_over_leap_years() {
        let check = |text, ms| assert_eq!(read_ms(text), ms, "{text}");
        check("1970-01-01T00:00:00.000Z", Some(0));
        check("2000-02-29T23:59:59.999Z", Some(951_868_799_999));
        check("2000-03-01T00:00:00.000Z", Some(951_868_800_000));
        check("2024-12-31T12:00:00.001Z", Some(1_735_646_400_001));
        check("2026-03-01T00:00:00.000Z", Some(1_772_323_200_000));
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in [
            "",
            "2026-03-01T00:00:00Z",
            "2026-03-01 00:00:00.000Z",
            "2026-13-01T00:00:00.000Z",
            "2026-00-01T00:00:00.000Z",
            "2026-03-00T00:00:00.000Z",
            "20x6-03-01T00:00:00.000Z",
            "1969-12-31T00:00:00.000Z",
            "0000-01-01T00:00:00.000Z",
        ] {
            assert_eq!(read_ms(text), None, "{text}");
        }
    }
}
