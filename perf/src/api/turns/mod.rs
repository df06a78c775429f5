//! The longest time for which one request keeps an API core from all others: bodies as large as
//! they may be, of every kind, are sent to a server in this process, one after another, each to a
//! server of its own. What counts is the processor time of a task's turn, so that other threads of
//! the machine do not matter. What its host takes from a virtual machine is in that time too, so a
//! kind is judged by the median of several rounds: work that takes long does so in every round.
//! And memory is touched before: a page that the host has taken back from an idle machine costs 65
//! us at its next use, at times milliseconds, instead of one.

mod bodies;
mod clients;

use crate::MeasureError;
use crate::api::loadgen::Protocol;
use bodies::{KINDS, LargeRequest, MODELS, REGION_BYTES, REGION_KEY};
use serde::Serialize;
use std::net::SocketAddr;
use std::sync::Arc;
use symphony::api::{ApiConfig, ApiHandle, TurnClock, start};
use symphony::config::parse_config;
use symphony::runtime::{Engine, no_progress};
use symphony::telemetry::{CoreTurns, Telemetry};

/// The most milliseconds that a turn may take.
pub const TARGET_MS: f64 = 2.0;

/// The memory that is touched before the rounds of a kind: more than they use.
const WARM_BYTES: usize = 4 << 30;

/// The turns of an API core that was sent requests of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct TurnFigures {
    /// The kind of request.
    pub kind: &'static str,
    /// The bytes of its body.
    pub body_bytes: usize,
    /// The bytes of its answer.
    pub answer_bytes: usize,
    /// The longest turn of a task in each round, from the shortest to the longest, in milliseconds
    /// of processor time.
    pub longest_ms: Vec<f64>,
    /// The number of turns of more than 2 ms in all rounds.
    pub long_turns: u64,
}

impl TurnFigures {
    /// Returns the longest turn of the median round, in milliseconds.
    pub fn median_ms(&self) -> f64 {
        self.longest_ms.get(self.longest_ms.len() / 2).copied().unwrap_or(f64::INFINITY)
    }
}

/// Sends each kind of request once in each of `rounds` rounds, or the kinds whose names contain
/// `only`.
///
/// Errors: the server can't be started, or a request was not answered as it should be.
pub fn measure(rounds: usize, only: &str) -> Result<Vec<TurnFigures>, MeasureError> {
    let kinds = KINDS.iter().filter(|(kind, _)| kind.contains(only));
    kinds.map(|(kind, request)| measure_one(kind, &request(), rounds)).collect()
}

fn measure_one(
    kind: &'static str,
    request: &LargeRequest,
    rounds: usize,
) -> Result<TurnFigures, MeasureError> {
    let (body_bytes, longest_ms) = (request.body.len(), Vec::new());
    let mut figures = TurnFigures { kind, body_bytes, answer_bytes: 0, longest_ms, long_turns: 0 };
    // Not zeros, which would be pages that nobody has touched.
    drop(std::hint::black_box(vec![1u8; WARM_BYTES]));
    for _ in 0..rounds {
        let server = TurnsServer::start()?;
        let _region = SharedFile::create()?;
        clients::post(server.addr, "v2/systemsharedmemory/region/r/register", &[], &bodies::registration())?;
        let answer = match request.protocol {
            Protocol::Http => clients::post(server.addr, &request.call, &request.headers, &request.body)?,
            Protocol::Grpc => clients::grpc(server.addr, &request.call, &request.headers, &request.body)?,
        };
        if answer.is_good != request.is_good {
            return Err(MeasureError::Failed(format!("{kind}: {}", answer.start)));
        }
        let CoreTurns { long, longest, .. } = server.turns();
        figures.answer_bytes = answer.bytes;
        figures.longest_ms.push(longest.as_millis_f64());
        figures.long_turns += long;
    }
    figures.longest_ms.sort_by(f64::total_cmp);
    let (median, worst) = (figures.median_ms(), figures.longest_ms.last().copied().unwrap_or_default());
    let of_more = format_args!("{} of more than {TARGET_MS} ms", figures.long_turns);
    eprintln!("{kind}: longest turn {median:.3} ms in the median round, {worst:.3} ms in all; {of_more}");
    Ok(figures)
}

/// A server in this process.
struct TurnsServer {
    addr: SocketAddr,
    telemetry: Arc<Telemetry>,
    api: Option<ApiHandle>,
    engine: Option<Engine>,
}

impl TurnsServer {
    fn start() -> Result<TurnsServer, MeasureError> {
        let failed = |error: String| MeasureError::Failed(error);
        let config = parse_config(MODELS).map_err(|error| failed(error.to_string()))?;
        let (engine, mut frontends) =
            Engine::start(config, 1, no_progress()).map_err(|error| failed(error.to_string()))?;
        let frontend = frontends.pop().ok_or_else(|| failed("the engine has no frontend".into()))?;
        let telemetry = Arc::new(Telemetry::through(&frontend));
        let api = ApiConfig {
            turn_clock: TurnClock::Processor,
            telemetry: Some(Arc::clone(&telemetry)),
            ..ApiConfig::at(([127, 0, 0, 1], 0).into())
        };
        let api = start(frontend, api).map_err(|error| failed(error.to_string()))?;
        Ok(TurnsServer { addr: api.local_addr(), telemetry, api: Some(api), engine: Some(engine) })
    }

    fn turns(&self) -> CoreTurns {
        self.telemetry.turns().pop().expect("a core is running")
    }
}

impl Drop for TurnsServer {
    fn drop(&mut self) {
        // The API ends first: it waits for the engine's answers.
        drop(self.api.take());
        if let Some(engine) = self.engine.take() {
            engine.stop();
        }
    }
}

/// The shared memory, removed when this is dropped.
struct SharedFile(String);

impl SharedFile {
    fn create() -> Result<SharedFile, MeasureError> {
        let file = SharedFile(format!("/dev/shm{REGION_KEY}"));
        std::fs::write(&file.0, vec![0; REGION_BYTES])?;
        Ok(file)
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // It may have been removed from outside.
        let _ = std::fs::remove_file(&self.0);
    }
}
