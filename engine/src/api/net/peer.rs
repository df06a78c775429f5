//! The client at the other end of a connection, as far as the connection determines it.

use super::memory::ConnectionMemory;
use std::cell::Cell;
use std::rc::Rc;

/// The rules of a listener for the clients that connect to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::api) struct ListenerRules {
    /// True if admin calls are answered.
    pub(in crate::api) admin: bool,
    /// True if it is an admin listener: one for admin calls and probes, with connections of its
    /// own.
    pub(in crate::api) dedicated: bool,
    /// True if it is on loopback, so that browsers of this machine reach it.
    pub(in crate::api) loopback: bool,
    /// True if clients speak TLS.
    pub(in crate::api) tls: bool,
}

/// A connection's client.
#[derive(Clone)]
pub(in crate::api) struct Peer {
    /// The rules of the listener that accepted the connection.
    pub(in crate::api) listener: ListenerRules,
    /// A token cloned for each request in flight, until its response is taken.
    pub(in crate::api) in_flight: Rc<ConnectionMemory>,
    /// True if the connection is to end after the requests in flight: the handler of one has
    /// panicked.
    pub(in crate::api) condemned: Rc<Cell<bool>>,
}

impl Peer {
    /// Returns the number of its requests in flight.
    pub(in crate::api) fn requests_in_flight(&self) -> usize {
        // The connection holds one clone itself, and each task that asks holds one more at most.
        Rc::strong_count(&self.in_flight) - 1
    }
}
