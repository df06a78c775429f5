//! One request: how it ended, when, and what the server states about its execution.

use super::stages::StageTimes;
use symphony_transport::Nanos;

/// The end of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Answered in time.
    Good,
    /// Executed and answered too late.
    Late,
    /// Dropped by the server since it could not be in time.
    Dropped,
    /// Rejected by the server, which was full or shutting down.
    Rejected,
    /// No answer, an error, or an answer that makes no sense.
    Failed,
}

impl End {
    /// The number of variants.
    pub const COUNT: usize = End::ALL.len();
    /// All of them, by their numbers.
    pub const ALL: [End; 5] = [End::Good, End::Late, End::Dropped, End::Rejected, End::Failed];

    /// Returns the name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            End::Good => "good",
            End::Late => "late",
            End::Dropped => "dropped",
            End::Rejected => "rejected",
            End::Failed => "failed",
        }
    }
}

/// The server's statements about a request's execution, from its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerDetails {
    /// The size of the batch that it ran in; 0 where that is not known.
    pub batch_size: u32,
    /// The GPU that it ran on.
    pub gpu: Option<u32>,
    /// The times of the request's stages.
    pub times: Option<StageTimes>,
}

/// One request, ended.
#[derive(Clone, Copy, Debug)]
pub struct RequestRecord {
    /// The model asked, an index into the plan's.
    pub model: usize,
    /// The time at which it was meant to be sent.
    pub intended: Nanos,
    /// The time at which it was sent; the intended time where it never was.
    pub sent: Nanos,
    /// The time at which the answer, or the error, arrived.
    pub ended: Nanos,
    /// The end, as the server states it. The tally makes [`End::Late`] of an answer after the SLO.
    pub end: End,
    /// The server's statements about its execution.
    pub details: ServerDetails,
}
