//! The search for the highest rate that passes: up until a rate fails, then halving the interval.

use super::run::Outcome;
use std::io;

/// The search ends when the lowest rate that fails is within this share of the highest that passes.
const RESOLUTION: f64 = 0.01;

/// The parameters of a search.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The rate that is tried first.
    pub first: f64,
    /// The factor from one rate to the next, up until one fails or down until one passes.
    pub growth: f64,
    /// The lowest rate that is tried.
    pub lowest: f64,
    /// The most runs at a rate until one passes: other programs can fail a run too.
    pub attempts: usize,
}

/// Returns the run at the highest of the rates tried at which one passes; `None` if even the lowest
/// fails. `try_rate` runs once.
///
/// Errors: those of `try_rate`.
pub fn highest(
    search: Search,
    mut try_rate: impl FnMut(f64) -> io::Result<Outcome>,
) -> io::Result<Option<Outcome>> {
    let Search { first, growth, lowest, attempts } = search;
    let mut passes = |rate: f64| -> io::Result<Option<Outcome>> {
        for _ in 0..attempts {
            let outcome = try_rate(rate)?;
            if outcome.failure().is_none() {
                return Ok(Some(outcome));
            }
        }
        Ok(None)
    };
    let mut best = None;
    let mut passing = 0.0;
    let (mut rate, mut failed) = (first, f64::MAX);
    let mut failing = loop {
        match passes(rate)? {
            Some(outcome) => {
                (best, passing) = (Some(outcome), rate);
                rate *= growth;
                if rate >= failed {
                    break failed;
                }
            }
            None if best.is_some() => break rate,
            None if rate <= lowest => return Ok(None),
            None => (failed, rate) = (rate, (rate / growth).max(lowest)),
        }
    };
    while failing / passing > 1.0 + RESOLUTION {
        let middle = (failing + passing) / 2.0;
        match passes(middle)? {
            Some(outcome) => (best, passing) = (Some(outcome), middle),
            None => failing = middle,
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::options::Options;
    use crate::scale::run::gather;
    use clap::Parser;

    /// Makes the outcome of a run at `rate` in which all requests are bad above `limit`.
    fn outcome(rate: f64, limit: f64) -> Outcome {
        let plan = Options::parse_from(["scale"]).plan(1, rate).unwrap();
        let mut outcome = gather(&plan, Vec::new(), Vec::new(), &[]);
        (outcome.requests, outcome.ran.dropped) = (100, if rate > limit { 100 } else { 1 });
        outcome
    }

    fn search(lowest: f64, attempts: usize) -> Search {
        Search { first: 1e6, growth: 2.0, lowest, attempts }
    }

    #[test]
    fn the_highest_rate_is_found_to_a_hundredth_from_above_and_below() {
        for limit in [3_000.0, 1.7e6, 2.9e7] {
            let found = highest(search(100.0, 2), |rate| Ok(outcome(rate, limit))).unwrap().unwrap();
            assert!(found.plan.rate <= limit && found.plan.rate > limit / 1.02, "{}", found.plan.rate);
        }
    }

    #[test]
    fn a_machine_on_which_no_rate_passes_has_no_highest_one() {
        assert!(highest(search(100.0, 1), |rate| Ok(outcome(rate, 1.0))).unwrap().is_none());
    }

    #[test]
    fn one_failed_attempt_does_not_fail_a_rate() {
        let mut run = 0;
        let found = highest(search(100.0, 2), |rate| {
            run += 1;
            Ok(outcome(rate, if run % 2 == 1 { 1.0 } else { 5e6 }))
        });
        assert!(found.unwrap().unwrap().plan.rate > 4.9e6);
    }
}
