//! What a lone request takes beyond its batch's time on the GPU: both ways over a socket, the
//! protocol, the scheduling, the answer. Requests of 16 bytes come at random; an emulated GPU takes
//! 0.2 ms for each and is idle most of the time.
//!
//! Estimated for HTTP: two system calls on either side, 4 x 5 us; the generator's wake-up, 20 us;
//! hyper and JSON on either side, 2 x 10 us; six hops between threads that spin, each under a
//! microsecond. Under 100 us. How warm the caches and how awake the cores are depends on the rate,
//! more than on anything that the server does; so several rates are measured, and beside them the
//! plain echo, whose whole latency is such overhead. The highest rate, a fifth of what the GPU can
//! do, is held against the target.
//!
//! The generator would be another machine. Here it needs a core, and both are taken by threads that
//! spin; so the servers run at the lowest priority (SCHED_IDLE) and give way at once whenever the
//! generator has something to do.

use super::loadgen::{self, Overhead, Protocol};
use super::process::{Binaries, Server, Share};
use super::{EmulatedModel, Seats, Spin, Stop, echo, median};
use serde::Serialize;

/// Microseconds that the median request may take beyond its batch.
pub const TARGET_US: f64 = 150.0;
/// Requests per second. The last is held against the target.
const RATES: [f64; 3] = [50.0, 200.0, 1_000.0];
/// Seconds of one run.
const SECONDS: &str = "2";

/// The figures at one rate.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Requests per second.
    pub rate: f64,
    /// Of Symphony by HTTP.
    pub http: Overheads,
    /// Of Symphony by gRPC.
    pub grpc: Overheads,
    /// Of the echo, by gRPC.
    pub echo: Overheads,
}

/// Beyond the batch's time, microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Overheads {
    /// Requests that were looked at.
    pub requests: usize,
    /// Of all rounds' requests together.
    pub all_us: Percentiles,
    /// The median of each round.
    pub p50_of_rounds_us: Vec<f64>,
    /// Medians of its parts: until the batch was put together, until it started, from its end until
    /// the frontend had the answer, and what the server does not see. Zero for the echo, which does
    /// not tell.
    pub p50_of_parts_us: [f64; 4],
}

/// Of many.
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
pub fn measure(binaries: &Binaries, placements: Seats, rounds: usize) -> Result<Vec<Figures>, Stop> {
    let model = EmulatedModel { name: echo::MODEL, alpha_ms: 0.01, beta_ms: 0.19, slo_ms: 25.0 };
    let config = placements.config(1, Spin::Yes, &[model]);
    let mut seen: [[Vec<Vec<Overhead>>; 3]; RATES.len()] = Default::default();
    for round in 0..rounds {
        let server = Server::symphony(binaries, &config, Share::Rest)?;
        for (rate, seen) in RATES.into_iter().zip(&mut seen) {
            for (protocol, seen) in Protocol::ALL.into_iter().zip(seen) {
                seen.push(once(binaries, &server, protocol, rate, round)?);
            }
        }
        server.stop()?;
        let server = Server::echo(placements.api, Spin::Yes, Share::Rest)?;
        for (rate, [_, _, seen]) in RATES.into_iter().zip(&mut seen) {
            seen.push(once(binaries, &server, Protocol::Grpc, rate, round)?);
        }
    }
    let figures = |(rate, [http, grpc, echo]): (f64, [Vec<Vec<Overhead>>; 3])| Figures {
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
) -> Result<Vec<Overhead>, Stop> {
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
