//! The command `on_threads`: see `--help` and docs/population.md.

use clap::Parser;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use symphony::cli::end_quietly_on_closed_pipe;
use symphony_perf::population::generator::Half;
use symphony_perf::population::on_threads::{ThreadsGoodput, compare};
use symphony_perf::population::rules::{DEFAULT, Rule};
use symphony_perf::provenance::{command_line, commit};
use symphony_perf::scale::machine::Machine;
use symphony_scheduler::workload::Workload;

/// Compare the goodput of a rule on the engine's threads with the simulator's
///
/// Runs workloads of the population in real time, with emulated GPUs, and searches the highest rate
/// at which no model has over 1 % of bad requests, as `population` does in the simulator. A
/// workload takes some six runs of its own length.
#[derive(Parser)]
#[command(name = "on_threads", version, after_help = "Exit codes: 0 done; 1 a run failed; 2 bad usage.")]
struct OnThreadsOptions {
    /// Workloads without a network, as tune-017
    #[arg(value_name = "NAME", required = true, value_parser = by_name)]
    workloads: Vec<Workload>,
    /// A rule that the engine can be configured for, as symphony@latency or work-conserving:timeout
    #[arg(long, default_value = DEFAULT, value_name = "RULE")]
    rule: Rule,
    /// Write the result to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The file of the result.
#[derive(Serialize)]
struct OnThreadsResult {
    command: String,
    commit: Option<String>,
    machine: Machine,
    workloads: Vec<ThreadsGoodput>,
}

fn by_name(name: &str) -> Result<Workload, String> {
    Half::by_name(name).ok_or_else(|| "give a name like tune-017 or mixed-017, from 000 to 399".to_owned())
}

fn main() -> ExitCode {
    end_quietly_on_closed_pipe();
    match carry_out(&OnThreadsOptions::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("on_threads: {error}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(options: &OnThreadsOptions) -> Result<(), String> {
    let machine = Machine::this(std::thread::available_parallelism().map_or(1, usize::from));
    let mut workloads = Vec::new();
    for workload in &options.workloads {
        let found = compare(workload, &options.rule, |run| {
            let (rps, bad) = (run.offered_rps, run.worst_bad_rate * 100.0);
            eprintln!("  {}: {rps:.1} requests/s, {bad:.2} % bad of the worst model", workload.name);
        })?;
        let ThreadsGoodput { workload, simulated_rps, on_threads_rps, ratio, .. } = &found;
        println!(
            "{workload}: {simulated_rps:.1} requests/s simulated, {on_threads_rps:.1} on threads, {ratio:.3}"
        );
        workloads.push(found);
    }
    if let Some(file) = &options.json {
        let result = OnThreadsResult { command: command_line(), commit: commit(), machine, workloads };
        let text = serde_json::to_string_pretty(&result).map_err(|error| error.to_string())?;
        std::fs::write(file, text + "\n").map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(())
}
