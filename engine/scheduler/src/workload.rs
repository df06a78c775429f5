//! A workload: the models, the GPUs and the traffic of an experiment. The crate `symphony` reads
//! one from a TOML file; the simulator, the load generator and the benchmarks run it, so that one
//! file means the same to all of them.

use crate::gaps::DrawnGaps;
use crate::load_phases::LoadPhases;
use crate::profile::Profile;
use crate::query::{DeadlineSplit, QueryGraph};
use crate::run_time::VaryingModel;
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use symphony_transport::Nanos;
use symphony_transport::message::{Class, NO_DEADLINE};

/// An experiment. [`Workload::of_models`] makes one in code.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The name: of a file, its name without the ending.
    pub name: String,
    /// GPUs, each able to run every model.
    pub gpus: usize,
    /// Seed of every random choice.
    pub seed: u64,
    /// The time before which arrivals do not count.
    pub warmup: Nanos,
    /// The time, from the end of the warm-up, in which arrivals count.
    pub duration: Nanos,
    /// Requests per second, all models and queries together.
    pub rate_rps: f64,
    /// The network's delays.
    pub network: Network,
    /// One entry per model: copies are already separate entries, named `NAME`, `NAME-2`, `NAME-3` …
    pub models: Vec<WorkloadModel>,
    /// The queries, whose stages are requests of the models.
    pub queries: Vec<WorkloadQuery>,
    /// How the queries' SLOs are divided over their stages.
    pub split: DeadlineSplit,
}

impl Workload {
    /// Returns a workload of these models at equal rates, `rate_rps` together: 20 s after a
    /// second's warm-up, seed 1, on a network without delays.
    pub fn of_models(gpus: usize, rate_rps: f64, mut models: Vec<WorkloadModel>) -> Workload {
        let share = 1.0 / models.len() as f64;
        models.iter_mut().for_each(|model| model.share = share);
        Workload {
            name: "workload".to_owned(),
            gpus,
            seed: 1,
            warmup: Nanos::from_secs(1),
            duration: Nanos::from_secs(20),
            rate_rps,
            network: Network::default(),
            models,
            queries: Vec::new(),
            split: DeadlineSplit::default(),
        }
    }

    /// Returns each model's requests for one arrival, be it a request or a query: the model's
    /// share, and what the queries' stages are expected to add.
    pub fn request_shares(&self) -> Vec<f64> {
        let mut shares: Vec<f64> = self.models.iter().map(|model| model.share).collect();
        for WorkloadQuery { graph, share, .. } in &self.queries {
            for (stage, items) in graph.stages.iter().zip(graph.expected_items()) {
                shares[stage.model.0 as usize] += share * items;
            }
        }
        shares
    }

    /// Returns true if any of the models has another class than the highest, or no deadlines: only
    /// some policies support these.
    pub fn has_classes(&self) -> bool {
        self.models.iter().any(|model| model.class > Class::HIGHEST || model.slo == NO_DEADLINE)
    }
}

/// A query of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadQuery {
    /// The stages and the SLO.
    pub graph: QueryGraph,
    /// The part of the total rate: the shares of models and queries sum to 1.
    pub share: f64,
    /// The process by which the queries arrive.
    pub arrival: Arrival,
}

/// The network's delays, as the scheduler allows for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// d_ctrl: the delay of a message from the scheduler to a backend.
    pub control: Nanos,
    /// d_data: the time in which a backend fetches one request's input.
    pub data_per_request: Nanos,
    /// d_resp: the delay of a result from the backend to the frontend.
    pub result: Nanos,
}

impl Network {
    /// Returns delay(b) = d_ctrl + d_data * b: the time from the decision to run a batch of `size`
    /// to its earliest start.
    #[inline]
    pub fn delay(&self, size: usize) -> Nanos {
        Nanos(self.control.0 + self.data_per_request.0 * size as u64)
    }

    /// Returns these delays, each made smaller by the same factor if those of a request alone, in
    /// sum, are longer than `most`. A model whose delays leave its batches no time would run none.
    pub fn within(self, most: Nanos) -> Network {
        let sum = self.delay(1).0.saturating_add(self.result.0);
        if sum <= most.0 {
            return self;
        }
        let part = |delay: Nanos| Nanos((u128::from(delay.0) * u128::from(most.0) / u128::from(sum)) as u64);
        let Network { control, data_per_request, result } = self;
        Network { control: part(control), data_per_request: part(data_per_request), result: part(result) }
    }
}

/// One model of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadModel {
    /// The name, unique in the workload.
    pub name: String,
    /// The latency of a batch, by its size.
    pub profile: Profile,
    /// The SLO on a request's latency; [`NO_DEADLINE`] if there is none.
    pub slo: Nanos,
    /// The priority class of the requests: 0 is served first, others backfill the gaps.
    pub class: Class,
    /// The part of the total rate: the shares of models and queries sum to 1.
    pub share: f64,
    /// The process by which the requests arrive.
    pub arrival: Arrival,
    /// How long batches really take where requests have run times of their own; `None` where they
    /// take what the profile says. No scheduler may look at a request's own run time.
    pub varying: Option<VaryingModel>,
}

impl WorkloadModel {
    /// Returns a model of the highest class with Poisson arrivals, which has all of the rate.
    pub fn new(name: &str, profile: Profile, slo: Nanos) -> WorkloadModel {
        WorkloadModel {
            name: name.to_owned(),
            profile,
            slo,
            class: Class::HIGHEST,
            share: 1.0,
            arrival: Arrival::Poisson,
            varying: None,
        }
    }
}

impl Arrival {
    /// Returns true if the process fixes the number of requests, so that no rate can be chosen for
    /// it.
    pub fn has_own_rate(&self) -> bool {
        match self {
            Arrival::Trace(_) | Arrival::Minutes(_) => true,
            Arrival::Phased(process, _) | Arrival::Drawn(process, _) => process.has_own_rate(),
            Arrival::Poisson | Arrival::Uniform | Arrival::Gamma(_) => false,
        }
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
    /// Arrivals at these offsets from the start, in order; the rate is the trace's own.
    Trace(Arc<[Nanos]>),
    /// A count of requests for each minute, at random times in it; the rate is the counts' own.
    Minutes(Arc<[u32]>),
    /// A process whose rate goes up and down by phases.
    Phased(Arc<Arrival>, LoadPhases),
    /// A process whose first gaps are drawn beforehand, for runs at many rates.
    Drawn(Arc<Arrival>, Arc<DrawnGaps>),
}
