//! The times of a request's way through the engine.

use symphony_transport::Nanos;

/// The times of a request, on the engine's clock. Of a request that ran in several batches, those
/// of the batch that finished last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timeline {
    /// The time at which the frontend accepted the request.
    pub arrival: Nanos,
    /// The time at which the answer is due: `arrival` plus the smaller of the model's SLO and the
    /// client's time-out; [`Nanos::MAX`] if never.
    pub due: Nanos,
    /// The time at which its batch was put together; zero if it was in none.
    pub batched: Nanos,
    /// The time at which its batch started; zero if it did not run.
    pub started: Nanos,
    /// The time at which its batch finished, or at which the request was dropped.
    pub finished: Nanos,
    /// The time at which the answer reached the frontend.
    pub answered: Nanos,
}

impl Timeline {
    /// The number of stages between arrival and answer.
    pub const STAGES: usize = 4;

    /// Returns the start and the end of each stage of a request that ran: waiting for its batch,
    /// for its GPU, running, and its answer's way to the frontend.
    pub fn stages(&self) -> [(Nanos, Nanos); Timeline::STAGES] {
        let Timeline { arrival, batched, started, finished, answered, .. } = *self;
        [(arrival, batched), (batched, started), (started, finished), (finished, answered)]
    }

    /// Returns true if the request ran.
    pub fn has_run(&self) -> bool {
        self.started > Nanos::ZERO
    }

    /// Returns the time from arrival to answer.
    pub fn total(&self) -> Nanos {
        self.answered - self.arrival
    }
}
