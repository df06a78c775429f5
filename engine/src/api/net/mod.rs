//! The bytes between an API core and its clients: sockets on glommio, TLS, HTTP connections with
//! their time-outs, the bodies of requests within limits, the bodies of responses, compression.
//!
//! **Architecture invariant:** nothing here interprets a path, a message or a token. A connection
//! hands each request to a [`RequestHandler`](connection::RequestHandler), and every wait for a
//! client ends by a time-out.

pub(super) mod body;
pub(super) mod compression;
pub(super) mod connection;
pub(super) mod core_tasks;
pub mod glommio_io;
pub(super) mod handler_panics;
pub(super) mod idle_streams;
pub(super) mod large_buffers;
pub(super) mod limits;
pub(super) mod memory;
pub(super) mod open_connections;
pub(super) mod peer;
pub(super) mod response;
pub(super) mod slices;
mod socket;
pub mod tls;
pub(super) mod turn;
