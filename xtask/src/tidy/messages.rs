//! Log messages: constant text, lower case, no full stop; values are fields.

use anyhow::Result;

use crate::Breach;
use crate::repo;

const MACROS: [&str; 5] = ["error!(", "warn!(", "info!(", "debug!(", "trace!("];

pub(super) fn check() -> Result<Vec<Breach>> {
    let mut found = Vec::new();
    for path in repo::files("rs")? {
        if path.starts_with("xtask") {
            continue;
        }
        let text = repo::read(&path)?;
        for (line, message) in messages(&text) {
            if let Some(wrong) = wrong_with(message) {
                found.push(Breach {
                    path: path.clone(),
                    line,
                    text: format!("log message \"{message}\" {wrong}"),
                });
            }
        }
    }
    Ok(found)
}

/// Every tracing macro's message with its line: the last string literal that stands as an argument of its own.
fn messages(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut offset = 0;
    while let Some((start, name)) = next_macro(&text[offset..]) {
        let at = offset + start;
        let arguments_at = at + name.len();
        let arguments = arguments(&text[arguments_at..]);
        if let Some(message) = message(arguments) {
            let line = text[..at].matches('\n').count() + 1;
            found.push((line, message));
        }
        offset = arguments_at;
    }
    found
}

/// The nearest call of a tracing macro that is not part of a longer name.
fn next_macro(text: &str) -> Option<(usize, &'static str)> {
    let whole = |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '"');
    let calls = MACROS.iter().flat_map(|name| text.match_indices(name));
    let nearest = calls.filter(|(at, _)| whole(*at)).min_by_key(|(at, _)| *at)?;
    MACROS
        .iter()
        .find(|name| **name == nearest.1)
        .map(|name| (nearest.0, *name))
}

/// Text up to the closing parenthesis.
fn arguments(text: &str) -> &str {
    let mut depth = 0_usize;
    let mut quoted = false;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => return &text[..at],
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    text
}

/// The message among a macro's arguments; `None` when it has none (fields only).
fn message(arguments: &str) -> Option<&str> {
    let trimmed = arguments.trim().trim_end_matches(',').trim_end();
    let body = trimmed.strip_suffix('"')?;
    let start = body.rfind('"')?;
    let before = body[..start].trim_end();
    let own_argument = before.is_empty() || before.ends_with(',');
    own_argument.then(|| &body[start + 1..])
}

fn wrong_with(message: &str) -> Option<&'static str> {
    let first_word = message.split_whitespace().next()?;
    let acronym = first_word.len() > 1 && first_word.chars().all(|c| !c.is_lowercase());
    if message.starts_with(char::is_uppercase) && !acronym {
        return Some("starts with a capital letter");
    }
    if message.ends_with('.') {
        return Some("ends with a full stop");
    }
    if message.contains('{') {
        return Some("is not constant: put the value in a field");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_behind_fields() {
        let text = "fn f() {\n    warn!(%partition, waited = f(1, \"x\"), \"timed out\");\n    info!(\n        \"up\",\n    );\n}\n";
        assert_eq!(messages(text), [(2, "timed out"), (3, "up")]);
    }

    #[test]
    fn style_of_messages_is_held() {
        for good in ["proposal timed out", "SIGTERM: stopping", "3 left"] {
            assert_eq!(wrong_with(good), None, "{good}");
        }
        for bad in ["Proposal timed out", "it ended.", "lane {lane} is gone"] {
            assert!(wrong_with(bad).is_some(), "{bad}");
        }
    }
}
