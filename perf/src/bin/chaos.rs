//! The command `chaos`: see `--help`, docs/design/chaos.md and docs/design/hosts.md.

use clap::Parser;
use serde::Serialize;
use std::process::ExitCode;
use symphony::runtime::simulation::{EpisodeReport, HostsReport, SeedReport};
use symphony_perf::chaos::{ChaosOptions, run};

fn main() -> ExitCode {
    let options = ChaosOptions::parse();
    if options.hosts { simulate::<HostsReport>(&options) } else { simulate::<EpisodeReport>(&options) }
}

fn simulate<R: SeedReport + Serialize>(options: &ChaosOptions) -> ExitCode {
    match run::<R>(options) {
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
