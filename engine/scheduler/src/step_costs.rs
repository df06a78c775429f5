//! What a request costs by its latency, in steps (Yu's dissertation, appendix C.2): nothing up to
//! the first, and no more than the last, that of its SLO. Such a function is the sum of functions
//! of one step, each a deadline with a cost.

use alloc::sync::Arc;
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// The steps of one function at most.
pub const MAX_STEPS: usize = 16;

/// A step: what a request costs that takes longer than this, up to the next step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostStep {
    /// The latency up to which it costs less.
    pub after: Nanos,
    /// The cost from there on, above 0, in a unit of the user's.
    pub cost: f64,
}

/// The cost of a request by its latency. Steps rise in both; the last is at the SLO.
#[derive(Clone, Debug, PartialEq)]
pub struct StepCosts(Arc<[CostStep]>);

/// A step function's part that has one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneStep {
    /// The time from this deadline to the SLO's, ms.
    pub before_last_ms: f64,
    /// What missing this deadline adds to the cost.
    pub cost: f64,
}

impl OneStep {
    /// The cost of missing the SLO where no other is given.
    pub const SLO: OneStep = OneStep { before_last_ms: 0.0, cost: 1.0 };
}

/// The reason why steps are no cost function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepCostsError {
    /// Too many steps, or none.
    #[error("it has {0} steps; there are 1 to {MAX_STEPS}")]
    Count(usize),
    /// A latency, or a cost, is not above that of the step before it.
    #[error("step {0} does not rise in time and in cost")]
    Falls(usize),
}

impl StepCosts {
    /// Makes a cost function of these steps.
    ///
    /// Errors: steps that make none.
    pub fn new(steps: Vec<CostStep>) -> Result<StepCosts, StepCostsError> {
        if !(1..=MAX_STEPS).contains(&steps.len()) {
            return Err(StepCostsError::Count(steps.len()));
        }
        let mut before = CostStep { after: Nanos::ZERO, cost: 0.0 };
        for (at, &step) in steps.iter().enumerate() {
            if step.after <= before.after
                || step.cost.partial_cmp(&before.cost) != Some(core::cmp::Ordering::Greater)
            {
                return Err(StepCostsError::Falls(at));
            }
            before = step;
        }
        Ok(StepCosts(steps.into()))
    }

    /// Returns the cost of a request of this latency.
    pub fn of(&self, latency: Nanos) -> f64 {
        let reached = self.0.partition_point(|step| step.after < latency);
        reached.checked_sub(1).map_or(0.0, |last| self.0[last].cost)
    }

    /// Returns the cost of a request that is never answered.
    pub fn most(&self) -> f64 {
        self.0[self.0.len() - 1].cost
    }

    /// Returns the functions of one step whose sum it is.
    pub fn parts(&self) -> Vec<OneStep> {
        let last = self.0[self.0.len() - 1].after;
        let mut before = 0.0;
        let part = |step: &CostStep| {
            let cost = step.cost - core::mem::replace(&mut before, step.cost);
            OneStep { before_last_ms: (last - step.after).as_millis_f64(), cost }
        };
        self.0.iter().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(after_ms: u64, cost: f64) -> CostStep {
        CostStep { after: Nanos::from_millis(after_ms), cost }
    }

    #[test]
    fn a_cost_is_that_of_the_last_step_that_was_passed_and_the_sum_of_its_parts() {
        let costs = StepCosts::new(vec![step(10, 1.0), step(25, 1.5), step(100, 4.0)]).unwrap();
        for (ms, cost) in [(0, 0.0), (10, 0.0), (11, 1.0), (25, 1.0), (26, 1.5), (100, 1.5), (101, 4.0)] {
            assert_eq!(costs.of(Nanos::from_millis(ms)), cost);
            let passed = |part: &OneStep| 100.0 - part.before_last_ms < ms as f64;
            let parts = costs.parts();
            assert_eq!(parts.iter().filter(|part| passed(part)).map(|part| part.cost).sum::<f64>(), cost);
        }
        assert_eq!((costs.most(), costs.of(Nanos::MAX)), (4.0, 4.0));
    }

    #[test]
    fn steps_that_do_not_rise_are_refused() {
        assert_eq!(StepCosts::new(Vec::new()), Err(StepCostsError::Count(0)));
        let many = (1..=17).map(|at| step(at, at as f64)).collect();
        assert_eq!(StepCosts::new(many), Err(StepCostsError::Count(17)));
        for second in [step(10, 2.0), step(20, 1.0), step(20, f64::NAN)] {
            assert_eq!(StepCosts::new(vec![step(10, 1.0), second]), Err(StepCostsError::Falls(1)));
        }
        assert_eq!(StepCosts::new(vec![step(0, 1.0)]), Err(StepCostsError::Falls(0)));
    }
}
