//! Poisson arrivals, made on the ModelThread's own core. Gaps and models are drawn before the run,
//! so that a request costs two loads, a multiplication and the 64 bytes that a frontend would have
//! written.
//!
//! The gaps are kept as multiples of the mean, so one stream serves every rate. Gaps and models lie
//! in two loops, 256 and 128 KiB, of lengths without a common divisor: together they repeat after
//! 2^32 requests, and fit in a core's second cache.

use super::delay_histogram::DelayHistogram;
use super::stopwatch::Window;
use crate::scale::plan::Plan;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1};
use rand_pcg::Pcg64Mcg;
use symphony::runtime::clock::Clock;
use symphony::runtime::threads::Intake;
use symphony_transport::Nanos;
use symphony_transport::message::{ModelId, Request};

/// The number of gaps: a power of two, for a cheap wrap.
const GAPS: usize = 1 << 16;
const MODELS: usize = GAPS - 1;
/// The bits of fractions of a mean gap and of a nanosecond: units of 1/65,536.
const FRACTION_BITS: u32 = 16;
/// The longest gap, in means: one in 10^13 would be longer.
const LONGEST_GAP: f64 = 30.0;
/// The lowest rate whose gaps fit their 32 bits.
pub const MIN_RATE: f64 = 100.0;

/// The counts and delays of the requests that a ModelThread took up.
#[derive(Clone, Debug, Default)]
pub struct ArrivalTally {
    /// The number of requests taken up.
    pub requests: u64,
    /// The delays: all requests taken up in one duty cycle count with the oldest one's delay.
    pub lags: DelayHistogram,
    /// The delays after the machine took the thread's core, which are not among `lags`.
    pub disturbed_lags: DelayHistogram,
    /// The disturbed delays, less the time that the machine took.
    pub unexplained_lags: DelayHistogram,
}

/// A stream of generated requests, which a ModelThread takes up as from a frontend.
pub struct ArrivalStream {
    gaps: Box<[u32]>,
    models: Box<[u16]>,
    gap_at: usize,
    model_at: usize,
    /// The mean gap, in 1/65,536 ns.
    mean: u64,
    /// The next arrival, in 1/65,536 ns.
    next: u64,
    slo: Nanos,
    id: u64,
    window: Window,
    /// The `now` of the current duty cycle, its oldest arrival and its number of requests.
    cycle: Nanos,
    oldest: Nanos,
    group: u64,
    /// The time that the machine took, as of now and as of the current duty cycle.
    machine_took: Nanos,
    explained: Nanos,
    taken: ArrivalTally,
}

impl ArrivalStream {
    /// Makes `rate_rps` requests a second (at least [`MIN_RATE`]), spread evenly over `models`,
    /// from `start` on. Requests taken up within `window` are counted.
    pub fn new(
        rate_rps: f64,
        models: &[ModelId],
        slo: Nanos,
        start: Nanos,
        window: Window,
        seed: u64,
    ) -> ArrivalStream {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let one = f64::from(1u32 << FRACTION_BITS);
        let mut gap = || -> u32 {
            let means: f64 = Exp1.sample(&mut rng);
            (means.min(LONGEST_GAP) * one) as u32
        };
        let gaps: Box<[u32]> = (0..GAPS).map(|_| gap()).collect();
        let models = (0..MODELS).map(|_| models[rng.random_range(0..models.len())].0 as u16).collect();
        ArrivalStream {
            gaps,
            models,
            gap_at: 0,
            model_at: 0,
            mean: (1e9 / rate_rps.max(MIN_RATE) * one) as u64,
            next: start.0 << FRACTION_BITS,
            slo,
            id: 0,
            window,
            cycle: Nanos::ZERO,
            oldest: Nanos::ZERO,
            group: 0,
            machine_took: Nanos::ZERO,
            explained: Nanos::ZERO,
            taken: ArrivalTally::default(),
        }
    }

    /// Returns the counts within the window, without the current duty cycle.
    pub fn taken(&self) -> &ArrivalTally {
        &self.taken
    }

    /// Sets the time that the machine took since the thread last had nothing to do, which explains
    /// the delays of the coming duty cycle.
    #[inline]
    pub fn book(&mut self, machine_took: Nanos) {
        self.machine_took = machine_took;
    }

    /// Records the requests of the previous duty cycle.
    #[inline]
    fn cycle_over(&mut self, now: Nanos, oldest: Nanos) {
        if self.window.holds(self.cycle) {
            self.taken.requests += self.group;
            let lag = self.cycle - self.oldest;
            if self.explained == Nanos::ZERO {
                self.taken.lags.record(lag, self.group);
            } else {
                self.disturbed_cycle_over(lag);
            }
        }
        self.explained = self.machine_took;
        (self.cycle, self.oldest, self.group) = (now, oldest, 0);
    }

    #[cold]
    fn disturbed_cycle_over(&mut self, lag: Nanos) {
        self.taken.disturbed_lags.record(lag, self.group);
        self.taken.unexplained_lags.record(lag - self.explained, self.group);
    }
}

impl Intake for ArrivalStream {
    #[inline]
    fn next(&mut self, now: Nanos) -> Option<Request> {
        let arrival = Nanos(self.next >> FRACTION_BITS);
        if arrival > now {
            return None;
        }
        if now != self.cycle {
            self.cycle_over(now, arrival);
        }
        self.group += 1;
        self.next += (u64::from(self.gaps[self.gap_at]) * self.mean) >> FRACTION_BITS;
        self.gap_at = (self.gap_at + 1) % GAPS;
        let queue = ModelId(u32::from(self.models[self.model_at])).only_queue();
        self.model_at = if self.model_at + 1 == MODELS { 0 } else { self.model_at + 1 };
        self.id += 1;
        Some(Request { id: self.id, arrival, deadline: arrival + self.slo, queue, ..Request::default() })
    }
}

/// Measures the stream's own cost per request in ns: 2^22 requests are taken, one per call, without
/// a scheduler.
pub fn cost_of_stream(plan: &Plan) -> f64 {
    const REQUESTS: u32 = 1 << 22;
    let models: Vec<ModelId> = (0..plan.models.div_ceil(plan.model_threads) as u32).map(ModelId).collect();
    let mut stream = ArrivalStream::new(1e7, &models, plan.slo, Nanos::ZERO, Window::ALL, plan.seed);
    let clock = Clock::start();
    let before = clock.now();
    for _ in 0..REQUESTS {
        std::hint::black_box(stream.next(Nanos::MAX));
    }
    (clock.now() - before).0 as f64 / f64::from(REQUESTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(rate: f64) -> ArrivalStream {
        let models = [ModelId(3), ModelId(5)];
        ArrivalStream::new(rate, &models, Nanos::from_millis(9), Nanos::from_secs(1), Window::ALL, 1)
    }

    #[test]
    fn a_stream_keeps_its_rate_over_many_loops() {
        for rate in [MIN_RATE, 12_345.0, 20e6] {
            let mut stream = stream(rate);
            let count = 10 * GAPS;
            let last = (0..count).filter_map(|_| stream.next(Nanos::MAX)).last().unwrap();
            let seen = count as f64 / (last.arrival - Nanos::from_secs(1)).as_secs_f64();
            assert!((seen / rate - 1.0).abs() < 0.02, "{seen} for {rate}");
        }
    }

    #[test]
    fn a_request_comes_in_order_at_its_time_and_for_each_model() {
        let mut stream = stream(1e6);
        assert_eq!(stream.next(Nanos::from_millis(999)), None);
        let now = Nanos::from_millis(1_001);
        let taken: Vec<Request> = std::iter::from_fn(|| stream.next(now)).collect();
        assert!((800..1_200).contains(&taken.len()));
        assert!(taken.windows(2).all(|pair| pair[0].arrival <= pair[1].arrival));
        assert!(taken.iter().all(|r| r.arrival <= now && r.deadline == r.arrival + Nanos::from_millis(9)));
        let of_one = taken.iter().filter(|r| r.queue == ModelId(3).only_queue()).count() as f64;
        assert!((of_one / taken.len() as f64 - 0.5).abs() < 0.1);
    }

    #[test]
    fn a_turns_requests_count_with_the_oldests_delay() {
        let mut stream = stream(1e6);
        while stream.next(Nanos::from_millis(1_002)).is_some() {}
        let at_once = stream.id;
        while stream.next(Nanos::from_millis(1_003)).is_some() {}
        assert_eq!(stream.taken().requests, at_once);
        assert_eq!(stream.taken().lags.max(), Nanos::from_millis(2));
        assert_eq!(stream.taken().lags.quantile(0.1), Nanos::from_millis(2));
    }
}
