//! The goodput of an engine of three processes (a frontend, the scheduler, and a backend with
//! emulated GPUs) behind the API, beside the simulator's for the same workload, with the delays
//! that the links have measured. With a delay put into the links by a proxy, it is Symphony's
//! Figure 13 on real sockets.
//!
//! The models are ResNet50 on a GTX 1080 Ti, as in the paper, made slower: all of their times, the
//! SLO and the delays that are put in are multiplied by the same number. That changes nothing of
//! what is decided, and makes the rates so small that a few cores carry all processes.

mod chart;
mod cluster;
mod proxy;

pub use chart::{chart, table};
pub use cluster::MeasuredNetwork;

use super::goodput::simulated_goodput;
use super::process::Binaries;
use super::{EmulatedModel, loadgen};
use crate::MeasureError;
use cluster::Cluster;
use serde::{Deserialize, Serialize};
use std::process::Command;
use std::time::Duration;

/// The least goodput, as a part of the simulator's.
pub const TARGET: f64 = 0.95;

/// The model of Figure 3 of the Symphony paper (ResNet50 on a GTX 1080 Ti): alpha and beta, in
/// milliseconds.
const RESNET50_MS: [f64; 2] = [1.053, 5.072];

/// The time for which links measure before a search, in seconds: a delay is known after 64 frames,
/// of which four come with each heartbeat.
const LOOK_S: f64 = 20.0;

/// The load meanwhile, as a part of the simulator's goodput.
const LOOK_LOAD: f64 = 0.7;

/// The difference between the highest good and the lowest bad rate at which a search ends, in
/// percent.
const RESOLUTION: &str = "2";

/// The names of models.
const NAMES: [&str; 8] = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"];

/// What is measured.
#[derive(Clone, Debug, Serialize)]
pub struct HostsSetting {
    /// The emulated GPUs.
    pub gpus: usize,
    /// The number of models, 8 at most.
    pub models: usize,
    /// The SLO of the paper, in milliseconds.
    pub slo_ms: f64,
    /// The factor by which models are slower than in the paper, and SLO and delays longer.
    pub slower: f64,
    /// The duration of each step of a search, in seconds.
    pub seconds: f64,
}

impl HostsSetting {
    fn models(&self) -> impl Iterator<Item = EmulatedModel> {
        let [alpha_ms, beta_ms] = RESNET50_MS.map(|ms| ms * self.slower);
        let slo_ms = self.slo_ms * self.slower;
        NAMES.into_iter().take(self.models).map(move |name| EmulatedModel { name, alpha_ms, beta_ms, slo_ms })
    }
}

/// The goodput by requests through the API.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Searched {
    /// The goodput.
    pub goodput_rps: f64,
    /// The best run's rate of requests answered in time.
    pub good_rps: f64,
    /// The best run's requests in a batch.
    pub mean_batch: f64,
    /// How late the generator was.
    pub lateness_ms: loadgen::LatenessMs,
    /// The machine's stalls in that run.
    pub machine_stalls: MachineStalls,
}

/// Stalls of the machine, without which a run is judged.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as loadgen reports them")]
pub struct MachineStalls {
    pub count: u64,
    pub total_ms: f64,
    pub longest_ms: f64,
}

/// The goodput of one setting and one delay.
#[derive(Clone, Debug, Serialize)]
pub struct HostsGoodput {
    /// The setting.
    pub setting: HostsSetting,
    /// The delay put into each direction of each link, in milliseconds.
    pub put_in_ms: f64,
    /// The delays that the policy allowed for at the end of the search.
    pub network: MeasuredNetwork,
    /// The simulator's goodput with these delays.
    pub simulated_rps: f64,
    /// The measured goodput.
    pub measured: Searched,
    /// The measured goodput as a part of the simulator's.
    pub of_simulated: f64,
}

/// Measures the goodput of a setting, with a delay put into the links or over loopback as it is.
///
/// Errors: a process, `loadgen` or `simulate` broke down.
pub fn measure(
    binaries: &Binaries,
    setting: &HostsSetting,
    put_in_ms: Option<f64>,
) -> Result<HostsGoodput, MeasureError> {
    let delay = put_in_ms.map(|ms| Duration::from_secs_f64(ms / 1e3));
    let look_rps = LOOK_LOAD * simulated(binaries, setting, MeasuredNetwork::default())?;
    let cluster = Cluster::start(binaries, setting, delay)?;
    let mut look = asked(binaries, &cluster, setting);
    look.args(["--rate", &look_rps.to_string(), "--duration", &LOOK_S.to_string(), "--warmup", "1"]);
    loadgen::run(look)?;
    let expected_rps = simulated(binaries, setting, cluster.measured()?)?;
    let mut search = asked(binaries, &cluster, setting);
    search.args(["--find-goodput", "--resolution", RESOLUTION, "--warmup", "2"]);
    search.args(["--rate", &expected_rps.to_string(), "--duration", &setting.seconds.to_string()]);
    let measured: Searched = loadgen::read_as(&search.args(["--max-lateness", "1000000"]).output()?)?;
    let network = cluster.measured()?;
    let simulated_rps = simulated(binaries, setting, network)?;
    let figures = HostsGoodput {
        setting: setting.clone(),
        put_in_ms: put_in_ms.unwrap_or(0.0),
        network,
        simulated_rps,
        of_simulated: measured.goodput_rps / simulated_rps,
        measured,
    };
    let HostsGoodput { put_in_ms, of_simulated, measured: Searched { goodput_rps, .. }, .. } = &figures;
    eprintln!(
        "SLO {} ms, {put_in_ms} ms put in: {goodput_rps:.0}/s, {of_simulated:.3} of the simulator's {simulated_rps:.0}/s",
        setting.slo_ms * setting.slower
    );
    Ok(figures)
}

fn asked(binaries: &Binaries, cluster: &Cluster, setting: &HostsSetting) -> Command {
    let mut command = loadgen::command(binaries, &cluster.frontend, loadgen::Protocol::Http);
    command.args(["--models", &NAMES[..setting.models].join(","), "--threads", "1"]);
    command
}

/// Returns the simulator's goodput with these delays. Its requests are at the scheduler when they
/// arrive, with the time that is left to them there: they arrive as often as at the frontend.
///
/// Errors: the simulator failed.
fn simulated(
    binaries: &Binaries,
    setting: &HostsSetting,
    network: MeasuredNetwork,
) -> Result<f64, MeasureError> {
    let MeasuredNetwork { request_us, control_us, data_us_per_request, result_us } = network;
    let seconds = 30.0 * setting.slower;
    let mut text = format!(
        "gpus = {}\nseed = 1\nwarmup_s = {}\nduration_s = {seconds}\nrate_rps = 500.0\n[network]\n\
         control_us = {control_us}\ndata_us_per_request = {data_us_per_request}\nresult_us = {result_us}\n",
        setting.gpus, setting.slower
    );
    for EmulatedModel { name, alpha_ms, beta_ms, slo_ms } in setting.models() {
        let slo_ms = slo_ms - request_us / 1e3;
        text += &format!(
            "[[models]]\nname = \"{name}\"\nalpha_ms = {alpha_ms}\nbeta_ms = {beta_ms}\nslo_ms = {slo_ms}\n"
        );
    }
    simulated_goodput(binaries, &text)
}
