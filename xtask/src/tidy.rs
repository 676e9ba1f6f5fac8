//! Rules that no compiler checks.

use anyhow::{Result, bail};

use crate::repo::{self, cargo, say};

mod arrows;
mod golden;
mod largest;
mod links;
mod messages;

/// Runs every check, prints each breach on a line and the largest files; fails when there was a breach.
pub(crate) fn run() -> Result<()> {
    let checks: [(&str, Check); 5] = [
        ("dependency arrows", arrows::check),
        ("golden files", golden::check),
        ("doc links", links::check),
        ("log messages", messages::check),
        ("configuration reference", crate::config_reference::check),
    ];
    let mut breaches = 0;
    for (name, check) in checks {
        let found = check()?;
        say(format_args!(
            "{name}: {}",
            if found.is_empty() {
                "ok".to_owned()
            } else {
                found.len().to_string()
            }
        ));
        for breach in &found {
            say(format_args!("  {breach}"));
        }
        breaches += found.len();
    }
    let formatted = repo::run(cargo().args(["fmt", "--all", "--check", "--", "--files-with-diff"]));
    say(format_args!(
        "format: {}",
        if formatted.is_ok() {
            "ok"
        } else {
            "run cargo fmt --all"
        }
    ));
    breaches += usize::from(formatted.is_err());
    largest::print()?;
    if breaches > 0 {
        bail!("tidy found {breaches} breach(es)");
    }
    Ok(())
}

type Check = fn() -> Result<Vec<crate::Breach>>;
