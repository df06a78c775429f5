//! The interface for watching a simulation: an [`Observer`] is called at each event, in order.
//! Implemented by [`super::Audit`], by tests and by measurements beyond the report.

use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Ending, Request};

/// The way in which a query ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryEnding {
    /// All items are over by the query's deadline.
    Good,
    /// All items are over, the last after the deadline.
    Late,
    /// An item was dropped.
    Dropped,
}

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
    /// Observes the arrival of query number `query`, due at `deadline`. `graph` is its index in the
    /// workload's queries.
    fn query_arrived(&mut self, _query: u64, _graph: usize, _deadline: Nanos) {}
    /// Observes an item of a query's stage, which arrives as this request.
    fn item_arrived(&mut self, _query: u64, _stage: usize, _request: &Request) {}
    /// Observes that the request of this id will not run in its batch, which is on its way: its
    /// query ended at `now`, before the batch's start. The batch keeps its size.
    fn item_discarded(&mut self, _request: u64, _now: Nanos) {}
    /// Observes the end of a query.
    fn query_ended(&mut self, _query: u64, _ending: QueryEnding, _now: Nanos) {}
}

/// Observes nothing.
impl Observer for () {}
