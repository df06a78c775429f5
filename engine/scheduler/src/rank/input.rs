//! The inputs of a matching, as one value: for drivers that carry it over a ring, keep it for a
//! moment, or record it.

use super::{BatchBounds, GpuReport, Grant, Offer, RankState, Reservation};
use symphony_transport::Nanos;
use symphony_transport::message::{Completion, QueueId};

/// An input of a sub-cluster's matching.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RankInput {
    /// A queue has a schedulable candidate.
    Ready {
        /// The queue that has a candidate.
        queue: QueueId,
        /// The terms of the candidate.
        offer: Offer,
    },
    /// A queue reserves a GPU for its next batch: only where there are classes below its own.
    Reserve {
        /// The queue.
        queue: QueueId,
        /// When, and how often.
        reservation: Reservation,
    },
    /// A queue of a lower class sends its bounds, before its first candidate.
    Bounds {
        /// The queue.
        queue: QueueId,
        /// The bounds of its batches.
        bounds: BatchBounds,
    },
    /// Every queue of the highest class has sent a reservation, and goes on to: lower classes can
    /// be served.
    AllReserved,
    /// A queue has no candidate any more.
    Withdraw(QueueId),
    /// A granted queue has used its GPU, or gives it back unused.
    Report(GpuReport),
    /// A batch has left its GPU.
    Completion(Completion),
}

impl RankInput {
    /// Applies the input to the matching, which acts on it at once.
    #[inline]
    pub fn apply(self, state: &mut RankState, now: Nanos, grant: &mut impl FnMut(Grant)) {
        state.handle(self);
        state.on_timer(now, grant);
    }
}
