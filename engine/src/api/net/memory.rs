//! The memory that requests hold while they are read: what has come of them, what it unpacks to,
//! and what it becomes; and that of answers until they are sent. Every byte is taken from budgets
//! before it is allocated, that of its API core and that of its connection, and given back when its
//! [`MemoryLease`] is dropped. Connections of one remote address have a budget together. An answer
//! is never refused: it may exceed the budgets, and then no request is read. The windows of HTTP/2,
//! which hold what has come and was not read, have a budget of their own.

use super::slices::Slices;
use crate::api::problem::Problem;
use crate::telemetry::InferOutcome;
use hyper::StatusCode;
use std::cell::Cell;
use std::rc::Rc;

/// The memory that the requests and answers of an API core hold, and the limits.
#[derive(Debug)]
pub(in crate::api) struct CoreMemory {
    held: Cell<usize>,
    most: usize,
    most_of_connection: usize,
    most_of_peer: usize,
    /// The bytes of all receive windows.
    windows: Cell<usize>,
}

/// The memory that the requests and answers of one connection hold. Each request in flight has a
/// clone of its `Rc`, until its response is taken.
#[derive(Default, Debug)]
pub(in crate::api) struct ConnectionMemory {
    held: Rc<HeldBytes>,
}

/// The memory that the requests and answers of all connections of one remote address hold.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(in crate::api) struct PeerMemory(Rc<Cell<usize>>);

/// The bytes that a connection's requests and answers hold.
#[derive(Default, Debug)]
struct HeldBytes {
    connection: Cell<usize>,
    /// What its client's address holds, where that is limited.
    peer: Option<PeerMemory>,
}

/// The bytes that the client of an HTTP/2 connection may send before they are read, given back when
/// dropped.
#[derive(Debug)]
pub(in crate::api) struct ReceiveWindow {
    core: Rc<CoreMemory>,
    bytes: usize,
}

/// The smallest receive window: what HTTP/2 begins with.
pub(in crate::api) const LEAST_WINDOW: usize = 64 << 10;

/// The largest receive window.
pub(in crate::api) const MOST_WINDOW: usize = 1 << 20;

/// The share of the windows' memory that is left which one more connection gets: one of this many.
const WINDOW_SHARE: usize = 256;

/// The memory that one request holds, given back when dropped.
#[derive(Debug)]
pub(in crate::api) struct MemoryLease {
    core: Rc<CoreMemory>,
    /// What the connection's requests hold.
    of: Rc<HeldBytes>,
    held: usize,
}

/// The bounds within which one request is read.
#[derive(Debug)]
pub(in crate::api) struct ReadBounds {
    /// The most bytes that its body may unpack to, and that its elements may take.
    pub(in crate::api) limit: usize,
    /// The memory that it holds.
    pub(in crate::api) memory: MemoryLease,
    /// The work done on it.
    pub(in crate::api) slices: Slices,
}

/// The largest body of a call that is not an infer request, in bytes.
pub(in crate::api) const MAX_CALL: usize = 256 << 10;

/// The most memory that a byte of such a call becomes: an empty string takes two bytes.
const DECODED: usize = 40;

impl ReadBounds {
    /// Returns bounds of `limit` bytes for a task on an API core.
    pub(in crate::api) fn new(limit: usize, memory: MemoryLease) -> ReadBounds {
        ReadBounds { limit, memory, slices: Slices::on_core() }
    }

    /// Narrows the bounds to those of a call that is not an infer request.
    pub(in crate::api) fn narrow(&mut self) {
        self.limit = self.limit.min(MAX_CALL);
    }

    /// Checks the length of such a call's message, and takes the memory for all that it may become.
    ///
    /// Errors: 413 or 429.
    pub(in crate::api) fn take_decoded(&mut self, length: usize) -> Result<(), Problem> {
        if length > self.limit {
            let message = format!("the call has {length} bytes; the limit is {}", self.limit);
            return Err(Problem::invalid(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        self.memory.grow(DECODED * length)
    }
}

impl CoreMemory {
    /// Creates the memory of a core of which nothing is taken: `most` bytes, `most_of_connection`
    /// for each connection.
    pub(in crate::api) fn new(most: usize, most_of_connection: usize) -> Rc<CoreMemory> {
        CoreMemory::with_peers(most, most_of_connection, usize::MAX)
    }

    /// Creates it with a limit for the connections of one remote address too.
    pub(in crate::api) fn with_peers(
        most: usize,
        most_of_connection: usize,
        most_of_peer: usize,
    ) -> Rc<CoreMemory> {
        let (held, windows) = (Cell::new(0), Cell::new(0));
        Rc::new(CoreMemory { held, most, most_of_connection, most_of_peer, windows })
    }

    /// Checks that a connection's requests and answers leave it any memory, and its client's
    /// address.
    ///
    /// Errors: 429.
    pub(in crate::api) fn check(&self, connection: &ConnectionMemory) -> Result<(), Problem> {
        self.check_client(&connection.held, 0)
    }

    /// Checks that a connection, and its client's address, may hold `more` bytes.
    fn check_client(&self, held: &HeldBytes, more: usize) -> Result<(), Problem> {
        if held.connection.get().saturating_add(more) > self.most_of_connection {
            return Err(full("its connection's requests and answers", self.most_of_connection));
        }
        match &held.peer {
            Some(PeerMemory(peer)) if peer.get().saturating_add(more) > self.most_of_peer => {
                Err(full("its address's requests and answers", self.most_of_peer))
            }
            _ => Ok(()),
        }
    }

    /// Returns the receive window of one more connection: smaller, the more there are, so that all
    /// of them together stay below the core's memory and [`LEAST_WINDOW`] for each.
    pub(in crate::api) fn receive_window(self: &Rc<Self>) -> ReceiveWindow {
        let left = self.most.saturating_sub(self.windows.get());
        let bytes = (left / WINDOW_SHARE).clamp(LEAST_WINDOW, MOST_WINDOW);
        self.windows.set(self.windows.get() + bytes);
        ReceiveWindow { core: self.clone(), bytes }
    }

    /// Returns an empty lease for a request of a connection.
    pub(in crate::api) fn lease(self: &Rc<Self>, connection: &Rc<ConnectionMemory>) -> MemoryLease {
        MemoryLease { core: self.clone(), of: connection.held.clone(), held: 0 }
    }
}

impl ConnectionMemory {
    /// Creates the memory of a connection that holds nothing, of this client's address if that has
    /// a limit.
    pub(in crate::api) fn of_peer(peer: Option<PeerMemory>) -> Rc<ConnectionMemory> {
        let held = HeldBytes { connection: Cell::new(0), peer };
        Rc::new(ConnectionMemory { held: Rc::new(held) })
    }
}

impl PeerMemory {
    /// Returns true if any connection or request of the address goes on.
    pub(in crate::api) fn is_in_use(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }
}

impl HeldBytes {
    fn add(&self, bytes: usize) {
        self.connection.set(self.connection.get() + bytes);
        if let Some(PeerMemory(peer)) = &self.peer {
            peer.set(peer.get() + bytes);
        }
    }

    fn sub(&self, bytes: usize) {
        self.connection.set(self.connection.get() - bytes);
        if let Some(PeerMemory(peer)) = &self.peer {
            peer.set(peer.get() - bytes);
        }
    }
}

impl ReceiveWindow {
    /// Returns its size, in bytes.
    pub(in crate::api) fn bytes(&self) -> u32 {
        self.bytes as u32
    }
}

impl Drop for ReceiveWindow {
    fn drop(&mut self) {
        self.core.windows.set(self.core.windows.get() - self.bytes);
    }
}

impl MemoryLease {
    /// Takes `more` bytes.
    ///
    /// Errors: 429 if the core, the connection or its client's address has no more; nothing is
    /// taken then.
    pub(in crate::api) fn grow(&mut self, more: usize) -> Result<(), Problem> {
        self.core.check_client(&self.of, more)?;
        if self.core.held.get().saturating_add(more) > self.core.most {
            return Err(full("requests being read and answers being sent", self.core.most));
        }
        self.charge(more);
        Ok(())
    }

    /// Takes `more` bytes for an answer, whether the budgets have them or not.
    pub(in crate::api) fn charge(&mut self, more: usize) {
        self.core.held.set(self.core.held.get() + more);
        self.of.add(more);
        self.held += more;
    }

    /// Gives back `bytes`, or what is held if that is less.
    pub(in crate::api) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.held);
        self.core.held.set(self.core.held.get() - bytes);
        self.of.sub(bytes);
        self.held -= bytes;
    }

    /// Moves `bytes`, or what is held if that is less, to a lease of their own.
    pub(in crate::api) fn split(&mut self, bytes: usize) -> MemoryLease {
        let bytes = bytes.min(self.held);
        self.held -= bytes;
        MemoryLease { core: self.core.clone(), of: self.of.clone(), held: bytes }
    }

    /// Returns the bytes that it holds.
    pub(in crate::api) fn held(&self) -> usize {
        self.held
    }
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        self.shrink(self.held);
    }
}

fn full(what: &str, limit: usize) -> Problem {
    let message =
        format!("the server is overloaded: {what} fill their {limit} bytes of memory; try again later");
    Problem { status: StatusCode::TOO_MANY_REQUESTS, message, outcome: InferOutcome::Overloaded, again: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_taken_from_core_and_connection_and_given_back() {
        let core = CoreMemory::new(100, 60);
        let (one, two) = (Rc::<ConnectionMemory>::default(), Rc::default());
        let mut first = core.lease(&one);
        first.grow(50).unwrap();
        let refused = first.grow(11).unwrap_err();
        assert!(
            refused.message.contains("its connection's requests and answers fill their 60 bytes"),
            "{refused:?}"
        );
        let part = first.split(20);
        let mut second = core.lease(&two);
        assert!(second.grow(51).unwrap_err().message.contains("being sent fill their 100"));
        drop(part);
        second.grow(60).unwrap();
        second.charge(70);
        assert_eq!((core.check(&one).is_ok(), core.check(&two).is_ok()), (true, false));
        drop((first, second));
        assert_eq!((core.held.get(), one.held.connection.get(), two.held.connection.get()), (0, 0, 0));
    }

    #[test]
    fn the_connections_of_an_address_have_a_limit_together() {
        let core = CoreMemory::with_peers(100, 60, 70);
        let peer = PeerMemory::default();
        let [one, two] = [(); 2].map(|()| ConnectionMemory::of_peer(Some(peer.clone())));
        let (mut first, mut second) = (core.lease(&one), core.lease(&two));
        first.grow(50).unwrap();
        let refused = second.grow(21).unwrap_err();
        assert!(refused.message.contains("its address's requests and answers fill their 70"), "{refused:?}");
        core.lease(&ConnectionMemory::of_peer(None)).grow(50).unwrap();
        second.charge(21);
        assert!(core.check(&two).is_err());
        drop((first, second, one, two));
        assert_eq!((peer.0.get(), peer.is_in_use()), (0, false));
    }

    #[test]
    fn receive_windows_are_smaller_the_more_there_are_and_bounded_together() {
        let core = CoreMemory::new(1 << 30, 1 << 20);
        let mut windows: Vec<ReceiveWindow> = (0..10_000).map(|_| core.receive_window()).collect();
        assert_eq!(windows[700].bytes(), MOST_WINDOW as u32);
        assert_eq!(windows[9_999].bytes(), LEAST_WINDOW as u32);
        let larger: usize = windows.iter().map(|window| window.bytes).filter(|&of| of > LEAST_WINDOW).sum();
        assert!(larger < 1 << 30, "{larger}");
        windows.clear();
        assert_eq!((core.windows.get(), core.receive_window().bytes), (0, MOST_WINDOW));
    }
}
