//! What a scheduler can serve that knows how requests come, but not when: a rollout policy for one
//! GPU and one model (Bertsekas, Tsitsiklis and Wu, "Rollout Algorithms for Combinatorial
//! Optimization", 1997). Between it and `clairvoyant` lies what only knowledge of the future is
//! worth.
//!
//! Whenever the GPU is free and requests wait, it makes up 40 streams of arrivals by the workload's
//! own distribution, given the time since the last arrival. For each thing that it could do, drop
//! some of the oldest requests and run some of the rest, or wait a little, it plays each stream on
//! by a simple rule, and does what loses the fewest requests on average. All are compared on the
//! same streams. It takes up to some milliseconds for a decision, so it is a yardstick and no
//! scheduler.

use super::clairvoyant;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::collections::VecDeque;
use symphony_scheduler::profile::Profile;
use symphony_scheduler::sim::arrivals::{ArrivalError, Arrivals, stream_seed};
use symphony_scheduler::sim::goodput::ALLOWED_BAD_RATE;
use symphony_scheduler::workload::{Arrival, Workload, WorkloadModel};
use symphony_transport::Nanos;

/// The streams of arrivals that are made up for a decision.
const FUTURES: usize = 40;

/// The SLOs for which they are played on.
const HORIZON: u64 = 6;

/// The numbers of oldest requests that a decision tries to drop, from none on.
const DROPS: usize = 8;

/// The batch sizes that it tries, from the largest one.
const SIZES: usize = 6;

/// The parts of the SLO, in hundredths, that a decision tries to wait.
const WAITS: [u64; 3] = [2, 5, 10];

/// The gaps between requests that are kept to draw from.
const GAPS: usize = 1 << 16;

/// Returns true if the rule can serve the workload: where the limit is known, and requests come by
/// a distribution.
pub fn applies_to(workload: &Workload) -> bool {
    let is_drawn = |model: &WorkloadModel| matches!(model.arrival, Arrival::Poisson | Arrival::Gamma(_));
    clairvoyant::applies_to(workload) && workload.models.iter().all(is_drawn)
}

/// Returns the rate that the workload really offers if the rule serves all but 1 % of its requests
/// in time. The workload is one that [`applies_to`] permits.
///
/// Errors: an arrival process that can't be sampled.
pub fn passes(workload: &Workload) -> Result<Option<f64>, ArrivalError> {
    let model = &workload.models[0];
    let stream = |seed| {
        let rate = workload.rate_rps * model.share;
        Arrivals::new(&model.arrival, rate, stream_seed(workload.seed, seed))
    };
    let end = workload.warmup + workload.duration;
    let arrivals: Vec<Nanos> = stream(0)?.take_while(|&at| at < end).collect();
    let from = arrivals.partition_point(|&at| at < workload.warmup);
    let counted = arrivals.len() - from;
    let futures = MadeUpArrivals::new(stream(1)?, stream_seed(workload.seed, 2));
    let lost = serve(&arrivals, workload.warmup, RolloutTerms::of(model), futures);
    let offered = counted as f64 / workload.duration.as_secs_f64();
    Ok((lost as f64 <= ALLOWED_BAD_RATE * counted as f64).then_some(offered))
}

/// Made-up arrivals.
struct MadeUpArrivals {
    /// Gaps between requests, by length.
    gaps: Vec<Nanos>,
    rng: Pcg64Mcg,
}

impl MadeUpArrivals {
    fn new(stream: Arrivals, seed: u64) -> MadeUpArrivals {
        let mut before = Nanos::ZERO;
        let gap = |at: Nanos| at - core::mem::replace(&mut before, at);
        let mut gaps: Vec<Nanos> = stream.take(GAPS).map(gap).collect();
        gaps.sort_unstable();
        MadeUpArrivals { gaps, rng: Pcg64Mcg::seed_from_u64(seed) }
    }

    /// Returns arrivals from `now` until `end`, the last one before having come at `last`.
    fn draw(&mut self, last: Nanos, now: Nanos, end: Nanos) -> Vec<Nanos> {
        let MadeUpArrivals { gaps, rng } = self;
        let longer = gaps.partition_point(|&gap| last + gap <= now).min(gaps.len() - 1);
        let mut at = now.max(last + gaps[rng.random_range(longer..gaps.len())]);
        let mut arrivals = Vec::new();
        while at < end {
            arrivals.push(at);
            at += gaps[rng.random_range(0..gaps.len())];
        }
        arrivals
    }
}

/// What decides about a model's batches.
#[derive(Clone, Copy)]
struct RolloutTerms<'a> {
    profile: &'a Profile,
    slo: Nanos,
    /// The largest batch of which two, one after the other, are within the SLO.
    target: usize,
}

/// What is done when the GPU is free: requests from the head are dropped, then some are run.
#[derive(Clone, Copy)]
struct RolloutStep {
    dropped: usize,
    size: usize,
}

impl RolloutTerms<'_> {
    fn of(model: &WorkloadModel) -> RolloutTerms<'_> {
        let terms = RolloutTerms { profile: &model.profile, slo: model.slo, target: 0 };
        RolloutTerms { target: terms.largest_within(Nanos(model.slo.0 / 2)), ..terms }
    }

    /// Returns the size of the largest batch that takes at most `time`.
    fn largest_within(&self, time: Nanos) -> usize {
        let (mut fits, mut beyond) = (0, self.profile.max_batch() + 1);
        while beyond - fits > 1 {
            let size = usize::midpoint(fits, beyond);
            *if self.profile.latency(size) <= time { &mut fits } else { &mut beyond } = size;
        }
        fits
    }

    /// Returns the size of the largest batch that is in time if it starts now with this request.
    fn largest_from(&self, now: Nanos, arrival: Nanos) -> usize {
        self.largest_within(Nanos((arrival + self.slo).0.saturating_sub(now.0)))
    }

    /// The rule by which streams are played on: the drop rule `window`, at once. Requests that no
    /// batch of the target size can start with are dropped, if that makes the batch larger.
    fn simple(&self, now: Nanos, waiting: &VecDeque<Nanos>) -> RolloutStep {
        let mut best = RolloutStep { dropped: waiting.len(), size: 0 };
        for (dropped, &arrival) in waiting.iter().enumerate() {
            let rest = waiting.len() - dropped;
            let size = self.largest_from(now, arrival).min(rest);
            if size > best.size {
                best = RolloutStep { dropped, size };
            }
            if size >= self.target.min(rest).max(1) {
                break;
            }
        }
        best
    }
}

/// Removes what is dropped or run, and returns the number of those that are dropped after `from`.
fn take(waiting: &mut VecDeque<Nanos>, decision: RolloutStep, from: Nanos) -> usize {
    let dropped = waiting.drain(..decision.dropped).filter(|&arrival| arrival >= from).count();
    waiting.drain(..decision.size);
    dropped
}

/// Plays `future` on by the simple rule, and returns the number of requests that are dropped until
/// `end`.
fn play_on(
    terms: &RolloutTerms<'_>,
    mut now: Nanos,
    mut waiting: VecDeque<Nanos>,
    future: &[Nanos],
    end: Nanos,
) -> usize {
    let (mut next, mut lost) = (0, 0);
    while now < end {
        let come = future[next..].iter().take_while(|&&at| at <= now).count();
        waiting.extend(&future[next..next + come]);
        next += come;
        if waiting.is_empty() {
            let Some(&arrival) = future.get(next) else { break };
            now = arrival;
            continue;
        }
        let decision = terms.simple(now, &waiting);
        lost += take(&mut waiting, decision, Nanos::ZERO);
        if decision.size > 0 {
            now += terms.profile.latency(decision.size);
        }
    }
    lost
}

/// Serves the arrivals, and returns the number of those from `from` on that are lost.
fn serve(arrivals: &[Nanos], from: Nanos, terms: RolloutTerms<'_>, mut futures: MadeUpArrivals) -> usize {
    let (mut now, mut next, mut lost) = (Nanos::ZERO, 0, 0);
    let mut waiting = VecDeque::new();
    loop {
        let come = arrivals[next..].iter().take_while(|&&at| at <= now).count();
        waiting.extend(&arrivals[next..next + come]);
        next += come;
        let coming = arrivals.get(next).copied();
        if waiting.is_empty() {
            let Some(arrival) = coming else { return lost };
            now = arrival;
            continue;
        }
        // What is late already is lost whatever is done.
        let late = waiting.iter().take_while(|&&at| terms.largest_from(now, at) == 0).count();
        lost += take(&mut waiting, RolloutStep { dropped: late, size: 0 }, from);
        if waiting.is_empty() {
            continue;
        }
        let end = now + Nanos(terms.slo.0 * HORIZON);
        let last = arrivals[next - 1];
        let streams: Vec<_> = (0..FUTURES).map(|_| futures.draw(last, now, end)).collect();
        let after = |decision: RolloutStep, then: Nanos| {
            let mut left = waiting.clone();
            take(&mut left, decision, Nanos::ZERO);
            let lost = streams.iter().map(|future| play_on(&terms, then, left.clone(), future, end));
            decision.dropped * FUTURES + lost.sum::<usize>()
        };
        let mut best = (usize::MAX, RolloutStep { dropped: 0, size: 0 }, now);
        for dropped in 0..waiting.len().min(DROPS) {
            let most = terms.largest_from(now, waiting[dropped]).min(waiting.len() - dropped);
            for size in (1..=most).rev().take(SIZES) {
                let decision = RolloutStep { dropped, size };
                let then = now + terms.profile.latency(size);
                let cost = after(decision, then);
                best = if cost < best.0 { (cost, decision, then) } else { best };
            }
        }
        for part in WAITS {
            let then = now + Nanos(terms.slo.0 / 100 * part);
            let decision = RolloutStep { dropped: 0, size: 0 };
            let cost = after(decision, then);
            best = if cost < best.0 { (cost, decision, then) } else { best };
        }
        let (_, decision, then) = best;
        lost += take(&mut waiting, decision, from);
        // Whoever waits decides anew when a request comes.
        now = if decision.size > 0 { then } else { coming.map_or(then, |arrival| then.min(arrival)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_scheduler::sim::goodput::ideal_rate;

    fn workload(arrival: Arrival) -> Workload {
        let profile = Profile::linear(Nanos(570_000), Nanos(14_348_000), 64).unwrap();
        let model = WorkloadModel { arrival, ..WorkloadModel::new("m", profile, Nanos::from_millis(36)) };
        Workload { duration: Nanos::from_secs(1), ..Workload::of_models(1, 1.0, vec![model]) }
    }

    #[test]
    fn it_serves_less_than_is_possible_and_all_where_few_come() {
        for arrival in [Arrival::Poisson, Arrival::Gamma(0.2)] {
            let workload = workload(arrival);
            let ideal = ideal_rate(&workload);
            let at = |share: f64| Workload { rate_rps: share * ideal, ..workload.clone() };
            assert!(passes(&at(0.05)).unwrap().is_some());
            assert!(passes(&at(0.95)).unwrap().is_none());
            for share in [0.4, 0.6, 0.8] {
                let is_possible = clairvoyant::passes(&at(share)).unwrap().is_some();
                assert!(is_possible || passes(&at(share)).unwrap().is_none(), "at {share}");
            }
        }
    }

    #[test]
    fn a_future_follows_from_the_time_since_the_last_arrival() {
        let workload = workload(Arrival::Uniform);
        let stream = Arrivals::new(&workload.models[0].arrival, 1_000.0, 1).unwrap();
        let mut futures = MadeUpArrivals::new(stream, 1);
        let ms = Nanos::from_micros;
        let future = futures.draw(ms(10_000), ms(10_400), ms(14_500));
        assert_eq!(future.len(), 4);
        assert!(future.iter().zip([11, 12, 13, 14]).all(|(at, due)| at.0.abs_diff(due * 1_000_000) < 9_000));
    }
}
