//! The `loadgen` command: reads its arguments, runs the load, prints the report and ends with the
//! exit code.

use clap::Parser;
use std::process::ExitCode;
use symphony_tools::loadgen::{self, Args};

fn main() -> ExitCode {
    loadgen::main(&Args::parse())
}
