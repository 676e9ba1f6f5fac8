//! The command line. Exit codes: 0 done, 1 refused or failed, 2 wrong usage.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::config::{Config, DATA_DIR_DEFAULT, LISTEN_DEFAULT};
use crate::ctl::{self, CtlArgs};
use crate::logging::{self, LogFormat};
use crate::run::{self, absolute};

/// A message broker in one binary: ordered lanes, leased work, a retry budget, dead letters. One node so far.
#[derive(Debug, Parser)]
#[command(name = "laneway", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one node with default settings, for development.
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
    /// Folder of the node's data; made when missing.
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
        Command::Dev(args) => {
            logging::install(args.log.log_format)?;
            run::run(Config::dev(args.data, args.partitions.unwrap_or(0), args.listen))
        }
        Command::Serve(args) => {
            let config = Config::load(&args.config)?;
            logging::install(args.log.log_format)?;
            run::run(config)
        }
        Command::CheckConfig { file } => {
            let config = Config::load(&file)?;
            let (node, listen) = (&config.node, config.listen);
            let summary = format!(
                "cluster {}, node {}, listens on {listen}",
                node.cluster, node.node
            );
            writeln!(
                io::stdout(),
                "{}: ok: {summary}, data in {}",
                file.display(),
                absolute(&node.data_dir).display()
            )?;
            Ok(())
        }
        Command::Ctl(args) => ctl::run(args),
    }
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
