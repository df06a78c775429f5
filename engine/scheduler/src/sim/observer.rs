//! The interface for watching a simulation: an [`Observer`] is called at each event, in order.
//! Implemented by [`super::Audit`], by tests and by measurements beyond the report.

use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Ending, Request};

/// A watcher of a simulation's events, in the order in which they happen.
pub trait Observer {
    /// Observes a request that arrives.
    fn arrived(&mut self, _request: &Request) {}
    /// Observes a batch that is sent to its GPU at `now`. It will run from `started` to `finished`,
    /// or is cancelled there (`started` is `None`) since it could not start by its `latest`.
    fn ran(
        &mut self,
        _now: Nanos,
        _batch: &BatchHeader,
        _requests: (&[Request], &[Request]),
        _started: Option<Nanos>,
        _finished: Nanos,
    ) {
    }
    /// Observes a batch that was sent and is stopped at `stopped` (or when it would have started,
    /// if that is still to come). It will not have run; its requests are the scheduler's again. The
    /// GPU's time from its start until then is wasted.
    fn preempted(&mut self, _batch: &BatchHeader, _requests: &[Request], _stopped: Nanos) {}
    /// Observes a request that ends without having run.
    fn ended(&mut self, _request: &Request, _ending: Ending, _now: Nanos) {}
}

/// Observes nothing.
impl Observer for () {}
