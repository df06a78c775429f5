//! The overhead of a lone request beyond its batch's time on the GPU: both ways over a socket, the
//! protocol, the scheduling, the answer. Requests of 16 bytes come at random; an emulated GPU takes
//! 0.2 ms for each and is idle most of the time.
//!
//! Estimated for HTTP: two system calls on either side, 4 x 5 us; the generator's wake-up, 20 us;
//! hyper and JSON on either side, 2 x 10 us; six hops between threads that spin, each under a
//! microsecond. Under 100 us. The state of caches and the sleep states of cores depend more on the
//! rate than on the server. So several rates are measured, and beside them the echo server, whose
//! whole latency is such overhead. The highest rate, a fifth of the GPU's capacity, is compared
//! with the target.
//!
//! In production the generator is another machine. Here it needs a core, and both are taken by
//! threads that spin. So the servers run at the lowest priority (SCHED_IDLE) and yield at once
//! whenever the generator is ready to run.

use super::loadgen::{self, Overhead, Protocol};
use super::process::{Binaries, CpuPriority, Server};
use super::{ApiPlacements, EmulatedModel, Spin, echo, median};
use crate::MeasureError;
use serde::Serialize;

/// The target: microseconds that the median request takes beyond its batch.
pub const TARGET_US: f64 = 150.0;
/// The rates in requests per second. The last is compared with the target.
const RATES: [f64; 3] = [50.0, 200.0, 1_000.0];
/// The duration of one run in seconds.
const SECONDS: &str = "2";

/// The figures at one rate.
#[derive(Clone, Debug, Serialize)]
pub struct OverheadFigures {
    /// Requests per second.
    pub rate: f64,
    /// The overheads of Symphony by HTTP.
    pub http: Overheads,
    /// The overheads of Symphony by gRPC.
    pub grpc: Overheads,
    /// The overheads of the echo server by gRPC.
    pub echo: Overheads,
}

/// Percentiles of the time beyond the batch's, microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Overheads {
    /// The number of requests.
    pub requests: usize,
    /// The percentiles over all rounds' requests together.
    pub all_us: Percentiles,
    /// The median of each round.
    pub p50_of_rounds_us: Vec<f64>,
    /// The medians of its parts: until the batch was formed, until it started, from its end until
    /// the frontend had the answer, and the part that the server does not see. Zero for the echo
    /// server, which does not report them.
    pub p50_of_parts_us: [f64; 4],
}

/// Percentiles of many values.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "percentiles")]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

/// Measures `rounds` rounds.
///
/// Errors: a server or `loadgen` broke down.
pub fn measure(
    binaries: &Binaries,
    placements: ApiPlacements,
    rounds: usize,
) -> Result<Vec<OverheadFigures>, MeasureError> {
    let model = EmulatedModel { name: echo::MODEL, alpha_ms: 0.01, beta_ms: 0.19, slo_ms: 25.0 };
    let config = placements.config(1, Spin::Yes, &[model]);
    let mut seen: [[Vec<Vec<Overhead>>; 3]; RATES.len()] = Default::default();
    for round in 0..rounds {
        let server = Server::symphony(binaries, &config, CpuPriority::Idle)?;
        for (rate, seen) in RATES.into_iter().zip(&mut seen) {
            for (protocol, seen) in Protocol::ALL.into_iter().zip(seen) {
                seen.push(once(binaries, &server, protocol, rate, round)?);
            }
        }
        server.stop()?;
        let server = Server::echo(placements.api, Spin::Yes, CpuPriority::Idle)?;
        for (rate, [_, _, seen]) in RATES.into_iter().zip(&mut seen) {
            seen.push(once(binaries, &server, Protocol::Grpc, rate, round)?);
        }
    }
    let figures = |(rate, [http, grpc, echo]): (f64, [Vec<Vec<Overhead>>; 3])| OverheadFigures {
        rate,
        http: overheads(&http),
        grpc: overheads(&grpc),
        echo: overheads(&echo),
    };
    Ok(RATES.into_iter().zip(seen).map(figures).collect())
}

fn once(
    binaries: &Binaries,
    server: &Server,
    protocol: Protocol,
    rate: f64,
    round: usize,
) -> Result<Vec<Overhead>, MeasureError> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("requests.csv");
    let mut command = loadgen::command(binaries, server, protocol);
    command.args(["--model", echo::MODEL, "--threads", "1", "--warmup", "1", "--seed", &round.to_string()]);
    command.args(["--rate", &rate.to_string(), "--duration", SECONDS]).arg("--csv-requests").arg(&file);
    loadgen::run(command)?;
    let overheads = loadgen::overheads(&file)?;
    let p50 = median(overheads.iter().map(|overhead| overhead.all));
    eprintln!("{} on {}, {rate}/s: p50 {p50:.0} us", protocol.name(), server.name());
    Ok(overheads)
}

fn overheads(rounds: &[Vec<Overhead>]) -> Overheads {
    let mut all: Vec<f64> = rounds.iter().flatten().map(|overhead| overhead.all).collect();
    all.sort_by(f64::total_cmp);
    let at = |q: f64| all.get((q * all.len() as f64) as usize).copied().unwrap_or(f64::NAN);
    let part = |at: usize| median(rounds.iter().flatten().map(|overhead| overhead.parts[at]));
    Overheads {
        requests: all.len(),
        all_us: Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99) },
        p50_of_rounds_us: rounds.iter().map(|round| median(round.iter().map(|o| o.all))).collect(),
        p50_of_parts_us: std::array::from_fn(part),
    }
}
