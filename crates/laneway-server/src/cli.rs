//! The command line. Exit codes: 0 done, 1 refused or failed, 2 wrong usage.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use laneway_node::PeerNetOptions;

use crate::config::{Config, DATA_DIR_DEFAULT, LISTEN_DEFAULT};
use crate::ctl::{self, CtlArgs};
use crate::dev::{self, DEV_NODES_MAX, DevNodes};
use crate::logging::{self, LogFormat};
use crate::run::{self, absolute};

/// A message broker in one binary: ordered lanes, leased work, a retry budget, dead letters.
#[derive(Debug, Parser)]
#[command(name = "laneway", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one node, or several on this machine, with default settings, for development.
    Dev(DevArgs),
    /// Runs one node as its configuration file says.
    Serve(ServeArgs),
    /// Reads and checks a configuration; starts nothing.
    CheckConfig {
        /// The node's TOML file.
        file: PathBuf,
    },
    /// Asks a running node.
    Ctl(CtlArgs),
}

#[derive(Debug, Args)]
struct DevArgs {
    /// Number of nodes of a cluster of processes on this machine; one that dies is started again after 2 s. Node 1 takes
    /// the port of --listen, the others the ports after it; each takes another port, 1000 above, for the other nodes. Each
    /// has a folder of its own, node-1 and so on, in that of --data.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(DEV_NODES_MAX)))]
    nodes: Option<u16>,
    /// Folder of the data; made when missing.
    #[arg(long, value_name = "DIR", default_value = DATA_DIR_DEFAULT)]
    data: PathBuf,
    /// Number of partitions of new data [default: 4, or what the data was made with].
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u16).range(1..=1024))]
    partitions: Option<u16>,
    /// Address for HTTP; port 0 takes a free one and the log says which.
    #[arg(long, value_name = "ADDRESS", default_value = LISTEN_DEFAULT)]
    listen: SocketAddr,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// The node's TOML file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Stops when standard input ends, so that the node does not outlive the process at the other end.
    #[arg(long, hide = true)]
    until_input_ends: bool,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Args)]
struct LogArgs {
    /// Form of the log lines on standard error. The environment variable LANEWAY_LOG filters them.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// Carries out one command line.
///
/// Errors: one line each, for a person.
pub fn run(cli: Cli) -> Result<()> {
    #[cfg(feature = "failpoints")]
    crate::failpoint::arm_from_environment()?;
    match cli.command {
        Command::Dev(args) => dev(args),
        Command::Serve(args) => {
            let config = Config::load(&args.config)?;
            logging::install(args.log.log_format)?;
            run::run(config, args.until_input_ends)
        }
        Command::CheckConfig { file } => {
            let config = Config::load(&file)?;
            write!(io::stdout(), "{}: {}", file.display(), summary(&config))?;
            Ok(())
        }
        Command::Ctl(args) => ctl::run(args),
    }
}

fn dev(args: DevArgs) -> Result<()> {
    let DevArgs {
        nodes,
        data,
        partitions,
        listen,
        log: LogArgs { log_format },
    } = args;
    if let Some(nodes) = nodes {
        return dev::run(&DevNodes {
            data,
            nodes,
            listen,
            partitions,
            log_format,
        });
    }
    dev::refuse_data_of_several(&data)?;
    logging::install(log_format)?;
    run::run(Config::dev(data, partitions.unwrap_or(0), listen), false)
}

/// What a checked configuration means, for people: one line, and more about the other nodes.
fn summary(config: &Config) -> String {
    let (node, listen) = (&config.node, config.listen);
    let mut text = format!(
        "ok: cluster {}, node {}, listens on {listen}, data in {}\n",
        node.cluster,
        node.node,
        absolute(&node.data_dir).display()
    );
    if let Some(peers) = &node.peers {
        let PeerNetOptions {
            listen, fingerprint, ..
        } = peers;
        let _ = writeln!(
            text,
            "  listens for other nodes on {listen}, cluster file {fingerprint:016x}"
        );
        for (number, address) in peers.addresses.iter().filter(|(number, _)| **number != node.node) {
            let _ = writeln!(text, "  node {number} at {address}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
