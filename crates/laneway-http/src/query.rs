//! Query strings: `+` is a space, unknown parameters are ignored, an empty value counts as absent, the last of several
//! values of one parameter counts.

use std::ops::RangeInclusive;

use crate::error::ApiError;
use crate::names::decode;

/// The parameters of a request.
#[derive(Debug)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(raw: &str) -> Result<Self, ApiError> {
        let mut pairs = Vec::new();
        for pair in raw.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((
                decode(&name.replace('+', " "))?,
                decode(&value.replace('+', " "))?,
            ));
        }
        Ok(Self(pairs))
    }

    /// The text given, if any.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().rev().find(|(key, _)| key == name)?;
        if value.is_empty() { None } else { Some(value) }
    }

    /// Only the word `true` is true.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.text(name) == Some("true")
    }

    /// An integer within `range`; all else is refused.
    pub(crate) fn integer(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let number = integer(text).and_then(|number| u64::try_from(number).ok());
        match number {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(out_of_range(name, &range)),
        }
    }

    /// An integer, brought into `range`; what is no integer is refused.
    pub(crate) fn clamped(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let number = integer(text).ok_or_else(|| out_of_range(name, &range))?;
        Ok(Some(
            u64::try_from(number.max(0))
                .unwrap_or(u64::MAX)
                .clamp(*range.start(), *range.end()),
        ))
    }
}

/// An integer in digits, of any size; what is beyond `i128` saturates.
fn integer(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: i128 = digits.parse().unwrap_or(i128::MAX);
    Some(if negative { -number } else { number })
}

fn out_of_range(name: &str, range: &RangeInclusive<u64>) -> ApiError {
    let (first, last) = (range.start(), range.end());
    ApiError::bad_request(format!("{name} must be an integer from {first} to {last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plus_and_percent_are_decoded() {
        let query = Query::parse("a=x+y&b=%2B%26&&flag=true&c&a%20b=1&d=1=2").unwrap();
        assert_eq!(query.text("a"), Some("x y"));
        assert_eq!(query.text("b"), Some("+&"));
        assert_eq!(query.text("c"), None);
        assert_eq!(query.text("a b"), Some("1"));
        assert_eq!(query.text("d"), Some("1=2"));
        assert_eq!(Query::parse("a=%F").unwrap_err().parts().0, 400);
        assert_eq!(Query::parse("%ff=1").unwrap_err().parts().0, 400);
    }

    #[test]
    fn only_true_is_true() {
        for (raw, flag) in [
            ("w=true", true),
            ("w=True", false),
            ("w=1", false),
            ("w=yes", false),
            ("w", false),
            ("", false),
        ] {
            assert_eq!(Query::parse(raw).unwrap().flag("w"), flag, "{raw}");
        }
        assert!(!Query::parse("w=true&w=false").unwrap().flag("w"));
    }

    #[test]
    fn absurd_numbers_are_refused_with_name_and_range() {
        let read = |value: &str| Query::parse(&format!("n={value}")).unwrap().integer("n", 1..=60);
        assert_eq!(read("1").unwrap(), Some(1));
        assert_eq!(read("060").unwrap(), Some(60));
        assert_eq!(read("").unwrap(), None);
        for bad in [
            "0",
            "61",
            "-1",
            "9e18",
            "9223372036854775807",
            "99999999999999999999999999999999999999999999",
            "1.0",
            "x",
            "+1",
            "0x1",
            "NaN",
            "--1",
            "-",
        ] {
            assert_eq!(
                read(bad).unwrap_err().parts(),
                (400, "bad_request", "n must be an integer from 1 to 60"),
                "{bad}"
            );
        }
    }

    #[test]
    fn clamped_numbers_are_brought_into_range() {
        let read = |value: &str| Query::parse(&format!("n={value}")).unwrap().clamped("n", 1..=64);
        assert_eq!(read("0").unwrap(), Some(1));
        assert_eq!(read("-7").unwrap(), Some(1));
        assert_eq!(read("64").unwrap(), Some(64));
        assert_eq!(read(&"9".repeat(60)).unwrap(), Some(64));
        assert_eq!(read(&format!("-{}", "9".repeat(60))).unwrap(), Some(1));
        assert_eq!(read("many").unwrap_err().parts().0, 400);
    }
}
