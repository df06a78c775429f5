//! The models and workloads of the papers, made by the experiments: which models on how many GPUs,
//! for how long.

use super::Effort;
use symphony_perf::zoo::Model;
use symphony_scheduler::query::DeadlineSplit;
use symphony_scheduler::workload::{Arrival, Network, Workload, WorkloadModel};
use symphony_transport::Nanos;

/// ResNet50 on the GPUs of Symphony's Table 4, SLO 25 ms. The paper's other experiments with
/// ResNet-like models do not give their profile; here they have this one.
pub const RESNET50: Model<'_> = Model { name: "ResNet50", alpha_ms: 1.053, beta_ms: 5.072, slo_ms: 25.0 };

/// InceptionResNetV2 of Symphony's Table 4, SLO 70 ms.
pub const INCEPTION_RESNET: Model<'_> =
    Model { name: "InceptionResNetV2", alpha_ms: 5.090, beta_ms: 18.368, slo_ms: 70.0 };

/// A workload in the making: equal shares, Poisson arrivals and no network delay unless said
/// otherwise.
#[derive(Clone, Debug)]
pub struct Setting {
    workload: Workload,
}

impl Setting {
    /// Makes a workload of these models, one of each, on `gpus` GPUs. Its rate is set by the
    /// goodput search, or by [`Setting::rate`].
    pub fn new<'a>(gpus: usize, models: impl IntoIterator<Item = Model<'a>>, effort: Effort) -> Setting {
        let models: Vec<WorkloadModel> = models
            .into_iter()
            .map(|model| {
                WorkloadModel::new(model.name, model.profile(), Nanos::from_millis_f64(model.slo_ms))
            })
            .collect();
        let workload = Workload {
            name: "experiment".to_owned(),
            gpus,
            seed: effort.seed,
            warmup: Nanos::from_secs(2),
            duration: Nanos::from_secs(10),
            rate_rps: 1.0,
            network: Network::default(),
            models,
            queries: Vec::new(),
            split: DeadlineSplit::default(),
        };
        Setting { workload }.shared(|_| 1.0)
    }

    /// Takes an existing workload with another seed.
    pub fn of(workload: Workload, seed: u64) -> Setting {
        Setting { workload: Workload { seed, ..workload } }
    }

    /// Makes a workload of `copies` independent models of one profile.
    pub fn copies(gpus: usize, model: Model<'_>, copies: usize, effort: Effort) -> Setting {
        Setting::new(gpus, std::iter::repeat_n(model, copies), effort)
    }

    /// Gives the k-th model 1 / k^`exponent` of the first model's rate.
    pub fn zipf(self, exponent: f64) -> Setting {
        self.shared(|at| (at as f64 + 1.0).powf(-exponent))
    }

    /// Gives model number `at` a part of the rate in proportion to `share(at)`.
    pub fn shared(mut self, share: impl Fn(usize) -> f64) -> Setting {
        let models = &mut self.workload.models;
        let sum: f64 = (0..models.len()).map(&share).sum();
        models.iter_mut().enumerate().for_each(|(at, model)| model.share = share(at) / sum);
        self
    }

    /// Sets the arrivals of all models' requests.
    pub fn arriving(mut self, arrival: &Arrival) -> Setting {
        self.workload.models.iter_mut().for_each(|model| model.arrival = arrival.clone());
        self
    }

    /// Sets the measured time: from `warmup_s` for `duration_s` seconds.
    pub fn lasting(mut self, warmup_s: f64, duration_s: f64) -> Setting {
        self.workload.warmup = Nanos::from_secs_f64(warmup_s);
        self.workload.duration = Nanos::from_secs_f64(duration_s);
        self
    }

    /// Sets a duration with `requests` for each model if all GPUs run their largest batches, at
    /// least `least_s`.
    pub fn lasting_for(self, requests: f64, least_s: f64) -> Setting {
        let seconds = (requests * self.workload.models.len() as f64 / self.bound_rps()).max(least_s);
        self.lasting((seconds * 0.2).max(1.0), seconds)
    }

    /// Sets the network's delays.
    pub fn network(mut self, network: Network) -> Setting {
        self.workload.network = network;
        self
    }

    /// Sets the rate of all models together.
    pub fn rate(mut self, rate_rps: f64) -> Setting {
        self.workload.rate_rps = rate_rps;
        self
    }

    /// Returns the workload.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Changes the models one by one.
    pub fn each_model(mut self, change: impl Fn(usize, &mut WorkloadModel)) -> Setting {
        self.workload.models.iter_mut().enumerate().for_each(|(at, model)| change(at, model));
        self
    }

    /// Returns the rate that would keep all GPUs busy with the largest batches that the SLOs allow.
    pub fn bound_rps(&self) -> f64 {
        let seconds = |model: &WorkloadModel| {
            let largest = model.profile.max_batch();
            model.share * model.profile.latency(largest).as_secs_f64() / largest as f64
        };
        self.workload.gpus as f64 / self.workload.models.iter().map(seconds).sum::<f64>()
    }

    /// Returns a job's weight: about the number of requests that a goodput search simulates.
    pub fn search_weight(&self) -> f64 {
        SEARCH_RUNS * self.run_weight(self.bound_rps() * 0.8)
    }

    /// Returns a job's weight: the number of requests that one run at `rate_rps` simulates.
    pub fn run_weight(&self, rate_rps: f64) -> f64 {
        rate_rps * (self.workload.warmup + self.workload.duration).as_secs_f64()
    }
}

/// The number of runs of a goodput search.
const SEARCH_RUNS: f64 = 8.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_sum_to_one() {
        let effort = Effort { full: false, seed: 1 };
        let setting = Setting::copies(8, RESNET50, 20, effort).zipf(0.9);
        let sum: f64 = setting.workload().models.iter().map(|model| model.share).sum();
        assert!((sum - 1.0).abs() < 1e-9);
        assert_eq!(setting.workload().models[0].profile.max_batch(), 18);
    }
}
