//! What backfilling may spend on looks ahead that find nothing, so that a lower class which waits
//! and can't run costs the classes above next to nothing. A look that finds a batch is that
//! batch's.
//!
//! Steps are paid for by the time that passes, one for each [`STEP`], and by matchings, of which
//! each batch causes about four, one each. A look is taken while less than [`CREDIT`] is owed. So
//! over any stretch of time there are at most as many steps in vain as it has matchings, one for
//! every 2 us, and those of two of the longest looks. A step takes some 100 ns: where a lower class
//! waits in vain, a batch costs the RankThread less than twice as much, and waiting itself a
//! twentieth of its core. A lower class whose looks are long gets its GPUs some 100 us later.
//!
//! What is owed is kept as the time by which passing time alone will have paid for it (the virtual
//! scheduling form of a leaky bucket, ITU-T I.371, annex A): one number, which replay restores.

use symphony_transport::Nanos;

/// Starts that a look goes through. The batch that it is for has to be over by the last of them.
pub(super) const MOST_STARTS: usize = 512;

/// The time that pays for a step.
const STEP: Nanos = Nanos::from_micros(2);

/// What may be owed when a look begins: the longest look.
const CREDIT: Nanos = Nanos(MOST_STARTS as u64 * STEP.0);

/// See the module's description.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LookBudget {
    /// When all steps will be paid for if there is no matching; past if they are.
    pub(super) paid_by: Nanos,
}

impl LookBudget {
    /// Notes a matching, which pays for a step.
    pub(super) fn matched(&mut self) {
        self.paid_by = Nanos(self.paid_by.0.saturating_sub(STEP.0));
    }

    /// When the next look may be taken; past if now.
    pub(super) fn next_look(&self) -> Nanos {
        Nanos(self.paid_by.0.saturating_sub(CREDIT.0))
    }

    /// Notes a look that has taken so many steps in vain.
    pub(super) fn spend(&mut self, now: Nanos, steps: usize) {
        self.paid_by = self.paid_by.max(now) + Nanos(STEP.0 * steps as u64);
    }
}
