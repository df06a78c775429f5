//! The command `api`: see `--help` and docs/performance.md.

use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use symphony::cli::end_quietly_on_closed_pipe;
use symphony_perf::MeasureError;
use symphony_perf::api::process::Binaries;
use symphony_perf::api::{
    ApiPlacements, Spin, echo, goodput, hosts, overhead, overload, soak, throughput, turns,
};
use symphony_perf::scale::machine::Machine;

/// Measures the cost of the thin API: `symphony serve` and `loadgen` as users run them, in
/// processes of their own.
///
/// The binaries must be in the folder of this one: cargo build --release --workspace --bins. The
/// API takes the first core that this process may use, the engine the second. Progress is on
/// standard error, the figures on standard output as JSON.
///
/// Exit code 1: a process failed, or a target was missed. 2: the command line is wrong. 3: the
/// machine lacks a requirement.
#[derive(Parser)]
#[command(name = "api", version)]
struct ApiOptions {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// A request's latency at low load, beyond its batch's time on the GPU: at most 150 us at the
    /// median
    Overhead(Rounds),
    /// gRPC infers per second with 64 in flight, beside an echo server: at least 20,000 and 0.6 of
    /// the echo server's
    Throughput(Rounds),
    /// The goodput of one emulated GPU behind the API: at least 0.95 of the simulator's
    Goodput {
        /// Duration of each run in seconds
        #[arg(long, default_value_t = 60.0)]
        seconds: f64,
    },
    /// The goodput of three processes (a frontend, the scheduler, a backend with 8 emulated GPUs):
    /// at least 0.95 of the simulator's with the delays that the links have measured
    Hosts(HostsOptions),
    /// The same by the delay that a proxy puts into the links: Symphony's Figure 13 on real sockets
    Latency {
        #[command(flatten)]
        hosts: HostsOptions,
        /// Delays of one direction of a link, of the paper's time, milliseconds
        #[arg(long, value_delimiter = ',', default_value = "0,0.25,0.5,1,1.5,2")]
        delays_ms: Vec<f64>,
        /// SLOs of the paper, milliseconds
        #[arg(long, value_delimiter = ',', default_value = "25,50")]
        slos_ms: Vec<f64>,
        /// Write the chart to a file, such as docs/results/hosts-latency.svg
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Three times the capacity: the good rate stays at 98 % of the peak's at least, and memory is
    /// flat, both by the server's own counts; the generator has a core of its own
    Overload {
        /// Duration of the overload in seconds
        #[arg(long, default_value_t = 600.0, value_parser = overload_seconds)]
        seconds: f64,
        /// Rate of the overload, as a multiple of the most good answers per second
        #[arg(long, default_value_t = 3.0, value_parser = overload_times)]
        times: f64,
        /// Write the figures with machine, commit and command to a file too, such as
        /// perf/results/api-overload.json
        #[arg(long, value_name = "FILE")]
        save: Option<PathBuf>,
    },
    /// Load with clients that connect, cancel and die: nothing may leak, every counter must add up
    Soak {
        /// Duration of the load in seconds
        #[arg(long, default_value_t = 300.0)]
        seconds: f64,
    },
    /// The longest turn of a task of an API core, with the largest bodies of every kind: at most 2
    /// ms of processor time. The server is in this process
    Turns {
        /// Number of requests of each kind
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Only the kinds whose names contain this
        #[arg(long, default_value = "")]
        only: String,
        /// Write the figures with machine, commit and command to a file too, such as
        /// perf/results/api-turns.json
        #[arg(long, value_name = "FILE")]
        save: Option<PathBuf>,
    },
    /// The echo server alone, until the process is ended
    #[command(hide = true)]
    Echo {
        /// Core that it runs on
        #[arg(long)]
        core: usize,
        /// Spin when idle
        #[arg(long)]
        spin: bool,
    },
}

#[derive(Args)]
struct Rounds {
    /// Number of rounds; figures are medians over them
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

#[derive(Args)]
struct HostsOptions {
    /// Factor by which models are slower than the paper's, and all other times longer
    #[arg(long, default_value_t = 8.0)]
    slower: f64,
    /// Duration of each step of a search in seconds
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Write the figures with machine, commit and command to a file too, such as
    /// perf/results/api-hosts.json
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

impl HostsOptions {
    fn setting(&self, models: usize, slo_ms: f64) -> hosts::HostsSetting {
        hosts::HostsSetting { gpus: 8, models, slo_ms, slower: self.slower, seconds: self.seconds }
    }
}

/// The figures, with the machine and the cores.
#[derive(Serialize)]
struct ApiReport<T> {
    passed: bool,
    machine: Machine,
    /// Where the threads are, if they have cores.
    #[serde(rename = "seats", skip_serializing_if = "Option::is_none")]
    placements: Option<ApiPlacements>,
    figures: T,
}

fn main() -> ExitCode {
    end_quietly_on_closed_pipe();
    match carry_out(ApiOptions::parse().what) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(stop) => {
            eprintln!("api: {stop}");
            ExitCode::from(stop.exit_code())
        }
    }
}

/// Runs the measurement and returns true if the targets were met.
fn carry_out(what: What) -> Result<bool, MeasureError> {
    if let What::Echo { core, spin } = what {
        return echo::serve(core, if spin { Spin::Yes } else { Spin::No }).map(|()| true);
    }
    let cores: Vec<usize> =
        core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
    let (seats, machine) = (ApiPlacements::of(&cores)?, Machine::this(cores.len()));
    let placements = Some(seats);
    if let What::Turns { rounds, only, save } = what {
        let figures = turns::measure(rounds, &only)?;
        let passed = figures.iter().all(|of| of.median_ms() <= turns::TARGET_MS);
        return report(ApiReport { passed, machine, placements, figures }, save);
    }
    let binaries = Binaries::beside_this()?;
    match what {
        What::Overhead(Rounds { rounds }) => {
            let figures = overhead::measure(&binaries, seats, rounds)?;
            let is_small = |of: &overhead::Overheads| of.all_us.p50 <= overhead::TARGET_US;
            let passed = figures.last().is_some_and(|of| is_small(&of.http) && is_small(&of.grpc));
            Ok(print(ApiReport { passed, machine, placements, figures }))
        }
        What::Throughput(Rounds { rounds }) => {
            let figures = throughput::measure(&binaries, seats, rounds)?;
            let is_enough = figures.per_s >= throughput::TARGET_PER_S;
            let passed = is_enough && figures.of_echo >= throughput::TARGET_OF_ECHO;
            Ok(print(ApiReport { passed, machine, placements, figures }))
        }
        What::Goodput { seconds } => {
            let figures = goodput::measure(&binaries, seats, seconds)?;
            let passed = figures.iter().all(|of| of.is_good);
            Ok(print(ApiReport { passed, machine, placements, figures }))
        }
        What::Hosts(options) => {
            let figures = hosts::measure(&binaries, &options.setting(1, 25.0), None)?;
            let passed = figures.of_simulated >= hosts::TARGET;
            report(ApiReport { passed, machine, placements: None, figures }, options.save)
        }
        What::Latency { hosts: options, delays_ms, slos_ms, svg } => {
            let points: Vec<(f64, f64)> =
                slos_ms.iter().flat_map(|slo| delays_ms.iter().map(move |ms| (*slo, *ms))).collect();
            let mut figures = Vec::new();
            for &(slo_ms, delay_ms) in &points {
                let put_in_ms = delay_ms * options.slower;
                figures.push(hosts::measure(&binaries, &options.setting(5, slo_ms), Some(put_in_ms))?);
                // What is measured is kept if a later point fails, or takes too long: not as
                // passed.
                if let Some(file) = options.save.as_deref().filter(|_| figures.len() < points.len()) {
                    let (machine, figures) = (machine.clone(), &figures);
                    write_result(&ApiReport { passed: false, machine, placements: None, figures }, file)?;
                }
            }
            eprint!("{}", hosts::table(&figures));
            if let Some(file) = svg {
                let drawn =
                    hosts::chart(&figures).svg().map_err(|error| MeasureError::Failed(error.to_string()))?;
                std::fs::write(file, drawn)?;
            }
            let passed = figures.iter().all(|of| of.of_simulated >= hosts::TARGET);
            report(ApiReport { passed, machine, placements: None, figures }, options.save)
        }
        What::Overload { seconds, times, save } => {
            let figures = overload::measure(&binaries, seats, &cores, seconds, times)?;
            eprintln!("{}", figures.summary());
            report(ApiReport { passed: figures.passed, machine, placements, figures }, save)
        }
        What::Soak { seconds } => {
            let figures = soak::run(&binaries, seats, seconds)?;
            figures.wrong.iter().for_each(|wrong| eprintln!("api: {wrong}"));
            Ok(print(ApiReport { passed: figures.passed, machine, placements, figures }))
        }
        What::Turns { .. } | What::Echo { .. } => unreachable!("handled above"),
    }
}

/// Prints a result, and writes it to `file` too.
fn report<T: Serialize>(result: ApiReport<T>, file: Option<PathBuf>) -> Result<bool, MeasureError> {
    if let Some(file) = file {
        write_result(&result, &file)?;
    }
    Ok(print(result))
}

fn overload_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (1.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "give 1 to 86400 seconds".to_owned())
}

fn overload_times(text: &str) -> Result<f64, String> {
    let times = text.parse().ok().filter(|times: &f64| (1.0..=100.0).contains(times));
    times.ok_or_else(|| "give 1 to 100 times the peak".to_owned())
}

/// A result as `perf/results/` keeps it (CONTRIBUTING.md).
#[derive(Serialize)]
struct ResultFile<'a, T> {
    command: String,
    commit: String,
    result: &'a ApiReport<T>,
}

/// Writes a result with the command as typed and the commit of the folder that it was typed in.
fn write_result<T: Serialize>(result: &ApiReport<T>, file: &Path) -> Result<(), MeasureError> {
    let git = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let commit = git.ok().filter(|git| git.status.success());
    let commit = commit.map(|git| String::from_utf8_lossy(&git.stdout).trim().to_owned());
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let result = ResultFile { command, commit: commit.unwrap_or_else(|| "unknown".to_owned()), result };
    let text = serde_json::to_string_pretty(&result).expect("figures are plain data");
    std::fs::write(file, text + "\n")
        .map_err(|error| MeasureError::Usage(format!("--save {}: {error}", file.display())))
}

fn print<T: Serialize>(measured: ApiReport<T>) -> bool {
    println!("{}", serde_json::to_string_pretty(&measured).expect("figures are plain data"));
    measured.passed
}
