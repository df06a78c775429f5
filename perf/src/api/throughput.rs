//! The infers per second that an API core serves by gRPC, with 64 in flight and 16 bytes each,
//! beside an echo server of the same stack. Both are measured alternately, in the same run, on the
//! same core, by the same generator.
//!
//! On a machine of two cores there is none for the generator: it takes its time from the API's core
//! and from the engine's. So an idle engine runs beside the echo server too. The figure compared is
//! the rate per second of core time that the API's thread got. Both servers sleep when they are
//! idle (on a core of their own they would spin), so that their core time is work.

use super::echo;
use super::loadgen::{self, Protocol};
use super::process::{Binaries, CpuPriority, Server};
use super::{ApiPlacements, EmulatedModel, Spin, median};
use crate::MeasureError;
use serde::Serialize;

/// The target in infers per second of an API core.
pub const TARGET_PER_S: f64 = 20_000.0;
/// The target as a part of the echo server's rate.
pub const TARGET_OF_ECHO: f64 = 0.6;
/// The name of the thread that serves connections, of either server.
const API_THREAD: &str = "api";
/// The number of requests in flight.
const IN_FLIGHT: &str = "64";
/// The duration of each run in seconds.
const SECONDS: &str = "4";

/// The figures of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// Answers per second.
    pub per_s: f64,
    /// Answers per second of core time of the API's thread.
    pub per_core_s: f64,
    /// Requests per batch.
    pub mean_batch: f64,
    /// Requests not answered in time.
    pub bad: u64,
}

/// The figures of one round.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// The run of the echo server.
    pub echo: Rate,
    /// The run of Symphony.
    pub symphony: Rate,
}

impl Round {
    fn of_echo(&self) -> f64 {
        self.symphony.per_core_s / self.echo.per_core_s
    }
}

/// The figures of all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct ThroughputFigures {
    /// The median of the rounds: Symphony's infers per second.
    pub per_s: f64,
    /// Symphony's infers per second of the API thread's core time.
    pub per_core_s: f64,
    /// The echo server's answers per second of its thread's core time.
    pub echo_per_core_s: f64,
    /// The median of the rounds' ratios, per_core_s / echo_per_core_s.
    pub of_echo: f64,
    /// The echo's answers per second.
    pub echo_per_s: f64,
    /// The figures of each round.
    pub rounds: Vec<Round>,
}

/// Measures `rounds` rounds.
///
/// Errors: a server or `loadgen` broke down.
pub fn measure(
    binaries: &Binaries,
    placements: ApiPlacements,
    rounds: usize,
) -> Result<ThroughputFigures, MeasureError> {
    let model = EmulatedModel { name: echo::MODEL, alpha_ms: 0.001, beta_ms: 0.05, slo_ms: 100.0 };
    let config = placements.config(1, Spin::No, &[model]);
    let mut seen = Vec::new();
    for _ in 0..rounds {
        // An idle engine takes as much time from the generator as a busy one.
        let engine = Server::symphony(binaries, &config, CpuPriority::Normal)?;
        let echo = once(binaries, Server::echo(placements.api, Spin::No, CpuPriority::Normal)?)?;
        engine.stop()?;
        let symphony = once(binaries, Server::symphony(binaries, &config, CpuPriority::Normal)?)?;
        let round = Round { echo, symphony };
        eprintln!(
            "echo {:.0}/s, {:.0} per core-second; symphony {:.0}/s, {:.0} per core-second: {:.2} of it",
            round.echo.per_s,
            round.echo.per_core_s,
            round.symphony.per_s,
            round.symphony.per_core_s,
            round.of_echo()
        );
        seen.push(round);
    }
    let of = |figure: fn(&Round) -> f64| median(seen.iter().map(figure));
    Ok(ThroughputFigures {
        per_s: of(|round| round.symphony.per_s),
        per_core_s: of(|round| round.symphony.per_core_s),
        echo_per_core_s: of(|round| round.echo.per_core_s),
        of_echo: of(Round::of_echo),
        echo_per_s: of(|round| round.echo.per_s),
        rounds: seen,
    })
}

/// Runs `loadgen` once against a server.
fn once(binaries: &Binaries, server: Server) -> Result<Rate, MeasureError> {
    let mut command = loadgen::command(binaries, &server, Protocol::Grpc);
    command.args(["--model", echo::MODEL, "--threads", "1", "--connections", "1"]);
    command.args(["--concurrency", IN_FLIGHT, "--duration", SECONDS]);
    let before = server.core_time(API_THREAD)?;
    let run = loadgen::run(command)?;
    let busy = server.core_time(API_THREAD)? - before;
    let per_core_s = (run.good + run.bad) as f64 / busy.as_secs_f64();
    Ok(Rate { per_s: run.good_rps, per_core_s, mean_batch: run.mean_batch, bad: run.bad })
}
