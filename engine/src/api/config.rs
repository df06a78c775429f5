//! The configuration of an API core: addresses, limits, time-outs, and what it shares with others.

use super::net::core_tasks::TurnClock;
use super::net::limits::{BodyLimits, ConnectionLimits};
use super::net::open_connections::ConnectionBudget;
use super::net::tls::Tls;
use super::services::SharedState;
use super::services::tokens::Tokens;
use crate::config::HttpLimits;
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
    /// True if another core listens at `admin`: one of
    /// [`start_admin`](super::start_admin), whose thread no client of this core can keep busy.
    pub admin_elsewhere: bool,
    /// The certificate for TLS. An admin port on loopback does not use it.
    pub tls: Option<Tls>,
    /// The tokens and their permissions; without them every client may make every call.
    pub tokens: Option<Tokens>,
    /// The names by which clients on loopback may address the server where there are no tokens,
    /// besides those of loopback; also the hosts of web pages that may ask.
    pub allowed_hosts: Vec<String>,
    /// Lets other API cores listen at the same addresses; otherwise a port in use is an error.
    pub share_port: bool,
    /// The core of the thread, and its waiting: [`Idle::Spin`] if no other thread uses the core.
    pub placement: Placement,
    /// The limits and time-outs of requests and connections. `max_in_flight` is not read here: it
    /// is the capacity of the [`Frontend`](crate::runtime::frontend::Frontend).
    pub limits: HttpLimits,
    /// The largest request line with headers, in bytes.
    pub max_head_bytes: usize,
    /// The longest time that [`ApiHandle::stop`](super::ApiHandle::stop) waits for requests in
    /// flight.
    pub stop_timeout: Duration,
    /// The clock by which the longest turn of its tasks is measured.
    pub turn_clock: TurnClock,
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
            admin_elsewhere: false,
            tls: None,
            tokens: None,
            allowed_hosts: Vec::new(),
            share_port: false,
            placement: Placement { core: None, idle: Idle::Nap },
            limits: HttpLimits::default(),
            max_head_bytes: 32 << 10,
            stop_timeout: Duration::from_secs(30),
            turn_clock: TurnClock::default(),
            telemetry: None,
            shared: SharedState::new(),
        }
    }

    /// Returns the limits of each connection.
    pub(super) fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            max_head_bytes: self.max_head_bytes,
            max_requests_at_once: self.limits.max_in_flight_per_connection,
            header_timeout: self.limits.header_timeout,
            write_timeout: self.limits.write_timeout,
            idle_timeout: self.limits.idle_timeout,
            keep_alive: self.limits.keep_alive,
        }
    }

    /// Returns the most connections of each kind.
    pub(super) fn connection_budget(&self) -> ConnectionBudget {
        ConnectionBudget {
            public: self.limits.max_connections,
            admin: self.limits.max_admin_connections,
            of_peer: self.limits.max_connections_per_peer,
            unlimited_peers: self.limits.unlimited_peers.clone(),
        }
    }

    /// Returns the limits of request bodies.
    pub(super) fn body_limits(&self) -> BodyLimits {
        BodyLimits {
            max_body_bytes: self.limits.max_body_bytes,
            max_bodies_bytes: self.limits.max_bodies_bytes,
            max_connection_bytes: self.limits.max_connection_bytes,
            max_peer_bytes: self.limits.max_peer_bytes,
            read_timeout: self.limits.read_timeout,
            body_timeout: self.limits.body_timeout,
        }
    }
}
