//! What must hold for a whole scheduler of this folder, whatever it decides: random workloads in
//! the simulator, watched event by event. For the tests of the baselines, which have options that
//! the tests of all policies do not vary.

use super::{Options, Policy};
use crate::profile::Profile;
use crate::sim::report::Report;
use crate::sim::{Fault, Observer, simulate_observed};
use crate::workload::{Arrival, Network, Workload, WorkloadModel};
use proptest::prelude::*;
use std::collections::HashMap;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Class, Ending, Request};

/// Everything that was seen.
#[derive(Default)]
pub(super) struct Watch {
    /// By request: how often it ended, less how often it came back.
    endings: HashMap<u64, i32>,
    arrived: usize,
    gpu_free_at: HashMap<u32, Nanos>,
    pub(super) preemptions: usize,
    pub(super) decisions: Vec<(Nanos, u64, u32, Nanos, u32)>,
}

impl Watch {
    fn end(&mut self, request: &Request) {
        *self.endings.entry(request.id).or_default() += 1;
    }
}

impl Observer for Watch {
    fn arrived(&mut self, _request: &Request) {
        self.arrived += 1;
    }

    fn ran(
        &mut self,
        now: Nanos,
        batch: &BatchHeader,
        requests: (&[Request], &[Request]),
        started: Option<Nanos>,
        finished: Nanos,
    ) {
        let all = || requests.0.iter().chain(requests.1);
        assert_eq!(all().count(), batch.size as usize);
        all().for_each(|request| self.end(request));
        self.decisions.push((now, batch.batch, batch.gpu.0, batch.exec_at, batch.size));
        if let Some(started) = started {
            let free_at = self.gpu_free_at.insert(batch.gpu.0, finished).unwrap_or_default();
            assert!(started >= free_at, "two batches at a time on GPU {}", batch.gpu.0);
        }
    }

    fn preempted(&mut self, batch: &BatchHeader, requests: &[Request], stopped: Nanos) {
        self.preemptions += 1;
        self.gpu_free_at.insert(batch.gpu.0, stopped);
        requests.iter().for_each(|request| *self.endings.entry(request.id).or_default() -= 1);
    }

    fn ended(&mut self, request: &Request, _ending: Ending, _now: Nanos) {
        self.end(request);
    }
}

/// Runs the policy and checks that every request ended exactly once.
pub(super) fn watch(
    workload: &Workload,
    policy: &dyn Policy,
    options: &Options,
    fault: Fault,
) -> (Watch, Report) {
    let mut watch = Watch::default();
    let report = simulate_observed(workload, policy, options, fault, &mut watch).unwrap();
    assert_eq!(watch.endings.len(), watch.arrived, "a request has not ended");
    assert!(
        watch.endings.values().all(|&ended| ended == 1),
        "a request has ended more than once, or not at all"
    );
    (watch, report)
}

/// A model of (alpha, beta) ms.
pub(super) fn model(name: &str, alpha_ms: f64, beta_ms: f64, slo_ms: f64) -> WorkloadModel {
    let (alpha, beta) = (Nanos::from_millis_f64(alpha_ms), Nanos::from_millis_f64(beta_ms));
    WorkloadModel {
        name: name.to_owned(),
        profile: Profile::linear(alpha, beta, 64).unwrap(),
        slo: Nanos::from_millis_f64(slo_ms),
        class: Class::HIGHEST,
        share: 1.0,
        arrival: Arrival::Poisson,
    }
}

/// These models at equal rates, 20 s after a second's warm-up, on a network without delays.
pub(super) fn workload(gpus: usize, rate_rps: f64, mut models: Vec<WorkloadModel>) -> Workload {
    let share = 1.0 / models.len() as f64;
    models.iter_mut().for_each(|model| model.share = share);
    Workload {
        name: "test".to_owned(),
        gpus,
        seed: 1,
        warmup: Nanos::from_secs(1),
        duration: Nanos::from_secs(20),
        rate_rps,
        network: Network::default(),
        models,
    }
}

/// Small workloads of all kinds, overload included.
pub(super) fn workloads() -> impl Strategy<Value = Workload> {
    let network = prop_oneof![Just((0, 0, 0)), (0u64..1_000, 0u64..200, 0u64..2_000)];
    let models = prop::collection::vec((0.0f64..4.0, 0.1f64..12.0, 1.0f64..6.0), 1..6);
    (models, network, 1usize..12, any::<u64>(), 1.0f64..4_000.0).prop_map(
        |(models, (control, data, result), gpus, seed, rate_rps)| {
            let slo = |alpha: f64, beta: f64, slack: f64| (alpha + beta) * slack + 1.0;
            let named = models
                .iter()
                .map(|&(alpha, beta, slack)| model("model", alpha, beta, slo(alpha, beta, slack)));
            Workload {
                seed,
                warmup: Nanos::from_millis(200),
                duration: Nanos::from_millis(800),
                network: Network {
                    control: Nanos::from_micros(control),
                    data_per_request: Nanos::from_micros(data),
                    result: Nanos::from_micros(result),
                },
                ..workload(gpus, rate_rps, named.collect())
            }
        },
    )
}
