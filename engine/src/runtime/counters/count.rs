//! Numbers that one thread adds to and any thread reads, without disturbing the writer. Adding is a
//! load, an addition and a store of the owner's own cache line, no atomic addition.

use bytemuck::Zeroable;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread adds to. The structure that it is a field of must ensure that only its
/// owner adds to it: with two owners counts get lost, and nothing worse happens.
///
/// ```
/// use symphony::runtime::counters::count::Count;
/// let count = Count::default();
/// count.add(3);
/// assert_eq!(count.get(), 3);
/// ```
#[derive(Debug, Default, Zeroable)]
#[repr(transparent)]
pub struct Count(AtomicU64);

impl Count {
    /// Returns a count of zero.
    pub const fn new() -> Count {
        Count(AtomicU64::new(0))
    }

    /// Adds to the count. Called by its owner only.
    #[inline]
    pub fn add(&self, more: u64) {
        // Relaxed: the numbers order nothing.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Sets the count to this number. Called by its owner only.
    pub fn set(&self, to: u64) {
        self.0.store(to, Ordering::Relaxed);
    }

    /// Sets the count to zero. Called by its owner only.
    pub fn clear(&self) {
        self.set(0);
    }

    /// Returns the current number.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
