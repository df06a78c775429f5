//! The command `idle`: see `--help` and docs/performance.md.

use clap::Parser;
use serde::Serialize;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use symphony::config::parse_config;
use symphony::runtime::frontend::Ask;
use symphony::runtime::{Engine, Frontend, Idle, Options, no_progress};
use symphony_perf::scale::machine::Machine;
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// Measures how long an emulated GPU idles between two batches while requests wait: the engine in
/// this process, one GPU, one model whose batches of 16 take 2.6 ms, and always 64 requests. The
/// figures are on standard output as JSON.
///
/// Exit code 1: the engine did not start, or no batches followed each other.
#[derive(Parser)]
#[command(name = "idle", version)]
struct IdleOptions {
    /// Seconds of load
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// ModelThreads and RankThreads spin; without it they nap
    #[arg(long)]
    spin: bool,
    /// Delay from the scheduler to the GPU that CONFIG allows for, microseconds; from 0 the engine
    /// decides by how much batches are sent ahead
    #[arg(long, default_value_t = 0.0)]
    control_us: f64,
}

/// The number of requests in flight.
const IN_FLIGHT: usize = 64;

/// The figures, in microseconds.
#[derive(Serialize)]
struct IdleReport {
    machine: Machine,
    threads: &'static str,
    lateness_us: f64,
    batches: usize,
    idle_us_mean: f64,
    idle_us_p50: f64,
    idle_us_p99: f64,
}

fn main() -> ExitCode {
    let options = IdleOptions::parse();
    match measure(&options) {
        Ok(report) => {
            println!("{}", serde_json::to_string_pretty(&report).expect("figures are plain data"));
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            eprintln!("idle: {wrong}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &IdleOptions) -> Result<IdleReport, String> {
    let text = format!(
        "[network]\ncontrol_us = {}\n[[executors]]\nkind = \"emulated\"\n[[models]]\nname = \"m\"\n\
         executor = \"emulated\"\nslo_ms = 100\nmax_batch = 16\nprofile = {{ alpha_ms = 0.1, beta_ms = 1 }}\n",
        options.control_us
    );
    let config = parse_config(&text).map_err(|diagnostics| diagnostics.to_string())?;
    let idle = if options.spin { Idle::Spin } else { Idle::Nap };
    let of_start = Options { idle: Some(idle), ..Options::default() };
    let (engine, mut frontends) =
        Engine::start_with(config, 1, no_progress(), of_start).map_err(|error| error.to_string())?;
    let mut batches: Vec<_> =
        frontends.iter_mut().flat_map(|frontend| run(frontend, options.seconds)).collect();
    let lateness_us = engine.lateness().as_secs_f64() * 1e6;
    engine.stop();
    let mut idle_us = gaps_us(&mut batches);
    idle_us.sort_by(f64::total_cmp);
    let quantile = |part: f64| idle_us.get((idle_us.len() as f64 * part) as usize).copied();
    let (Some(idle_us_p50), Some(idle_us_p99)) = (quantile(0.5), quantile(0.99)) else {
        return Err("no two batches ran; give --seconds more".to_owned());
    };
    Ok(IdleReport {
        machine: Machine::this(std::thread::available_parallelism().map_or(1, usize::from)),
        threads: if options.spin { "spin" } else { "nap" },
        lateness_us,
        batches: batches.len(),
        idle_us_mean: idle_us.iter().sum::<f64>() / idle_us.len() as f64,
        idle_us_p50,
        idle_us_p99,
    })
}

/// Keeps requests in flight for so many seconds. Returns the start and the end of each request's
/// batch.
fn run(frontend: &mut Frontend, seconds: f64) -> Vec<(Nanos, Nanos)> {
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let mut batches = Vec::new();
    while Instant::now() < until {
        while frontend.in_flight() < IN_FLIGHT {
            if frontend.submit(&Ask::one(ModelId(0)), |_, _| ()).is_err() {
                break;
            }
        }
        let answered = frontend.poll(|_, answer| {
            if answer.timeline.has_run() {
                batches.push((answer.timeline.started, answer.timeline.finished));
            }
        });
        if answered == 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    batches
}

/// Returns the time from the end of each batch to the start of the next, in microseconds. Leaves
/// each batch in the list once.
fn gaps_us(batches: &mut Vec<(Nanos, Nanos)>) -> Vec<f64> {
    batches.sort_unstable();
    batches.dedup();
    batches.windows(2).map(|pair| (pair[1].0 - pair[0].1).as_secs_f64() * 1e6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_is_from_the_end_of_a_batch_to_the_start_of_the_next() {
        let batch = |started, finished| (Nanos::from_micros(started), Nanos::from_micros(finished));
        let mut batches = vec![batch(50, 90), batch(10, 40), batch(10, 40), batch(90, 95)];
        assert_eq!(gaps_us(&mut batches), [10.0, 0.0]);
        assert_eq!(batches.len(), 3);
    }
}
