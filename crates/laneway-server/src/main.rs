//! The `laneway` binary.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use laneway_server::cli::Cli;
use mimalloc::MiMalloc;

/// Requests make many small allocations that other threads free; the C library's allocator took a fifth of the processor.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match laneway_server::cli::run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell when standard error is closed.
            let _ = writeln!(std::io::stderr(), "laneway: {error:#}");
            ExitCode::FAILURE
        }
    }
}
