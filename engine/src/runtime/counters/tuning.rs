//! What the tuner's thread counts, for metrics.

use super::count::Count;

/// The counters of the tuner's thread, which alone adds to them.
#[derive(Debug, Default)]
pub struct TuningCounts {
    looks: Count,
    changes: Count,
    busy_ns: Count,
}

/// The counters of the tuner's thread at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TuningTally {
    /// The number of times that recent requests were replayed.
    pub looks: u64,
    /// The number of times that a sub-cluster went on with another setting.
    pub changes: u64,
    /// The processor time that looks took, in nanoseconds.
    pub busy_ns: u64,
}

impl TuningCounts {
    /// Returns the counters as they are now.
    pub fn read(&self) -> TuningTally {
        TuningTally { looks: self.looks.get(), changes: self.changes.get(), busy_ns: self.busy_ns.get() }
    }

    /// Counts a look. Called by the tuner's thread only.
    pub(crate) fn looked(&self, took_ns: u64, changed: bool) {
        self.looks.add(1);
        self.busy_ns.add(took_ns);
        self.changes.add(u64::from(changed));
    }
}
