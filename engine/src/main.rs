//! The `symphony` binary: `serve` runs the engine behind its HTTP API until Ctrl-C, `check` validates a
//! configuration without serving. What a command line means is here; the work is in the library.

use clap::{Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use symphony::commands::{check, replay, serve};
use symphony::recorder::RecordConfig;
use symphony::recorder::replay::Wanted;

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
        /// Keep the last decisions of each scheduler thread in a file in DIR, for `symphony replay`
        #[arg(long, value_name = "DIR")]
        record: Option<PathBuf>,
        /// The size of each of these files, in MiB
        #[arg(long, value_name = "N", default_value_t = RecordConfig::DEFAULT_MIB, requires = "record",
              value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
        record_mib: usize,
    },
    /// Read CONFIG and load its models without serving; print every mistake as FILE:LINE: FIELD: wrong; right
    Check {
        /// A TOML file, or a folder with symphony.toml in it
        config: PathBuf,
    },
    /// Feed recorded decisions through the scheduler again and say whether the same ones come out
    ///
    /// Exit code 0 if they do, 1 if one differs (the first is shown), 2 if a file is no sound recording.
    Replay {
        /// A file of `serve --record`, or the folder that has them
        recording: PathBuf,
        /// Tell why the request of this id was batched, dropped or late
        #[arg(long, value_name = "ID")]
        request: Option<u64>,
        /// The frontend (API core) that took the request in; ids are unique per frontend
        #[arg(long, value_name = "F", requires = "request")]
        frontend: Option<u32>,
    },
}

fn main() -> ExitCode {
    let result = match CommandLine::parse().command {
        Command::Serve { config, http, record, record_mib } => {
            serve(&config, http, record.map(|folder| RecordConfig { folder, mib: record_mib }))
        }
        Command::Check { config } => check(&config),
        Command::Replay { recording, request, frontend } => {
            replay(&recording, request.map(|id| Wanted { id, frontend }))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
