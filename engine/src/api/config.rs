//! The configuration of an API core: addresses, limits, time-outs, and what it shares with others.

use super::net::limits::{BodyLimits, ConnectionLimits};
use super::net::tls::Tls;
use super::services::SharedState;
use super::services::tokens::Tokens;
use crate::runtime::{Idle, Placement};
use crate::telemetry::Telemetry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Limits and time-outs of an API core. The defaults are safe on an open port.
#[derive(Clone, Debug)]
pub struct ApiConfig {
    /// The address to listen at. Port 0 takes any free port: see
    /// [`ApiHandle::local_addr`](super::ApiHandle::local_addr).
    pub addr: SocketAddr,
    /// A second address, usually with gRPC's port. Both ports speak both protocols.
    pub grpc: Option<SocketAddr>,
    /// The address at which admin calls are answered, in both protocols. Without it the other ports
    /// answer admin calls if they are on loopback, and otherwise no port does.
    pub admin: Option<SocketAddr>,
    /// The certificate for TLS. An admin port on loopback does not use it.
    pub tls: Option<Tls>,
    /// The tokens and their permissions; without them every client may make every call.
    pub tokens: Option<Tokens>,
    /// Lets other API cores listen at the same addresses; otherwise a port in use is an error.
    pub share_port: bool,
    /// The core of the thread, and its waiting: [`Idle::Spin`] if no other thread uses the core.
    pub placement: Placement,
    /// The largest request body, in bytes.
    pub max_body_bytes: usize,
    /// The most bytes that all bodies being read may hold together.
    pub max_bodies_bytes: usize,
    /// The largest request line with headers, in bytes.
    pub max_head_bytes: usize,
    /// The most open connections.
    pub max_connections: usize,
    /// The most requests in flight on an HTTP/2 connection.
    pub max_requests_at_once: usize,
    /// The longest time from a head's first byte to its last.
    pub header_timeout: Duration,
    /// The longest pause in a body.
    pub read_timeout: Duration,
    /// The longest time for a whole body.
    pub body_timeout: Duration,
    /// The longest time in which a client may take nothing of its response.
    pub write_timeout: Duration,
    /// The longest time that a connection stays open between requests.
    pub idle_timeout: Duration,
    /// The time without bytes after which an HTTP/2 connection is sent a PING; without an answer in
    /// as long again it is closed, with all its calls.
    pub keep_alive: Duration,
    /// The longest time that [`ApiHandle::stop`](super::ApiHandle::stop) waits for requests in
    /// flight.
    pub stop_timeout: Duration,
    /// The metrics of all API cores of an engine, from which `/metrics` is answered; a core makes
    /// its own if there are none.
    pub telemetry: Option<Arc<Telemetry>>,
    /// The state that it shares with the other API cores of its server.
    pub shared: SharedState,
}

impl ApiConfig {
    /// Returns the defaults, listening at `addr`.
    pub fn at(addr: SocketAddr) -> ApiConfig {
        ApiConfig {
            addr,
            grpc: None,
            admin: None,
            tls: None,
            tokens: None,
            share_port: false,
            placement: Placement { core: None, idle: Idle::Nap },
            max_body_bytes: 64 << 20,
            max_bodies_bytes: 1 << 30,
            max_head_bytes: 32 << 10,
            max_connections: 4_096,
            max_requests_at_once: 1_024,
            header_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            keep_alive: Duration::from_secs(20),
            stop_timeout: Duration::from_secs(30),
            telemetry: None,
            shared: SharedState::new(),
        }
    }

    /// Returns the limits of each connection.
    pub(super) fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            max_head_bytes: self.max_head_bytes,
            max_requests_at_once: self.max_requests_at_once,
            header_timeout: self.header_timeout,
            write_timeout: self.write_timeout,
            idle_timeout: self.idle_timeout,
            keep_alive: self.keep_alive,
        }
    }

    /// Returns the limits of request bodies.
    pub(super) fn body_limits(&self) -> BodyLimits {
        BodyLimits {
            max_body_bytes: self.max_body_bytes,
            max_bodies_bytes: self.max_bodies_bytes,
            read_timeout: self.read_timeout,
            body_timeout: self.body_timeout,
        }
    }
}
