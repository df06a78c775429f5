//! What a model has lost of late, and whether that makes it overloaded. Owned by the model's queue,
//! which notes each loss in it and of the end of each sample of the rate meter.

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

    /// A sample of the rate meter has ended, which now says `rate_rps`.
    pub fn sample_ended(&mut self, rate_rps: f64) {
        self.lost -= self.lost.div_ceil(RATE_SAMPLES as u32);
        let come = rate_rps * RATE_SAMPLE.as_secs_f64() * RATE_SAMPLES as f64;
        self.overloaded = f64::from(self.lost) > OVERLOAD * come * f64::from(ONE_LOST);
    }
}
