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

/// The gaps of a model by which its bursts are drawn to those of all.
const DRAWN_BY: f64 = 50.0;

/// The requests, as many of each model, that are expected before anything has come.
const EXPECTED_REQUESTS: f64 = 20.0;

/// The part of a model's mean gap below which gaps count as short, whatever their length: time has
/// an end at a nanosecond, and in large bursts many gaps are shorter.
const SHORT: f64 = 0.01;

/// The requests that are the first news, and how many times as many the next ones are.
const NEWS: (f64, f64) = (200.0, 8.0);

/// The requests from which on what is known of them does not change any more.
const ENOUGH: f64 = 10_000.0;

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
    /// The number of gaps between its requests.
    gaps: f64,
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

    /// Adds requests, in the order of their arrival. `follow` is false if some before the first of
    /// them were left out: nothing is known of the gaps to those. Returns true if that is news:
    /// there are some hundreds, or several times as many as when it last did, until there are
    /// enough.
    pub(super) fn add(&mut self, recent: &VecDeque<Request>, follow: bool) -> bool {
        if !follow {
            self.models.iter_mut().for_each(|of| of.last = None);
        }
        for request in recent {
            let of = &mut self.models[request.queue.0 as usize];
            of.count += 1.0;
            if let Some(last) = of.last.replace(request.arrival) {
                let gap = (request.arrival - last).max(Nanos(1)).as_secs_f64();
                of.gaps += 1.0;
                of.sum += gap;
                let short = SHORT * of.sum / of.gaps;
                of.logarithms += gap.max(short).ln();
                of.short += f64::from(gap < short);
            }
        }
        let count = self.count();
        let is_news = count >= self.news_from;
        if is_news {
            let next = NEWS.1 * count;
            self.news_from = if next < ENOUGH { next } else { f64::INFINITY };
        }
        is_news
    }

    /// Returns true from the second news on: before, little is known.
    pub(super) fn is_known(&self) -> bool {
        self.count() >= NEWS.0 * NEWS.1
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
    /// would most likely come if all models had the same one.
    pub(super) fn shape(&self) -> f64 {
        self.bursts().shape()
    }

    /// Returns the shape of each model's own distribution: that of all, the fewer of its requests
    /// have come.
    pub(super) fn shapes(&self) -> Vec<f64> {
        let all = self.bursts().times(DRAWN_BY);
        self.models.iter().map(|of| all.and(of.bursts()).shape()).collect()
    }

    /// The bursts of all models.
    fn bursts(&self) -> Bursts {
        let (expected, gaps) = EXPECTED_SHAPE;
        let expected = Bursts { gaps, spread: gaps * spread_of(expected), short: 0.0 };
        self.models.iter().fold(expected, |all, of| all.and(of.bursts()))
    }
}

impl ArrivedOfModel {
    fn bursts(&self) -> Bursts {
        let ArrivedOfModel { gaps, sum, logarithms, short, .. } = *self;
        let spread = if gaps > 0.0 { gaps * (sum / gaps).ln() - logarithms } else { 0.0 };
        Bursts { gaps, spread, short }
    }
}

/// How unequal gaps are.
#[derive(Clone, Copy)]
struct Bursts {
    /// The number of gaps.
    gaps: f64,
    /// The logarithm of the gaps' mean less the mean of their logarithms, times their number.
    spread: f64,
    /// The number of short ones.
    short: f64,
}

impl Bursts {
    /// Returns them together with those of other gaps, which may have another mean.
    fn and(self, more: Bursts) -> Bursts {
        let Bursts { gaps, spread, short } = more;
        Bursts { gaps: self.gaps + gaps, spread: self.spread + spread, short: self.short + short }
    }

    /// Returns the same bursts, of so many gaps.
    fn times(self, gaps: f64) -> Bursts {
        let times = gaps / self.gaps;
        Bursts { gaps, spread: times * self.spread, short: times * self.short }
    }

    /// Returns the likeliest shape.
    fn shape(self) -> f64 {
        shape_of(self.spread / self.gaps, self.short / self.gaps).clamp(*SHAPES.start(), *SHAPES.end())
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
        arrived.add(&requests.into(), true);
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
    fn each_model_has_bursts_of_its_own_once_it_has_requests() {
        let arrivals = [(Arrival::Poisson, 2_000), (Arrival::Gamma(0.1), 2_000), (Arrival::Poisson, 5)];
        let mut requests = Vec::new();
        for (model, (arrival, count)) in arrivals.iter().enumerate() {
            let queue = ModelId(model as u32).only_queue();
            let arrivals = Arrivals::new(arrival, 100.0, 7 + model as u64).unwrap().take(*count);
            requests.extend(arrivals.map(|arrival| Request { arrival, queue, ..Request::default() }));
        }
        requests.sort_by_key(|request| request.arrival);
        let mut arrived = Arrived::none_of(3);
        assert!(arrived.shapes().iter().all(|shape| (shape - arrived.shape()).abs() < 1e-9));
        arrived.add(&requests.into(), true);
        let shapes = arrived.shapes();
        assert!(shapes[0] > 0.85 && (0.09..0.12).contains(&shapes[1]), "{shapes:?}");
        // Of the third, what is known is what all have.
        assert!((shapes[2] / arrived.shape() - 1.0).abs() < 0.15, "{shapes:?}");
    }

    #[test]
    fn a_gap_to_requests_that_were_left_out_is_none() {
        let at = |second: u64, id: u64| Nanos::from_secs(second) + Nanos::from_micros(100 * id);
        let second = |second| {
            let request = |id| Request { arrival: at(second, id), ..Request::default() };
            (0..1_000).map(request).collect::<VecDeque<_>>()
        };
        let mut arrived = Arrived::none_of(1);
        let shapes = [(0, true), (30, false), (60, false)].map(|(start, follow)| {
            arrived.add(&second(start), follow);
            arrived.shape()
        });
        assert_eq!(shapes, [1.0; 3], "requests at equal distances, 30 s apart from time to time");
        let mut followed = Arrived::none_of(1);
        for start in [0, 30, 60] {
            followed.add(&second(start), true);
        }
        assert!(followed.shape() < 0.3, "where none was left out, they come in bursts");
    }

    #[test]
    fn few_requests_say_little() {
        let none = Arrived::none_of(4);
        assert!((none.shape() - 0.2).abs() < 1e-9 && none.shares() == [0.25; 4]);
        let few = after(2, &Arrival::Uniform, &[10.0, 10.0]).shape();
        assert!((0.2..0.3).contains(&few), "{few}");
        let mut arrived = Arrived::none_of(2);
        for (more, expected) in [(10, 2.0 / 3.0), (970, 0.99)] {
            arrived.add(&vec![Request::default(); more].into(), true);
            let shares = arrived.shares();
            assert!((shares[0] - expected).abs() < 1e-9, "{shares:?}");
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
        }
    }

    #[test]
    fn eight_times_as_many_requests_are_news_until_there_are_enough() {
        let mut arrived = Arrived::none_of(1);
        let some = |count: usize| VecDeque::from(vec![Request::default(); count]);
        let news = [0, 199, 1, 1_399, 1, 11_200, 100_000]
            .map(|count| (arrived.add(&some(count), true), arrived.is_known()));
        let expected = [
            (false, false),
            (false, false),
            (true, false),
            (false, false),
            (true, true),
            (false, true),
            (false, true),
        ];
        assert_eq!(news, expected);
        // More than enough at once are news too.
        let mut arrived = Arrived::none_of(1);
        assert_eq!([100_000, 1_000].map(|count| arrived.add(&some(count), true)), [true, false]);
    }
}
