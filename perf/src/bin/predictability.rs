//! The command `predictability`: see `--help` and docs/performance.md.

use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use symphony::cli::{end_quietly_on_closed_pipe, read_precision};
use symphony_gpu::plan::PlanPrecision;
use symphony_perf::MeasureError;
use symphony_perf::charts::Figure;
use symphony_perf::predictability::isolation::{self, IsolatedDevice, IsolationOptions, IsolationSummary};
use symphony_perf::predictability::served::{self, Served, ServedOptions};
use symphony_perf::predictability::{TimePercentiles, chart};
use symphony_perf::provenance::{command_line, commit};
use symphony_perf::scale::machine::Machine;

/// How predictable executions are, alone and under load
#[derive(Parser)]
#[command(name = "predictability", version, after_help = AFTER_HELP)]
struct PredictabilityCommandLine {
    #[command(subcommand)]
    command: PredictabilityCommand,
}

const AFTER_HELP: &str = "Exit codes: 0 done; 1 the ratio is above --at-most, or a program failed; 2 bad usage \
                          or file; 3 the machine lacks the device.";

#[derive(Subcommand)]
enum PredictabilityCommand {
    /// Run one model again and again and nothing else: the 99.99th percentile over the median
    Isolation(IsolationArguments),
    /// Load `symphony serve`, and compare what its scheduler expected of each batch with what came
    Served(ServedArguments),
}

#[derive(Args)]
struct IsolationArguments {
    /// The ONNX file
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// The device: cpu, onnxruntime or cuda:N
    #[arg(long, default_value = "cpu", value_parser = IsolatedDevice::parse)]
    device: IsolatedDevice,
    /// The precision on a GPU: fp32, fp16 or bf16
    #[arg(long, value_name = "P", default_value = "fp32", value_parser = read_precision)]
    precision: PlanPrecision,
    /// The rows of each execution
    #[arg(long, value_name = "B", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    batch: u32,
    /// How many executions are timed
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    executions: u32,
    /// The least time of the warm-up, seconds: up to ten times that on a GPU whose clock rises
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    warm_up: f64,
    /// Fail if the 99.99th percentile over the median is above this
    #[arg(long, value_name = "X")]
    at_most: Option<f64>,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Args)]
struct ServedArguments {
    /// The server's CONFIG
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The workload that loadgen sends
    #[arg(long, value_name = "FILE")]
    workload: PathBuf,
    /// Requests per second, in place of the workload's
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// Seconds, in place of the workload's
    #[arg(long, value_name = "S")]
    duration: Option<f64>,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Args)]
struct OutputArguments {
    /// Write the result to this file, with the machine, the commit and the command
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the distributions to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The file of a result.
#[derive(Serialize)]
struct PredictabilityFile<'a, T> {
    command: String,
    commit: Option<String>,
    machine: Machine,
    result: &'a T,
}

fn main() -> ExitCode {
    end_quietly_on_closed_pipe();
    let result = match PredictabilityCommandLine::parse().command {
        PredictabilityCommand::Isolation(arguments) => alone(arguments),
        PredictabilityCommand::Served(arguments) => under_load(arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn alone(arguments: IsolationArguments) -> Result<ExitCode, MeasureError> {
    if !(arguments.warm_up >= 0.0 && arguments.warm_up <= 3_600.0) {
        return Err(MeasureError::Usage("--warm-up: give seconds, from 0 to 3600".to_owned()));
    }
    let least = Duration::from_secs_f64(arguments.warm_up);
    let machine = machine();
    let options = IsolationOptions {
        model: arguments.model,
        device: arguments.device,
        precision: arguments.precision,
        batch: arguments.batch as usize,
        executions: arguments.executions as usize,
        warm_up: [least, 10 * least],
    };
    let times = isolation::measure(&options)?;
    let result: IsolationSummary = isolation::summary(&options, &times);
    print_times("execution", &result.execution);
    print_times("seen by the host", &result.whole);
    match result.p9999_over_p50 {
        Some(ratio) => println!("p99.99 over p50: {ratio:.4}"),
        None => println!("p99.99 over p50: not measured, of fewer than 10000 executions"),
    }
    let title = format!("{} at b = {}", result.model, result.batch);
    write(&arguments.output, machine, &result, &chart::isolated(&title, &times))?;
    match (arguments.at_most, result.p9999_over_p50) {
        (Some(most), Some(ratio)) if ratio > most => {
            eprintln!("p99.99 over p50 is {ratio:.4}, above {most}");
            Ok(ExitCode::FAILURE)
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn under_load(arguments: ServedArguments) -> Result<ExitCode, MeasureError> {
    let machine = machine();
    let ServedArguments { config, workload, rate, duration, output } = arguments;
    let options = ServedOptions { config, workload, rate, duration };
    let batches = served::measure(&options)?;
    let result: Served = served::summary(&options, &batches);
    println!("{} batches, {} sent that did not run", result.batches, result.not_run);
    print_times("shorter than predicted, by", &result.overpredicted);
    print_times("longer than predicted, by", &result.underpredicted);
    print_times("ended earlier, by", &result.completed_early);
    print_times("ended later, by", &result.completed_late);
    println!("bad: {:.3} % of {} requests", result.load.bad_rate * 100.0, result.load.good + result.load.bad);
    write(&output, machine, &result, &chart::served("Batches under load", &batches))?;
    Ok(ExitCode::SUCCESS)
}

fn machine() -> Machine {
    Machine::this(std::thread::available_parallelism().map_or(1, usize::from))
}

fn print_times(name: &str, times: &TimePercentiles) {
    let TimePercentiles { count, p50_ms, p99_ms, p999_ms, p9999_ms, max_ms, .. } = times;
    println!(
        "{name:>27}: {count} times, p50 {p50_ms:.4} ms, p99 {p99_ms:.4}, p99.9 {p999_ms:.4}, p99.99 {p9999_ms:.4}, \
         max {max_ms:.4}"
    );
}

fn write(
    output: &OutputArguments,
    machine: Machine,
    result: &impl Serialize,
    figure: &Figure,
) -> Result<(), MeasureError> {
    let save = |path: &PathBuf, text: String| {
        let failed = |error| MeasureError::Usage(format!("{}: can't be written ({error})", path.display()));
        std::fs::write(path, text).map_err(failed)
    };
    if let Some(path) = &output.json {
        let file = PredictabilityFile { command: command_line(), commit: commit(), machine, result };
        save(path, serde_json::to_string_pretty(&file).expect("plain numbers and names") + "\n")?;
    }
    if let Some(path) = &output.svg {
        save(path, figure.svg().map_err(|error| MeasureError::Failed(error.to_string()))?)?;
    }
    Ok(())
}
