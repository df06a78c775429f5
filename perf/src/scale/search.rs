//! The search for the highest rate that passes: doubling until a rate fails, then halving the interval.

use super::world::Outcome;
use std::io;

/// The search ends when the lowest rate that fails is within this share of the highest that passes.
const RESOLUTION: f64 = 0.01;

/// The highest of the rates tried at which a run passes, from `first` on; `None` if even `lowest` fails.
///
/// `try_rate` runs once at a rate. Since other programs can fail a run, a rate fails only when `attempts` runs do.
///
/// Errors: those of `try_rate`.
pub fn highest(
    first: f64,
    lowest: f64,
    attempts: usize,
    mut try_rate: impl FnMut(f64) -> io::Result<Outcome>,
) -> io::Result<Option<Outcome>> {
    let mut passes = |rate: f64| -> io::Result<Option<Outcome>> {
        for _ in 0..attempts {
            let outcome = try_rate(rate)?;
            if outcome.failure().is_none() {
                return Ok(Some(outcome));
            }
        }
        Ok(None)
    };
    let mut best = None;
    let mut passing = 0.0;
    let mut rate = first;
    let mut failing = loop {
        match passes(rate)? {
            Some(outcome) => {
                (best, passing) = (Some(outcome), rate);
                rate *= 2.0;
            }
            None if best.is_some() => break rate,
            None if rate <= lowest => return Ok(None),
            None => rate = (rate / 2.0).max(lowest),
        }
    };
    while failing / passing > 1.0 + RESOLUTION {
        let middle = (failing + passing) / 2.0;
        match passes(middle)? {
            Some(outcome) => (best, passing) = (Some(outcome), middle),
            None => failing = middle,
        }
    }
    Ok(best)
}
