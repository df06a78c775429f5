//! How many infers per second an API core takes by gRPC, with 64 in flight and 16 bytes each, and
//! how that compares with a plain echo of the same stack. Both are asked in turn, in the same run,
//! on the same core, by the same generator.
//!
//! On a machine of two cores there is none for the generator: it takes its time from the API's core
//! and from the engine's. So an engine runs beside the echo too, though nobody asks it; and beside
//! the rate there is the rate per second of core time that the API's thread got, and that is what
//! is compared. Both servers sleep when they have nothing to do (they would look for work all the
//! time on a core of their own), so that such time is work.

use super::echo;
use super::loadgen::{self, Protocol};
use super::process::{Binaries, Server, Share};
use super::{EmulatedModel, Seats, Spin, Stop, median};
use serde::Serialize;

/// Infers per second that an API core should take.
pub const TARGET_PER_S: f64 = 20_000.0;
/// How much of the echo's that should be.
pub const TARGET_OF_ECHO: f64 = 0.6;
/// The name of the thread that serves connections, of either server.
const API_THREAD: &str = "api";
/// Requests under way.
const IN_FLIGHT: &str = "64";
/// Seconds of each run.
const SECONDS: &str = "4";

/// What one run gave.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// Answers per second.
    pub per_s: f64,
    /// Answers per second of core time of the API's thread.
    pub per_core_s: f64,
    /// Requests per batch.
    pub mean_batch: f64,
    /// Not answered in time.
    pub bad: u64,
}

/// One round.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// Of the echo.
    pub echo: Rate,
    /// Of Symphony.
    pub symphony: Rate,
}

impl Round {
    fn of_echo(&self) -> f64 {
        self.symphony.per_core_s / self.echo.per_core_s
    }
}

/// The figures of all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// The median of the rounds: Symphony's infers per second.
    pub per_s: f64,
    /// The same per second of the API thread's core time.
    pub per_core_s: f64,
    /// The echo's per second of its thread's core time.
    pub echo_per_core_s: f64,
    /// The median of the rounds' ratios of these two.
    pub of_echo: f64,
    /// The echo's answers per second.
    pub echo_per_s: f64,
    /// Each round.
    pub rounds: Vec<Round>,
}

/// Measures `rounds` rounds.
///
/// Errors: a server or `loadgen` broke down.
pub fn measure(binaries: &Binaries, placements: Seats, rounds: usize) -> Result<Figures, Stop> {
    let model = EmulatedModel { name: echo::MODEL, alpha_ms: 0.001, beta_ms: 0.05, slo_ms: 100.0 };
    let config = placements.config(1, Spin::No, &[model]);
    let mut seen = Vec::new();
    for _ in 0..rounds {
        // An engine that nobody asks takes from the generator what one that is asked would.
        let engine = Server::symphony(binaries, &config, Share::Whole)?;
        let echo = once(binaries, Server::echo(placements.api, Spin::No, Share::Whole)?)?;
        engine.stop()?;
        let symphony = once(binaries, Server::symphony(binaries, &config, Share::Whole)?)?;
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
    Ok(Figures {
        per_s: of(|round| round.symphony.per_s),
        per_core_s: of(|round| round.symphony.per_core_s),
        echo_per_core_s: of(|round| round.echo.per_core_s),
        of_echo: of(Round::of_echo),
        echo_per_s: of(|round| round.echo.per_s),
        rounds: seen,
    })
}

/// A run against a server that nobody else runs beside.
fn once(binaries: &Binaries, server: Server) -> Result<Rate, Stop> {
    let mut command = loadgen::command(binaries, &server, Protocol::Grpc);
    command.args(["--model", echo::MODEL, "--threads", "1", "--connections", "1"]);
    command.args(["--concurrency", IN_FLIGHT, "--duration", SECONDS]);
    let before = server.core_time(API_THREAD)?;
    let run = loadgen::run(command)?;
    let busy = server.core_time(API_THREAD)? - before;
    let per_core_s = (run.good + run.bad) as f64 / busy.as_secs_f64();
    Ok(Rate { per_s: run.good_rps, per_core_s, mean_batch: run.mean_batch, bad: run.bad })
}
