//! When requests come: [`Arrivals`] turns a workload's [`Arrival`] process, a rate and a seed into a stream
//! of instants. The simulator, the load generator and the benchmarks draw from it, so that one seed gives
//! them the same requests at the same times.

use super::minutes::{Minutes, read_minutes};
use crate::clock::Nanos;
use crate::workload::Arrival;
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1, Gamma};
use rand_pcg::Pcg64Mcg;
use std::io;
use std::path::{Path, PathBuf};

/// An endless (or, for a trace and counts per minute, ending) stream of arrival instants, counted from the start of the run. They
/// never go back.
#[derive(Clone, Debug)]
pub struct Arrivals {
    gaps: Gaps,
    rng: Pcg64Mcg,
    /// The mean gap, ns.
    mean: f64,
    /// The instant of the last arrival, ns. As f64 it is exact to a nanosecond for 104 days.
    at: f64,
}

#[derive(Clone, Debug)]
enum Gaps {
    Exponential,
    Equal,
    Gamma(Gamma<f64>),
    Listed(std::vec::IntoIter<Nanos>),
    Counted(Minutes),
    None,
}

/// Why a trace file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read.
    #[error("{}: the trace can't be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line is not an offset.
    #[error("{}:{line}: `{text}` is {wrong}; {right}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What the line says.
        text: String,
        /// What is wrong with it.
        wrong: &'static str,
        /// What would be right.
        right: &'static str,
    },
    /// The file lists no arrival.
    #[error("{}: the trace is empty; it needs one offset in seconds on each line", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The counts per minute of a file come to nothing.
    #[error("{}: it lists no request{}", path.display(), function.as_ref().map_or(String::new(), |f| format!(" of function `{f}`")))]
    NoCounts {
        /// The file.
        path: PathBuf,
        /// The function asked for.
        function: Option<String>,
    },
    /// The file has no counts for this function.
    #[error("{}: it has no function `{function}`; its column HashFunction names them", path.display())]
    NoFunction {
        /// The file.
        path: PathBuf,
        /// The function asked for.
        function: String,
    },
}

impl From<TraceError> for io::Error {
    fn from(error: TraceError) -> io::Error {
        match error {
            TraceError::Read { ref source, .. } => io::Error::new(source.kind(), error),
            _ => io::Error::new(io::ErrorKind::InvalidData, error),
        }
    }
}

impl Arrivals {
    /// The stream of `arrival` at `rate_rps` requests a second on average. The same arguments give the same
    /// stream; give each stream of a run its own seed, by [`stream_seed`]. A rate of zero (or less) is a
    /// stream without arrivals. A trace and counts per minute have their own rate, and end.
    ///
    /// Errors: a file that can't be read ([`TraceError`]), or a shape or rate that is no finite, positive number.
    pub fn new(arrival: &Arrival, rate_rps: f64, seed: u64) -> io::Result<Arrivals> {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        if !rate_rps.is_finite() {
            return Err(invalid(format!("a rate of {rate_rps} requests/s; it must be a finite number")));
        }
        let mean = 1e9 / rate_rps;
        let mut at = 0.0;
        let gaps = match arrival {
            Arrival::Trace(path) => Gaps::Listed(read_trace(path)?.into_iter()),
            Arrival::Minutes { file, function } => {
                Gaps::Counted(Minutes::new(read_minutes(file, function.as_deref())?))
            }
            _ if rate_rps <= 0.0 => Gaps::None,
            Arrival::Poisson => Gaps::Exponential,
            Arrival::Uniform => {
                // A phase of its own: models of one rate would otherwise all send at the same instants.
                at = -mean * rng.random::<f64>();
                Gaps::Equal
            }
            Arrival::Gamma(shape) => {
                let gamma = Gamma::new(*shape, mean / shape);
                Gaps::Gamma(gamma.map_err(|e| invalid(format!("a gamma shape of {shape}: {e}")))?)
            }
        };
        Ok(Arrivals { gaps, rng, mean, at })
    }
}

impl Iterator for Arrivals {
    type Item = Nanos;

    #[inline]
    fn next(&mut self) -> Option<Nanos> {
        let gap = match &mut self.gaps {
            Gaps::Exponential => self.mean * exponential(&mut self.rng),
            Gaps::Equal => self.mean,
            Gaps::Gamma(gamma) => gamma.sample(&mut self.rng),
            Gaps::Listed(offsets) => return offsets.next(),
            Gaps::Counted(minutes) => return minutes.next(&mut self.rng),
            Gaps::None => return None,
        };
        self.at += gap;
        // Past the last representable instant nothing arrives any more.
        (self.at < u64::MAX as f64).then_some(Nanos(self.at as u64))
    }
}

fn exponential(rng: &mut impl Rng) -> f64 {
    Exp1.sample(rng)
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// A seed for stream number `stream` of a run with seed `seed`: neighbouring numbers give unrelated streams.
pub fn stream_seed(seed: u64, stream: u64) -> u64 {
    // The finaliser of SplitMix64 (Steele, Lea, Flood, 2014) over the stream's place in its sequence.
    let mut z = seed.wrapping_add(stream.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The arrivals that a trace file lists: offsets from the start in seconds, one on each line, in order.
/// Empty lines and those that start with `#` are skipped.
///
/// Errors: a [`TraceError`], with the first line that is wrong.
pub fn read_trace(path: &Path) -> Result<Vec<Nanos>, TraceError> {
    let bytes = std::fs::read(path).map_err(|source| TraceError::Read { path: path.into(), source })?;
    let mut offsets: Vec<Nanos> = Vec::new();
    for (at, line) in String::from_utf8_lossy(&bytes).lines().enumerate() {
        let text = line.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let offset = parse_offset(text, offsets.last().copied()).map_err(|(wrong, right)| {
            let text = text.chars().take(40).collect();
            TraceError::Line { path: path.into(), line: at + 1, text, wrong, right }
        })?;
        offsets.push(offset);
    }
    if offsets.is_empty() {
        return Err(TraceError::Empty { path: path.into() });
    }
    Ok(offsets)
}

/// The offset that a line says, or what is wrong with it and what would be right.
fn parse_offset(text: &str, before: Option<Nanos>) -> Result<Nanos, (&'static str, &'static str)> {
    let seconds: f64 =
        text.parse().map_err(|_| ("no number", "it must be an offset in seconds, like `1.25`"))?;
    if !seconds.is_finite() || seconds < 0.0 {
        return Err(("no offset", "it must be a finite number of seconds, 0 or more"));
    }
    let offset = Nanos::from_secs_f64(seconds);
    if before.is_some_and(|before| offset < before) {
        return Err(("before the line above", "offsets must not go back"));
    }
    Ok(offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

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
        // So slow that the first arrival is past the end of time.
        assert_eq!(Arrivals::new(&Arrival::Poisson, 1e-300, 1).unwrap().next(), None);
    }

    fn trace(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn a_trace_is_played_as_written_and_ends() {
        let file = trace("# seconds\n0\n0.5\n\n0.5\r\n1e0\n");
        let arrivals = Arrivals::new(&Arrival::Trace(file.path().into()), 1.0, 1).unwrap();
        let expected = [0, 500, 500, 1_000].map(Nanos::from_millis);
        assert_eq!(arrivals.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_bad_trace_names_its_first_bad_line() {
        for (text, expected) in [
            ("0.1\nsoon\n", ":2: `soon` is no number; it must be an offset in seconds, like `1.25`"),
            ("0.1\n-1\n", ":2: `-1` is no offset; it must be a finite number of seconds, 0 or more"),
            ("nan", ":1: `nan` is no offset; it must be a finite number of seconds, 0 or more"),
            ("0.2\n0.1\n", ":2: `0.1` is before the line above; offsets must not go back"),
            ("# nothing\n", ": the trace is empty; it needs one offset in seconds on each line"),
        ] {
            let file = trace(text);
            let error = Arrivals::new(&Arrival::Trace(file.path().into()), 1.0, 1).unwrap_err();
            assert_eq!(error.to_string(), format!("{}{expected}", file.path().display()));
        }
        let missing = Arrivals::new(&Arrival::Trace("/no/such/file".into()), 1.0, 1).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
