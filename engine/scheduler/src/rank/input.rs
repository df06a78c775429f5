//! What a matching can be told, as one value: for drivers that carry it over a ring, keep it for a
//! moment, or record it.

use super::{BatchBounds, GpuReport, Grant, Offer, RankState, Reservation};
use symphony_transport::Nanos;
use symphony_transport::message::{Completion, QueueId};

/// An input of a sub-cluster's matching.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RankInput {
    /// A model has a schedulable candidate.
    Ready {
        /// The model that has a candidate.
        queue: QueueId,
        /// On what terms.
        offer: Offer,
    },
    /// A model tells when it starts its next batch: only where there are classes below its own.
    Reserve {
        /// The model.
        queue: QueueId,
        /// When, and how often.
        reservation: Reservation,
    },
    /// A model of a lower class tells of itself, before its first candidate.
    Bounds {
        /// The model.
        queue: QueueId,
        /// What it tells.
        bounds: BatchBounds,
    },
    /// Every model of the highest class has told of its next batch, and goes on to: lower classes
    /// can be served.
    AllReserved,
    /// This model has none any more.
    Withdraw(QueueId),
    /// A granted model has used its GPU, or gives it back unused.
    Report(GpuReport),
    /// A batch has left its GPU.
    Completion(Completion),
}

impl RankInput {
    /// Lets the matching have it and act on it at once.
    #[inline]
    pub fn apply(self, state: &mut RankState, now: Nanos, grant: &mut impl FnMut(Grant)) {
        state.handle(self);
        state.on_timer(now, grant);
    }
}
