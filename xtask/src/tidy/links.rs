//! Relative links between Markdown files lead somewhere.

use std::path::Path;

use anyhow::Result;

use crate::Breach;
use crate::repo;

pub(super) fn check() -> Result<Vec<Breach>> {
    let mut found = Vec::new();
    for path in repo::files("md")? {
        let text = repo::read(&path)?;
        for (line, target) in links(&text) {
            if let Some(wrong) = wrong_with(&path, target)? {
                found.push(Breach {
                    path: path.clone(),
                    line,
                    text: format!("link {target}: {wrong}"),
                });
            }
        }
    }
    Ok(found)
}

/// Targets of `[text](target)` outside fenced blocks, with their lines.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let mut rest = line;
        while let Some(start) = rest.find("](") {
            rest = &rest[start + 2..];
            let Some(end) = rest.find(')') else { break };
            found.push((at + 1, &rest[..end]));
            rest = &rest[end..];
        }
    }
    found
}

fn wrong_with(page: &Path, target: &str) -> Result<Option<String>> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(None);
    }
    let (file, anchor) = match target.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor)),
        None => (target, None),
    };
    let folder = page.parent().unwrap_or_else(|| Path::new(""));
    let linked = if file.is_empty() {
        page.to_path_buf()
    } else {
        folder.join(file)
    };
    if !repo::root().join(&linked).exists() {
        return Ok(Some("no such file".to_owned()));
    }
    let Some(anchor) = anchor else { return Ok(None) };
    let text = repo::read(&linked)?;
    let known = text
        .lines()
        .filter(|line| line.starts_with('#'))
        .any(|heading| slug(heading) == anchor);
    Ok(if known {
        None
    } else {
        Some("no such heading".to_owned())
    })
}

/// The anchor that a heading gets: lower case, spaces to hyphens, other punctuation dropped.
fn slug(heading: &str) -> String {
    let title = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = title
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_outside_fences_are_found() {
        let text = "see [a](a.md) and [b](b.md#x)\n```\n[no](c.md)\n```\n[d](d.md)\n";
        assert_eq!(links(text), [(1, "a.md"), (1, "b.md#x"), (5, "d.md")]);
    }

    #[test]
    fn headings_become_anchors() {
        assert_eq!(slug("## Start, stop"), "start-stop");
        assert_eq!(slug("# `wal_segments_max`"), "wal_segments_max");
    }
}
