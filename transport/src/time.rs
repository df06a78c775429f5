//! Instants and durations as one type: [`Nanos`], a number of nanoseconds, for an instant since the
//! process's clock (or the simulation) started. It travels in messages, so it is plain data.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A duration, or an instant as the time since the clock's origin, in nanoseconds.
///
/// Addition and subtraction saturate: "never" ([`Nanos::MAX`]) plus a delay is still never, and a
/// deadline that is already past leaves no time rather than a wrapped huge one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The origin, or no time at all.
    pub const ZERO: Nanos = Nanos(0);
    /// Never.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// Makes a duration of `us` microseconds.
    pub const fn from_micros(us: u64) -> Nanos {
        Nanos(us * 1_000)
    }

    /// Makes a duration of `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    /// Makes a duration of `s` seconds.
    pub const fn from_secs(s: u64) -> Nanos {
        Nanos(s * 1_000_000_000)
    }

    /// Makes a duration of `ms` milliseconds, rounded to the nearest nanosecond; negative and NaN
    /// become zero.
    pub fn from_millis_f64(ms: f64) -> Nanos {
        nearest(ms * 1e6)
    }

    /// Makes a duration of `s` seconds, rounded to the nearest nanosecond; negative and NaN become
    /// zero.
    pub fn from_secs_f64(s: f64) -> Nanos {
        nearest(s * 1e9)
    }

    /// Returns the number of microseconds.
    pub fn as_micros_f64(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// Returns the number of milliseconds.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Returns the number of seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Add for Nanos {
    type Output = Nanos;
    #[inline]
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    #[inline]
    fn add_assign(&mut self, other: Nanos) {
        *self = *self + other;
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    #[inline]
    fn sub(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }
}

impl From<Duration> for Nanos {
    fn from(d: Duration) -> Nanos {
        Nanos(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(n: Nanos) -> Duration {
        Duration::from_nanos(n.0)
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            u64::MAX => f.write_str("never"),
            ns if ns < 1_000 => write!(f, "{ns}ns"),
            ns if ns < 1_000_000 => write!(f, "{}us", ns as f64 / 1e3),
            ns => write!(f, "{}ms", ns as f64 / 1e6),
        }
    }
}

/// Rounds to the nearest nanosecond, half of one up. `f64::round` is a call of the C library on
/// processors of the least kind that is compiled for.
#[inline]
fn nearest(nanos: f64) -> Nanos {
    let whole = nanos as u64;
    Nanos(whole.saturating_add(u64::from(nanos - whole as f64 >= 0.5)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_rounded_to_the_nearest_nanosecond() {
        let cases = [(2.49, 2), (2.5, 3), (0.499_999_999_999_999_94, 0), (-7.0, 0), (f64::NAN, 0)];
        for (nanos, rounded) in cases {
            assert_eq!(nearest(nanos), Nanos(rounded), "{nanos}");
        }
        assert_eq!(nearest(f64::INFINITY), Nanos::MAX);
        assert_eq!(nearest(9_007_199_254_740_991.0), Nanos(9_007_199_254_740_991));
    }

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Nanos::MAX + Nanos(1), Nanos::MAX);
        assert_eq!(Nanos(3) - Nanos(5), Nanos::ZERO);
        assert_eq!(Nanos::from_millis_f64(-1.0), Nanos::ZERO);
        assert_eq!(Nanos::from_millis_f64(1.5), Nanos(1_500_000));
    }
}
