//! A rate that changes during a run: straight from one rate to another, or in equal steps. A
//! [`Ramp`] bends the time of a stream of even rate, so every arrival process can ride on it and
//! keeps its burstiness.

use symphony_transport::Nanos;

/// A rate that goes from one value to another and stays there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    /// Requests per second at the start, all models together, and all through the warm-up.
    pub from_rps: f64,
    /// Requests per second at the end and after it.
    pub to_rps: f64,
    /// The duration of the ramp.
    pub over: Nanos,
    /// The number of levels of equal length, the first at `from_rps` and the last at `to_rps`;
    /// `None` is a straight line.
    pub steps: Option<u32>,
}

/// The form of a ramp on the command line.
pub(in crate::loadgen) const RIGHT: &str = "it must be FROM:TO:SECONDS, like 100:1000:30, or FROM:TO:SECONDS:STEPS with 2 to 1000 steps; \
     rates are from 0 to 1e9 and not both 0";

impl Ramp {
    /// Reads `FROM:TO:SECONDS[:STEPS]`.
    ///
    /// Errors: what would be right.
    pub fn parse(text: &str) -> Result<Ramp, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let number = |at: usize| parts.get(at)?.trim().parse().ok().filter(|x: &f64| (0.0..=1e9).contains(x));
        let ramp = || {
            let steps = match parts.get(3) {
                Some(steps) => Some(steps.trim().parse().ok().filter(|n| (2..=1_000).contains(n))?),
                None => None,
            };
            let (from_rps, to_rps, seconds) = (number(0)?, number(1)?, number(2)?);
            let good = parts.len() <= 4 && seconds > 0.0 && from_rps + to_rps > 0.0;
            good.then(|| Ramp { from_rps, to_rps, over: Nanos::from_secs_f64(seconds), steps })
        };
        ramp().ok_or_else(|| RIGHT.to_string())
    }

    /// The mean rate over the ramp itself.
    pub fn mean_rps(&self) -> f64 {
        (self.from_rps + self.to_rps) / 2.0
    }

    /// Returns the time of the n-th arrival (`n` need not be whole) if the ramp starts at `warmup`;
    /// `None` for never.
    pub fn instant(&self, n: f64, warmup: Nanos) -> Option<Nanos> {
        let warmup_s = warmup.as_secs_f64();
        let before = self.from_rps * warmup_s;
        let seconds = if n < before { n / self.from_rps } else { warmup_s + self.since_start(n - before)? };
        (seconds < 1e9).then(|| Nanos::from_secs_f64(seconds))
    }

    /// Seconds from the ramp's start to its n-th arrival.
    fn since_start(&self, n: f64) -> Option<f64> {
        let over_s = self.over.as_secs_f64();
        let total = self.mean_rps() * over_s;
        if n >= total {
            let after = n - total;
            return (self.to_rps > 0.0).then(|| over_s + after / self.to_rps);
        }
        Some(match self.steps {
            None => time_on_a_line(n, self.from_rps, self.to_rps, over_s),
            Some(steps) => self.time_on_steps(n, steps, over_s),
        })
    }

    fn time_on_steps(&self, mut n: f64, steps: u32, over_s: f64) -> f64 {
        let each = over_s / f64::from(steps);
        for step in 0..steps {
            let rate = self.from_rps + (self.to_rps - self.from_rps) * f64::from(step) / f64::from(steps - 1);
            if n < rate * each {
                return f64::from(step) * each + n / rate;
            }
            n -= rate * each;
        }
        over_s
    }
}

/// The t at which a rate that goes straight from `from` to `to` in `over` seconds has brought n
/// arrivals: the root of from * t + (to - from) * t^2 / (2 * over) = n, in the form that does not
/// cancel.
fn time_on_a_line(n: f64, from: f64, to: f64, over: f64) -> f64 {
    let root = (from * from + 2.0 * (to - from) * n / over).max(0.0).sqrt();
    if from + root > 0.0 { 2.0 * n / (from + root) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arrivals in each of the seconds 0..n when every whole number is an arrival.
    fn per_second(ramp: &Ramp, warmup_s: u64, seconds: usize) -> Vec<u64> {
        let mut counts = vec![0; seconds];
        for n in 0..1_000_000 {
            let Some(at) = ramp.instant(f64::from(n) + 0.5, Nanos::from_secs(warmup_s)) else { break };
            match counts.get_mut((at.0 / 1_000_000_000) as usize) {
                Some(count) => *count += 1,
                None => break,
            }
        }
        counts
    }

    #[test]
    fn a_straight_ramp_goes_up_evenly_and_stays() {
        let ramp = Ramp::parse("0:1000:10").unwrap();
        assert_eq!(per_second(&ramp, 0, 12), [50, 150, 250, 350, 450, 550, 650, 750, 850, 950, 1_000, 1_000]);
        let down = Ramp::parse("1000:0:10").unwrap();
        assert_eq!(per_second(&down, 1, 13), [1_000, 950, 850, 750, 650, 550, 450, 350, 250, 150, 50, 0, 0]);
    }

    #[test]
    fn steps_hold_their_levels_after_the_warm_up() {
        let ramp = Ramp::parse("100:300:6:3").unwrap();
        assert_eq!(per_second(&ramp, 1, 9), [100, 100, 100, 200, 200, 300, 300, 300, 300]);
    }

    #[test]
    fn a_ramp_that_makes_no_sense_is_refused() {
        for bad in ["", "1:2", "1:2:0", "0:0:5", "1:2:3:1", "1:2:3:4:5", "a:2:3", "1:-2:3", "nan:1:1"] {
            assert_eq!(Ramp::parse(bad).unwrap_err(), RIGHT, "{bad}");
        }
    }
}
