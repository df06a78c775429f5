//! The limits and time-outs of connections and of request bodies, as
//! [`ApiConfig`](crate::api::ApiConfig) sets them.

use std::time::Duration;

/// The limits of each connection.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct ConnectionLimits {
    /// The largest request line with headers, in bytes.
    pub(in crate::api) max_head_bytes: usize,
    /// The most requests in flight on an HTTP/2 connection.
    pub(in crate::api) max_requests_at_once: usize,
    /// The longest time from a head's first byte to its last.
    pub(in crate::api) header_timeout: Duration,
    /// The longest time in which a client may take nothing of its response.
    pub(in crate::api) write_timeout: Duration,
    /// The longest time between requests.
    pub(in crate::api) idle_timeout: Duration,
    /// The time without bytes after which an HTTP/2 connection is sent a PING.
    pub(in crate::api) keep_alive: Duration,
}

/// The limits of request bodies.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct BodyLimits {
    /// The largest body, in bytes.
    pub(in crate::api) max_body_bytes: usize,
    /// The most memory that all requests being read may hold together, in bytes.
    pub(in crate::api) max_bodies_bytes: usize,
    /// The most memory that the requests of one connection being read may hold, in bytes.
    pub(in crate::api) max_connection_bytes: usize,
    /// The most memory that the requests of one remote address being read may hold, in bytes.
    pub(in crate::api) max_peer_bytes: usize,
    /// The longest pause in a body.
    pub(in crate::api) read_timeout: Duration,
    /// The longest time for a whole body.
    pub(in crate::api) body_timeout: Duration,
}
