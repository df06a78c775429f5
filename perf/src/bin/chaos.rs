//! The command `chaos`: see `--help` and docs/design/chaos.md.

use clap::Parser;
use std::process::ExitCode;
use symphony_perf::chaos::{ChaosOptions, RecordedResult, run};

fn main() -> ExitCode {
    let options = ChaosOptions::parse();
    let report = run(&options);
    println!("{}", report.lines());
    if let Some(file) = &options.json {
        let text =
            serde_json::to_string_pretty(&RecordedResult::new(&report)).expect("figures are plain data");
        if let Err(error) = std::fs::write(file, text + "\n") {
            eprintln!("chaos: --json {}: {error}", file.display());
            return ExitCode::from(3);
        }
    }
    if report.passed { ExitCode::SUCCESS } else { ExitCode::from(1) }
}
