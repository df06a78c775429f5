//! The status that ends a gRPC call: its code, its message, and their trailers.

use crate::api::headers::OUTCOME;
use crate::api::problem::Problem;
use crate::telemetry::InferOutcome;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use std::time::Duration;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// The header that lets a client try again after this many milliseconds.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The characters that are percent-encoded in `grpc-message`.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// The status of a gRPC call, by the protocol's numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(super) enum GrpcCode {
    /// Success.
    Ok = 0,
    /// The client cancelled the call.
    Cancelled = 1,
    /// The request is wrong.
    InvalidArgument = 3,
    /// The answer came, or would have come, too late.
    DeadlineExceeded = 4,
    /// The model, version or region does not exist.
    NotFound = 5,
    /// The name is taken.
    AlreadyExists = 6,
    /// The caller may not do that.
    PermissionDenied = 7,
    /// A queue or a limit is full.
    ResourceExhausted = 8,
    /// The server does not support the call.
    Unimplemented = 12,
    /// The server failed.
    Internal = 13,
    /// The server is shutting down, or a feature is off.
    Unavailable = 14,
    /// The caller has no valid token.
    Unauthenticated = 16,
}

impl GrpcCode {
    /// Returns the code that corresponds to an HTTP status.
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

/// The status that ends a call.
pub(super) struct GrpcStatus<'a> {
    /// The code.
    pub(super) code: GrpcCode,
    /// The reason; empty for none.
    pub(super) message: &'a str,
    /// The outcome of an infer request.
    pub(super) outcome: Option<InferOutcome>,
    /// The time after which the client may try again, if known.
    pub(super) again: Option<Duration>,
}

impl GrpcStatus<'_> {
    /// Returns the status of a call that got no result.
    pub(super) fn of(problem: &Problem) -> GrpcStatus<'_> {
        GrpcStatus {
            code: GrpcCode::of(problem.status),
            message: &problem.message,
            outcome: Some(problem.outcome),
            again: problem.again,
        }
    }

    /// Returns the trailers that end a call with this status.
    pub(super) fn trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(4);
        self.write(&mut trailers);
        trailers
    }

    pub(super) fn write(&self, headers: &mut HeaderMap) {
        headers.insert(STATUS, HeaderValue::from(self.code as u16));
        if !self.message.is_empty() {
            let escaped = percent_encode(self.message.as_bytes(), ESCAPED).to_string();
            headers.insert(
                MESSAGE,
                HeaderValue::try_from(escaped).expect("what a header can't hold is escaped"),
            );
        }
        if let Some(outcome) = self.outcome {
            headers.insert(OUTCOME, HeaderValue::from_static(outcome.name()));
        }
        if self.code == GrpcCode::ResourceExhausted {
            let wait = self.again.unwrap_or(Duration::from_secs(1));
            headers.insert(PUSHBACK, HeaderValue::from(wait.as_millis().clamp(1, 3_600_000) as u32));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_header_cannot_hold_is_escaped() {
        let status =
            GrpcStatus { code: GrpcCode::NotFound, message: "no \"é\"\n100%", outcome: None, again: None };
        let trailers = status.trailers();
        assert_eq!(trailers[STATUS], "5");
        assert_eq!(trailers[MESSAGE], "no \"%C3%A9\"%0A100%25");
    }
}
