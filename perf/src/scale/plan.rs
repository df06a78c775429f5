//! The parameters of one run of `scale`.

use std::path::PathBuf;
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of ModelThreads.
    pub model_threads: usize,
    /// The number of RankThreads.
    pub rank_threads: usize,
    /// Models in all.
    pub models: usize,
    /// GPUs in all.
    pub gpus: usize,
    /// Requests per second in all.
    pub rate: f64,
    /// Each model's SLO.
    pub slo: Nanos,
    /// Each model's latencies.
    pub profile: Profile,
    /// The duration of the measurement, without the warm-up.
    pub duration: Nanos,
    /// The seed of the arrivals.
    pub seed: u64,
    /// The observation of the threads.
    pub watch: Watch,
}

/// The observation of a run's threads, which costs time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Watch {
    /// None: counters are summed up but not published.
    Nothing,
    /// The counters, which are always on in the engine.
    Counters,
    /// The counters, and flight recordings in this folder.
    Recorder(PathBuf),
}

impl Watch {
    /// Returns its name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Watch::Nothing => "nothing",
            Watch::Counters => "counters",
            Watch::Recorder(_) => "counters and recorder",
        }
    }
}
