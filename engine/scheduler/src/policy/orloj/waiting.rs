//! The requests of one application that wait, by deadline, for ranges of deadlines read from either
//! end. A request joins and leaves in O(log n), wherever its deadline lies.

use crate::limits::MAX_QUEUE_LENGTH;
use alloc::collections::BTreeMap;
use core::ops::Bound::{Excluded, Included};
use core::ops::Range;
use symphony_transport::Nanos;
use symphony_transport::message::Request;

/// The place of a request: its deadline, and its id, which no other request has.
pub(super) type Place = (Nanos, u64);

/// The first place of a deadline.
fn first_of(deadline: Nanos) -> Place {
    (deadline, 0)
}

/// Requests in deadline order, at most [`MAX_QUEUE_LENGTH`] of them.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingRequests(BTreeMap<Place, Request>);

impl WaitingRequests {
    /// Adds a request; gives it back if [`MAX_QUEUE_LENGTH`] wait already.
    pub(super) fn add(&mut self, request: Request) -> Result<(), Request> {
        if self.0.len() >= MAX_QUEUE_LENGTH {
            return Err(request);
        }
        self.0.insert((request.deadline, request.id), request);
        Ok(())
    }

    /// Returns the first deadline that is not before this, and the number of requests from there
    /// on, up to `most`.
    pub(super) fn from(&self, deadline: Nanos, most: usize) -> (Nanos, usize) {
        let mut there = self.0.range(first_of(deadline)..);
        let first = there.next().map_or(Nanos::MAX, |(place, _)| place.0);
        let count = if first < Nanos::MAX { 1 + there.take(most.saturating_sub(1)).count() } else { 0 };
        (first, count.min(most))
    }

    /// Returns the place of the first or the last request with a deadline in this range.
    pub(super) fn end_of(&self, range: Range<Nanos>, last: bool) -> Option<Place> {
        if range.is_empty() {
            return None;
        }
        let mut there = self.0.range(first_of(range.start)..first_of(range.end));
        let found = if last { there.next_back() } else { there.next() };
        found.map(|(&place, _)| place)
    }

    /// Returns the place of the request behind or before this one whose deadline is in the range,
    /// in which this one is.
    pub(super) fn beside(&self, place: Place, range: Range<Nanos>, before: bool) -> Option<Place> {
        let found = if before {
            self.0.range((Included(first_of(range.start)), Excluded(place))).next_back()
        } else {
            self.0.range((Excluded(place), Excluded(first_of(range.end)))).next()
        };
        found.map(|(&place, _)| place)
    }

    /// Removes the first request if its deadline is before this.
    pub(super) fn take_before(&mut self, deadline: Nanos) -> Option<Request> {
        self.0.first_entry().filter(|first| first.key().0 < deadline).map(|first| first.remove())
    }

    /// Removes the request at this place.
    pub(super) fn take(&mut self, place: Place) -> Option<Request> {
        self.0.remove(&place)
    }
}
