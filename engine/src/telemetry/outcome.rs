//! The outcomes of infer requests, with their names in headers and metrics.

/// The outcome of an infer request: the `symphony-outcome` header of its answer and a label of the
/// metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum InferOutcome {
    /// The request was answered in time.
    Good,
    /// The request ran, but was answered after its deadline.
    Late,
    /// The request was dropped in the queue.
    Dropped,
    /// The request's batch came too late to the backend.
    Cancelled,
    /// The engine had no room for the request.
    Overloaded,
    /// The executor failed.
    Failed,
    /// The engine is shutting down.
    Draining,
    /// The request itself was wrong.
    Invalid,
    /// The client left before it was answered.
    Gone,
}

impl InferOutcome {
    /// The number of outcomes.
    pub const COUNT: usize = InferOutcome::ALL.len();

    /// All outcomes, in the order of their numbers.
    pub const ALL: [InferOutcome; 9] = [
        InferOutcome::Good,
        InferOutcome::Late,
        InferOutcome::Dropped,
        InferOutcome::Cancelled,
        InferOutcome::Overloaded,
        InferOutcome::Failed,
        InferOutcome::Draining,
        InferOutcome::Invalid,
        InferOutcome::Gone,
    ];

    /// Returns the outcome's name in headers and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            InferOutcome::Good => "good",
            InferOutcome::Late => "late",
            InferOutcome::Dropped => "dropped",
            InferOutcome::Cancelled => "cancelled",
            InferOutcome::Overloaded => "overloaded",
            InferOutcome::Failed => "failed",
            InferOutcome::Draining => "draining",
            InferOutcome::Invalid => "invalid",
            InferOutcome::Gone => "gone",
        }
    }

    /// Returns true if the server promised an answer in time and did not give one: the bad rate
    /// counts these.
    pub const fn is_bad(self) -> bool {
        use InferOutcome::*;
        matches!(self, Late | Dropped | Cancelled | Overloaded | Failed)
    }

    /// Returns the `reason` of the outcome in Triton's metrics; `None` for a success.
    pub(super) const fn triton_reason(self) -> Option<&'static str> {
        use InferOutcome::*;
        match self {
            Good => None,
            Dropped | Cancelled | Overloaded => Some("REJECTED"),
            Gone => Some("CANCELED"),
            Failed => Some("BACKEND"),
            Late | Draining | Invalid => Some("OTHER"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_at_its_number() {
        assert!(InferOutcome::ALL.iter().enumerate().all(|(at, &outcome)| outcome as usize == at));
    }
}
