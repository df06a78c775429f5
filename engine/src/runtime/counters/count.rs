//! Numbers that one thread adds to and everybody reads: what an observer may look at without
//! disturbing who is observed. Adding is a load, an addition and a store of the owner's own cache
//! line, no atomic addition.

use bytemuck::Zeroable;
use std::sync::atomic::{AtomicU64, Ordering};

/// One such number. That only its owner adds to it is for the structure to see to that it is a
/// field of: with two owners counts get lost, and nothing worse happens.
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
    /// Zero.
    pub const fn new() -> Count {
        Count(AtomicU64::new(0))
    }

    /// Adds to it. Called by its owner only.
    #[inline]
    pub fn add(&self, more: u64) {
        // Relaxed: the numbers order nothing.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Makes it zero again. Called by its owner only.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The number as it is now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
