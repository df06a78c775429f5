//! The table `[http]` of CONFIG: limits of the HTTP server.

use super::toml_reader::TomlTable;
use std::time::Duration;
use symphony_scheduler::limits;

/// The limits of the HTTP server in each API thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// The largest body of a request; a larger one is refused.
    pub max_body_bytes: usize,
    /// The most requests in the engine at once; others are answered `overloaded`.
    pub max_in_flight: usize,
    /// The most open connections; others are closed at once.
    pub max_connections: usize,
    /// The most requests at once on one connection.
    pub max_in_flight_per_connection: usize,
    /// The time within which a request that has begun must arrive whole.
    pub read_timeout: Duration,
    /// The time after which a connection without a request is closed.
    pub idle_timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            max_body_bytes: 64 << 20,
            max_in_flight: limits::MAX_IN_FLIGHT,
            max_connections: 4_096,
            max_in_flight_per_connection: 1_024,
            read_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
        }
    }
}

/// Reads the table `[http]`.
pub(super) fn read_http(root: &TomlTable<'_>) -> Option<HttpLimits> {
    let default = HttpLimits::default();
    root.section("http", |table| {
        let count = |name, most, default| table.optional(name).map_or(Some(default), |v| v.count(1..=most));
        let body = count("max_body_mb", 1_024, default.max_body_bytes >> 20);
        let in_flight = count("max_in_flight", limits::MAX_IN_FLIGHT, default.max_in_flight);
        let connections = count("max_connections", 65_536, default.max_connections);
        let each = count(
            "max_in_flight_per_connection",
            limits::MAX_IN_FLIGHT,
            default.max_in_flight_per_connection,
        );
        let seconds = |name, default: Duration| {
            count(name, 86_400, default.as_secs() as usize).map(|s| Duration::from_secs(s as u64))
        };
        let read_timeout = seconds("read_timeout_s", default.read_timeout);
        let idle_timeout = seconds("idle_timeout_s", default.idle_timeout);
        Some(HttpLimits {
            max_body_bytes: body? << 20,
            max_in_flight: in_flight?,
            max_connections: connections?,
            max_in_flight_per_connection: each?,
            read_timeout: read_timeout?,
            idle_timeout: idle_timeout?,
        })
    })
}
