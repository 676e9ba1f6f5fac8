//! The largest source files, so that growth is seen.

use anyhow::Result;

use crate::repo::{self, say};

/// How many are listed.
const LISTED: usize = 10;

/// Lines without tests past which a file should be split.
const LINES_WANTED_MAX: usize = 500;

pub(super) fn print() -> Result<()> {
    let mut sizes = Vec::new();
    for path in repo::files("rs")? {
        let lines = lines_without_tests(&repo::read(&path)?);
        sizes.push((lines, path));
    }
    sizes.sort_by(|a, b| b.cmp(a));
    say("largest files (lines before their tests):");
    for (lines, path) in sizes.iter().take(LISTED) {
        let mark = if *lines > LINES_WANTED_MAX {
            "  look for the seam"
        } else {
            ""
        };
        say(format_args!("  {lines:5}  {}{mark}", path.display()));
    }
    Ok(())
}

fn lines_without_tests(text: &str) -> usize {
    text.lines().take_while(|line| *line != "#[cfg(test)]").count()
}
