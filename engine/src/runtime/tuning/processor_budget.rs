//! What the tuner's looks may take of a core: a tenth in the long run, and up to a second at once
//! where they took less before. After the start or a change of the load
//! looks are many and settings are unproven, so each look that waits costs requests; later looks
//! are rare.

use symphony_transport::Nanos;

/// The part of a core, as one of so many.
const ONE_OF: u64 = 10;

/// The processor time beyond that part from which on looks wait.
const AT_ONCE: Nanos = Nanos::from_secs(1);

/// The processor time that looks have had: when their part will have paid for it; past if it has.
#[derive(Debug, Default)]
pub(super) struct ProcessorBudget {
    paid_by: Nanos,
}

impl ProcessorBudget {
    /// Returns true if a look may begin at `now`.
    pub(super) fn allows(&self, now: Nanos) -> bool {
        self.paid_by < now + Nanos(ONE_OF * AT_ONCE.0)
    }

    /// Counts the processor time of a look that ended at `now`.
    pub(super) fn spend(&mut self, now: Nanos, took: Nanos) {
        self.paid_by = self.paid_by.max(now) + Nanos(ONE_OF * took.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has looks of `took_ms` begin as soon as they may for so many seconds, and returns the
    /// seconds that they took.
    fn taken(budget: &mut ProcessorBudget, from_s: u64, seconds: u64, took_ms: u64) -> f64 {
        let (mut now, mut taken) = (Nanos::from_secs(from_s), Nanos::ZERO);
        while now < Nanos::from_secs(from_s + seconds) {
            now += Nanos::from_millis(1);
            if budget.allows(now) {
                let took = Nanos::from_millis(took_ms);
                now += took;
                taken += took;
                budget.spend(now, took);
            }
        }
        taken.as_secs_f64()
    }

    #[test]
    fn looks_take_a_second_at_once_and_a_tenth_of_a_core_in_the_long_run() {
        for took_ms in [10, 300, 2_000] {
            let mut budget = ProcessorBudget::default();
            let look = took_ms as f64 / 1e3;
            let first = taken(&mut budget, 0, 2, took_ms);
            assert!((1.0..1.3 + look).contains(&first), "{took_ms} ms: {first} s of two");
            let long = taken(&mut budget, 100, 1_000, took_ms);
            assert!((100.0 - look..101.1 + 2.0 * look).contains(&long), "{took_ms} ms: {long} s of 1,000");
        }
    }

    #[test]
    fn a_long_rest_saves_no_more_than_a_short_one() {
        let mut budget = ProcessorBudget::default();
        budget.spend(Nanos::from_secs(5), Nanos::from_millis(1_500));
        assert!(!budget.allows(Nanos::from_secs(9)) && budget.allows(Nanos::from_secs(11)));
        let [short, long] = [20, 100_000].map(|from| {
            let mut budget = ProcessorBudget::default();
            budget.spend(Nanos::from_secs(5), Nanos::from_millis(1_500));
            taken(&mut budget, from, 2, 50)
        });
        assert!((short - long).abs() < 0.06, "{short} {long}");
    }
}
