//! The `symphony` binary: `serve` runs the engine behind its HTTP API until Ctrl-C, `check` validates a
//! configuration without serving. What a command line means is here; the work is in the library.

use clap::{Parser, Subcommand};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use symphony::commands::{check, serve};

/// Serves neural networks under deadlines: batches wait until the last moment at which they can still grow.
#[derive(Parser)]
#[command(version, about, after_help = EXIT_CODES)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str =
    "Exit codes: 0 done; 1 the run failed; 2 bad usage or configuration; 3 the machine lacks something.";

#[derive(Subcommand)]
enum Command {
    /// Load the models of CONFIG and serve them over HTTP (KServe v2) until Ctrl-C
    ///
    /// Prints `ready http://ADDRESS` on standard output once it serves; everything else goes to standard error.
    /// The first Ctrl-C (or SIGTERM) lets accepted requests finish; a second one ends at once.
    Serve {
        /// A TOML file, or a folder with symphony.toml in it
        config: PathBuf,
        /// Where to listen for HTTP; port 0 takes a free one
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
        http: SocketAddr,
    },
    /// Read CONFIG and load its models without serving; print every mistake as FILE:LINE: FIELD: wrong; right
    Check {
        /// A TOML file, or a folder with symphony.toml in it
        config: PathBuf,
    },
}

fn main() -> ExitCode {
    let result = match CommandLine::parse().command {
        Command::Serve { config, http } => serve(Path::new(&config), http),
        Command::Check { config } => check(Path::new(&config)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
