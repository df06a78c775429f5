//! The epochs of a policy that plans ahead: when it plans anew, and for what rates. These are the
//! workload's at first, then those measured in the epoch before. Owned by such a policy, which
//! counts each request in it.

use crate::workload::Workload;
use alloc::vec::Vec;
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The length of an epoch, for which a plan holds. Nexus re-plans every 30 to 60 s (section 5),
/// Symphony places models over epochs of minutes.
pub(super) const EPOCH: Nanos = Nanos::from_secs(60);

/// The current epoch, and its requests so far.
#[derive(Clone, Debug)]
pub(super) struct Epoch {
    began: Nanos,
    counts: Vec<u64>,
}

impl Epoch {
    /// Begins the first epoch, at time zero.
    pub(super) fn new(models: usize) -> Epoch {
        Epoch { began: Nanos::ZERO, counts: vec![0; models] }
    }

    /// Counts a request of `model` at `now`. Where the epoch has ended, the next begins and each
    /// model's rate in the ended one is returned.
    pub(super) fn count(&mut self, now: Nanos, model: ModelId) -> Option<Vec<f64>> {
        let length = now - self.began;
        let ended = (length >= EPOCH).then(|| {
            let seconds = length.as_secs_f64();
            let rates = self.counts.iter().map(|&count| at_least_one(count as f64, seconds)).collect();
            self.counts.fill(0);
            self.began = now;
            rates
        });
        self.counts[model.0 as usize] += 1;
        ended
    }
}

/// Returns the workload's rate of each model, requests per second.
pub(super) fn expected_rates(workload: &Workload) -> Vec<f64> {
    let seconds = EPOCH.as_secs_f64();
    let shares = workload.models.iter().map(|model| model.share);
    shares.map(|share| at_least_one(workload.rate_rps * share * seconds, seconds)).collect()
}

/// Returns a rate of at least one request, so that a model without requests stays in the plan.
fn at_least_one(count: f64, seconds: f64) -> f64 {
    count.max(1.0) / seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_plan_is_for_the_rates_of_the_epoch_before() {
        let mut epoch = Epoch::new(2);
        for ms in 0..60_000 {
            assert_eq!(epoch.count(Nanos::from_millis(ms), ModelId(0)), None);
        }
        let rates = epoch.count(EPOCH, ModelId(0)).unwrap();
        assert_eq!(rates, [1000.0, 1.0 / 60.0]);
        assert_eq!(epoch.count(EPOCH + EPOCH, ModelId(0)).unwrap(), [1.0 / 60.0, 1.0 / 60.0]);
    }
}
