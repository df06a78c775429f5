//! A request that gets no result: its status in both protocols, and the words that say what was
//! wrong, where, and what would be right.

use crate::runtime::frontend::Refusal;
use crate::telemetry::InferOutcome;
use hyper::StatusCode;
use std::fmt::Write as _;
use std::time::Duration;

/// How many names an error lists.
const NAMES_LISTED: usize = 10;

/// How many characters of a client's own words an error repeats.
const QUOTED: usize = 80;

/// The status of a gRPC call, by the protocol's numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(super) enum GrpcCode {
    /// Done.
    Ok = 0,
    /// The client took the call back.
    Cancelled = 1,
    /// The request is wrong.
    InvalidArgument = 3,
    /// It came, or would have come, too late.
    DeadlineExceeded = 4,
    /// There is no such model, version, region.
    NotFound = 5,
    /// Something of that name is there already.
    AlreadyExists = 6,
    /// The caller may not do that.
    PermissionDenied = 7,
    /// A queue or a limit is full.
    ResourceExhausted = 8,
    /// This server does not do that.
    Unimplemented = 12,
    /// The server's own fault.
    Internal = 13,
    /// Not now: the server shuts down, or something is switched off.
    Unavailable = 14,
    /// Nobody knows who calls.
    Unauthenticated = 16,
}

impl GrpcCode {
    /// What corresponds to an HTTP status.
    pub(super) fn of(status: StatusCode) -> GrpcCode {
        match status {
            StatusCode::UNAUTHORIZED => GrpcCode::Unauthenticated,
            StatusCode::FORBIDDEN => GrpcCode::PermissionDenied,
            StatusCode::NOT_FOUND => GrpcCode::NotFound,
            StatusCode::CONFLICT => GrpcCode::AlreadyExists,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS => GrpcCode::ResourceExhausted,
            StatusCode::GATEWAY_TIMEOUT => GrpcCode::DeadlineExceeded,
            StatusCode::REQUEST_TIMEOUT => GrpcCode::Cancelled,
            StatusCode::SERVICE_UNAVAILABLE => GrpcCode::Unavailable,
            StatusCode::UNSUPPORTED_MEDIA_TYPE | StatusCode::METHOD_NOT_ALLOWED => GrpcCode::Unimplemented,
            StatusCode::NOT_IMPLEMENTED => GrpcCode::Unimplemented,
            status if status.is_client_error() => GrpcCode::InvalidArgument,
            _ => GrpcCode::Internal,
        }
    }
}

/// A request that gets no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Problem {
    /// The HTTP status; [`GrpcCode::of`] has the other protocol's.
    pub(super) status: StatusCode,
    /// What was wrong, where, and what would be right.
    pub(super) message: String,
    /// How it counts if it was an infer request.
    pub(super) outcome: InferOutcome,
    /// After what time it may be tried again, where that is known.
    pub(super) again: Option<Duration>,
}

impl Problem {
    /// A request that must be changed to succeed.
    pub(super) fn invalid(status: StatusCode, message: impl Into<String>) -> Problem {
        Problem { status, message: message.into(), outcome: InferOutcome::Invalid, again: None }
    }

    /// The same with status 400.
    pub(super) fn bad(message: impl Into<String>) -> Problem {
        Problem::invalid(StatusCode::BAD_REQUEST, message)
    }

    /// After what time a client that was told to wait may try again.
    pub(super) fn wait(&self) -> Duration {
        self.again.unwrap_or(Duration::from_secs(1))
    }

    /// The body of its answer over HTTP, in Triton's shape.
    pub(super) fn body(&self) -> Vec<u8> {
        serde_json::json!({ "error": self.message }).to_string().into_bytes()
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        let (status, outcome) = match refusal {
            Refusal::Overloaded => (StatusCode::TOO_MANY_REQUESTS, InferOutcome::Overloaded),
            Refusal::Draining => (StatusCode::SERVICE_UNAVAILABLE, InferOutcome::Draining),
            Refusal::TooManyRows { .. } => (StatusCode::BAD_REQUEST, InferOutcome::Invalid),
            Refusal::Unloaded => (StatusCode::NOT_FOUND, InferOutcome::Invalid),
        };
        Problem { status, message: refusal.to_string(), outcome, again: None }
    }
}

/// Names as a list, the first of many.
pub(super) fn names<'a>(all: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = all.len().saturating_sub(NAMES_LISTED);
    let mut text = format!("{:?}", all.take(NAMES_LISTED).collect::<Vec<_>>());
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// A client's own words in quotes, the first of many.
pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text, QUOTED))
}

/// At most so many characters of a text.
pub(super) fn shortened(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}
