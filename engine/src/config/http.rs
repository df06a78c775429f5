//! The table `[http]` of CONFIG: limits of the HTTP server.

use super::toml_reader::{TomlTable, TomlValue};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use symphony_scheduler::limits;

/// The limits of the HTTP server in each API thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// The largest body of a request; a larger one is refused.
    pub max_body_bytes: usize,
    /// The most memory that the requests of one connection being read may hold, in bytes. A request
    /// holds up to three times its body's size for a moment.
    pub max_connection_bytes: usize,
    /// The most memory that the requests of one remote address being read may hold, in bytes.
    pub max_peer_bytes: usize,
    /// The most requests in the engine at once; others are answered `overloaded`.
    pub max_in_flight: usize,
    /// The most open connections, those of the admin listener not included; others are closed at
    /// once.
    pub max_connections: usize,
    /// The most open connections of the admin listener.
    pub max_admin_connections: usize,
    /// The most open connections of one remote address, of `max_connections`.
    pub max_connections_per_peer: usize,
    /// The addresses to which `max_connections_per_peer` and `max_peer_bytes` do not apply.
    pub unlimited_peers: Vec<IpNet>,
    /// The most requests at once on one HTTP/2 connection.
    pub max_in_flight_per_connection: usize,
    /// The most bytes that all bodies being read may hold together.
    pub max_bodies_bytes: usize,
    /// The longest time for a TLS handshake, and from a head's first byte to its last.
    pub header_timeout: Duration,
    /// The longest pause in a body.
    pub read_timeout: Duration,
    /// The longest time for a whole body.
    pub body_timeout: Duration,
    /// The longest time in which a client may take nothing of its answer.
    pub write_timeout: Duration,
    /// The time after which a connection without a request is closed.
    pub idle_timeout: Duration,
    /// The time without bytes after which an HTTP/2 connection is sent a PING; without an answer in
    /// as long again it is closed, with all its calls.
    pub keep_alive: Duration,
    /// The time after which a gRPC stream without a request is closed.
    pub stream_idle_timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            max_body_bytes: 64 << 20,
            max_connection_bytes: 256 << 20,
            max_peer_bytes: 512 << 20,
            max_in_flight: limits::MAX_IN_FLIGHT,
            max_connections: 4_096,
            max_admin_connections: 256,
            max_connections_per_peer: 1_024,
            unlimited_peers: vec![LOOPBACK_V4, LOOPBACK_V6],
            max_in_flight_per_connection: 1_024,
            max_bodies_bytes: 1 << 30,
            header_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            keep_alive: Duration::from_secs(20),
            stream_idle_timeout: Duration::from_secs(600),
        }
    }
}

/// The addresses of this machine, which all its users share, and a proxy on it.
const LOOPBACK_V4: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8));
const LOOPBACK_V6: IpNet = IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128));

fn read_networks(value: &TomlValue<'_>) -> Option<Vec<IpNet>> {
    let right = "an address or a network, like \"10.0.0.5\" or \"10.1.0.0/16\"";
    let items = value.items(&format!("it must be a list, each item {right}"))?;
    let network = |item: &TomlValue<'_>| {
        let text = item.text(right)?;
        let network = text.parse().ok().or_else(|| text.parse().ok().map(|addr: IpAddr| addr.into()));
        if network.is_none() {
            item.refuse_value(right);
        }
        network
    };
    items.iter().map(network).collect()
}

/// Reads the table `[http]`.
pub(super) fn read_http(root: &TomlTable<'_>) -> Option<HttpLimits> {
    let default = HttpLimits::default();
    root.section("http", |table| {
        let count = |name, most, default| table.optional(name).map_or(Some(default), |v| v.count(1..=most));
        let body = count("max_body_mb", 1_024, default.max_body_bytes >> 20);
        // A request is read within three times the size of its body.
        let enough = |default: usize| body.unwrap_or_default().saturating_mul(4).max(default >> 20);
        let bodies = count("max_bodies_mb", 1 << 20, enough(default.max_bodies_bytes));
        let connection_memory = count("max_connection_mb", 16_384, enough(default.max_connection_bytes));
        let peer_memory = count("max_peer_mb", 1 << 20, enough(default.max_peer_bytes));
        let in_flight = count("max_in_flight", limits::MAX_IN_FLIGHT, default.max_in_flight);
        let connections = count("max_connections", 65_536, default.max_connections);
        let admin_connections = count("max_admin_connections", 65_536, default.max_admin_connections);
        let of_peer = count("max_connections_per_peer", 65_536, default.max_connections_per_peer);
        let peers = table.optional("unlimited_peers");
        let peers = peers.map_or(Some(default.unlimited_peers), |value| read_networks(&value));
        let each = count(
            "max_in_flight_per_connection",
            limits::MAX_IN_FLIGHT,
            default.max_in_flight_per_connection,
        );
        let seconds = |name, default: Duration| {
            count(name, 86_400, default.as_secs() as usize).map(|s| Duration::from_secs(s as u64))
        };
        let header_timeout = seconds("header_timeout_s", default.header_timeout);
        let read_timeout = seconds("read_timeout_s", default.read_timeout);
        let body_timeout = seconds("body_timeout_s", default.body_timeout);
        let write_timeout = seconds("write_timeout_s", default.write_timeout);
        let idle_timeout = seconds("idle_timeout_s", default.idle_timeout);
        let keep_alive = seconds("keep_alive_s", default.keep_alive);
        let stream_idle_timeout = seconds("stream_idle_timeout_s", default.stream_idle_timeout);
        let (body, bodies) = (body? << 20, bodies? << 20);
        if bodies < body {
            let right = "at least max_body_mb, or no body of that size could ever be read";
            table.report("max_bodies_mb", format!("is {}", bodies >> 20), format!("it must be {right}"));
            return None;
        }
        Some(HttpLimits {
            max_body_bytes: body,
            max_bodies_bytes: bodies,
            max_connection_bytes: connection_memory? << 20,
            max_peer_bytes: peer_memory? << 20,
            max_in_flight: in_flight?,
            max_connections: connections?,
            max_admin_connections: admin_connections?,
            max_connections_per_peer: of_peer?,
            unlimited_peers: peers?,
            max_in_flight_per_connection: each?,
            header_timeout: header_timeout?,
            read_timeout: read_timeout?,
            body_timeout: body_timeout?,
            write_timeout: write_timeout?,
            idle_timeout: idle_timeout?,
            keep_alive: keep_alive?,
            stream_idle_timeout: stream_idle_timeout?,
        })
    })
}
