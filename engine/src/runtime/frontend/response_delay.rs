//! The time before an answer is due by which its batch should be over: d_resp, which a frontend
//! measures for each model. Owned by the frontend, which takes the reserve off each deadline that
//! it gives to the scheduler.
//!
//! What comes after a batch's planned end is not only the way back: a thread that lost its core for
//! a moment, a batch that took longer than its profile. On a machine of its own that is
//! microseconds, on a busy one milliseconds. So the reserve is a running quantile of how far
//! answers overran the deadline that the scheduler was given: an overrun beyond it raises it, every
//! answer within it lowers it a little, and in balance about one answer in [`WITHIN_PER_BEYOND`] is
//! beyond it.

use symphony_transport::Nanos;

/// The number of answers within the reserve that undo one beyond it: the quantile is 1 - 1/500,
/// well inside the 1 % of a model's requests that may be bad.
const WITHIN_PER_BEYOND: u64 = 500;

/// The inverse of the largest part of an SLO that the reserve may take: beyond it, the machine is
/// too slow for the SLO.
const LARGEST_PART: u64 = 4;

/// The reserve of one model. See the module's description.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseReserve {
    least: Nanos,
    most: Nanos,
    now: Nanos,
    /// The amount that each answer within the reserve takes off it.
    decay: Nanos,
}

impl ResponseReserve {
    /// Makes a reserve of at least `least`, for a model with this SLO.
    pub(crate) fn new(least: Nanos, slo: Nanos) -> ResponseReserve {
        let most = Nanos(slo.0 / LARGEST_PART).max(least);
        ResponseReserve { least, most, now: least, decay: Nanos::ZERO }
    }

    /// Returns the current reserve.
    pub(crate) fn get(&self) -> Nanos {
        self.now
    }

    /// Adjusts the reserve to an answer that came `overrun` after the deadline that the scheduler
    /// was given; zero if it came at or before it.
    pub(crate) fn observe(&mut self, overrun: Nanos) {
        if overrun > self.now {
            let raised = overrun.min(self.most) - self.now;
            self.now += raised;
            self.decay = Nanos((self.now - self.least).0 / WITHIN_PER_BEYOND);
        } else {
            self.now = (self.now - self.decay).max(self.least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn reserve() -> ResponseReserve {
        ResponseReserve::new(Nanos(MS / 10), Nanos(40 * MS))
    }

    #[test]
    fn one_late_answer_raises_it_to_what_would_have_been_in_time() {
        let mut reserve = reserve();
        assert_eq!(reserve.get(), Nanos(MS / 10));
        reserve.observe(Nanos(3 * MS));
        assert_eq!(reserve.get(), Nanos(3 * MS));
    }

    #[test]
    fn it_never_takes_more_than_a_quarter_of_the_slo() {
        let mut reserve = reserve();
        reserve.observe(Nanos(500 * MS));
        assert_eq!(reserve.get(), Nanos(10 * MS));
    }

    #[test]
    fn five_hundred_answers_in_time_bring_it_back() {
        let mut reserve = reserve();
        reserve.observe(Nanos(3 * MS));
        for _ in 0..250 {
            reserve.observe(Nanos::ZERO);
        }
        assert!((MS..2 * MS).contains(&reserve.get().0), "{:?}", reserve.get());
        for _ in 0..260 {
            reserve.observe(Nanos::ZERO);
        }
        assert_eq!(reserve.get(), Nanos(MS / 10));
    }
}
