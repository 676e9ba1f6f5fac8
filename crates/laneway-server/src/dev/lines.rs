//! The nodes' log lines, each with its node.

use std::io::Write;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

use crate::logging::LogFormat;

/// Longest part of a line that is written at once; the rest follows as a line of its own.
const LINE_BYTES_MAX: u64 = 1024 * 1024;

/// How a node's lines are marked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix {
    node: u16,
    json: bool,
}

impl Prefix {
    pub(super) fn new(node: u16, format: LogFormat) -> Self {
        let json = matches!(format, LogFormat::Json);
        Self { node, json }
    }

    /// `line` with its node: a JSON object gets it as its first key, so that it stays one.
    fn mark(self, line: &[u8]) -> Vec<u8> {
        let node = self.node;
        let (mark, rest) = match line {
            [b'{', rest @ ..] if self.json && !rest.starts_with(b"}") => {
                (format!("{{\"node\":{node},"), rest)
            }
            _ => (format!("node {node} | "), line),
        };
        let mut marked = mark.into_bytes();
        marked.extend_from_slice(rest);
        if !marked.ends_with(b"\n") {
            marked.push(b'\n');
        }
        marked
    }
}

/// Copies lines to standard error until they end.
pub(super) async fn forward(from: impl AsyncRead + Unpin, prefix: Prefix) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut from)
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
            .await
        {
            // The pipe ended with the process.
            Ok(0) | Err(_) => return,
            // A closed standard error stops no node: the pipe is read on.
            Ok(_) => drop(std::io::stderr().write_all(&prefix.mark(&line))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_carry_their_node() {
        let check = |format, line: &str, wanted: &str| {
            let marked = Prefix::new(2, format).mark(line.as_bytes());
            assert_eq!(String::from_utf8(marked).unwrap(), wanted);
        };
        check(LogFormat::Text, "INFO listening\n", "node 2 | INFO listening\n");
        check(LogFormat::Text, "cut", "node 2 | cut\n");
        check(LogFormat::Text, "{\"a\":1}\n", "node 2 | {\"a\":1}\n");
        check(LogFormat::Json, "{\"a\":1}\n", "{\"node\":2,\"a\":1}\n");
        check(LogFormat::Json, "{}\n", "node 2 | {}\n");
        check(LogFormat::Json, "laneway: no\n", "node 2 | laneway: no\n");
    }
}
