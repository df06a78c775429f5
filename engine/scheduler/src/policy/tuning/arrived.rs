//! What has arrived since the load changed: each model's part of the requests, and how far they
//! come in bursts. Made-up requests are to be like them (`prior`).

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use symphony_transport::Nanos;
use symphony_transport::message::Request;

/// The shapes that are told apart of the gamma distributions of the gaps between a model's
/// requests: from bursts of some twenty requests to requests that are independent.
const SHAPES: RangeInclusive<f64> = 0.05..=1.0;

/// The shape that is expected before anything has come, bursts of some five requests, and the gaps
/// for which it counts.
const EXPECTED_SHAPE: (f64, f64) = (0.2, 20.0);

/// The requests, as many of each model, that are expected before anything has come.
const EXPECTED_REQUESTS: f64 = 20.0;

/// The part of a model's mean gap below which gaps count as short, whatever their length: time has
/// an end at a nanosecond, and in large bursts many gaps are shorter.
const SHORT: f64 = 0.01;

/// The requests that are the first news, and how many times as many the next ones are.
const NEWS: (f64, f64) = (200.0, 8.0);

/// The requests from which on what is known of them does not change any more.
const ENOUGH: f64 = 40_000.0;

/// What has arrived of all models.
#[derive(Clone, Debug)]
pub(super) struct Arrived {
    models: Vec<ArrivedOfModel>,
    /// The requests from which on they say something new.
    news_from: f64,
}

/// What has arrived of a model.
#[derive(Clone, Copy, Debug, Default)]
struct ArrivedOfModel {
    count: f64,
    last: Option<Nanos>,
    /// The sum of the gaps, in seconds.
    sum: f64,
    /// The sum of the gaps' logarithms, short ones being as long as those that just are not.
    logarithms: f64,
    /// The number of short gaps.
    short: f64,
}

impl Arrived {
    /// Nothing has come of so many models.
    pub(super) fn none_of(models: usize) -> Arrived {
        Arrived { models: vec![ArrivedOfModel::default(); models], news_from: NEWS.0 }
    }

    /// Adds requests, in the order of their arrival. Where some were left out before the first of
    /// them, the gap counts as it is, as one among thousands. Returns true if that is news: there
    /// are some hundreds, or several times as many as when it last did, until there are enough.
    pub(super) fn add(&mut self, recent: &VecDeque<Request>) -> bool {
        for request in recent {
            let of = &mut self.models[request.queue.0 as usize];
            of.count += 1.0;
            if let Some(last) = of.last.replace(request.arrival) {
                let gap = (request.arrival - last).max(Nanos(1)).as_secs_f64();
                of.sum += gap;
                let short = SHORT * of.sum / (of.count - 1.0);
                of.logarithms += gap.max(short).ln();
                of.short += f64::from(gap < short);
            }
        }
        let count = self.count();
        let is_news = (self.news_from..ENOUGH).contains(&count);
        if is_news {
            self.news_from = NEWS.1 * count;
        }
        is_news
    }

    fn count(&self) -> f64 {
        self.models.iter().map(|of| of.count).sum()
    }

    /// Returns each model's part of the requests.
    pub(super) fn shares(&self) -> Vec<f64> {
        let each = EXPECTED_REQUESTS / self.models.len() as f64;
        let all = self.count() + EXPECTED_REQUESTS;
        self.models.iter().map(|of| (of.count + each) / all).collect()
    }

    /// Returns the shape of the gamma distributions from which the gaps between a model's requests
    /// would most likely come, all models having the same one.
    pub(super) fn shape(&self) -> f64 {
        let (expected, for_gaps) = EXPECTED_SHAPE;
        let (mut spread, mut gaps, mut short) = (for_gaps * spread_of(expected), for_gaps, 0.0);
        for of in self.models.iter().filter(|of| of.count > 1.0) {
            let own = of.count - 1.0;
            spread += own * (of.sum / own).ln() - of.logarithms;
            short += of.short;
            gaps += own;
        }
        shape_of(spread / gaps, short / gaps).clamp(*SHAPES.start(), *SHAPES.end())
    }
}

/// The likeliest shape of a gamma distribution by its spread, the logarithm of its mean less the
/// mean of its logarithms, and the part of gaps that are short. A gap is short with a probability
/// of (c / scale)^k / Gamma(k + 1), where c is the least length of others, so short gaps add -1/k
/// each to the derivative of the likelihood: ln k - digamma(k) = spread + short / k. The left side
/// is that of [`spread_of`], at most 2 % off.
fn shape_of(spread: f64, short: f64) -> f64 {
    let less = 3.0 - 6.0 * short - spread;
    (less + (less * less + 24.0 * spread * (1.0 - short)).sqrt()) / (12.0 * spread)
}

/// The spread of a gamma distribution by its shape: the inverse of [`shape_of`] without short gaps.
fn spread_of(shape: f64) -> f64 {
    (1.0 + 3.0 * shape) / (shape * (1.0 + 6.0 * shape))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::arrivals::Arrivals;
    use crate::workload::Arrival;
    use symphony_transport::message::ModelId;

    /// What is known after `count` requests of each of as many models as there are rates.
    fn after(count: usize, arrival: &Arrival, rates: &[f64]) -> Arrived {
        let mut requests = Vec::new();
        for (model, &rate) in rates.iter().enumerate() {
            let arrivals = Arrivals::new(arrival, rate, 7 + model as u64).unwrap();
            let queue = ModelId(model as u32).only_queue();
            requests.extend(arrivals.take(count).map(|arrival| Request {
                arrival,
                queue,
                ..Request::default()
            }));
        }
        requests.sort_by_key(|request| request.arrival);
        let mut arrived = Arrived::none_of(rates.len());
        arrived.add(&requests.into());
        arrived
    }

    #[test]
    fn many_requests_show_their_bursts() {
        for (arrival, shape) in [
            (Arrival::Gamma(0.05), 0.05..0.06),
            (Arrival::Gamma(0.2), 0.17..0.23),
            (Arrival::Gamma(0.5), 0.45..0.55),
            (Arrival::Poisson, 0.9..1.01),
            (Arrival::Uniform, 0.99..1.01),
        ] {
            let found = after(2_000, &arrival, &[10.0, 1_000.0, 70.0]).shape();
            assert!(shape.contains(&found), "{arrival:?} {found}");
        }
    }

    #[test]
    fn few_requests_say_little() {
        let none = Arrived::none_of(4);
        assert!((none.shape() - 0.2).abs() < 1e-9 && none.shares() == [0.25; 4]);
        let few = after(2, &Arrival::Uniform, &[10.0, 10.0]).shape();
        assert!((0.2..0.3).contains(&few), "{few}");
        let mut arrived = Arrived::none_of(2);
        for (more, expected) in [(10, 2.0 / 3.0), (970, 0.99)] {
            arrived.add(&vec![Request::default(); more].into());
            let shares = arrived.shares();
            assert!((shares[0] - expected).abs() < 1e-9, "{shares:?}");
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
        }
    }

    #[test]
    fn eight_times_as_many_requests_are_news_until_there_are_enough() {
        let mut arrived = Arrived::none_of(1);
        let some = |count: usize| VecDeque::from(vec![Request::default(); count]);
        let news = [0, 199, 1, 1_399, 1, 11_200, 30_000, 100_000].map(|count| arrived.add(&some(count)));
        assert_eq!(news, [false, false, true, false, true, true, false, false]);
    }
}
