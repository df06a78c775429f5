//! What a model has lost of late, and whether that makes it overloaded. Owned by the model's queue,
//! which notes each loss in it and tells it of the samples of the rate meter that end.

use crate::limits::{RATE_SAMPLE, RATE_SAMPLES};

/// The share of a model's requests beyond which, once lost, it counts as overloaded. Twice what a
/// goodput allows.
const OVERLOAD: f64 = 0.02;

/// One lost request, in fixed point.
const ONE_LOST: u32 = 256;

/// See the module's description.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Losses {
    /// Requests dropped or refused, in fixed point; they fade as the rate meter's window does.
    pub lost: u32,
    /// Whether those were too many when the meter's last sample ended.
    pub overloaded: bool,
}

impl Losses {
    /// Counts lost requests.
    #[inline]
    pub fn add(&mut self, requests: usize) {
        self.lost = self.lost.saturating_add(requests as u32 * ONE_LOST);
    }

    /// Lets the losses fade by `samples` samples of the rate meter, which now says `rate_rps`: by
    /// the same amount whether they end in one call or in several.
    pub fn samples_ended(&mut self, samples: u64, rate_rps: f64) {
        for _ in 0..samples {
            if self.lost == 0 {
                break;
            }
            self.lost -= self.lost.div_ceil(RATE_SAMPLES as u32);
        }
        let come = rate_rps * RATE_SAMPLE.as_secs_f64() * RATE_SAMPLES as f64;
        self.overloaded = f64::from(self.lost) > OVERLOAD * come * f64::from(ONE_LOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_fade_by_samples_and_not_by_calls() {
        let mut at_once = Losses::default();
        at_once.add(1_000);
        let mut one_by_one = at_once;
        at_once.samples_ended(130, 5.0);
        (0..130).for_each(|_| one_by_one.samples_ended(1, 5.0));
        assert_eq!(at_once, one_by_one);
        assert!(at_once.lost < 1_000 * ONE_LOST / 3);
        at_once.samples_ended(u64::MAX, 0.0);
        assert_eq!(at_once, Losses::default());
    }
}
