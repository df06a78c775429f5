//! The reason that a request gets no result: its HTTP status, and a message that says what was
//! wrong, where, and what would be right. The gRPC adapter derives its own status from it.

use crate::runtime::frontend::Refusal;
use crate::telemetry::InferOutcome;
use hyper::StatusCode;
use std::fmt::Write as _;
use std::time::Duration;

/// The most names that an error lists.
pub(in crate::api) const NAMES_LISTED: usize = 10;

/// The most characters of a client's own text that an error repeats.
const QUOTED: usize = 80;

/// The reason that a request gets no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Problem {
    /// The HTTP status.
    pub(super) status: StatusCode,
    /// The message: what was wrong, where, and what would be right.
    pub(super) message: String,
    /// The outcome that is counted if it was an infer request.
    pub(super) outcome: InferOutcome,
    /// The time after which the client may try again, if known.
    pub(super) again: Option<Duration>,
}

impl Problem {
    /// Returns the problem of a request that must be changed to succeed.
    pub(super) fn invalid(status: StatusCode, message: impl Into<String>) -> Problem {
        Problem { status, message: message.into(), outcome: InferOutcome::Invalid, again: None }
    }

    /// Returns the problem, of status 400, of a request that must be changed to succeed.
    pub(super) fn bad(message: impl Into<String>) -> Problem {
        Problem::invalid(StatusCode::BAD_REQUEST, message)
    }

    /// Returns the problem of a request whose handler has panicked.
    pub(super) fn after_panic() -> Problem {
        let message = "the server failed on this request, by a defect; its log says where".to_owned();
        let (status, outcome) = (StatusCode::INTERNAL_SERVER_ERROR, InferOutcome::Failed);
        Problem { status, message, outcome, again: None }
    }

    /// Returns the time after which a client may try again: 1 s if unknown.
    pub(super) fn wait(&self) -> Duration {
        self.again.unwrap_or(Duration::from_secs(1))
    }

    /// Returns the body of its answer over HTTP, in Triton's form.
    pub(super) fn body(&self) -> Vec<u8> {
        serde_json::json!({ "error": self.message }).to_string().into_bytes()
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        let (status, outcome) = match refusal {
            Refusal::Overloaded => (StatusCode::TOO_MANY_REQUESTS, InferOutcome::Overloaded),
            Refusal::Draining | Refusal::Broken => (StatusCode::SERVICE_UNAVAILABLE, InferOutcome::Draining),
            Refusal::TooManyRows { .. } => (StatusCode::BAD_REQUEST, InferOutcome::Invalid),
            Refusal::Unloaded | Refusal::NotServing => (StatusCode::NOT_FOUND, InferOutcome::Invalid),
        };
        Problem { status, message: refusal.to_string(), outcome, again: None }
    }
}

/// Lists the first [`NAMES_LISTED`] of `all`, and the number of the others.
pub(super) fn names<'a>(all: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = all.len().saturating_sub(NAMES_LISTED);
    let mut text = format!("{:?}", all.take(NAMES_LISTED).collect::<Vec<_>>());
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// Quotes a client's own text, shortened to [`QUOTED`] characters.
pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text, QUOTED))
}

/// Returns `text` cut to `characters`, with an ellipsis if it was longer.
pub(super) fn shortened(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}
