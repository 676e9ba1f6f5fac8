//! Names and ids of paths, queries and headers: decoding and bounds.

use axum::http::HeaderMap;
use laneway_node::RequestId;
use laneway_wire::limits::{
    GROUP_DEFAULT, NAMES_BYTES_MAX, REQUEST_ID_BYTES_MAX, REQUEST_ID_HEADER, TRANSACTION_ID_BYTES_MAX,
};
use percent_encoding::percent_decode_str;

use crate::error::ApiError;

/// Segments of a raw path; each is decoded only after the split, so that `%2F` is part of a name.
#[derive(Debug)]
pub(crate) struct Segments<'a>(Vec<&'a str>);

impl<'a> Segments<'a> {
    pub(crate) fn of(path: &'a str) -> Self {
        Self(path.split('/').collect())
    }

    /// The segment after the `at`-th slash (from 0), decoded.
    pub(crate) fn get(&self, at: usize) -> Result<String, ApiError> {
        decode(self.0.get(at + 1).copied().unwrap_or_default())
    }
}

/// Decodes percent-encoding; what is no percent-encoding or no UTF-8 is refused.
pub(crate) fn decode(text: &str) -> Result<String, ApiError> {
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|&byte| byte == b'%') {
        let digits = rest.get(at + 1..at + 3);
        if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return Err(ApiError::bad_request(
                "bad percent-encoding: % must be followed by two hex digits",
            ));
        }
        rest = &rest[at + 3..];
    }
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(ApiError::bad_request(
            "bad percent-encoding: the decoded text is not UTF-8",
        )),
    }
}

/// Any UTF-8 is a name, but for control characters: nothing shows them, and some tools cannot send them back.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), ApiError> {
    match name.char_indices().find(|(_, char)| char.is_control()) {
        None => Ok(()),
        Some((at, char)) => {
            let point = u32::from(char);
            let message =
                format!("{what} has the control character U+{point:04X} at byte {at}; use another name");
            Err(ApiError::bad_request(message))
        }
    }
}

/// A queue with a lane or group, or the longer of both: control characters and the bound of the contract.
///
/// The name of queue mode counts as a group of every queue, so that a queue that can be pushed to can be popped from.
pub(crate) fn check_names(queue: &str, lane: Option<&str>, group: Option<&str>) -> Result<(), ApiError> {
    check_name("queue", queue)?;
    check_name("partition", lane.unwrap_or_default())?;
    check_name("consumerGroup", group.unwrap_or_default())?;
    let group_bytes = group.unwrap_or(GROUP_DEFAULT).len();
    let bytes = queue.len() + group_bytes.max(lane.unwrap_or_default().len());
    if bytes > NAMES_BYTES_MAX {
        return Err(ApiError::name_too_long(format!(
            "queue name and the longer of partition and group name have {bytes} bytes, the limit is {NAMES_BYTES_MAX}"
        )));
    }
    Ok(())
}

/// A group without a queue: control characters and the bound of the contract.
pub(crate) fn check_group(group: &str) -> Result<(), ApiError> {
    check_name("consumerGroup", group)?;
    if group.len() > NAMES_BYTES_MAX {
        let bytes = group.len();
        let message = format!("consumerGroup has {bytes} bytes, the limit is {NAMES_BYTES_MAX}");
        return Err(ApiError::name_too_long(message));
    }
    Ok(())
}

/// The bound on transaction ids; they may hold any character.
pub(crate) fn check_transaction_id(what: impl FnOnce() -> String, id: &str) -> Result<(), ApiError> {
    if id.len() <= TRANSACTION_ID_BYTES_MAX {
        return Ok(());
    }
    let (what, bytes) = (what(), id.len());
    Err(ApiError::name_too_long(format!(
        "{what} has {bytes} bytes, the limit is {TRANSACTION_ID_BYTES_MAX}"
    )))
}

/// The client's id of its request, if it gives one.
pub(crate) fn request_id(headers: &HeaderMap) -> Result<Option<RequestId>, ApiError> {
    let Some(value) = headers.get(REQUEST_ID_HEADER) else {
        return Ok(None);
    };
    let bytes = value.as_bytes();
    let visible = bytes.iter().all(u8::is_ascii_graphic) && (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len());
    match value.to_str() {
        Ok(text) if visible => Ok(Some(RequestId(text.into()))),
        _ => Err(ApiError::bad_request(format!(
            "header {REQUEST_ID_HEADER} must be 1 to {REQUEST_ID_BYTES_MAX} visible ASCII characters"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn encoded_slash_is_part_of_a_name() {
        let segments = Segments::of("/api/v1/pop/queue/a%2Fb%20c/partition/%E5%90%8D+%25");
        assert_eq!(segments.get(4).unwrap(), "a/b c");
        assert_eq!(segments.get(6).unwrap(), "名+%");
        assert_eq!(segments.get(9).unwrap(), "");
        assert_eq!(Segments::of("/api/v1/pop/queue/").get(4).unwrap(), "");
    }

    #[test]
    fn bad_percent_encoding_is_refused() {
        for bad in ["%", "%2", "a%zz", "%+1", "%FF", "%C3%28", "%%41", "a%2"] {
            assert_eq!(decode(bad).unwrap_err().parts().0, 400, "{bad}");
        }
        assert_eq!(decode("%41%e5%90%8d").unwrap(), "A名");
    }

    #[test]
    fn control_characters_are_named() {
        for (bad, named) in [
            ("a\0b", "U+0000 at byte 1"),
            ("\n", "U+000A"),
            ("é\u{7f}", "U+007F at byte 2"),
            ("\u{85}", "U+0085"),
        ] {
            let error = check_names(bad, None, None).unwrap_err();
            assert_eq!(error.parts().0, 400);
            assert!(error.parts().2.contains(named), "{}", error.parts().2);
        }
        for fine in [
            "", "a/b", "a+b", "a b", "a%2Fb", "名前", "é", "e\u{301}", "a#b?c", "__system", "$x", " x ", "..",
        ] {
            check_names(fine, Some(fine), Some(fine)).unwrap();
        }
        assert!(
            check_names("q", Some("\u{1b}"), None)
                .unwrap_err()
                .parts()
                .2
                .starts_with("partition")
        );
        assert!(
            check_names("q", None, Some("\t"))
                .unwrap_err()
                .parts()
                .2
                .starts_with("consumerGroup")
        );
    }

    #[test]
    fn bound_counts_bytes_of_queue_and_longer_other() {
        let long = |bytes| "x".repeat(bytes);
        check_names(&long(11), Some(&long(400)), Some(&long(400))).unwrap();
        check_names("名", Some(&long(408)), None).unwrap();
        assert_eq!(
            check_names("名", Some(&long(409)), None).unwrap_err().parts().1,
            "name_too_long"
        );
        assert_eq!(
            check_names(&long(12), Some("a"), Some(&long(400)))
                .unwrap_err()
                .parts()
                .0,
            413
        );
        check_names(&long(NAMES_BYTES_MAX - GROUP_DEFAULT.len()), Some("a"), None).unwrap();
        assert_eq!(
            check_names(&long(NAMES_BYTES_MAX - 13), Some("a"), None)
                .unwrap_err()
                .parts()
                .0,
            413
        );
        check_group(&long(NAMES_BYTES_MAX)).unwrap();
        assert_eq!(
            check_group(&long(NAMES_BYTES_MAX + 1)).unwrap_err().parts().0,
            413
        );
    }

    #[test]
    fn request_id_is_short_and_visible() {
        let check = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID_HEADER, HeaderValue::from_bytes(value).unwrap());
            request_id(&headers)
                .map(|id| id.map(|id| id.0.to_string()))
                .map_err(|error| error.parts().0)
        };
        assert_eq!(request_id(&HeaderMap::new()).unwrap(), None);
        assert_eq!(check(b"a-1~!"), Ok(Some("a-1~!".to_owned())));
        assert_eq!(check(&[b'x'; 64]), Ok(Some("x".repeat(64))));
        for bad in [&b""[..], &[b'x'; 65], b"a b", "é".as_bytes(), b"a\tb", &[0xff]] {
            assert_eq!(check(bad), Err(400), "{bad:?}");
        }
    }
}
