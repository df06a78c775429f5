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
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::model::selection::{BatchFinish, Selection, select};
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
    let end = workload.warmup + workload.duration;
    let arrivals: Vec<Nanos> = Arrivals::of(workload, 0)?.take_while(|&at| at < end).collect();
    let from = arrivals.partition_point(|&at| at < workload.warmup);
    let counted = arrivals.len() - from;
    let rate = workload.rate_rps * model.share;
    let future = Arrivals::new(&model.arrival, rate, stream_seed(workload.seed, 1))?;
    let futures = MadeUpArrivals::new(future, stream_seed(workload.seed, 2));
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

/// When batches finish that start at this time.
#[derive(Clone, Copy)]
struct StartingAt<'a>(Nanos, &'a Profile);

impl BatchFinish for StartingAt<'_> {
    fn of(&self, _: usize, size: usize) -> Nanos {
        self.0 + self.1.latency(size)
    }

    fn least(&self, size: usize) -> Nanos {
        self.of(0, size)
    }

    fn start(&self, _: usize) -> Nanos {
        self.0
    }
}

impl RolloutTerms<'_> {
    fn of(model: &WorkloadModel) -> RolloutTerms<'_> {
        let WorkloadModel { profile, slo, .. } = model;
        let half = |_| Nanos(slo.0 / 2);
        let finish = StartingAt(Nanos::ZERO, profile);
        let target = select(DropRule::Timeout, finish, 1, 0.0, profile.max_batch(), half).size;
        RolloutTerms { profile, slo: *slo, target }
    }

    /// Selects from the requests behind the first `from` for a batch that starts now.
    fn select(&self, rule: DropRule, now: Nanos, waiting: &VecDeque<Nanos>, from: usize) -> Selection {
        let deadline = |at: usize| waiting[from + at] + self.slo;
        select(rule, StartingAt(now, self.profile), self.target, 1.0, waiting.len() - from, deadline)
    }
}

/// The requests of a model, by their arrival.
#[derive(Clone)]
struct RolloutQueue<'a> {
    waiting: VecDeque<Nanos>,
    coming: &'a [Nanos],
}

impl RolloutQueue<'_> {
    /// Lets come what does by `now`, or by the time at which the first one does. Returns that time;
    /// `None` if no request is left.
    fn until_one_waits(&mut self, now: Nanos) -> Option<Nanos> {
        let now = now.max(*self.waiting.front().or(self.coming.first())?);
        let (come, coming) = self.coming.split_at(self.coming.partition_point(|&at| at <= now));
        self.waiting.extend(come);
        self.coming = coming;
        Some(now)
    }

    /// Removes what is dropped or run, and returns the number of those that are dropped and came
    /// from `from` on.
    fn take(&mut self, Selection { dropped, size }: Selection, from: Nanos) -> usize {
        let dropped = self.waiting.drain(..dropped).filter(|&arrival| arrival >= from).count();
        self.waiting.drain(..size);
        dropped
    }

    /// Plays the queue on by a simple rule, the drop rule `window` whenever the GPU is free, and
    /// returns the number of requests that are dropped until `end`.
    fn play_on(mut self, terms: &RolloutTerms<'_>, mut now: Nanos, end: Nanos) -> usize {
        let mut lost = 0;
        while let Some(at) = self.until_one_waits(now).filter(|&at| at < end) {
            let batch = terms.select(DropRule::Window, at, &self.waiting, 0);
            lost += self.take(batch, Nanos::ZERO);
            now = if batch.size > 0 { at + terms.profile.latency(batch.size) } else { at };
        }
        lost
    }
}

/// Serves the arrivals, and returns the number of those from `from` on that are lost.
fn serve(arrivals: &[Nanos], from: Nanos, terms: RolloutTerms<'_>, mut futures: MadeUpArrivals) -> usize {
    let mut queue = RolloutQueue { waiting: VecDeque::new(), coming: arrivals };
    let (mut free, mut lost) = (Nanos::ZERO, 0);
    while let Some(now) = queue.until_one_waits(free) {
        // What is late already is lost whatever is done.
        let late = terms.select(DropRule::Timeout, now, &queue.waiting, 0).dropped;
        lost += queue.take(Selection { dropped: late, size: 0 }, from);
        let Some(&last) = queue.waiting.back() else { continue };
        let end = now + Nanos(terms.slo.0 * HORIZON);
        let streams: Vec<_> = (0..FUTURES).map(|_| futures.draw(last, now, end)).collect();
        let mut best = (usize::MAX, Selection { dropped: 0, size: 0 }, now);
        let mut consider = |batch: Selection, then: Nanos| {
            let mut left = RolloutQueue { waiting: queue.waiting.clone(), coming: &[] };
            left.take(batch, Nanos::ZERO);
            let played = |coming| RolloutQueue { coming, ..left.clone() }.play_on(&terms, then, end);
            let played: usize = streams.iter().map(|stream| played(stream)).sum();
            let cost = batch.dropped * FUTURES + played;
            best = if cost < best.0 { (cost, batch, then) } else { best };
        };
        for dropped in 0..queue.waiting.len().min(DROPS) {
            let most = terms.select(DropRule::Timeout, now, &queue.waiting, dropped).size;
            for size in (1..=most).rev().take(SIZES) {
                consider(Selection { dropped, size }, now + terms.profile.latency(size));
            }
        }
        for part in WAITS {
            consider(Selection { dropped: 0, size: 0 }, now + Nanos(terms.slo.0 / 100 * part));
        }
        let (_, batch, then) = best;
        lost += queue.take(batch, from);
        // Whoever waits decides anew when a request comes.
        let next = queue.coming.first().filter(|_| batch.size == 0);
        free = next.map_or(then, |&arrival| then.min(arrival));
    }
    lost
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
