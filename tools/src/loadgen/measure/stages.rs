//! The stages of a request's time, from the server's answer: Symphony puts five instants into
//! each response.

use super::histogram::{nanoseconds, record};
use hdrhistogram::Histogram;
use symphony_transport::Nanos;

/// The stages' names, in their order: in the queue until its batch was put together; from there to
/// the batch's start; on the GPU; from there until the answer was back at the frontend; and all
/// that the server does not see.
pub const STAGES: [&str; 5] = ["queue", "wait", "execution", "answer", "network_and_client"];

/// The instants in an answer, on a clock of the server's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// The time at which the server received the request.
    pub queued: Nanos,
    /// The time at which its batch was formed.
    pub batched: Nanos,
    /// The time at which the batch started on the GPU.
    pub started: Nanos,
    /// The time at which the batch finished.
    pub finished: Nanos,
    /// The time at which the answer was ready to be sent.
    pub answered: Nanos,
}

impl StageTimes {
    /// Returns the duration of each stage of a request that took `seen` at the client.
    pub fn durations(&self, seen: Nanos) -> [Nanos; STAGES.len()] {
        [
            self.batched - self.queued,
            self.started - self.batched,
            self.finished - self.started,
            self.answered - self.finished,
            seen - (self.answered - self.queued),
        ]
    }
}

/// The durations of each stage, of all requests.
pub struct StageTally {
    stages: [Histogram<u64>; STAGES.len()],
}

impl StageTally {
    pub(super) fn new() -> StageTally {
        StageTally { stages: std::array::from_fn(|_| nanoseconds(3)) }
    }

    pub(super) fn record(&mut self, durations: [Nanos; STAGES.len()]) {
        for (stage, duration) in self.stages.iter_mut().zip(durations) {
            record(stage, duration);
        }
    }

    pub(super) fn merge(&mut self, other: &StageTally) {
        for (stage, other) in self.stages.iter_mut().zip(&other.stages) {
            stage.add(other).expect("a histogram that grows takes what another has");
        }
    }

    /// Each stage's histogram, ns, in the order of [`STAGES`]; `None` where the server states
    /// none.
    pub fn histograms(&self) -> Option<&[Histogram<u64>; STAGES.len()]> {
        (!self.stages[0].is_empty()).then_some(&self.stages)
    }
}
