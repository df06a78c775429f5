//! The search for the highest rate that passes, on a machine that also runs other things.
//!
//! A verdict may be wrong: a stall fails a rate that the threads can take, and now and then one
//! passes that they can't. So no verdict settles anything. The search keeps a *belief*, the
//! probability of each capacity given all verdicts so far (Bayes' rule, as in adaptive tests of
//! perception such as QUEST), and always tries the median of it, the rate whose verdict says most.
//! A wrong verdict moves the belief a little, and the next ones at the same place move it back, up
//! as well as down.
//!
//! 1. A quick ramp: short runs at rates that grow by a factor until one fails, or shrink until one
//!    passes.
//! 2. Whole runs at the median, until nine tenths of the belief lie within 3 %. A step is at most
//!    the ramp's factor, so that a lucky run far above the capacity needs more luck on its way.
//!
//! The belief has a weight for each quarter of a per cent of rate, some thousands; a verdict costs
//! as many exponentials, microseconds beside a run's seconds.

use super::plan::Plan;
use super::run::Outcome;
use std::io;
use symphony_transport::Nanos;

/// The ratio of the ends of the belief's middle nine tenths at which the search ends.
const RESOLUTION: f64 = 1.03;
/// The most rates that are tried after the ramp.
const MOST_TRIALS: usize = 40;
/// The highest rate that is believed possible, and tried.
const HIGHEST: f64 = 1e9;
/// The logarithm of the ratio of two neighbouring capacities of the belief.
const STEP: f64 = 0.0025;
/// The logarithm of the ratio of rates over which passing becomes failing.
const WIDTH: f64 = 0.01;
/// The part of a run that a run of the ramp takes, and the least.
const QUICK_PART: u64 = 8;
const QUICK_LEAST: Nanos = Nanos::from_millis(100);
/// The shares of the estimate that are tried at the end, if no run near it has passed.
const FALLBACKS: [f64; 5] = [0.99, 0.95, 0.9, 0.8, 0.5];

/// The parameters of a search.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// The rate at which the ramp begins.
    pub first: f64,
    /// The factor from one rate of the ramp to the next, up until one fails or down until one
    /// passes.
    pub growth: f64,
    /// The lowest rate that is tried.
    pub lowest: f64,
    /// The most runs at a rate until one passes: other programs can fail a run too.
    pub attempts: usize,
}

/// A run that the search asks for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Trial {
    /// Requests per second.
    pub rate: f64,
    /// True if a short run will do.
    pub is_quick: bool,
}

impl Trial {
    /// Returns `plan` with the duration that this trial needs.
    pub fn shortened(self, plan: Plan) -> Plan {
        let quick = Nanos(plan.duration.0 / QUICK_PART).max(QUICK_LEAST).min(plan.duration);
        Plan { duration: if self.is_quick { quick } else { plan.duration }, ..plan }
    }
}

/// Returns a passing run near the highest rate that the threads can take; `None` if even the lowest
/// fails. `try_rate` runs once.
///
/// Errors: those of `try_rate`.
pub fn highest(
    search: Search,
    mut try_rate: impl FnMut(Trial) -> io::Result<Outcome>,
) -> io::Result<Option<Outcome>> {
    let mut belief = Belief::new(search.lowest);
    let found = ramp(search, &mut belief, &mut try_rate)?;
    let mut passed = Vec::new();
    let mut whole = |rate: f64, belief: &mut Belief| -> io::Result<bool> {
        for _ in 0..search.attempts {
            let outcome = try_rate(Trial { rate, is_quick: false })?;
            if outcome.failure().is_none() {
                belief.learn(rate, Verdict { passed: true, ..Verdict::WHOLE });
                passed.push(outcome);
                return Ok(true);
            }
        }
        belief.learn(rate, Verdict { passed: false, ..Verdict::WHOLE });
        Ok(false)
    };
    let found = match found {
        Some(rate) => rate,
        None if whole(search.lowest, &mut belief)? => search.lowest,
        None => return Ok(None),
    };
    let mut rate = found;
    for _ in 0..MOST_TRIALS {
        if belief.quantile(0.95) <= belief.quantile(0.05) * RESOLUTION {
            break;
        }
        rate = belief.quantile(0.5).clamp(rate / search.growth, rate * search.growth);
        whole(rate, &mut belief)?;
    }
    let estimate = belief.quantile(0.5);
    let is_near = |outcome: &Outcome, share: f64| {
        (estimate * share.min(0.97)..=estimate * RESOLUTION).contains(&outcome.plan.rate)
    };
    for share in FALLBACKS {
        if passed.iter().any(|outcome| is_near(outcome, share)) {
            break;
        }
        let rate = (estimate * share).max(search.lowest);
        let outcome = try_rate(Trial { rate, is_quick: false })?;
        if outcome.failure().is_none() {
            passed.push(outcome);
        }
    }
    passed.retain(|outcome| outcome.plan.rate <= estimate * RESOLUTION);
    Ok(passed.into_iter().max_by(|a, b| a.plan.rate.total_cmp(&b.plan.rate)))
}

/// Runs the ramp and returns its last rate; `None` if even the lowest failed.
fn ramp(
    search: Search,
    belief: &mut Belief,
    try_rate: &mut impl FnMut(Trial) -> io::Result<Outcome>,
) -> io::Result<Option<f64>> {
    let Search { first, growth, lowest, attempts } = search;
    let mut rate = first;
    let (mut any_passed, mut any_failed) = (false, false);
    loop {
        let mut passed = false;
        for _ in 0..attempts.min(2) {
            passed = try_rate(Trial { rate, is_quick: true })?.failure().is_none();
            belief.learn(rate, Verdict { passed, ..Verdict::QUICK });
            if passed {
                break;
            }
        }
        any_passed |= passed;
        any_failed |= !passed;
        if any_passed && any_failed || passed && rate >= HIGHEST {
            return Ok(Some(rate));
        }
        if !passed && rate <= lowest {
            return Ok(None);
        }
        rate = if passed { rate * growth } else { rate / growth }.clamp(lowest, HIGHEST);
    }
}

/// A verdict about a rate, and how often such verdicts are wrong far from the capacity.
#[derive(Clone, Copy)]
struct Verdict {
    passed: bool,
    wrongly_passed: f64,
    wrongly_failed: f64,
}

impl Verdict {
    /// A verdict of a whole run, or of several of which one passed.
    const WHOLE: Verdict = Verdict { passed: false, wrongly_passed: 0.05, wrongly_failed: 0.1 };
    /// A verdict of a run of the ramp.
    const QUICK: Verdict = Verdict { passed: false, wrongly_passed: 0.05, wrongly_failed: 0.25 };

    /// Returns its probability at a rate whose logarithm is greater than the capacity's by this.
    fn probability(self, above: f64) -> f64 {
        let sound = 1.0 - self.wrongly_passed - self.wrongly_failed;
        let passes = self.wrongly_passed + sound / (1.0 + (above / WIDTH).exp());
        if self.passed { passes } else { 1.0 - passes }
    }
}

/// The probability of each capacity.
struct Belief {
    /// The logarithm of the first capacity.
    first: f64,
    /// The probabilities, in steps of [`STEP`]; their sum is 1.
    weights: Vec<f64>,
}

impl Belief {
    /// Holds all capacities from `lowest` on for equally probable.
    fn new(lowest: f64) -> Belief {
        let first = lowest.ln();
        let count = ((HIGHEST.ln() - first) / STEP).ceil().max(1.0) as usize + 1;
        Belief { first, weights: vec![1.0 / count as f64; count] }
    }

    fn capacity_ln(&self, at: usize) -> f64 {
        self.first + at as f64 * STEP
    }

    fn learn(&mut self, rate: f64, verdict: Verdict) {
        let rate = rate.ln();
        let first = self.first;
        let mut sum = 0.0;
        for (at, weight) in self.weights.iter_mut().enumerate() {
            *weight *= verdict.probability(rate - (first + at as f64 * STEP));
            sum += *weight;
        }
        self.weights.iter_mut().for_each(|weight| *weight /= sum);
    }

    /// Returns the capacity that the real one does not exceed with this probability.
    fn quantile(&self, probability: f64) -> f64 {
        let mut seen = 0.0;
        let at = self.weights.iter().position(|weight| {
            seen += weight;
            seen >= probability
        });
        self.capacity_ln(at.unwrap_or(self.weights.len() - 1)).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::options::Options;
    use crate::scale::run::arrivals::ArrivalStream;
    use crate::scale::run::gather;
    use crate::scale::run::instant_gpus::BatchTally;
    use crate::scale::run::recovery::{RecoveryTimes, RequestTimes};
    use crate::scale::run::stopwatch::{DutyCycles, ThreadResults, Window};
    use crate::scale::run::world::ModelTally;
    use clap::Parser;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;
    use symphony::runtime::threads::Intake;
    use symphony_transport::message::ModelId;

    /// Makes the outcome of a run at `rate` that passes or in which all requests are bad.
    fn outcome(rate: f64, passes: bool) -> Outcome {
        let plan = Options::parse_from(["scale"]).plan(1, rate).unwrap();
        let mut outcome = gather(&plan, Window::ALL, Vec::new(), Vec::new());
        outcome.requests = 100;
        outcome.ran.dropped = if passes { 1 } else { 100 };
        outcome
    }

    fn search(lowest: f64, attempts: usize) -> Search {
        Search { first: 1e6, growth: 2.0, lowest, attempts }
    }

    #[test]
    fn the_highest_rate_is_found_from_above_and_below() {
        for limit in [3_000.0, 1.7e6, 2.9e7] {
            let mut runs = 0;
            let found = highest(search(100.0, 1), |Trial { rate, .. }| {
                runs += 1;
                Ok(outcome(rate, rate <= limit))
            });
            let rate = found.unwrap().unwrap().plan.rate;
            assert!(rate <= limit && rate > limit / 1.04, "{rate} for {limit}");
            assert!(runs < 60, "{runs}");
        }
    }

    #[test]
    fn a_machine_on_which_no_rate_passes_has_no_highest_one() {
        assert!(highest(search(100.0, 1), |trial| Ok(outcome(trial.rate, false))).unwrap().is_none());
    }

    #[test]
    fn a_wrong_failure_of_the_ramp_does_not_keep_the_search_below_it() {
        let mut run = 0;
        let found = highest(search(100.0, 2), |Trial { rate, .. }| {
            run += 1;
            // The ramp fails at 2 M and 1 M, twice each; all later verdicts are right.
            Ok(outcome(rate, !(2..=3).contains(&run) && rate <= 2e7))
        });
        let rate = found.unwrap().unwrap().plan.rate;
        assert!((1.9e7..=2e7).contains(&rate), "{rate}");
    }

    /// Searches on a machine of this capacity, which varies by 2 % from run to run, where three of
    /// ten runs fail for no reason and one of fifty passes for none.
    fn noisy_search(seed: u64) -> f64 {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let capacity = 10f64.powf(random.random_range(3.5..8.0));
        let found = highest(search(100.0, 3), |Trial { rate, .. }| {
            let now = capacity * random.random_range(0.98..1.02);
            let passes = if rate <= now { random.random_bool(0.7) } else { random.random_bool(0.02) };
            Ok(outcome(rate, passes))
        });
        found.unwrap().map_or(0.0, |found| found.plan.rate / capacity)
    }

    #[test]
    fn on_a_noisy_machine_the_search_ends_within_15_percent_for_95_of_100_seeds() {
        let ratios: Vec<f64> = (0..300).map(noisy_search).collect();
        let near = ratios.iter().filter(|ratio| (0.925..=1.075).contains(*ratio)).count();
        let off: Vec<&f64> = ratios.iter().filter(|ratio| !(0.925..=1.075).contains(*ratio)).collect();
        assert!(near >= 285, "{near} of 300 searches ended near the capacity; the others at {off:.3?} of it");
    }

    /// Runs a thread that takes up this many requests a second, in virtual time. Another process
    /// takes 5 ms in every 50 ms of its core; the machine takes 3 ms in each second, of which the
    /// system has no trace.
    fn beside_another_process(Trial { rate, .. }: Trial, capacity: f64, seed: u64) -> Outcome {
        let plan = Options::parse_from(["scale", "--seconds", "0.5"]).plan(1, rate).unwrap();
        let end = plan.duration;
        let mut stream = ArrivalStream::new(rate, &[ModelId(0)], plan.slo, Nanos::ZERO, Window::ALL, seed);
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut another = Nanos::from_micros(random.random_range(0..50_000));
        let mut untraced = Nanos::from_micros(random.random_range(0..1_000_000));
        let (mut now, mut taken) = (Nanos::ZERO, Nanos::ZERO);
        while now < end {
            if now >= another {
                (now, taken) = (now + Nanos::from_millis(5), taken + Nanos::from_millis(5));
                another += Nanos::from_millis(50);
            }
            if now >= untraced {
                now += Nanos::from_millis(3);
                untraced = Nanos::MAX;
            }
            stream.book(taken);
            let requests = std::iter::from_fn(|| stream.next(now)).take(64).count();
            if requests == 0 {
                taken = Nanos::ZERO;
            }
            now += Nanos::from_micros(1) + Nanos::from_secs_f64(requests as f64 / capacity);
        }
        let tally = ModelTally {
            taken: stream.taken().clone(),
            ran: BatchTally::default(),
            times: RequestTimes::none(Window::ALL),
        };
        let (cycles, recovering) = (DutyCycles::default(), RecoveryTimes::none(Window::ALL));
        gather(&plan, Window::ALL, vec![ThreadResults { cycles, recovering, tally }], Vec::new())
    }

    #[test]
    fn a_process_that_takes_a_tenth_of_the_core_fails_no_rate_that_the_thread_can_take() {
        let at = |share: f64| {
            let trial = Trial { rate: 4e5 * share, is_quick: false };
            beside_another_process(trial, 4e5, 1)
        };
        for share in [0.3, 0.6, 0.8] {
            let outcome = at(share);
            assert_eq!(outcome.failure(), None, "at {share}");
            assert!(outcome.failure_with_stalls().unwrap().contains("taken up"), "at {share}");
        }
        for share in [1.05, 1.5, 4.0] {
            let failure = at(share).failure().unwrap();
            assert!(failure.contains("the machine's stalls aside"), "at {share}: {failure}");
        }
    }

    #[test]
    fn five_searches_beside_a_process_that_takes_a_tenth_of_the_core_agree_within_15_percent() {
        let mut seed = 0;
        let mut rates = [0.0; 5];
        for found in &mut rates {
            let outcome = highest(search(100.0, 3), |trial| {
                seed += 1;
                Ok(beside_another_process(trial, 4e5, seed))
            });
            *found = outcome.unwrap().unwrap().plan.rate;
        }
        let (lowest, highest) =
            (rates.iter().fold(f64::MAX, |a, b| a.min(*b)), rates.iter().fold(0.0, |a: f64, b| a.max(*b)));
        assert!(highest / lowest < 1.15, "{rates:?}");
        assert!((3.2e5..=4.2e5).contains(&lowest), "{rates:?}");
    }
}
