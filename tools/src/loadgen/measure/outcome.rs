//! One request: how it ended, when, and what the server says of its execution.

use super::stages::StageTimes;
use symphony_transport::Nanos;

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Answered in time.
    Good,
    /// It ran, and was answered too late.
    Late,
    /// The server gave it up since it could not be in time.
    Dropped,
    /// The server would not take it: it was full, or shutting down.
    Rejected,
    /// No answer, an error, or an answer that makes no sense.
    Failed,
}

impl End {
    /// How many ways there are.
    pub const COUNT: usize = End::ALL.len();
    /// All of them, by their numbers.
    pub const ALL: [End; 5] = [End::Good, End::Late, End::Dropped, End::Rejected, End::Failed];

    /// Its word in reports.
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

/// What an answer tells of its request's way through the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerDetails {
    /// The size of the batch that it ran in; 0 where that is not known.
    pub batch_size: u32,
    /// The GPU that it ran on.
    pub gpu: Option<u32>,
    /// When what happened.
    pub times: Option<StageTimes>,
}

/// What became of one request.
#[derive(Clone, Copy, Debug)]
pub struct RequestRecord {
    /// The model asked, an index into the plan's.
    pub model: usize,
    /// When it was meant to be sent.
    pub intended: Nanos,
    /// When it was sent; the intended time where it never was.
    pub sent: Nanos,
    /// When the answer, or the error, was there.
    pub ended: Nanos,
    /// How it ended, as the server says. The tally makes [`End::Late`] of an answer after the SLO.
    pub end: End,
    /// What the server told of it.
    pub details: ServerDetails,
}
