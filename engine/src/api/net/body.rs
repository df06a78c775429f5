//! Reads request bodies within the limits of size, of memory for all bodies together, and of time.
//! A body that comes in one piece, as most do, is not copied.

use super::glommio_io::within;
use super::limits::BodyLimits;
use crate::api::problem::Problem;
use crate::telemetry::InferOutcome;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, HeaderMap};
use std::cell::Cell;
use std::time::Instant;

/// The most memory that an announced body is given at once; more is added as its bytes come.
const FIRST_CAPACITY: usize = 1 << 20;

/// The bytes that all bodies being read on an API core hold together, and their limits.
pub(in crate::api) struct BodyBudget {
    limits: BodyLimits,
    held: Cell<usize>,
}

/// A request's body, counted against the budget of its core until it is dropped.
pub(in crate::api) struct BodyLease<'a> {
    budget: &'a BodyBudget,
    held: usize,
    pieces: BodyBytes,
}

enum BodyBytes {
    One(Bytes),
    Joined(BytesMut),
}

impl BodyBudget {
    /// Creates a budget of which nothing is taken.
    pub(in crate::api) fn new(limits: BodyLimits) -> BodyBudget {
        BodyBudget { limits, held: Cell::new(0) }
    }

    /// Returns the largest size of a body, in bytes, packed or not.
    pub(in crate::api) fn max_body_bytes(&self) -> usize {
        self.limits.max_body_bytes
    }

    /// Reads a whole body. `headers` are its request's.
    ///
    /// Errors: 413, 429, 408, or 400 where it breaks off.
    pub(in crate::api) async fn read(
        &self,
        headers: &HeaderMap,
        mut body: Incoming,
    ) -> Result<BodyLease<'_>, Problem> {
        let announced = announced_length(headers, self.limits.max_body_bytes)?;
        let mut lease = BodyLease { budget: self, held: 0, pieces: BodyBytes::One(Bytes::new()) };
        let end = Instant::now() + self.limits.body_timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now()).min(self.limits.read_timeout);
            let frame = within(left, body.frame()).await.ok_or_else(|| self.slow_body(lease.held))?;
            let Some(frame) = frame else { return Ok(lease) };
            let frame =
                frame.map_err(|error| Problem::bad(format!("the request's body broke off: {error}")))?;
            if let Ok(data) = frame.into_data() {
                lease.add(data, announced)?;
            }
        }
    }

    /// Returns the problem of a body that came too slowly, `read` bytes of it so far.
    fn slow_body(&self, read: usize) -> Problem {
        let (pause, whole) = (self.limits.read_timeout, self.limits.body_timeout);
        let message = format!(
            "the request's body came too slowly: {read} bytes so far; a pause may take {pause:?}, the whole {whole:?}"
        );
        Problem::invalid(StatusCode::REQUEST_TIMEOUT, message)
    }

    /// Takes `more` bytes of the budget for a body that holds `held` so far.
    ///
    /// Errors: 413 or 429.
    pub(in crate::api) fn take(&self, held: usize, more: usize) -> Result<(), Problem> {
        if held + more > self.limits.max_body_bytes {
            return Err(too_large("more", self.limits.max_body_bytes));
        }
        let together = self.held.get() + more;
        if together > self.limits.max_bodies_bytes {
            let limit = self.limits.max_bodies_bytes;
            let message = format!(
                "the server is overloaded: request bodies being read fill their {limit} bytes; try again later"
            );
            let outcome = InferOutcome::Overloaded;
            return Err(Problem { status: StatusCode::TOO_MANY_REQUESTS, message, outcome, again: None });
        }
        self.held.set(together);
        Ok(())
    }

    /// Returns bytes to the budget.
    pub(in crate::api) fn give_back(&self, bytes: usize) {
        self.held.set(self.held.get() - bytes);
    }
}

impl BodyLease<'_> {
    fn add(&mut self, data: Bytes, announced: usize) -> Result<(), Problem> {
        self.budget.take(self.held, data.len())?;
        self.held += data.len();
        match &mut self.pieces {
            BodyBytes::One(first) if first.is_empty() => self.pieces = BodyBytes::One(data),
            BodyBytes::One(first) => {
                let mut joined = BytesMut::with_capacity(announced.min(FIRST_CAPACITY).max(self.held));
                joined.extend_from_slice(first);
                joined.extend_from_slice(&data);
                self.pieces = BodyBytes::Joined(joined);
            }
            BodyBytes::Joined(joined) => joined.extend_from_slice(&data),
        }
        Ok(())
    }

    /// Returns the bytes. They are counted for as long as the lease is kept.
    pub(in crate::api) fn bytes(&mut self) -> Bytes {
        match std::mem::replace(&mut self.pieces, BodyBytes::One(Bytes::new())) {
            BodyBytes::One(bytes) => bytes,
            BodyBytes::Joined(joined) => joined.freeze(),
        }
    }
}

impl Drop for BodyLease<'_> {
    fn drop(&mut self) {
        self.budget.give_back(self.held);
    }
}

/// Returns the length that Content-Length announces, zero without that header.
fn announced_length(headers: &HeaderMap, limit: usize) -> Result<usize, Problem> {
    // hyper has refused what is no number.
    let length = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok()).unwrap_or(0);
    usize::try_from(length)
        .ok()
        .filter(|&length| length <= limit)
        .ok_or_else(|| too_large(&length.to_string(), limit))
}

fn too_large(size: &str, limit: usize) -> Problem {
    let message = format!("the request's body has {size} bytes; the limit is {limit}");
    Problem::invalid(StatusCode::PAYLOAD_TOO_LARGE, message)
}
