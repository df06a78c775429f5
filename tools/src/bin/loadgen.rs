//! The `loadgen` command: reads its arguments, runs the load, prints the report and ends with the
//! exit code.

use clap::Parser;
use std::process::ExitCode;
use symphony::cli::end_quietly_on_closed_pipe;
use symphony_tools::loadgen::{self, Args};

fn main() -> ExitCode {
    end_quietly_on_closed_pipe();
    loadgen::main(&Args::parse())
}
