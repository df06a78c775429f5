//! When to connect again: at once, then after pauses that double, each drawn within a quarter
//! around its mean, so that many hosts do not dial a restarted one in step.

use crate::Nanos;

/// The first pause.
const FIRST: Nanos = Nanos::from_millis(10);

/// The longest mean pause: a host that comes back is found within 625 ms.
pub(super) const LONGEST: Nanos = Nanos::from_millis(500);

/// The pauses between a link's connections.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    mean: Nanos,
    /// The state of a xorshift generator; never zero.
    random: u64,
}

impl Backoff {
    pub(super) fn new(seed: u64) -> Backoff {
        Backoff { mean: FIRST, random: seed | 1 }
    }

    /// Returns the next pause.
    pub(super) fn pause(&mut self) -> Nanos {
        // Marsaglia's xorshift64.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let mean = self.mean;
        self.mean = Nanos(mean.0 * 2).min(LONGEST);
        Nanos(mean.0 * 3 / 4 + self.random % (mean.0 / 2))
    }

    /// Begins with the first pause again.
    pub(super) fn reset(&mut self) {
        self.mean = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::new(7);
        let pauses: Vec<_> = (0..12).map(|_| backoff.pause()).collect();
        for (at, pause) in pauses.iter().enumerate() {
            let mean = (FIRST.0 << at).min(LONGEST.0);
            assert!((mean * 3 / 4..mean * 5 / 4).contains(&pause.0), "{pauses:?}");
        }
        backoff.reset();
        assert!(backoff.pause() < FIRST + FIRST);
        assert_ne!(Backoff::new(1).pause(), Backoff::new(99).pause());
    }
}
