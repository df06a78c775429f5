//! Runs of `loadgen`, and what they say.

use super::Stop;
use super::process::{Binaries, Server};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// How requests travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1 with binary tensors.
    Http,
    /// gRPC with raw contents.
    Grpc,
}

impl Protocol {
    /// Both.
    pub const ALL: [Protocol; 2] = [Protocol::Http, Protocol::Grpc];

    /// Its name for `loadgen --protocol`.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Grpc => "grpc",
        }
    }

    /// Where a server speaks it.
    pub fn of(self, server: &Server) -> SocketAddr {
        match self {
            Protocol::Http => server.http,
            Protocol::Grpc => server.grpc,
        }
    }
}

/// The figures of a run that are looked at here.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Run {
    /// Answered in time.
    pub good: u64,
    /// All others.
    pub bad: u64,
    /// Good requests per second.
    pub good_rps: f64,
    /// Bad requests, as a part of all.
    pub bad_rate: f64,
    /// Of good and late requests.
    pub latency_ms: Latency,
    /// Requests per batch; 0 where the server does not tell.
    pub mean_batch: f64,
    /// How late the generator was.
    pub lateness_ms: Lateness,
}

/// Milliseconds from when a request was meant to be sent until it was answered.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[expect(missing_docs, reason = "percentiles")]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

/// Milliseconds after the intended time at which requests were sent.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[expect(missing_docs, reason = "percentiles")]
pub struct Lateness {
    pub p99: f64,
    pub max: f64,
}

/// A command that asks `server`, to which more may be added.
pub fn command(binaries: &Binaries, server: &Server, protocol: Protocol) -> Command {
    let mut command = Command::new(binaries.path("loadgen"));
    command.arg("--url").arg(format!("http://{}", protocol.of(server)));
    command.args(["--protocol", protocol.name(), "--json"]).stdin(Stdio::null());
    command
}

/// Runs it to its end.
///
/// Errors: it fails, with its own words; a generator that was late is no failure here: its lateness
/// is in the figures.
pub fn run(mut command: Command) -> Result<Run, Stop> {
    read(&command.args(["--max-lateness", "1000000"]).output()?)
}

/// What a run that is over said.
///
/// Errors: it failed.
pub fn read(output: &Output) -> Result<Run, Stop> {
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(Stop::Failed(format!("loadgen ended with {}: {}", output.status, why.trim())));
    }
    serde_json::from_str(&said).map_err(|error| Stop::Failed(format!("loadgen's figures: {error}")))
}

/// A request's own times, microseconds.
#[derive(Debug, Deserialize)]
struct Row {
    end: String,
    sent_us: f64,
    ended_us: f64,
    queue_us: Option<f64>,
    wait_us: Option<f64>,
    execution_us: Option<f64>,
    answer_us: Option<f64>,
    network_and_client_us: Option<f64>,
}

/// What of a request's latency is not its batch's time on the GPU, microseconds, and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct Overhead {
    /// All of it.
    pub all: f64,
    /// Until its batch was put together, until that started, from its end until the frontend had
    /// the answer, and everything that the server does not see. Zero where the server does not
    /// tell.
    pub parts: [f64; 4],
}

/// Of each request of a file of `loadgen --csv-requests` that was answered.
///
/// Errors: the file can't be read.
pub fn overheads(file: &Path) -> Result<Vec<Overhead>, Stop> {
    let failed = |error: csv::Error| Stop::Failed(format!("{}: {error}", file.display()));
    let mut overheads = Vec::new();
    for row in csv::Reader::from_path(file).map_err(failed)?.deserialize() {
        let row: Row = row.map_err(failed)?;
        if row.end != "good" {
            continue;
        }
        let parts = [row.queue_us, row.wait_us, row.answer_us, row.network_and_client_us];
        overheads.push(Overhead {
            all: row.ended_us - row.sent_us - row.execution_us.unwrap_or(0.0),
            parts: parts.map(Option::unwrap_or_default),
        });
    }
    Ok(overheads)
}
