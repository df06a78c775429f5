//! The open connections of an API core.

use crate::telemetry::Metrics;
use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// The open connections of an API core, each with the means to ask it to end.
pub(in crate::api) struct OpenConnections {
    metrics: Rc<Metrics>,
    /// The connections by number; `None` once the connection was asked to end, which dropping the
    /// sender does.
    by_number: RefCell<HashMap<u64, Option<oneshot::Sender<()>>>>,
    next: Cell<u64>,
}

impl OpenConnections {
    /// Creates the table without connections; `metrics` counts them.
    pub(in crate::api) fn new(metrics: Rc<Metrics>) -> OpenConnections {
        OpenConnections { metrics, by_number: RefCell::default(), next: Cell::new(0) }
    }

    /// Adds a connection and returns its number; dropping `stop` asks it to end.
    pub(in crate::api) fn opened(&self, stop: oneshot::Sender<()>) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        self.by_number.borrow_mut().insert(number, Some(stop));
        self.metrics.opened();
        number
    }

    /// Removes a connection.
    pub(in crate::api) fn closed(&self, number: u64) {
        self.by_number.borrow_mut().remove(&number);
        self.metrics.closed();
    }

    /// Asks every connection to end after its requests in flight.
    pub(in crate::api) fn ask_to_end(&self) {
        self.by_number.borrow_mut().values_mut().for_each(|stop| *stop = None);
    }

    /// Returns the number of open connections.
    pub(in crate::api) fn len(&self) -> usize {
        self.by_number.borrow().len()
    }
}
