//! The cost of counters and flight recorder: runs with and without them, alternately, and the
//! medians of both.

use super::machine::Machine;
use super::plan::{Plan, Watch};
use super::run::stopwatch::DutyCycles;
use super::run::{Outcome, run};
use super::search::{Search, Trial, highest};
use serde::Serialize;
use std::io;

/// The share of the rate that the last search found at which the next one begins; it goes up by
/// [`STEP`].
const BELOW: f64 = 0.93;
const STEP: f64 = 1.05;

/// The figures of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The name of the observation that is compared with none.
    pub watch: &'static str,
    /// The figures of each round, those without observation first.
    pub rounds: Vec<[Side; 2]>,
    /// The medians without observation.
    pub nothing: Side,
    /// The medians with counters and recorder.
    pub everything: Side,
    /// The ratio of requests per second, with observation / without. In searches only.
    pub throughput_ratio: Option<f64>,
    /// The ratio of the ModelThread's time per request.
    pub ns_per_request_ratio: f64,
    /// The ratio of the RankThread's time per grant.
    pub rank_ns_per_grant_ratio: f64,
    /// Models in all.
    pub models: usize,
    /// GPUs in all.
    pub gpus: usize,
    /// The SLO.
    pub slo_ms: f64,
    /// The machine that it ran on.
    pub machine: Machine,
}

/// The figures of the runs on one side of the comparison.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Side {
    /// Requests per second taken up.
    pub requests_per_s: f64,
    /// The time of ModelThreads' duty cycles that found work, per request.
    pub ns_per_request: f64,
    /// The time of RankThreads' duty cycles that found work, per grant.
    pub rank_ns_per_grant: f64,
    /// The time that threads waited for their cores.
    pub by_other_threads_ms: f64,
}

impl Side {
    fn of(outcome: &Outcome) -> Side {
        let busy = |threads: &[DutyCycles]| threads.iter().map(|cycles| cycles.busy.0 as f64).sum::<f64>();
        let delayed =
            outcome.model_cycles.iter().chain(&outcome.rank_cycles).filter_map(|cycles| cycles.delayed);
        Side {
            requests_per_s: outcome.requests as f64 / outcome.plan.duration.as_secs_f64(),
            ns_per_request: busy(&outcome.model_cycles) / outcome.requests.max(1) as f64,
            rank_ns_per_grant: busy(&outcome.rank_cycles) / outcome.ran.batches.max(1) as f64,
            by_other_threads_ms: delayed.map(|delayed| delayed.as_millis_f64()).sum(),
        }
    }

    fn median(sides: &[Side]) -> Side {
        let median = |figure: fn(&Side) -> f64| {
            let mut all: Vec<f64> = sides.iter().map(figure).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        Side {
            requests_per_s: median(|side| side.requests_per_s),
            ns_per_request: median(|side| side.ns_per_request),
            rank_ns_per_grant: median(|side| side.rank_ns_per_grant),
            by_other_threads_ms: median(|side| side.by_other_threads_ms),
        }
    }
}

/// A function that makes the plan of a rate.
pub type PlanAt<'a> = dyn Fn(f64) -> io::Result<Plan> + 'a;

/// Runs `rounds` pairs, each side at `rate`, or at the highest that passes if there is a `search`.
/// `plan_at` makes the plan of a rate, with counters and recorder.
///
/// Errors: those of [`run`] and of `plan_at`; no rate passed.
pub fn compare(
    plan_at: &PlanAt<'_>,
    rate: f64,
    rounds: usize,
    search: Option<Search>,
    cores: &[usize],
) -> io::Result<Comparison> {
    let machine = Machine::this(cores.len());
    let plan = plan_at(rate)?;
    let watches = [Watch::Nothing, plan.watch.clone()];
    let mut next_search = search;
    let mut done = Vec::new();
    for round in 0..rounds {
        let mut sides = [None; 2];
        // The side that goes first alternates too.
        for at in [round % 2, 1 - round % 2] {
            let watch = &watches[at];
            let watched = |rate| plan_at(rate).map(|plan| Plan { watch: watch.clone(), ..plan });
            let side = one_side(&watched, rate, &mut next_search, cores)?;
            eprintln!(
                "{}: {:.3} M requests/s, {:.1} ns each",
                watch.name(),
                side.requests_per_s / 1e6,
                side.ns_per_request
            );
            sides[at] = Some(side);
        }
        done.extend(sides[0].zip(sides[1]).map(<[Side; 2]>::from));
    }
    let [nothing, everything] =
        [0, 1].map(|at| Side::median(&done.iter().map(|pair| pair[at]).collect::<Vec<_>>()));
    Ok(Comparison {
        watch: plan.watch.name(),
        throughput_ratio: search.map(|_| everything.requests_per_s / nothing.requests_per_s),
        ns_per_request_ratio: everything.ns_per_request / nothing.ns_per_request,
        rank_ns_per_grant_ratio: everything.rank_ns_per_grant / nothing.rank_ns_per_grant,
        rounds: done,
        nothing,
        everything,
        models: plan.models,
        gpus: plan.gpus,
        slo_ms: plan.slo.as_millis_f64(),
        machine,
    })
}

fn one_side(
    plan_at: &PlanAt<'_>,
    rate: f64,
    search: &mut Option<Search>,
    cores: &[usize],
) -> io::Result<Side> {
    let Some(search) = search else { return Ok(Side::of(&run(&plan_at(rate)?, cores)?)) };
    let best = highest(*search, |trial: Trial| run(&trial.shortened(plan_at(trial.rate)?), cores))?;
    let best = best.ok_or_else(|| io::Error::other("no rate passed"))?;
    (search.first, search.growth) = (best.plan.rate * BELOW, STEP);
    Ok(Side::of(&best))
}

impl Comparison {
    /// Formats the figures as lines to read.
    pub fn lines(&self) -> String {
        let side = |side: &Side| {
            format!(
                "{:.3} M requests/s, {:.1} ns each; {:.0} ns a grant",
                side.requests_per_s / 1e6,
                side.ns_per_request,
                side.rank_ns_per_grant
            )
        };
        let percent = |ratio: f64| format!("{:+.1} %", (ratio - 1.0) * 100.0);
        let throughput = self.throughput_ratio.map_or("not searched".to_owned(), percent);
        format!(
            "medians of {} rounds\nnothing on     {}\neverything on  {}\nthroughput {throughput}, time per request {}, \
             per grant {}",
            self.rounds.len(),
            side(&self.nothing),
            side(&self.everything),
            percent(self.ns_per_request_ratio),
            percent(self.rank_ns_per_grant_ratio),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_is_the_median_of_its_own() {
        let side = |at: f64| Side {
            requests_per_s: at,
            ns_per_request: 10.0 - at,
            rank_ns_per_grant: at * at,
            by_other_threads_ms: 0.0,
        };
        let median = Side::median(&[side(3.0), side(1.0), side(2.0)]);
        assert_eq!((median.requests_per_s, median.ns_per_request, median.rank_ns_per_grant), (2.0, 8.0, 4.0));
    }
}
