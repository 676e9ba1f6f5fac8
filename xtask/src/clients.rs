//! The published Python client against a release build.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::broker::Broker;
use crate::repo::{self, run, say};

/// What pip installs.
const PACKAGE: &str = "queen-mq==2.6.0";

/// Where the scripts are.
const SCRIPTS: &str = "tests/clients/python";

/// Installs the client once and runs every script against one broker; fails with the first that does.
pub(crate) fn run_all() -> Result<()> {
    let python = environment()?;
    let broker = Broker::start("clients")?;
    let scripts: Vec<PathBuf> = repo::files("py")?
        .into_iter()
        .filter(|path| path.starts_with(SCRIPTS))
        .collect();
    if scripts.is_empty() {
        bail!("{SCRIPTS} holds no script");
    }
    for script in &scripts {
        say(format_args!("{}:", script.display()));
        let mut command = Command::new(&python);
        command
            .current_dir(repo::root())
            .arg(script)
            .env("LANEWAY_URL", &broker.url);
        if let Err(error) = run(&mut command) {
            let log = std::fs::read_to_string(broker.log()).unwrap_or_default();
            bail!("{error:#}\nlog of the broker:\n{log}");
        }
    }
    say(format_args!(
        "clients: {} script(s) with {PACKAGE}, 0 failed",
        scripts.len()
    ));
    Ok(())
}

/// The interpreter of a virtual environment that has the package.
fn environment() -> Result<PathBuf> {
    let folder = repo::target_dir().join("xtask").join("python");
    let python = folder.join("bin").join("python");
    if !python.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))
            .context("python3 with its venv module is needed")?;
    }
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        PACKAGE,
    ];
    run(Command::new(&python).args(pip)).context("cannot install the client")?;
    Ok(python)
}
