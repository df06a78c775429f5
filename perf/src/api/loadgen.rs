//! Runs of `loadgen` and their results.

use super::process::{Binaries, Server};
use crate::MeasureError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A protocol of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1 with binary tensors.
    Http,
    /// gRPC with raw contents.
    Grpc,
}

impl Protocol {
    /// Both protocols.
    pub const ALL: [Protocol; 2] = [Protocol::Http, Protocol::Grpc];

    /// Returns the name for `loadgen --protocol`.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Grpc => "grpc",
        }
    }

    /// Returns the address of a server's listener for it.
    pub fn of(self, server: &Server) -> SocketAddr {
        match self {
            Protocol::Http => server.http,
            Protocol::Grpc => server.grpc,
        }
    }
}

/// The figures of a run that the measurements use.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct LoadgenRun {
    /// Requests answered in time.
    pub good: u64,
    /// All other requests.
    pub bad: u64,
    /// Good requests per second.
    pub good_rps: f64,
    /// Bad requests, as a part of all.
    pub bad_rate: f64,
    /// The latency of good and late requests.
    pub latency_ms: LatencyMs,
    /// Requests per batch; 0 where the server does not report it.
    pub mean_batch: f64,
    /// The delay of the generator.
    pub lateness_ms: LatenessMs,
}

/// Milliseconds from the intended time of sending a request until its answer.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[expect(missing_docs, reason = "percentiles")]
pub struct LatencyMs {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

/// Milliseconds from the intended time of sending a request until it was sent.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[expect(missing_docs, reason = "percentiles")]
pub struct LatenessMs {
    pub p99: f64,
    pub max: f64,
}

/// Makes a `loadgen` command for `server`, to which arguments may be added.
pub fn command(binaries: &Binaries, server: &Server, protocol: Protocol) -> Command {
    let mut command = Command::new(binaries.path("loadgen"));
    command.arg("--url").arg(format!("http://{}", protocol.of(server)));
    command.args(["--protocol", protocol.name(), "--json"]).stdin(Stdio::null());
    command
}

/// Runs `loadgen` to its end.
///
/// Errors: it fails, with its error message. Lateness of the generator is no failure but among the
/// figures.
pub fn run(mut command: Command) -> Result<LoadgenRun, MeasureError> {
    read(&command.args(["--max-lateness", "1000000"]).output()?)
}

/// Parses the output of a run that has ended.
///
/// Errors: the run failed.
pub fn read(output: &Output) -> Result<LoadgenRun, MeasureError> {
    read_as(output)
}

/// Parses the output of a run that has ended, as far as `T` has it.
///
/// Errors: the run failed.
pub fn read_as<T: DeserializeOwned>(output: &Output) -> Result<T, MeasureError> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(MeasureError::Failed(format!("loadgen ended with {}: {}", output.status, why.trim())));
    }
    serde_json::from_str(&stdout).map_err(|error| MeasureError::Failed(format!("loadgen's figures: {error}")))
}

/// A row of `loadgen --csv-requests`: the times of one request, microseconds.
#[derive(Debug, Deserialize)]
struct RequestRow {
    end: String,
    sent_us: f64,
    ended_us: f64,
    queue_us: Option<f64>,
    wait_us: Option<f64>,
    execution_us: Option<f64>,
    answer_us: Option<f64>,
    network_and_client_us: Option<f64>,
}

/// The part of a request's latency that is not its batch's time on the GPU, microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Overhead {
    /// The total.
    pub all: f64,
    /// The times until its batch was formed, until that started, from its end until the frontend
    /// had the answer, and everything that the server does not see. Zero where the server does not
    /// report them.
    pub parts: [f64; 4],
}

/// Returns the overhead of each request in a file of `loadgen --csv-requests` that was answered.
///
/// Errors: the file can't be read.
pub fn overheads(file: &Path) -> Result<Vec<Overhead>, MeasureError> {
    let failed = |error: csv::Error| MeasureError::Failed(format!("{}: {error}", file.display()));
    let mut overheads = Vec::new();
    for row in csv::Reader::from_path(file).map_err(failed)?.deserialize() {
        let row: RequestRow = row.map_err(failed)?;
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
