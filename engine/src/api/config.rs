//! The configuration of an API core: addresses, limits, time-outs, and what it shares with others.

use super::net::limits::{BodyLimits, ConnectionLimits};
use super::net::tls::Tls;
use super::services::SharedState;
use super::services::tokens::Tokens;
use crate::runtime::{Idle, Placement};
use crate::telemetry::Observatory;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Limits and time-outs of an API core. The defaults are safe on an open port.
#[derive(Clone, Debug)]
pub struct ApiConfig {
    /// Where to listen. Port 0 takes any free port: see [`ApiHandle::local_addr`].
    pub addr: SocketAddr,
    /// Where to listen besides, if anywhere: gRPC's usual port. Both ports speak both protocols.
    pub grpc: Option<SocketAddr>,
    /// Where admin calls are answered; where there is none, the other ports answer them if they are
    /// on loopback, and nobody does if not. This port speaks both protocols too.
    pub admin: Option<SocketAddr>,
    /// The certificate by which clients are spoken to; on an admin port on loopback without it all
    /// the same.
    pub tls: Option<Tls>,
    /// Who may ask for what; without, everybody may.
    pub tokens: Option<Tokens>,
    /// Let other API cores listen at the same addresses; without, a port in use is an error.
    pub share_port: bool,
    /// Where the thread runs, and whether it looks for work all the time: [`Idle::Spin`] where the
    /// core is its own.
    pub placement: Placement,
    /// The largest request body, in bytes.
    pub max_body_bytes: usize,
    /// What all bodies that are being read may hold together, in bytes.
    pub max_bodies_bytes: usize,
    /// The largest request line with headers, in bytes.
    pub max_head_bytes: usize,
    /// Connections at once.
    pub max_connections: usize,
    /// Requests at once on an HTTP/2 connection.
    pub max_requests_at_once: usize,
    /// From a head's first byte to its last.
    pub header_timeout: Duration,
    /// The longest pause in a body.
    pub read_timeout: Duration,
    /// The whole body.
    pub body_timeout: Duration,
    /// How long a client may take nothing of its response.
    pub write_timeout: Duration,
    /// How long a connection may stay open between requests.
    pub idle_timeout: Duration,
    /// An HTTP/2 connection from which nothing comes for this long is asked whether anybody is
    /// there; without an answer in as long again it is closed, with all its calls.
    pub keep_alive: Duration,
    /// How long [`ApiHandle::stop`] waits for requests at hand.
    pub stop_timeout: Duration,
    /// What all API cores of an engine count in and answer `/metrics` from; without, a core has one
    /// of its own.
    pub observatory: Option<Arc<Observatory>>,
    /// What it shares with the other API cores of its server.
    pub shared: SharedState,
}

impl ApiConfig {
    /// The defaults, listening at `addr`.
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
            observatory: None,
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
