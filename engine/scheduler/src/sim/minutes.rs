//! Arrivals given as counts per minute: [`Minutes`] spreads each count over its minute.

use alloc::sync::Arc;
use alloc::vec::Vec;
use rand::{Rng, RngExt};
use symphony_transport::Nanos;

/// A stream of the arrivals that counts per minute stand for. A minute's arrivals are at
/// independent, evenly distributed times in it, which is what a Poisson process of that count looks
/// like.
#[derive(Clone, Debug)]
pub(super) struct Minutes {
    counts: Arc<[u32]>,
    /// The index of the next minute in `counts`.
    next: usize,
    /// The current minute's start, ns.
    start: u64,
    /// What is left of the current minute, the latest first.
    left: Vec<Nanos>,
}

impl Minutes {
    pub(super) fn new(counts: Arc<[u32]>) -> Minutes {
        Minutes { counts, next: 0, start: 0, left: Vec::new() }
    }

    pub(super) fn next(&mut self, rng: &mut impl Rng) -> Option<Nanos> {
        const MINUTE: u64 = Nanos::from_secs(60).0;
        while self.left.is_empty() {
            let count = *self.counts.get(self.next)?;
            self.next += 1;
            self.left.extend((0..count).map(|_| Nanos(self.start + rng.random_range(0..MINUTE))));
            self.left.sort_unstable_by(|a, b| b.cmp(a));
            self.start += MINUTE;
        }
        self.left.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::super::arrivals::Arrivals;
    use super::*;
    use crate::workload::Arrival;

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
