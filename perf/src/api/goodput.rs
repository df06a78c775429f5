//! One emulated GPU behind the API, beside the simulator: the same model, SLO, policy and arrivals,
//! and the same network delay allowed for. The differences are sockets, threads that
//! share two cores, and a generator beside them.
//!
//! One rate is run: 0.95 of the simulator's goodput. If at most 1 % of a minute's requests are bad,
//! the goodput is at least that rate. (A search would need as long a run for
//! each of its steps: over ten seconds the simulator's own goodput varies by 5 % with the seed.)
//!
//! The network delay is measured first: the time of a request that the server does not see, at the
//! 99th percentile, at half of the simulator's rate. It is configured in the server
//! (`[network] result_us`) and in the simulator.

use super::loadgen::{self, LoadgenRun, Protocol};
use super::process::{Binaries, CpuPriority, Server};
use super::{ApiPlacements, EmulatedModel, Spin};
use crate::MeasureError;
use serde::{Deserialize, Serialize};
use std::fs;
use std::process::Command;

/// The target, as a part of the simulator's goodput.
pub const TARGET: f64 = 0.95;

/// The model of Figure 3 of the Symphony paper (ResNet50 on a GTX 1080 Ti), with its SLO.
const MODEL: EmulatedModel = EmulatedModel { name: "m", alpha_ms: 1.053, beta_ms: 5.072, slo_ms: 25.0 };
/// The duration of the run that measures the delay, in seconds.
const LOOK_S: &str = "5";
/// The share of bad requests that a good rate may have.
const MOST_BAD: f64 = 0.01;

/// The figures of one protocol.
#[derive(Clone, Debug, Serialize)]
pub struct GoodputFigures {
    /// The protocol.
    pub protocol: Protocol,
    /// The delay that was measured and allowed for, microseconds.
    pub network_us: f64,
    /// The simulator's goodput with that delay.
    pub simulated_rps: f64,
    /// The rate that was asked for through the API.
    pub rate_rps: f64,
    /// True if at most 1 % were bad.
    pub is_good: bool,
    /// The figures of the run.
    pub run: LoadgenRun,
}

/// Measures each protocol for `seconds`.
///
/// Errors: the server, `loadgen` or `simulate` broke down.
pub fn measure(
    binaries: &Binaries,
    placements: ApiPlacements,
    seconds: f64,
) -> Result<Vec<GoodputFigures>, MeasureError> {
    Protocol::ALL.into_iter().map(|protocol| of(binaries, placements, protocol, seconds)).collect()
}

fn of(
    binaries: &Binaries,
    placements: ApiPlacements,
    protocol: Protocol,
    seconds: f64,
) -> Result<GoodputFigures, MeasureError> {
    let undelayed = simulated(binaries, MODEL, 1, 0.0)?;
    let network_us = network(binaries, placements, protocol, undelayed / 2.0)?;
    let simulated_rps = simulated(binaries, MODEL, 1, network_us)?;
    eprintln!(
        "{}: {network_us:.0} us of network; the simulator reaches {simulated_rps:.0}/s",
        protocol.name()
    );
    let server = Server::symphony(binaries, &config(placements, network_us), CpuPriority::Normal)?;
    let rate_rps = TARGET * simulated_rps;
    let mut command = asked(binaries, &server, protocol);
    command.args(["--warmup", "1", "--rate", &rate_rps.to_string(), "--duration", &seconds.to_string()]);
    let run = loadgen::run(command)?;
    server.stop()?;
    eprintln!(
        "{}: at {rate_rps:.0}/s, {:.2} % are bad through the API",
        protocol.name(),
        100.0 * run.bad_rate
    );
    Ok(GoodputFigures {
        protocol,
        network_us,
        simulated_rps,
        rate_rps,
        is_good: run.bad_rate <= MOST_BAD,
        run,
    })
}

/// Makes a server's configuration that allows for this delay.
fn config(placements: ApiPlacements, network_us: f64) -> String {
    format!("{}[network]\nresult_us = {network_us}\n", placements.config(1, Spin::No, &[MODEL]))
}

fn asked(binaries: &Binaries, server: &Server, protocol: Protocol) -> Command {
    let mut command = loadgen::command(binaries, server, protocol);
    command.args(["--model", MODEL.name, "--slo-ms", &MODEL.slo_ms.to_string(), "--threads", "1"]);
    command
}

/// Measures the part of a request's latency that the server does not see, microseconds, p99.
fn network(
    binaries: &Binaries,
    placements: ApiPlacements,
    protocol: Protocol,
    rate: f64,
) -> Result<f64, MeasureError> {
    let server = Server::symphony(binaries, &config(placements, 0.0), CpuPriority::Normal)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("requests.csv");
    let mut command = asked(binaries, &server, protocol);
    command.args(["--rate", &rate.to_string(), "--duration", LOOK_S, "--warmup", "1", "--csv-requests"]);
    loadgen::run({
        command.arg(&file);
        command
    })?;
    server.stop()?;
    let mut unseen: Vec<f64> = loadgen::overheads(&file)?.iter().map(|overhead| overhead.parts[3]).collect();
    unseen.sort_by(f64::total_cmp);
    let p99 = unseen.get(unseen.len() * 99 / 100).copied();
    p99.map(f64::round).ok_or_else(|| MeasureError::Failed("no request was answered".into()))
}

/// The output of `simulate --goodput --json` for a workload.
#[derive(Deserialize)]
struct Simulated {
    goodput_rps: f64,
}

/// Runs the simulator for a model on emulated GPUs with this network delay and returns its goodput.
///
/// Errors: the simulator failed.
pub(super) fn simulated(
    binaries: &Binaries,
    model: EmulatedModel,
    gpus: usize,
    network_us: f64,
) -> Result<f64, MeasureError> {
    let EmulatedModel { name, alpha_ms, beta_ms, slo_ms } = model;
    let text = format!(
        "gpus = {gpus}\nseed = 1\nwarmup_s = 1.0\nduration_s = 60.0\nrate_rps = 500.0\n[network]\nresult_us = {network_us}\n\
         [[models]]\nname = \"{name}\"\nalpha_ms = {alpha_ms}\nbeta_ms = {beta_ms}\nslo_ms = {slo_ms}\n"
    );
    simulated_goodput(binaries, &text)
}

/// Runs the simulator on a workload file with this text and returns its goodput.
///
/// Errors: the simulator failed.
pub(super) fn simulated_goodput(binaries: &Binaries, workload: &str) -> Result<f64, MeasureError> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("workload.toml");
    fs::write(&file, workload)?;
    let output = Command::new(binaries.path("simulate")).arg(&file).args(["--goodput", "--json"]).output()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(MeasureError::Failed(format!("simulate ended with {}: {}", output.status, why.trim())));
    }
    let found: Simulated = serde_json::from_slice(&output.stdout)
        .map_err(|error| MeasureError::Failed(format!("simulate's figures: {error}")))?;
    Ok(found.goodput_rps)
}
