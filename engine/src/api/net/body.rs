//! Reads request bodies within the limits of size, of memory and of time. A body that comes in one
//! piece, as most do, is not copied.

use super::glommio_io::within;
use super::large_buffers;
use super::limits::BodyLimits;
use super::memory::{ConnectionMemory, CoreMemory, MemoryLease, ReadBounds};
use super::slices::Slices;
use crate::api::problem::Problem;
use bytes::Bytes;
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, HeaderMap};
use std::rc::Rc;
use std::time::Instant;

/// The most memory that an announced body is given at once; more is added as its bytes come.
const FIRST_CAPACITY: usize = 1 << 20;

/// The limits of request bodies on an API core, and the memory that they share.
pub(in crate::api) struct BodyBudget {
    limits: BodyLimits,
    memory: Rc<CoreMemory>,
}

/// A request's body so far, and its memory.
struct PartialBody {
    memory: MemoryLease,
    pieces: BodyBytes,
}

enum BodyBytes {
    One(Bytes),
    Joined(Vec<u8>),
}

impl BodyBudget {
    /// Creates a budget of which nothing is taken.
    pub(in crate::api) fn new(limits: BodyLimits) -> BodyBudget {
        let BodyLimits { max_bodies_bytes, max_connection_bytes, max_peer_bytes, .. } = limits;
        let memory = CoreMemory::with_peers(max_bodies_bytes, max_connection_bytes, max_peer_bytes);
        BodyBudget { limits, memory }
    }

    /// Returns the largest size of a body, in bytes, packed or not.
    pub(in crate::api) fn max_body_bytes(&self) -> usize {
        self.limits.max_body_bytes
    }

    /// Returns the memory that the bodies, and answers, share.
    pub(in crate::api) fn memory(&self) -> &Rc<CoreMemory> {
        &self.memory
    }

    /// Returns an empty lease for a request of a connection.
    pub(in crate::api) fn lease(&self, connection: &Rc<ConnectionMemory>) -> MemoryLease {
        self.memory.lease(connection)
    }

    /// Reads a whole body of a request of `connection`, and returns it with the bounds within which
    /// it is to be interpreted; their memory counts it. `headers` are the request's.
    ///
    /// Errors: 413, 429, 408, or 400 where it breaks off.
    pub(in crate::api) async fn read(
        &self,
        headers: &HeaderMap,
        mut body: Incoming,
        connection: &Rc<ConnectionMemory>,
    ) -> Result<(Bytes, ReadBounds), Problem> {
        let announced = announced_length(headers, self.limits.max_body_bytes)?;
        let pieces = BodyBytes::One(Bytes::new());
        let mut lease = PartialBody { memory: self.lease(connection), pieces };
        let slices = Slices::on_core();
        let end = Instant::now() + self.limits.body_timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now()).min(self.limits.read_timeout);
            let slow = || self.slow_body(lease.memory.held());
            let frame = within(left, body.frame()).await.ok_or_else(slow)?;
            let Some(frame) = frame else {
                let PartialBody { memory, pieces } = lease;
                return Ok((
                    pieces.joined(),
                    ReadBounds { slices, ..ReadBounds::new(self.limits.max_body_bytes, memory) },
                ));
            };
            let frame =
                frame.map_err(|error| Problem::bad(format!("the request's body broke off: {error}")))?;
            if let Ok(data) = frame.into_data() {
                self.check_length(lease.memory.held(), data.len())?;
                lease.add(data, announced, body.is_end_stream(), &slices).await?;
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

    /// Checks that a body of which `held` bytes have come may have `more`.
    ///
    /// Errors: 413.
    pub(in crate::api) fn check_length(&self, held: usize, more: usize) -> Result<(), Problem> {
        let limit = self.limits.max_body_bytes;
        if held + more > limit { Err(too_large("more", limit)) } else { Ok(()) }
    }
}

impl PartialBody {
    /// Adds a piece. Unless it is the whole body, it is copied: it may be a small part of a large
    /// buffer, which it would keep.
    async fn add(
        &mut self,
        data: Bytes,
        announced: usize,
        whole: bool,
        slices: &Slices,
    ) -> Result<(), Problem> {
        let before = self.memory.held();
        self.memory.grow(data.len())?;
        match &mut self.pieces {
            BodyBytes::One(_) if before == 0 && whole => self.pieces = BodyBytes::One(data),
            BodyBytes::One(_) => {
                let mut joined = Vec::with_capacity(announced.min(FIRST_CAPACITY).max(data.len()));
                joined.extend_from_slice(&data);
                self.pieces = BodyBytes::Joined(joined);
            }
            BodyBytes::Joined(joined) => slices.append(&data, joined).await,
        }
        Ok(())
    }
}

impl BodyBytes {
    fn joined(self) -> Bytes {
        match self {
            BodyBytes::One(bytes) => bytes,
            BodyBytes::Joined(joined) => large_buffers::shared(joined),
        }
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
