//! How infer requests end, in the words of headers and metrics.

/// How an infer request ended: the `symphony-outcome` header of its answer and a label of the
/// metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum InferOutcome {
    /// Answered in time.
    Good,
    /// It ran, but was answered after its deadline.
    Late,
    /// Dropped in the queue.
    Dropped,
    /// Its batch came too late to the backend.
    Cancelled,
    /// There was no room for it.
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
    /// How many there are.
    pub const COUNT: usize = InferOutcome::ALL.len();

    /// All of them, in the order of their numbers.
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

    /// Its word in headers and metrics.
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

    /// Whether the server promised an answer in time and did not give one: what the bad rate
    /// counts.
    pub const fn is_bad(self) -> bool {
        use InferOutcome::*;
        matches!(self, Late | Dropped | Cancelled | Overloaded | Failed)
    }

    /// The `reason` that Triton's metrics have for it; `None` for a success.
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
