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
    /// The current minute's arrivals that are left, the latest first.
    left: Vec<Nanos>,
}

impl Minutes {
    /// Starts the stream.
    pub(super) fn new(counts: Arc<[u32]>) -> Minutes {
        Minutes { counts, next: 0, start: 0, left: Vec::new() }
    }

    /// Returns the next arrival.
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
