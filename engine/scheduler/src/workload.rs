//! A workload: the models, the GPUs and the traffic of an experiment. The crate `symphony` reads
//! one from a TOML file; the simulator, the load generator and the benchmarks run it, so that one
//! file means the same to all of them.

use crate::profile::Profile;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use symphony_transport::Nanos;
use symphony_transport::message::{Class, NO_DEADLINE};

/// An experiment, as its file says it.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The file's name without its ending.
    pub name: String,
    /// GPUs, each able to run every model.
    pub gpus: usize,
    /// Seed of every random choice.
    pub seed: u64,
    /// Arrivals before this do not count.
    pub warmup: Nanos,
    /// How long arrivals count from the end of the warm-up.
    pub duration: Nanos,
    /// Requests per second, all models together.
    pub rate_rps: f64,
    /// The network's delays.
    pub network: Network,
    /// One entry per model: copies are already separate entries, named `NAME`, `NAME-2`, `NAME-3` …
    pub models: Vec<WorkloadModel>,
}

impl Workload {
    /// Whether any of its models is of another class than the highest, or has no deadlines: only
    /// some policies know of that.
    pub fn has_classes(&self) -> bool {
        self.models.iter().any(|model| model.class > Class::HIGHEST || model.slo == NO_DEADLINE)
    }
}

/// The network's delays, as the scheduler allows for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// d_ctrl: from the scheduler to a backend.
    pub control: Nanos,
    /// d_data: for a backend to fetch one request's input.
    pub data_per_request: Nanos,
    /// d_resp: from the backend to the frontend with the result.
    pub result: Nanos,
}

impl Network {
    /// delay(b) = d_ctrl + d_data * b: from the decision to run a batch of `size` to its earliest
    /// start.
    #[inline]
    pub fn delay(&self, size: usize) -> Nanos {
        Nanos(self.control.0 + self.data_per_request.0 * size as u64)
    }
}

/// One model of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadModel {
    /// Unique in the workload.
    pub name: String,
    /// How long a batch takes.
    pub profile: Profile,
    /// The latency promised; [`NO_DEADLINE`] if none is.
    pub slo: Nanos,
    /// The priority of its requests: 0 is served first, others use what is left.
    pub class: Class,
    /// Its part of the total rate: the models' shares sum to 1.
    pub share: f64,
    /// How its requests come.
    pub arrival: Arrival,
}

impl Arrival {
    /// Whether the process says how many requests come, so that no rate can be chosen for it.
    pub fn has_own_rate(&self) -> bool {
        matches!(self, Arrival::Trace(_) | Arrival::Minutes(_))
    }
}

/// The process by which a model's requests arrive.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrival {
    /// Exponential gaps.
    Poisson,
    /// Equal gaps.
    Uniform,
    /// Gamma-distributed gaps of this shape: the smaller, the burstier; 1 is Poisson.
    Gamma(f64),
    /// At these offsets from the start, in order; the rate is then the trace's own.
    Trace(Arc<[Nanos]>),
    /// As many requests in each minute as its entry counts, at random times in it; the rate is then
    /// the counts' own.
    Minutes(Arc<[u32]>),
}
