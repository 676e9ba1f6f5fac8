//! Reading JSON bodies, with an answer to "where" when they are bad.

use bytes::Bytes;
use laneway_wire::Object;
use serde::Deserialize;
use serde_json::error::Category;

use crate::error::ApiError;

/// Longest text of a parser's complaint that is passed on; it may quote the body.
const COMPLAINT_BYTES_MAX: usize = 300;

/// Steps of a path that are shown.
const PATH_STEPS_MAX: usize = 8;

/// Bytes of a key that are shown.
const KEY_BYTES_MAX: usize = 64;

/// The body, or `{}` when it says nothing: clients send either for a request without parameters.
pub(crate) fn or_empty_object(body: Bytes) -> Bytes {
    let text = body.trim_ascii();
    if text.is_empty() || text == b"null" {
        Bytes::from_static(b"{}")
    } else {
        body
    }
}

/// Reads a body, which is an object.
pub(crate) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    let text = match std::str::from_utf8(body) {
        Ok(text) => text,
        Err(error) => {
            return Err(ApiError::bad_body(format!(
                "the body is not UTF-8 at byte {}",
                error.valid_up_to()
            )));
        }
    };
    match serde_json::from_str(text) {
        Ok(Object(body)) => Ok(body),
        Err(error) => Err(ApiError::bad_body(complaint(text, &error))),
    }
}

fn complaint(text: &str, error: &serde_json::Error) -> String {
    let at = offset_of(text, error.line(), error.column());
    let place = path_at(text, at);
    let said = shorten(error.to_string(), COMPLAINT_BYTES_MAX);
    match error.classify() {
        Category::Data if !place.is_empty() => format!("bad body at {place}: {said}"),
        _ => format!("bad body: {said}"),
    }
}

/// Cuts at a character boundary.
pub(crate) fn shorten(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
        text.push('…');
    }
    text
}

/// Byte offset of a parser's position (line from 1, column in bytes).
fn offset_of(text: &str, line: usize, column: usize) -> usize {
    let mut start = 0;
    for _ in 1..line {
        match text[start..].find('\n') {
            Some(at) => start += at + 1,
            None => break,
        }
    }
    (start + column).min(text.len())
}

/// The path of the value that ends at (or holds) byte `end`, such as `items[3].queue`. Best effort on a bad document.
fn path_at(text: &str, end: usize) -> String {
    let bytes = text.as_bytes();
    let mut path = Path::default();
    let mut at = 0;
    while at < end {
        match bytes[at] {
            b'{' => path.enter(Step::Key(0, 0)),
            b'[' => path.enter(Step::Index(0)),
            // A complaint about an object or array as a whole is raised at its end: stay in its parent's step.
            b'}' | b']' => path.leave(),
            b',' => path.next(),
            b':' => path.in_key = false,
            b'"' => {
                let close = string_end(bytes, at + 1);
                path.string(at + 1, close);
                at = close;
            }
            _ => {}
        }
        at += 1;
    }
    path.render(text)
}

/// Position of the quote that closes a string, or the end of the text.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at.min(bytes.len())
}

/// Where a walk through a document stands. Bounded: deeper steps are only counted.
#[derive(Default)]
struct Path {
    steps: Vec<Step>,
    depth: usize,
    in_key: bool,
}

enum Step {
    /// A member, by the range of its key; empty before the first one.
    Key(usize, usize),
    Index(usize),
}

impl Path {
    fn enter(&mut self, step: Step) {
        self.depth += 1;
        self.in_key = matches!(step, Step::Key(..));
        if self.depth <= PATH_STEPS_MAX {
            self.steps.push(step);
        }
    }

    fn leave(&mut self) {
        if self.depth <= PATH_STEPS_MAX {
            self.steps.pop();
        }
        self.depth = self.depth.saturating_sub(1);
        self.in_key = false;
    }

    fn next(&mut self) {
        if self.depth > PATH_STEPS_MAX {
            return;
        }
        match self.steps.last_mut() {
            Some(Step::Index(index)) => *index += 1,
            Some(Step::Key(..)) => self.in_key = true,
            None => {}
        }
    }

    fn string(&mut self, start: usize, end: usize) {
        if self.in_key
            && self.depth <= PATH_STEPS_MAX
            && let Some(Step::Key(key_start, key_end)) = self.steps.last_mut()
        {
            (*key_start, *key_end) = (start, end);
        }
    }

    fn render(&self, text: &str) -> String {
        let mut path = String::new();
        for step in &self.steps {
            match step {
                Step::Index(index) => path.push_str(&format!("[{index}]")),
                Step::Key(start, end) if start < end => {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    let key: String = text[*start..*end].escape_debug().collect();
                    path.push_str(&shorten(key, KEY_BYTES_MAX));
                }
                Step::Key(..) => {}
            }
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use laneway_wire::PushRequest;

    use super::*;

    fn complain(body: &str) -> String {
        let error = parse::<PushRequest<'_>>(body.as_bytes()).map(|_| ()).unwrap_err();
        assert_eq!((error.parts().0, error.parts().1), (400, "bad_body"), "{body}");
        error.parts().2.to_owned()
    }

    #[test]
    fn complaint_says_where() {
        let check = |body: &str, start: &str, part: &str| {
            let said = complain(body);
            assert!(
                said.starts_with(start) && said.contains(part),
                "{body} gave: {said}"
            );
        };
        check("{}", "bad body: ", "missing field `items`");
        check(
            r#"{"items":[{"payload":1}]}"#,
            "bad body at items[0]: ",
            "missing field `queue`",
        );
        check(
            r#"{"items":[{"queue":"q"}]}"#,
            "bad body at items[0]: ",
            "missing field `payload`",
        );
        check(
            r#"{"items":[{"queue":"q","payload":[{"a":1},2]},{"payload":{"queue":3},"queue":5}]}"#,
            "bad body at items[1].queue: ",
            "invalid type: integer `5`, expected a string",
        );
        check(
            r#"{"items":[{"queue":"q","payload":1,"partition":["x"]}]}"#,
            "bad body at items[0].partition",
            "expected a string",
        );
        check(
            r#"{"items":[1]}"#,
            "bad body at items[0]: ",
            "invalid type: integer `1`",
        );
        check(
            r#"{"items":7}"#,
            "bad body at items: ",
            "expected an array of objects",
        );
        check(
            r#"{"items":[{"queue":"q","payload":1},["q",1]]}"#,
            "bad body at items[1]",
            "invalid type: sequence, expected an object",
        );
        check(r#"{"items":null}"#, "bad body at items: ", "invalid type: null");
        check(
            r#"{"items":[{"queue":"q","queue":"r","payload":1}]}"#,
            "bad body at items[0].queue: ",
            "duplicate field",
        );
        check(
            "{\n \"items\": [\n  {\"payload\": 1, \"queue\": true}]}",
            "bad body at items[0].queue: ",
            "line 3",
        );
        check(
            r#"{"items":[{"queue":"q","payload":}]}"#,
            "bad body: ",
            "expected value",
        );
        check(r#"{"items":[{"queue":"q","payload":1}]"#, "bad body: ", "EOF");
        check(r#"{"items":[]} x"#, "bad body: ", "trailing characters");
        check("[]", "bad body: ", "");
        check("nonsense", "bad body: ", "expected");
        check(
            "{\"items\":[{\"queue\":\"\u{1}\",\"payload\":1}]}",
            "bad body: ",
            "control character",
        );
    }

    #[test]
    fn complaint_is_short_and_body_must_be_utf_8() {
        let said = complain(&format!(r#"{{"items":"{}"}}"#, "é".repeat(1000)));
        assert!(said.len() < 400, "{said}");
        let error = parse::<PushRequest<'_>>(b"{\"items\":\"\xff\"}")
            .map(|_| ())
            .unwrap_err();
        assert_eq!(
            error.parts(),
            (400, "bad_body", "the body is not UTF-8 at byte 10")
        );
    }

    #[test]
    fn payload_may_nest_deeply() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let body = format!(r#"{{"items":[{{"queue":"q","payload":{deep},"other":{deep}}}],"more":{deep}}}"#);
        let request: PushRequest<'_> = parse(body.as_bytes()).unwrap();
        assert_eq!(request.items[0].payload.get(), deep);
        complain(&"[".repeat(1_000_000));
        complain(&format!(r#"{{"items":[{{"queue":{deep}}}]}}"#));
        complain(&format!(r#"{{"items":{}"#, r#"{"a":"#.repeat(100_000)));
    }

    #[test]
    fn nothing_said_counts_as_an_empty_object() {
        for body in ["", "  \n", "null", " null "] {
            assert_eq!(
                or_empty_object(Bytes::from_static(body.as_bytes())),
                "{}",
                "{body}"
            );
        }
        assert_eq!(or_empty_object(Bytes::from_static(b"[]")), "[]");
    }
}
