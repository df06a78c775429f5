//! Where a request's time went, as the server's answer tells it: Symphony puts five instants into
//! each response.

use super::histogram::{nanoseconds, record};
use hdrhistogram::Histogram;
use symphony_transport::Nanos;

/// The stages' names, in their order: in the queue until its batch was put together; from there to
/// the batch's start; on the GPU; from there until the answer was back at the frontend; and all
/// that the server does not see.
pub const STAGES: [&str; 5] = ["queue", "wait", "execution", "answer", "network_and_client"];

/// The instants that an answer tells, on a clock of the server's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// When the server took it in.
    pub queued: Nanos,
    /// When its batch was put together.
    pub batched: Nanos,
    /// When the batch started on the GPU.
    pub started: Nanos,
    /// When the batch finished.
    pub finished: Nanos,
    /// When the answer was ready to be sent.
    pub answered: Nanos,
}

impl StageTimes {
    /// How long each stage took, if the client saw the whole take `seen`.
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

/// How long each stage took, of all requests.
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

    /// Each stage's histogram, ns, in the order of [`STAGES`]; `None` where the server told of
    /// none.
    pub fn histograms(&self) -> Option<&[Histogram<u64>; STAGES.len()]> {
        (!self.stages[0].is_empty()).then_some(&self.stages)
    }
}
