//! Arrival times: [`Arrivals`] turns a workload's [`Arrival`] process, a rate and a seed into a
//! stream of instants. The simulator, the load generator and the benchmarks draw from it, so that
//! one seed gives them the same requests at the same times.

use super::minutes::Minutes;
use crate::gaps::{DrawnGaps, Law};
use crate::load_phases::LoadPhases;
use crate::workload::{Arrival, Workload};
use alloc::sync::Arc;
use rand::{RngExt, SeedableRng};
use rand_distr::Gamma;
use rand_pcg::Pcg64Mcg;
use symphony_transport::Nanos;

/// An endless (or, for a trace and counts per minute, ending) stream of arrival instants, counted
/// from the start of the run. They never go back.
#[derive(Clone, Debug)]
pub struct Arrivals {
    gaps: Gaps,
    rng: Pcg64Mcg,
    /// How long a gap of one is, ns.
    scale: f64,
    /// The instant of the last arrival, ns. As f64 it is exact to a nanosecond for 104 days. Where
    /// the rate has phases, that of a steady rate.
    at: f64,
    phases: LoadPhases,
}

#[derive(Clone, Debug)]
enum Gaps {
    Random(Law),
    Drawn(Arc<DrawnGaps>, usize),
    Equal,
    Listed(Arc<[Nanos]>, usize),
    Counted(Minutes),
    None,
}

/// Returns the process with the first `count` gaps of its stream of this seed drawn beforehand,
/// where they are random: on their own scale they are the same at every rate. Its streams are those
/// of `arrival`, to the last bit.
///
/// Errors: those of [`Arrivals::new`].
pub fn drawn(arrival: &Arrival, seed: u64, count: usize) -> Result<Arrival, ArrivalError> {
    if let Arrival::Phased(process, phases) = arrival {
        return Ok(Arrival::Phased(drawn(process, seed, count)?.into(), phases.clone()));
    }
    let Arrivals { gaps: Gaps::Random(law), rng, .. } = Arrivals::new(arrival, 1.0, seed)? else {
        return Ok(arrival.clone());
    };
    Ok(Arrival::Drawn(arrival.clone().into(), DrawnGaps::new(seed, law, rng, count).into()))
}

/// The reason why a stream of arrivals can't be made.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ArrivalError {
    /// The rate is infinite or not a number.
    #[error("a rate of {0} requests/s; it must be a finite number")]
    Rate(f64),
    /// The shape of a gamma distribution is not a finite, positive number.
    #[error("a gamma shape of {0}: {1}")]
    Shape(f64, rand_distr::GammaError),
}

impl Arrivals {
    /// Returns the stream of a workload's model, or of one of its queries, which are counted on
    /// from the models.
    ///
    /// Errors: those of [`Arrivals::new`].
    pub fn of(workload: &Workload, index: usize) -> Result<Arrivals, ArrivalError> {
        let (arrival, share) = match index.checked_sub(workload.models.len()) {
            None => (&workload.models[index].arrival, workload.models[index].share),
            Some(query) => (&workload.queries[query].arrival, workload.queries[query].share),
        };
        Arrivals::new(arrival, workload.rate_rps * share, stream_seed(workload.seed, index as u64))
    }

    /// Returns the stream of `arrival` at `rate_rps` requests a second on average. The same
    /// arguments give the same stream; give each stream of a run its own seed, by [`stream_seed`].
    /// A rate of zero (or less) is a stream without arrivals. A trace and counts per minute have
    /// their own rate, and end.
    ///
    /// Errors: a rate that is not a finite number, or a shape that is not a finite, positive one.
    pub fn new(arrival: &Arrival, rate_rps: f64, seed: u64) -> Result<Arrivals, ArrivalError> {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        if !rate_rps.is_finite() {
            return Err(ArrivalError::Rate(rate_rps));
        }
        let mut scale = 1e9 / rate_rps;
        let mut at = 0.0;
        let gaps = match arrival {
            Arrival::Phased(process, own) => {
                return Ok(Arrivals { phases: own.clone(), ..Arrivals::new(process, rate_rps, seed)? });
            }
            Arrival::Drawn(process, drawn) => {
                let anew = Arrivals::new(process, rate_rps, seed)?;
                let is_begun = matches!(anew.gaps, Gaps::Random(_)) && drawn.seed == seed;
                if !is_begun {
                    return Ok(anew);
                }
                let rng = drawn.behind.clone();
                return Ok(Arrivals { gaps: Gaps::Drawn(Arc::clone(drawn), 0), rng, ..anew });
            }
            Arrival::Trace(offsets) => Gaps::Listed(Arc::clone(offsets), 0),
            Arrival::Minutes(counts) => Gaps::Counted(Minutes::new(Arc::clone(counts))),
            _ if rate_rps <= 0.0 => Gaps::None,
            Arrival::Poisson => Gaps::Random(Law::Exponential),
            Arrival::Uniform => {
                // A phase of its own: models of one rate would otherwise all send at the same
                // instants.
                at = -scale * rng.random::<f64>();
                Gaps::Equal
            }
            Arrival::Gamma(shape) => {
                scale /= shape;
                let gamma = Gamma::new(*shape, scale).and(Gamma::new(*shape, 1.0));
                Gaps::Random(Law::Gamma(gamma.map_err(|error| ArrivalError::Shape(*shape, error))?))
            }
        };
        Ok(Arrivals { gaps, rng, scale, at, phases: LoadPhases::default() })
    }
}

impl Iterator for Arrivals {
    type Item = Nanos;

    #[inline]
    fn next(&mut self) -> Option<Nanos> {
        let gap = match &mut self.gaps {
            Gaps::Random(law) => law.sample(&mut self.rng),
            Gaps::Drawn(drawn, next) => match drawn.gaps.get(*next) {
                Some(&gap) => {
                    *next += 1;
                    gap
                }
                None => drawn.law.sample(&mut self.rng),
            },
            Gaps::Equal => 1.0,
            Gaps::Listed(offsets, next) => {
                *next += 1;
                return offsets.get(*next - 1).copied();
            }
            Gaps::Counted(minutes) => return minutes.next(&mut self.rng),
            Gaps::None => return None,
        };
        self.at += self.scale * gap;
        let at = self.phases.time_of(self.at);
        // Past the last representable instant nothing arrives any more.
        (at < u64::MAX as f64).then_some(Nanos(at as u64))
    }
}

/// Returns a seed for stream number `stream` of a run with seed `seed`: neighbouring numbers give
/// unrelated streams.
pub fn stream_seed(seed: u64, stream: u64) -> u64 {
    // The finaliser of SplitMix64 (Steele, Lea, Flood, 2014) over the stream's index in its
    // sequence.
    let mut z = seed.wrapping_add(stream.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_phases::LoadPhase;

    const RATE: f64 = 2_000.0;

    fn stream(arrival: Arrival, seed: u64) -> Arrivals {
        Arrivals::new(&arrival, RATE, seed).unwrap()
    }

    /// Mean rate in 1/s and coefficient of variation of the gaps of the first `n` arrivals.
    fn rate_and_variation(arrivals: Arrivals, n: usize) -> (f64, f64) {
        let instants: Vec<f64> = arrivals.take(n).map(|t| t.as_secs_f64()).collect();
        let gaps: Vec<f64> = instants.windows(2).map(|w| w[1] - w[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (1.0 / mean, variance.sqrt() / mean)
    }

    fn close(a: f64, b: f64, part: f64) -> bool {
        (a - b).abs() <= part * b
    }

    #[test]
    fn each_process_has_the_rate_asked_for_and_the_variation_of_its_name() {
        for (arrival, variation, n) in [
            (Arrival::Poisson, 1.0, 200_000),
            (Arrival::Gamma(1.0), 1.0, 200_000),
            (Arrival::Gamma(4.0), 0.5, 200_000),
            (Arrival::Gamma(0.05), 1.0 / 0.05_f64.sqrt(), 2_000_000),
        ] {
            for seed in 0..3 {
                let (rate, cv) = rate_and_variation(stream(arrival.clone(), seed), n);
                assert!(close(rate, RATE, 0.02), "{arrival:?}: rate {rate}");
                assert!(close(cv, variation, 0.03), "{arrival:?}: variation {cv}, not {variation}");
            }
        }
    }

    #[test]
    fn uniform_gaps_are_equal_and_start_at_a_phase_of_their_own() {
        let arrivals: Vec<Nanos> = stream(Arrival::Uniform, 7).take(10_000).collect();
        assert!(arrivals[0] < Nanos(500_000));
        for (k, t) in arrivals.iter().enumerate() {
            let expected = arrivals[0].0 + k as u64 * 500_000;
            assert!(t.0.abs_diff(expected) <= 1, "arrival {k} at {t:?}");
        }
        assert_ne!(stream(Arrival::Uniform, 8).next(), Some(arrivals[0]));
    }

    #[test]
    fn a_seed_gives_the_same_stream_again_and_another_seed_another_one() {
        for arrival in [Arrival::Poisson, Arrival::Uniform, Arrival::Gamma(0.3)] {
            let run = |seed| stream(arrival.clone(), seed).take(1_000).collect::<Vec<_>>();
            assert_eq!(run(5), run(5));
            assert_ne!(run(5), run(6));
        }
    }

    #[test]
    fn a_stream_is_the_same_with_its_first_gaps_drawn_beforehand() {
        let phases = LoadPhases::new(&[LoadPhase { lasts: Nanos::from_millis(70), factor: 2.0 }]).unwrap();
        for arrival in [
            Arrival::Poisson,
            Arrival::Uniform,
            Arrival::Gamma(0.05),
            Arrival::Gamma(3.0),
            Arrival::Phased(Arrival::Gamma(0.5).into(), phases),
        ] {
            let known = drawn(&arrival, 5, 100).unwrap();
            for (seed, rate) in [(5, 13.0), (5, 7_000.0), (6, 400.0), (5, 0.0)] {
                let of = |arrival| Arrivals::new(arrival, rate, seed).unwrap().take(200).collect::<Vec<_>>();
                assert_eq!(of(&known), of(&arrival), "{arrival:?} at {rate}/s");
            }
        }
        assert!(drawn(&Arrival::Gamma(-1.0), 5, 100).is_err());
        let is_drawn = |arrival| matches!(drawn(&arrival, 5, 1).unwrap(), Arrival::Drawn(..));
        assert_eq!([Arrival::Poisson, Arrival::Uniform].map(is_drawn), [true, false]);
    }

    #[test]
    fn streams_of_one_seed_are_unrelated() {
        let seeds: std::collections::HashSet<u64> =
            (0..100).flat_map(|seed| (0..100).map(move |s| stream_seed(seed, s))).collect();
        assert_eq!(seeds.len(), 10_000);
    }

    #[test]
    fn arrivals_never_go_back() {
        for arrival in [Arrival::Poisson, Arrival::Uniform, Arrival::Gamma(0.01)] {
            let instants: Vec<Nanos> = stream(arrival, 3).take(50_000).collect();
            assert!(instants.is_sorted());
        }
    }

    #[test]
    fn a_rate_of_zero_has_no_arrivals_and_a_rate_that_is_no_number_is_refused() {
        assert_eq!(Arrivals::new(&Arrival::Poisson, 0.0, 1).unwrap().next(), None);
        assert!(Arrivals::new(&Arrival::Poisson, f64::NAN, 1).is_err());
        assert!(Arrivals::new(&Arrival::Poisson, f64::INFINITY, 1).is_err());
        assert!(Arrivals::new(&Arrival::Gamma(0.0), 1.0, 1).is_err());
        assert!(Arrivals::new(&Arrival::Gamma(f64::NAN), 1.0, 1).is_err());
        assert!(Arrivals::new(&Arrival::Gamma(f64::INFINITY), 1.0, 1).is_err());
        // So slow that the first arrival is past the end of time.
        assert_eq!(Arrivals::new(&Arrival::Poisson, 1e-300, 1).unwrap().next(), None);
    }

    #[test]
    fn a_trace_is_played_as_written_and_ends() {
        let offsets = [0, 500, 500, 1_000].map(Nanos::from_millis);
        let arrivals = Arrivals::new(&Arrival::Trace(offsets.into()), 1.0, 1).unwrap();
        assert_eq!(arrivals.collect::<Vec<_>>(), offsets);
    }

    #[test]
    fn a_rate_with_phases_is_the_same_on_average_and_as_much_higher_as_they_say() {
        let phase = |factor| LoadPhase { lasts: Nanos::from_secs(1), factor };
        let phases = LoadPhases::new(&[phase(1.0), phase(3.0)]).unwrap();
        let all: Vec<Nanos> = stream(Arrival::Phased(Arrival::Poisson.into(), phases), 7)
            .take_while(|at| *at < Nanos::from_secs(100))
            .collect();
        let high = all.iter().filter(|at| at.0 / 1_000_000_000 % 2 == 1).count();
        assert!(all.is_sorted() && close(all.len() as f64, 100.0 * RATE, 0.02), "{}", all.len());
        assert!(close(high as f64, 75.0 * RATE, 0.02), "{high}");
    }

    #[test]
    fn each_minute_has_exactly_its_count_spread_over_it() {
        let arrival = Arrival::Minutes([600, 0, 60].into());
        let all: Vec<Nanos> = Arrivals::new(&arrival, 1.0, 7).unwrap().collect();
        assert!(all.is_sorted() && all.len() == 660);
        let within = |from, to| all.iter().filter(|t| (from..to).contains(&(t.0 / 1_000_000_000))).count();
        assert_eq!((within(0, 60), within(60, 120), within(120, 180)), (600, 0, 60));
        // 300 are expected in the half; six standard deviations off is a wrong distribution, not
        // bad luck.
        assert!((within(0, 30) as f64 - 300.0).abs() < 6.0 * 150.0_f64.sqrt());
        assert_eq!(Arrivals::new(&arrival, 1.0, 7).unwrap().collect::<Vec<_>>(), all);
    }
}
