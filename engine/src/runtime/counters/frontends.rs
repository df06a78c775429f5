//! The counts of a frontend's irregular ends: requests that it ended itself, and answers that came
//! for none of its requests. All of them are rare, and zero in a sound engine that is not overdue.

use crate::runtime::counters::count::Count;

/// The counts of one frontend, which alone adds to them.
#[derive(Debug, Default)]
pub struct FrontendCounts {
    /// The number of requests that it answered itself, since they were overdue or the engine had a
    /// fault.
    pub abandoned: Count,
    /// The number of abandoned requests that the engine let go of later.
    pub discarded: Count,
    /// The number of responses for no row in flight: doubled ones, and those of a slot's earlier
    /// request.
    pub stale: Count,
    /// The number of slots that abandoned requests hold at the moment.
    pub held_slots: Count,
    /// The number of slots that were not free after their request's end, and are lost.
    pub lost_slots: Count,
}

/// The counts of all frontends together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrontendTotals {
    /// The number of requests that frontends answered themselves, since they were overdue or the
    /// engine had a fault.
    pub abandoned: u64,
    /// The number of abandoned requests that the engine let go of later.
    pub discarded: u64,
    /// The number of responses for no row in flight.
    pub stale: u64,
    /// The number of slots that abandoned requests hold at the moment.
    pub held_slots: u64,
    /// The number of slots that were not free after their request's end, and are lost.
    pub lost_slots: u64,
}

impl FrontendTotals {
    /// Adds a frontend's counts.
    pub(crate) fn add(mut self, counts: &FrontendCounts) -> FrontendTotals {
        self.abandoned += counts.abandoned.get();
        self.discarded += counts.discarded.get();
        self.stale += counts.stale.get();
        self.held_slots += counts.held_slots.get();
        self.lost_slots += counts.lost_slots.get();
        self
    }
}
