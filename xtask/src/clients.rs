//! The published Python client against a release build: one node, and several of which each is killed once.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::broker::Broker;
use crate::cluster::Cluster;
use crate::repo::{self, run, say};

/// What pip installs.
const PACKAGE: &str = "queen-mq==2.6.0";

/// Scripts that want the address of one node.
const SCRIPTS: &str = "tests/clients/python";

/// Scripts that want the addresses of all nodes, and have nodes killed.
const SCRIPTS_OF_SEVERAL: &str = "tests/clients/python/several";

/// Nodes when nothing else is asked for.
const NODES: u16 = 3;

#[derive(Args)]
pub(crate) struct ClientsArgs {
    /// Only against so many nodes: 1, or 3 to 9 [default: one, then three].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: Option<u16>,
    /// This `laneway` instead of a release build made now.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// Installs the client once and runs the scripts; fails with the first that does.
pub(crate) fn run_all(args: &ClientsArgs) -> Result<()> {
    ensure!(
        args.nodes != Some(2),
        "two nodes have no quorum once one is killed: --nodes takes 1, or 3 to 9"
    );
    let python = environment()?;
    let binary = match &args.binary {
        Some(binary) => binary
            .canonicalize()
            .with_context(|| format!("no binary {}", binary.display()))?,
        None => repo::release_binary()?,
    };
    let mut runs = 0;
    if matches!(args.nodes, None | Some(1)) {
        runs += with_one_node(&python, &binary)?;
    }
    match args.nodes {
        Some(1) => {}
        nodes => runs += with_several(&python, &binary, nodes.unwrap_or(NODES))?,
    }
    say(format_args!("clients: {runs} run(s) with {PACKAGE}, 0 failed"));
    Ok(())
}

/// Every script against one broker; gives their number.
fn with_one_node(python: &Path, binary: &Path) -> Result<usize> {
    let broker = Broker::start("clients", binary)?;
    let scripts = scripts(SCRIPTS)?;
    for script in &scripts {
        say(format_args!("{}, one node:", script.display()));
        let mut command = script_of(python, script);
        command.env("LANEWAY_URL", &broker.url);
        if let Err(error) = run(&mut command) {
            let log = std::fs::read_to_string(broker.log()).unwrap_or_default();
            bail!("{error:#}\nlog of the broker:\n{log}");
        }
    }
    Ok(scripts.len())
}

/// Every script against each node of one cluster, on queues of its own; then those that have nodes killed.
fn with_several(python: &Path, binary: &Path, nodes: u16) -> Result<usize> {
    let mut cluster = Cluster::start("clients-of-several", binary, nodes)?;
    let mut runs = 0;
    for script in scripts(SCRIPTS)? {
        for (number, url) in (1..).zip(cluster.urls()) {
            let number: u16 = number;
            say(format_args!("{}, node {number} of {nodes}:", script.display()));
            let mut command = script_of(python, &script);
            command
                .env("LANEWAY_URL", url)
                .env("LANEWAY_PREFIX", format!("n{number}-"));
            run(&mut command).with_context(|| format!("log of the nodes:\n{}", cluster.log()))?;
            runs += 1;
        }
    }
    for script in scripts(SCRIPTS_OF_SEVERAL)? {
        say(format_args!("{}, {nodes} nodes:", script.display()));
        let mut command = script_of(python, &script);
        command.env("LANEWAY_URLS", cluster.urls().join(","));
        let done = run_and_kill(&mut command, &mut cluster);
        done.with_context(|| format!("log of the nodes:\n{}", cluster.log()))?;
        runs += 1;
    }
    Ok(runs)
}

/// Python files of a folder, not those below it.
fn scripts(folder: &str) -> Result<Vec<PathBuf>> {
    let files = repo::files("py")?.into_iter();
    let scripts: Vec<PathBuf> = files
        .filter(|path| path.parent() == Some(Path::new(folder)))
        .collect();
    ensure!(!scripts.is_empty(), "{folder} holds no script");
    Ok(scripts)
}

fn script_of(python: &Path, script: &Path) -> Command {
    let mut command = Command::new(python);
    command.current_dir(repo::root()).arg(script);
    command
}

/// Runs a script that has nodes killed: to its line `kill N` node N is killed, and when that serves again, `ready N` is its
/// next line of input. Other lines are printed.
fn run_and_kill(command: &mut Command, cluster: &mut Cluster) -> Result<()> {
    let mut script = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the script")?;
    let served = serve_kills(&mut script, cluster);
    if served.is_err() {
        // It would wait for an answer that never comes.
        let _ = script.kill();
    }
    let status = script.wait()?;
    served?;
    ensure!(status.success(), "the script ended with {status}");
    Ok(())
}

fn serve_kills(script: &mut Child, cluster: &mut Cluster) -> Result<()> {
    let stdout = script.stdout.take().expect("it is piped");
    let mut stdin = script.stdin.take().expect("it is piped");
    for line in BufReader::new(stdout).lines() {
        let line = line.context("cannot read what the script prints")?;
        let Some(number) = line.strip_prefix("kill ") else {
            say(&line);
            continue;
        };
        let number: usize = number
            .parse()
            .with_context(|| format!("unexpected line: {line}"))?;
        cluster.kill(number)?;
        cluster.restarted(number)?;
        say(format_args!("node {number} serves again"));
        writeln!(stdin, "ready {number}").context("the script does not listen any more")?;
    }
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
