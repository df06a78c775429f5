//! `clipper`: every idle GPU takes as many requests of a model as its batch limit allows. The limit
//! is adaptive: it rises by one after a full batch that was in time and falls by a tenth after one
//! that was not. Of a model's profile only l(1) is used: a request that would be late even alone is
//! dropped. Runs in the simulator.
//!
//! Clipper's own paper is not among this project's sources: what is known of it is from Nexus
//! (sections 2, 4.3 and 7.2) and Clockwork (section 6.1). All GPUs serve all models, where Nexus's
//! comparison placed containers by hand.

use super::interface::{Policy, Scheduler};
use super::options::PolicyOptions;
use super::pull::{Batching, Pull};
use crate::workload::{Workload, WorkloadModel};
use alloc::boxed::Box;
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// The factor on the limit after a batch that was late.
const BACKOFF: f64 = 0.9;

/// The policy.
#[derive(Debug)]
pub(super) struct Clipper;

impl Policy for Clipper {
    fn name(&self) -> &'static str {
        "clipper"
    }

    fn about(&self) -> &'static str {
        "batches as large as past ones were in time; lazy drop (Clipper)"
    }

    fn options(&self) -> &'static [&'static str] {
        &[]
    }

    fn scheduler(&self, workload: &Workload, _options: &PolicyOptions) -> Box<dyn Scheduler> {
        let limit = |model: &WorkloadModel| Limit {
            now: 1.0,
            largest: model.profile.max_batch(),
            alone: workload.network.delay(1) + model.profile.latency(1),
        };
        let adaptive = Adaptive { limits: workload.models.iter().map(limit).collect() };
        Box::new(Pull::new(workload, adaptive))
    }
}

/// Adaptive batching: a limit per model, the same for all GPUs, since they are alike.
struct Adaptive {
    limits: Vec<Limit>,
}

/// One model's batch limit.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// The limit, at least 1; its whole part counts.
    now: f64,
    largest: usize,
    /// The time from the decision to the end of a batch of one.
    alone: Nanos,
}

impl Limit {
    /// Adapts the limit to the result of a batch.
    fn adapt(&mut self, size: usize, in_time: bool) {
        if !in_time {
            self.now = (self.now * BACKOFF).max(1.0);
        } else if size == self.now as usize {
            self.now = (self.now + 1.0).min(self.largest as f64);
        }
    }
}

impl Batching for Adaptive {
    fn ready_at(&self, _model: usize, _waiting: usize, since: Nanos) -> Nanos {
        since
    }

    fn size(&self, model: usize, waiting: usize) -> usize {
        waiting.min(self.limits[model].now as usize)
    }

    fn hopeless_within(&self, model: usize) -> Nanos {
        self.limits[model].alone
    }

    fn ran(&mut self, model: usize, size: usize, in_time: bool) {
        self.limits[model].adapt(size, in_time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_rises_by_one_and_falls_by_a_tenth() {
        let mut limit = Limit { now: 1.0, largest: 12, alone: Nanos::ZERO };
        for size in 1..=20 {
            limit.adapt(size, true);
        }
        assert_eq!(limit.now, 12.0, "a batch is never larger than the profile says");
        limit.adapt(5, true);
        assert_eq!(limit.now, 12.0, "a batch that was not full changes nothing");
        limit.adapt(5, false);
        assert!((limit.now - 10.8).abs() < 1e-9);
        (0..100).for_each(|_| limit.adapt(10, false));
        assert_eq!(limit.now, 1.0);
    }
}
