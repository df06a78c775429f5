//! The command `chaos`: see `--help` and docs/design/chaos.md.

use clap::Parser;
use std::process::ExitCode;
use symphony_perf::chaos::{ChaosOptions, run};

fn main() -> ExitCode {
    match run(&ChaosOptions::parse()) {
        Ok(report) => {
            println!("{}", report.lines());
            if report.passed { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(error) => {
            eprintln!("chaos: --json: {error}");
            ExitCode::from(3)
        }
    }
}
