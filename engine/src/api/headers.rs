//! The HTTP headers and gRPC metadata of Symphony's own that both protocols share: see docs/api.md.

use hyper::header::HeaderName;

/// The header of an answer that names how an infer request ended.
pub const OUTCOME: HeaderName = HeaderName::from_static("symphony-outcome");

/// The header of a request that gives the time until its answer is due, in milliseconds, or `none`.
pub(super) const DEADLINE: HeaderName = HeaderName::from_static("x-request-deadline-ms");

/// The header with the application that a request is of.
pub(super) const APPLICATION: HeaderName = HeaderName::from_static("x-application");

/// The metadata of a stream by which a client asks for answers in the order of its requests: `true`
/// or `false`.
pub(super) const STREAM_ORDER: HeaderName = HeaderName::from_static("symphony-ordered");

/// The headers of W3C Trace Context, which name the span that a request belongs to.
pub(super) const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
/// See [`TRACE_PARENT`].
pub(super) const TRACE_STATE: HeaderName = HeaderName::from_static("tracestate");
