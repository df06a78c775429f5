//! `triton`: the dynamic batcher of NVIDIA's Triton Inference Server: a batch leaves for an idle
//! GPU as soon as it has a preferred size, or once its first request has waited for
//! max_queue_delay. Runs in the simulator.
//!
//! Source: Triton's documentation of `dynamic_batching` in a model's configuration; none of the
//! papers compares with it. All GPUs have an instance of each model, and one batch runs on a
//! GPU at a time (Triton would let instances of different models share it). A request that has
//! waited for too long is rejected, as Triton's queue policy has it.

use super::interface::{Policy, Scheduler};
use super::options::{PolicyOptions, TritonOptions};
use super::pull::{Batching, Pull};
use crate::profile::Profile;
use crate::workload::{Network, Workload, WorkloadModel};
use alloc::boxed::Box;
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// The policy.
#[derive(Debug)]
pub(super) struct Triton;

impl Policy for Triton {
    fn name(&self) -> &'static str {
        "triton"
    }

    fn about(&self) -> &'static str {
        "preferred batch sizes and a longest wait for them (Triton's dynamic batcher)"
    }

    fn options(&self) -> &'static [&'static str] {
        &["triton-queue-delay-ms", "triton-preferred", "triton-timeout-ms"]
    }

    fn scheduler(&self, workload: &Workload, options: &PolicyOptions) -> Box<dyn Scheduler> {
        let models = workload
            .models
            .iter()
            .map(|model| Batcher::new(model, workload.network, &options.triton))
            .collect();
        Box::new(Pull::new(workload, DynamicBatching { models }))
    }
}

/// Triton's dynamic batching: a batcher per model.
struct DynamicBatching {
    models: Vec<Batcher>,
}

/// One model's dynamic batcher.
struct Batcher {
    max_queue_delay: Nanos,
    hopeless_within: Nanos,
    largest: usize,
    /// The preferred sizes, rising, the largest batch last.
    preferred: Vec<usize>,
}

impl Batcher {
    fn new(model: &WorkloadModel, network: Network, options: &TritonOptions) -> Batcher {
        let largest = half_slo_batch(&model.profile, model.slo);
        let run = network.delay(largest) + model.profile.latency(largest);
        let budget = model.slo - network.result;
        let mut preferred: Vec<usize> =
            options.preferred.iter().copied().filter(|&size| size < largest).collect();
        preferred.push(largest);
        Batcher {
            max_queue_delay: options.max_queue_delay.unwrap_or(budget - run - run),
            hopeless_within: options.timeout.map_or(run, |timeout| budget - timeout),
            largest,
            preferred,
        }
    }

    /// Returns the largest preferred size that `waiting` requests fill.
    fn preferred(&self, waiting: usize) -> Option<usize> {
        self.preferred.iter().copied().rfind(|&size| size <= waiting)
    }
}

/// Returns the `max_batch_size` that suits a deadline: a batch may have to wait for another of its
/// size, so both fit in the SLO.
fn half_slo_batch(profile: &Profile, slo: Nanos) -> usize {
    profile.largest_within(Nanos(slo.0 / 2)).max(1)
}

impl Batching for DynamicBatching {
    fn ready_at(&self, model: usize, waiting: usize, since: Nanos) -> Nanos {
        let batcher = &self.models[model];
        match batcher.preferred(waiting) {
            Some(_) => since,
            None => since + batcher.max_queue_delay,
        }
    }

    fn size(&self, model: usize, waiting: usize) -> usize {
        let batcher = &self.models[model];
        batcher.preferred(waiting).unwrap_or(waiting.min(batcher.largest))
    }

    fn hopeless_within(&self, model: usize) -> Nanos {
        self.models[model].hopeless_within
    }

    fn ran(&mut self, _model: usize, _size: usize, _in_time: bool) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batching(options: &TritonOptions) -> DynamicBatching {
        let ms = Nanos::from_millis;
        let model = WorkloadModel::new("m", Profile::linear(ms(1), ms(4), 30).unwrap(), ms(25));
        DynamicBatching { models: vec![Batcher::new(&model, Network::default(), options)] }
    }

    #[test]
    fn by_default_a_full_batch_leaves_at_once_and_two_of_them_fit_in_the_slo() {
        // l(8) = 12 ms, so 1 ms is left to wait.
        let batching = batching(&TritonOptions::default());
        let since = Nanos::from_millis(100);
        assert_eq!(batching.ready_at(0, 8, since), since);
        assert_eq!(batching.ready_at(0, 7, since), Nanos::from_millis(101));
        assert_eq!((batching.size(0, 20), batching.size(0, 7)), (8, 7));
        assert_eq!(batching.hopeless_within(0), Nanos::from_millis(12));
    }

    #[test]
    fn the_largest_preferred_size_that_waits_is_taken() {
        let options = TritonOptions {
            max_queue_delay: Some(Nanos::from_millis(3)),
            preferred: vec![2, 4, 99],
            timeout: None,
        };
        let batching = batching(&options);
        assert_eq!(batching.ready_at(0, 1, Nanos::ZERO), Nanos::from_millis(3));
        assert_eq!(batching.ready_at(0, 3, Nanos::ZERO), Nanos::ZERO);
        assert_eq!((batching.size(0, 1), batching.size(0, 3), batching.size(0, 7)), (1, 2, 4));
    }
}
