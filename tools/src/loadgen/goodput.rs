//! The search for a server's goodput: the highest rate at which every model's bad rate is at most 1
//! %. Pure: what runs a step is an argument.

use super::RunError;
use super::report::{Report, Step};
use symphony_scheduler::sim::goodput::ALLOWED_BAD_RATE;

/// The factor by which the rate changes until both a good and a bad rate are known.
const STRIDE: f64 = 1.5;

/// Runs in a row in which the generator itself was late, after which no more are run again.
const MAX_LATE_RUNS: u32 = 3;

/// The search ends below this many requests a step: not even single requests pass.
const HOPELESS: u64 = 5;

/// Searches from `start_rps` until the rates known to be good and bad differ by less than
/// `resolution` (0.02 is 2 %). `run` runs one step at a rate, and returns `None` when the user
/// wants no more; `say` is called with each step.
///
/// Returns the report of the best run that passed, with its `goodput_rps` and all `steps`; where
/// none passed, of the last run with a goodput of 0. A step is judged without the requests that a
/// stall of the machine disturbed. Before the search ends, the lowest bad rate is run once more: if
/// it passes, the search goes up again from there. A step in which the generator itself was late
/// is run again. After three such runs in a row they count all the same, with a warning, unless the
/// run is strict: then the search ends with the last one's report, which fails.
///
/// Errors: as `run`; no step was run to its end.
pub fn search(
    start_rps: f64,
    resolution: f64,
    run: &mut dyn FnMut(f64) -> Result<Option<Report>, RunError>,
    say: &mut dyn FnMut(&Step),
) -> Result<Report, RunError> {
    let mut search = Search::default();
    let mut rate = start_rps;
    while let Some(report) = run(rate)? {
        if report.tally.lost || report.tally.answered == 0 {
            search.last = Some(report);
            break;
        }
        if report.generator_was_late() {
            search.late_runs += 1;
            if search.late_runs < MAX_LATE_RUNS {
                continue;
            }
            if report.failed_by_lateness() {
                search.best = None;
                search.last = Some(report);
                break;
            }
        } else {
            search.late_runs = 0;
        }
        say(search.learn(rate, report));
        match search.next(rate, resolution) {
            Some(next) => rate = next,
            None => break,
        }
    }
    search.finish()
}

#[derive(Default)]
struct Search {
    /// The highest rate that passed, and its run.
    best: Option<(f64, Report)>,
    /// The lowest that did not.
    bad_rps: Option<f64>,
    /// True if that rate was run again at the end, and was bad again.
    bad_is_sure: bool,
    last: Option<Report>,
    steps: Vec<Step>,
    late_runs: u32,
}

impl Search {
    fn learn(&mut self, rate_rps: f64, report: Report) -> &Step {
        let figures = &report.figures;
        let passed = figures.judged_bad_rate() <= ALLOWED_BAD_RATE;
        self.steps.push(Step {
            rate_rps,
            offered_rps: figures.offered_rps,
            worst_bad_rate: figures.worst_bad_rate,
            p99_ms: figures.latency_ms.p99,
            passed,
            worst_bad_rate_without_stalls: figures.without_stalls.map(|without| without.worst_bad_rate),
        });
        if passed {
            self.best = Some((rate_rps, report));
            self.bad_rps = self.bad_rps.filter(|&bad| bad > rate_rps);
        } else {
            self.bad_is_sure = self.bad_rps == Some(rate_rps);
            self.bad_rps = Some(rate_rps);
            self.last = Some(report);
        }
        self.steps.last().expect("just pushed")
    }

    /// The rate to try next, if there is one.
    fn next(&self, rate: f64, resolution: f64) -> Option<f64> {
        match (self.best.as_ref().map(|(good, _)| *good), self.bad_rps) {
            (Some(good), Some(bad)) if bad / good > 1.0 + resolution => Some((bad * good).sqrt()),
            (Some(_), Some(bad)) => (!self.bad_is_sure).then_some(bad),
            (Some(_), None) => Some(rate * STRIDE),
            (None, _) => {
                let offered = self.last.as_ref().map_or(0, |report| report.figures.offered);
                (offered >= HOPELESS).then_some(rate / STRIDE)
            }
        }
    }

    fn finish(self) -> Result<Report, RunError> {
        let (goodput, mut report) = match (self.best, self.last) {
            (Some((_, report)), _) => (report.figures.offered_rps, report),
            (None, Some(report)) => (0.0, report),
            (None, None) => {
                return Err(RunError::Stopped("the search was ended before its first step was over".into()));
            }
        };
        report.figures.goodput_rps = Some(goodput);
        report.figures.steps = self.steps;
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{at, report};
    use super::*;
    use crate::loadgen::measure::{End, RequestRecord, ServerDetails, Tally};
    use crate::loadgen::schedule::tests::open;
    use std::sync::Arc;
    use symphony_transport::Nanos;

    /// A run of 10 s at `rate` on a server that can answer `capacity` requests a second, by a
    /// generator that is late by this much.
    fn run(rate: f64, capacity: f64, late: Nanos) -> Report {
        let mut plan = open("m", rate, Nanos::from_secs(10));
        plan.models[0].slo = Some(at(100));
        let mut tally = Tally::new(&plan, Arc::default(), false);
        for (n, (intended, model)) in plan.schedule().unwrap().enumerate() {
            tally.offered(model, intended);
            let sent = intended + late;
            tally.sent(intended, sent);
            let answered = (n as f64 * capacity / rate).fract() + capacity / rate >= 1.0;
            let end = if answered { End::Good } else { End::Dropped };
            tally.ended(RequestRecord {
                model,
                intended,
                sent,
                ended: sent + at(5),
                end,
                details: ServerDetails::default(),
            });
        }
        report(&plan, tally)
    }

    #[test]
    fn the_goodput_is_found_from_below_and_from_above() {
        for start in [10.0, 4_000.0] {
            let mut steps = 0;
            let found =
                search(start, 0.02, &mut |rate| Ok(Some(run(rate, 500.0, Nanos::ZERO))), &mut |_| steps += 1);
            let figures = found.unwrap().figures;
            let goodput = figures.goodput_rps.unwrap();
            // 1 % of bad requests is allowed, and the search may end 2 % below.
            assert!((494.0..=506.0).contains(&goodput), "{goodput}");
            assert_eq!((figures.steps.len(), figures.offered_rps), (steps, goodput));
            assert!(figures.steps.iter().all(|step| step.passed == (step.rate_rps < 506.0)));
        }
    }

    #[test]
    fn a_server_that_answers_nothing_in_time_has_no_goodput() {
        let mut run = |rate| {
            let mut report = run(rate, 0.0, Nanos::ZERO);
            report.tally.answered = 1;
            Ok(Some(report))
        };
        let found = search(100.0, 0.02, &mut run, &mut |_| ()).unwrap();
        assert_eq!(found.figures.goodput_rps, Some(0.0));
        assert!(found.figures.offered < HOPELESS);
    }

    #[test]
    fn a_generator_that_keeps_being_late_ends_the_search_and_fails_it() {
        let mut runs = 0;
        let mut late_above_300 = |rate| {
            runs += 1;
            let mut report = run(rate, 500.0, if rate > 300.0 { at(2) } else { Nanos::ZERO });
            report.is_strict = true;
            Ok(Some(report))
        };
        let found = search(200.0, 0.02, &mut late_above_300, &mut |_| ()).unwrap();
        assert_eq!((found.exit_code(), found.figures.goodput_rps), (1, Some(0.0)));
        assert_eq!((found.figures.steps.len(), runs), (2, 2 + MAX_LATE_RUNS));
    }

    #[test]
    fn a_generator_that_keeps_being_late_is_warned_about_where_the_run_is_not_strict() {
        let mut late = |rate| Ok(Some(run(rate, 500.0, at(2))));
        let found = search(200.0, 0.02, &mut late, &mut |_| ()).unwrap();
        assert!((494.0..=506.0).contains(&found.figures.goodput_rps.unwrap()));
        assert_eq!(found.exit_code(), 0);
        assert!(found.notes()[0].starts_with("warning: the generator itself was late"));
    }

    #[test]
    fn one_bad_run_does_not_keep_the_search_below_its_rate() {
        // At 150, 225 and 337 requests a second the first run fails, whatever the reason was.
        for at_rate in [150.0, 225.0, 337.5] {
            let mut failed = false;
            let mut once = |rate| {
                let fails = rate == at_rate && !failed;
                failed |= fails;
                Ok(Some(run(rate, if fails { 1.0 } else { 500.0 }, Nanos::ZERO)))
            };
            let found = search(100.0, 0.02, &mut once, &mut |_| ()).unwrap();
            let goodput = found.figures.goodput_rps.unwrap();
            assert!((494.0..=506.0).contains(&goodput), "{goodput} after a failure at {at_rate}");
        }
    }

    #[test]
    fn a_search_that_is_ended_early_reports_the_goodput_so_far() {
        let mut steps = 0;
        let mut run = |rate| {
            steps += 1;
            Ok((steps < 3).then(|| run(rate, 500.0, Nanos::ZERO)))
        };
        let found = search(100.0, 0.02, &mut run, &mut |_| ()).unwrap();
        assert_eq!(found.figures.goodput_rps, Some(150.0));
        assert!(search(100.0, 0.02, &mut |_| Ok(None), &mut |_| ()).is_err());
    }
}
