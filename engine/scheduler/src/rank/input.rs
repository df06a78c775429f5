//! The inputs of a matching, as one value: for drivers that carry it over a ring, keep it for a
//! moment, or record it.

use super::backfill::{BatchBounds, Reservation};
#[cfg(doc)]
use crate::model::recent_service::WHOLE_PRECEDENCE;
use symphony_transport::Nanos;
use symphony_transport::message::{Completion, GpuId, QueueId};

/// A queue's candidate, as it is offered to the RankThread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The time by which it must start.
    pub latest: Nanos,
    /// The time from the grant of a GPU to the start.
    pub delay: Nanos,
    /// True if it is not due: it may only have a GPU that would idle.
    pub early: bool,
    /// The time within which another GPU has to be free for it to take one; [`Nanos::MAX`] if it
    /// may take the last.
    pub leaves: Nanos,
    /// Where none is, it takes the last GPU after all, for a batch that is over within that time.
    pub shrinks: bool,
    /// How much earlier it goes than its `latest` says, in parts of [`WHOLE_PRECEDENCE`] of the
    /// longest batch. One that has any also waits for a GPU that is free too late, until its queue
    /// withdraws it: others would have taken it meanwhile.
    pub precedence: u16,
}

impl Default for Offer {
    fn default() -> Offer {
        Offer {
            latest: Nanos::ZERO,
            delay: Nanos::ZERO,
            early: false,
            leaves: Nanos::MAX,
            shrinks: false,
            precedence: 0,
        }
    }
}

/// What a queue has done with a GPU that it was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuReport {
    /// The model it was granted to.
    pub queue: QueueId,
    /// The GPU.
    pub gpu: GpuId,
    /// When the batch sent to it starts, `None` if nothing was left to run.
    pub exec_at: Option<Nanos>,
    /// When the GPU finishes it, as far as is known where it is sent. Says nothing if nothing was
    /// sent.
    pub free_at: Nanos,
}

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
    /// A GPU's host comes or goes: whether it can be granted. All are there at the start. Whoever
    /// sends that one is gone also sends a completion for each batch that it had.
    Presence {
        /// The GPU.
        gpu: GpuId,
        /// True if it is there.
        is_up: bool,
    },
    /// What a completion takes from a backend to here, as it was measured: see
    /// [`RankState::new`](super::RankState::new).
    CompletionDelay(Nanos),
}
