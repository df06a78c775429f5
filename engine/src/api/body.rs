//! Reading a request's body within the limits: its size, the memory of all bodies together, and its
//! time. A body that comes in one piece, as most do, is not copied.

use super::core::Core;
use super::glommio_io::within;
use super::problem::Problem;
use crate::telemetry::InferOutcome;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, HeaderMap};
use std::time::Instant;

/// A body that is promised gets this much memory at once; the rest comes as the bytes do.
const FIRST_ROOM: usize = 1 << 20;

/// A request's body, counted against what all bodies of the core may hold together.
pub(super) struct Lease<'a> {
    core: &'a Core,
    held: usize,
    pieces: Pieces,
}

enum Pieces {
    One(Bytes),
    Joined(BytesMut),
}

impl Core {
    /// Reads a body whole. `headers` are its request's.
    ///
    /// Errors: 413, 429, 408, or 400 where it breaks off.
    pub(super) async fn read_body(
        &self,
        headers: &HeaderMap,
        mut body: Incoming,
    ) -> Result<Lease<'_>, Problem> {
        let promised = promised_length(headers, self.config.max_body_bytes)?;
        let mut lease = Lease { core: self, held: 0, pieces: Pieces::One(Bytes::new()) };
        let end = Instant::now() + self.config.body_timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now()).min(self.config.read_timeout);
            let frame = within(left, body.frame()).await.ok_or_else(|| self.slow_body(lease.held))?;
            let Some(frame) = frame else { return Ok(lease) };
            let frame =
                frame.map_err(|error| Problem::bad(format!("the request's body broke off: {error}")))?;
            if let Ok(data) = frame.into_data() {
                lease.add(data, promised)?;
            }
        }
    }

    /// Why a body of which `read` bytes have come is waited for no longer.
    fn slow_body(&self, read: usize) -> Problem {
        let (pause, whole) = (self.config.read_timeout, self.config.body_timeout);
        let message = format!(
            "the request's body came too slowly: {read} bytes so far; a pause may take {pause:?}, the whole {whole:?}"
        );
        Problem::invalid(StatusCode::REQUEST_TIMEOUT, message)
    }

    /// Takes room for `more` bytes of a body that has `held` so far.
    ///
    /// Errors: 413 or 429.
    pub(super) fn take_room(&self, held: usize, more: usize) -> Result<(), Problem> {
        if held + more > self.config.max_body_bytes {
            return Err(too_large("more", self.config.max_body_bytes));
        }
        let together = self.body_bytes.get() + more;
        if together > self.config.max_bodies_bytes {
            let limit = self.config.max_bodies_bytes;
            let message = format!(
                "the server is overloaded: request bodies being read fill their {limit} bytes; try again later"
            );
            let outcome = InferOutcome::Overloaded;
            return Err(Problem { status: StatusCode::TOO_MANY_REQUESTS, message, outcome, again: None });
        }
        self.body_bytes.set(together);
        Ok(())
    }

    /// Gives room back.
    pub(super) fn give_room_back(&self, bytes: usize) {
        self.body_bytes.set(self.body_bytes.get() - bytes);
    }
}

impl Lease<'_> {
    fn add(&mut self, data: Bytes, promised: usize) -> Result<(), Problem> {
        self.core.take_room(self.held, data.len())?;
        self.held += data.len();
        match &mut self.pieces {
            Pieces::One(first) if first.is_empty() => self.pieces = Pieces::One(data),
            Pieces::One(first) => {
                let mut joined = BytesMut::with_capacity(promised.min(FIRST_ROOM).max(self.held));
                joined.extend_from_slice(first);
                joined.extend_from_slice(&data);
                self.pieces = Pieces::Joined(joined);
            }
            Pieces::Joined(joined) => joined.extend_from_slice(&data),
        }
        Ok(())
    }

    /// The bytes. They are counted for as long as the lease is kept.
    pub(super) fn bytes(&mut self) -> Bytes {
        match std::mem::replace(&mut self.pieces, Pieces::One(Bytes::new())) {
            Pieces::One(bytes) => bytes,
            Pieces::Joined(joined) => joined.freeze(),
        }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.core.give_room_back(self.held);
    }
}

/// What Content-Length says, zero where there is none.
fn promised_length(headers: &HeaderMap, limit: usize) -> Result<usize, Problem> {
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
