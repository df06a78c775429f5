//! What a model has lost of late and the GPU time that it has had: whether it is overloaded, and by
//! how much its batches then go before those of others. Owned by the model's queue, which notes
//! each loss and each batch in it and tells it of the samples of the rate meter that end.

use crate::deferral::QueueConfig;
use crate::limits::{RATE_SAMPLES, RATE_WINDOW};
use symphony_transport::Nanos;

/// The share of a model's requests beyond which, once lost, it counts as overloaded. Twice what a
/// goodput allows.
const OVERLOAD: f64 = 0.02;

/// One lost request, in fixed point.
const ONE_LOST: u32 = 256;

/// The precedence of a model that has no GPU time and loses all its requests.
pub const WHOLE_PRECEDENCE: u16 = 1 << 14;

/// See the module's description. What is noted fades as the rate meter's window does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecentService {
    /// Requests dropped or refused, in fixed point, but for those that came with too little time
    /// for a batch of one.
    pub lost: u32,
    /// The time that batches take.
    pub gpu_time: Nanos,
    /// Whether too many were lost when the meter's last sample ended.
    pub overloaded: bool,
    /// How much its batches then go before those of others, in parts of [`WHOLE_PRECEDENCE`]: the
    /// share that was lost beyond what makes it overloaded, times the square of the part of the
    /// GPUs' time that others had (docs/scheduling.md, "Overload"). 0 by the drop rules that leave
    /// the order of batches to their deadlines.
    pub precedence: u16,
}

impl RecentService {
    /// Counts lost requests.
    #[inline]
    pub fn add_lost(&mut self, requests: usize) {
        self.lost = self.lost.saturating_add(requests as u32 * ONE_LOST);
    }

    /// Counts the time that a batch takes.
    #[inline]
    pub fn add_gpu_time(&mut self, duration: Nanos) {
        self.gpu_time += duration;
    }

    /// The requests that were lost.
    fn lost(&self) -> f64 {
        f64::from(self.lost) / f64::from(ONE_LOST)
    }

    /// Returns the share of requests that was lost where they come at this rate.
    pub fn lost_share(&self, rate_rps: f64) -> f64 {
        (self.lost() / (rate_rps * RATE_WINDOW.as_secs_f64()).max(1.0)).min(1.0)
    }

    /// Lets all fade by `samples` samples of the rate meter, which now says `rate_rps`: by the same
    /// amount whether they end in one call or in several.
    pub fn samples_ended(&mut self, samples: u64, rate_rps: f64, terms: &QueueConfig) {
        for _ in 0..samples {
            if self.lost == 0 && self.gpu_time == Nanos::ZERO {
                break;
            }
            self.lost -= self.lost.div_ceil(RATE_SAMPLES as u32);
            self.gpu_time.0 -= self.gpu_time.0.div_ceil(RATE_SAMPLES as u64);
        }
        (self.overloaded, self.precedence) = (false, 0);
        if self.lost == 0 {
            return;
        }
        let came = rate_rps * RATE_WINDOW.as_secs_f64();
        let beyond = self.lost() - OVERLOAD * came;
        self.overloaded = beyond > 0.0;
        if self.overloaded && terms.drop.gives_precedence() {
            let share = (beyond / came.max(1.0)).min(1.0);
            let time = RATE_WINDOW.as_secs_f64() * terms.gpus as f64;
            let own = (self.gpu_time.as_secs_f64() / time).min(1.0);
            self.precedence = (share * (1.0 - own).powi(2) * f64::from(WHOLE_PRECEDENCE)) as u16;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drop_rule::DropRule;
    use crate::model::tests::terms;

    #[test]
    fn all_fades_by_samples_and_not_by_calls() {
        let terms = terms("symphony", DropRule::Exchange);
        let mut at_once = RecentService::default();
        at_once.add_lost(1_000);
        at_once.add_gpu_time(Nanos::from_secs(7));
        let mut one_by_one = at_once;
        at_once.samples_ended(130, 5.0, &terms);
        (0..130).for_each(|_| one_by_one.samples_ended(1, 5.0, &terms));
        assert_eq!(at_once, one_by_one);
        assert!(at_once.lost < 1_000 * ONE_LOST / 3 && at_once.gpu_time < Nanos::from_millis(2_333));
        at_once.samples_ended(u64::MAX, 0.0, &terms);
        assert_eq!(at_once, RecentService::default());
    }

    #[test]
    fn precedence_is_what_is_lost_less_for_who_has_the_gpus() {
        let precedence = |lost: usize, gpu_s: u64, drop| {
            let mut recent = RecentService::default();
            recent.add_lost(lost);
            recent.add_gpu_time(Nanos::from_secs(gpu_s));
            // Eight GPUs, in 5 s; 1,000 requests.
            recent.samples_ended(1, 200.0, &terms("symphony", drop));
            assert_eq!(recent.overloaded, lost > 20);
            f64::from(recent.precedence) / f64::from(WHOLE_PRECEDENCE)
        };
        let expected = |lost: f64, own: f64| (0.99 * lost - 0.02) * (1.0 - 0.99 * own).powi(2);
        for (lost, gpu_s) in [(500, 0), (500, 10), (100, 20), (900, 30)] {
            let (precedence, expected) = (
                precedence(lost, gpu_s, DropRule::Exchange),
                expected(lost as f64 / 1e3, gpu_s as f64 / 40.0),
            );
            assert!((precedence - expected).abs() < 1e-3, "{lost} {gpu_s}: {precedence} {expected}");
        }
        assert_eq!(precedence(15, 0, DropRule::Exchange), 0.0, "it is not overloaded");
        assert_eq!(precedence(900, 60, DropRule::Exchange), 0.0, "it has all of them");
        assert_eq!(precedence(900, 0, DropRule::Window), 0.0);
        assert!(precedence(100_000, 0, DropRule::Exchange) == 1.0, "more than came");
    }
}
