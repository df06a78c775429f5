//! The gRPC streams of an API core that have no request in flight: only their client or the end of
//! the server wakes them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::task::{Context, Waker};

/// The wakers of idle streams, by stream number.
#[derive(Default)]
pub(in crate::api) struct IdleStreams {
    stopping: Cell<bool>,
    next: Cell<u64>,
    wakers: RefCell<HashMap<u64, Waker>>,
}

impl IdleStreams {
    /// Returns a number for a new stream.
    pub(in crate::api) fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// Returns true if the server is stopping; otherwise the stream is woken when it stops.
    pub(in crate::api) fn is_stopping(&self, stream: u64, cx: &Context<'_>) -> bool {
        if !self.stopping.get() {
            self.wakers.borrow_mut().insert(stream, cx.waker().clone());
        }
        self.stopping.get()
    }

    /// Removes a stream that has ended.
    pub(in crate::api) fn forget(&self, stream: u64) {
        self.wakers.borrow_mut().remove(&stream);
    }

    /// Wakes every idle stream, to end.
    pub(in crate::api) fn stop(&self) {
        self.stopping.set(true);
        self.wakers.take().into_values().for_each(Waker::wake);
    }
}
