//! The memory that requests hold while they are read: what has come of them, what it unpacks to,
//! and what it becomes; and that of answers until they are sent. Every byte is taken from two
//! budgets before it is allocated, that of its API core and that of its connection, and given back
//! when its [`MemoryLease`] is dropped. An answer is never refused: it may exceed the budgets, and
//! then no request is read.

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
}

/// The memory that the requests and answers of one connection hold. Each request in flight has a
/// clone of its `Rc`, until its response is taken.
#[derive(Default, Debug)]
pub(in crate::api) struct ConnectionMemory {
    held: Rc<Cell<usize>>,
}

/// The memory that one request holds, given back when dropped.
#[derive(Debug)]
pub(in crate::api) struct MemoryLease {
    core: Rc<CoreMemory>,
    /// What the connection's requests hold.
    connection: Rc<Cell<usize>>,
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
        Rc::new(CoreMemory { held: Cell::new(0), most, most_of_connection })
    }

    /// Checks that a connection's requests and answers leave it any memory.
    ///
    /// Errors: 429.
    pub(in crate::api) fn check(&self, connection: &ConnectionMemory) -> Result<(), Problem> {
        match connection.held.get() > self.most_of_connection {
            true => Err(full("its connection's requests and answers", self.most_of_connection)),
            false => Ok(()),
        }
    }

    /// Returns an empty lease for a request of a connection.
    pub(in crate::api) fn lease(self: &Rc<Self>, connection: &Rc<ConnectionMemory>) -> MemoryLease {
        MemoryLease { core: self.clone(), connection: connection.held.clone(), held: 0 }
    }
}

impl MemoryLease {
    /// Takes `more` bytes.
    ///
    /// Errors: 429 if the core or the connection has no more; nothing is taken then.
    pub(in crate::api) fn grow(&mut self, more: usize) -> Result<(), Problem> {
        let of_core = self.core.held.get().saturating_add(more);
        let of_connection = self.connection.get().saturating_add(more);
        if of_connection > self.core.most_of_connection {
            return Err(full("its connection's requests and answers", self.core.most_of_connection));
        }
        if of_core > self.core.most {
            return Err(full("requests being read and answers being sent", self.core.most));
        }
        self.core.held.set(of_core);
        self.connection.set(of_connection);
        self.held += more;
        Ok(())
    }

    /// Takes `more` bytes for an answer, whether the budgets have them or not.
    pub(in crate::api) fn charge(&mut self, more: usize) {
        self.core.held.set(self.core.held.get() + more);
        self.connection.set(self.connection.get() + more);
        self.held += more;
    }

    /// Gives back `bytes`, or what is held if that is less.
    pub(in crate::api) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.held);
        self.core.held.set(self.core.held.get() - bytes);
        self.connection.set(self.connection.get() - bytes);
        self.held -= bytes;
    }

    /// Moves `bytes`, or what is held if that is less, to a lease of their own.
    pub(in crate::api) fn split(&mut self, bytes: usize) -> MemoryLease {
        let bytes = bytes.min(self.held);
        self.held -= bytes;
        MemoryLease { core: self.core.clone(), connection: self.connection.clone(), held: bytes }
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
        assert_eq!((core.held.get(), one.held.get(), two.held.get()), (0, 0, 0));
    }
}
