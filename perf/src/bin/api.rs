//! The command `api`: see `--help` and docs/performance.md.

use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use std::process::ExitCode;
use symphony_perf::api::process::Binaries;
use symphony_perf::api::{Seats, Spin, Stop, echo, goodput, overhead, soak, throughput};
use symphony_perf::scale::machine::Machine;

/// Measures what the thin API costs: `symphony serve` and `loadgen` as users run them, in processes
/// of their own.
///
/// The binaries must stand beside this one: cargo build --release --workspace --bins. The API takes
/// the first core that this process may use, the engine the second. Progress is on standard error,
/// the figures on standard output as JSON.
///
/// Exit code 1: something broke down, or a target was missed. 2: the command line is wrong. 3: the
/// machine lacks something.
#[derive(Parser)]
#[command(name = "api", version)]
struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// A request's latency at low load, beyond its batch's time on the GPU: at most 150 us at the
    /// median
    Overhead(Rounds),
    /// gRPC infers per second with 64 in flight, beside a plain echo: at least 20,000 and 0.6 of
    /// the echo's
    Throughput(Rounds),
    /// The goodput of one emulated GPU behind the API: at least 0.95 of the simulator's
    Goodput {
        /// Seconds of each run
        #[arg(long, default_value_t = 60.0)]
        seconds: f64,
    },
    /// Load with clients that connect, cancel and die: nothing may leak, every counter must add up
    Soak {
        /// Seconds of load
        #[arg(long, default_value_t = 300.0)]
        seconds: f64,
    },
    /// The echo server alone, until the process is ended
    #[command(hide = true)]
    Echo {
        /// The core that it runs on
        #[arg(long)]
        core: usize,
        /// Look for work all the time
        #[arg(long)]
        spin: bool,
    },
}

#[derive(Args)]
struct Rounds {
    /// Rounds; figures are medians over them
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// The figures with what they were taken on.
#[derive(Serialize)]
struct Measured<T> {
    passed: bool,
    machine: Machine,
    placements: Seats,
    figures: T,
}

fn main() -> ExitCode {
    match carry_out(Options::parse().what) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(stop) => {
            eprintln!("api: {stop}");
            ExitCode::from(match stop {
                Stop::Failed(_) => 1,
                Stop::Usage(_) => 2,
                Stop::Machine(_) => 3,
            })
        }
    }
}

/// Whether the targets were met.
fn carry_out(what: What) -> Result<bool, Stop> {
    if let What::Echo { core, spin } = what {
        return echo::serve(core, if spin { Spin::Yes } else { Spin::No }).map(|()| true);
    }
    let cores: Vec<usize> =
        core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
    let (placements, binaries) = (Seats::of(&cores)?, Binaries::beside_this()?);
    let machine = Machine::this(cores.len());
    match what {
        What::Overhead(Rounds { rounds }) => {
            let figures = overhead::measure(&binaries, placements, rounds)?;
            let is_small = |of: &overhead::Overheads| of.all_us.p50 <= overhead::TARGET_US;
            let passed = figures.last().is_some_and(|of| is_small(&of.http) && is_small(&of.grpc));
            Ok(tell(Measured { passed, machine, placements, figures }))
        }
        What::Throughput(Rounds { rounds }) => {
            let figures = throughput::measure(&binaries, placements, rounds)?;
            let is_enough = figures.per_s >= throughput::TARGET_PER_S;
            let passed = is_enough && figures.of_echo >= throughput::TARGET_OF_ECHO;
            Ok(tell(Measured { passed, machine, placements, figures }))
        }
        What::Goodput { seconds } => {
            let figures = goodput::measure(&binaries, placements, seconds)?;
            let passed = figures.iter().all(|of| of.is_good);
            Ok(tell(Measured { passed, machine, placements, figures }))
        }
        What::Soak { seconds } => {
            let figures = soak::run(&binaries, placements, seconds)?;
            figures.wrong.iter().for_each(|wrong| eprintln!("api: {wrong}"));
            Ok(tell(Measured { passed: figures.passed, machine, placements, figures }))
        }
        What::Echo { .. } => unreachable!("it was served above"),
    }
}

fn tell<T: Serialize>(measured: Measured<T>) -> bool {
    println!("{}", serde_json::to_string_pretty(&measured).expect("figures are plain data"));
    measured.passed
}
