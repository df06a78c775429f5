//! A queue of one model's requests in deadline order, for the baselines of this folder. Its owner
//! decides what is dropped and what runs.

use crate::limits::MAX_QUEUE_LENGTH;
use crate::model::front_slices;
use crate::model::selection::partition_point;
use alloc::collections::VecDeque;
use symphony_transport::Nanos;
use symphony_transport::message::Request;

/// Requests in deadline order, at most [`MAX_QUEUE_LENGTH`] of them.
#[derive(Clone, Debug, Default)]
pub(super) struct DeadlineQueue(VecDeque<Request>);

impl DeadlineQueue {
    /// Inserts a request by its deadline; gives it back if [`MAX_QUEUE_LENGTH`] wait already. O(1)
    /// where deadlines come in order.
    pub(super) fn push(&mut self, request: Request) -> Result<(), Request> {
        if self.0.len() >= MAX_QUEUE_LENGTH {
            return Err(request);
        }
        self.insert(request);
        Ok(())
    }

    /// Takes back requests that had left for a batch, even beyond [`MAX_QUEUE_LENGTH`].
    pub(super) fn take_back(&mut self, requests: &[Request]) {
        for &request in requests.iter().rev() {
            self.insert(request);
        }
    }

    fn insert(&mut self, request: Request) {
        match (self.0.front(), self.0.back()) {
            (_, Some(last)) if last.deadline <= request.deadline => self.0.push_back(request),
            (Some(first), _) if request.deadline <= first.deadline => self.0.push_front(request),
            (None, _) => self.0.push_back(request),
            _ => {
                let at = self.0.partition_point(|other| other.deadline <= request.deadline);
                self.0.insert(at, request);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the deadline of the request at this index.
    pub(super) fn deadline(&self, at: usize) -> Option<Nanos> {
        self.0.get(at).map(|request| request.deadline)
    }

    /// Returns the first `count` requests, as one or two slices.
    pub(super) fn front(&self, count: usize) -> (&[Request], &[Request]) {
        front_slices(&self.0, count)
    }

    /// Removes the first request.
    pub(super) fn pop(&mut self) -> Option<Request> {
        self.0.pop_front()
    }

    /// Removes the first `count` requests.
    pub(super) fn remove(&mut self, count: usize) {
        self.0.drain(..count);
    }
}

/// Returns the largest of `1..=most` for which `holds` is true, where it is true up to some number
/// and false from there; 0 where it holds for none. Evaluates it for `most` first.
pub(super) fn last_that(most: usize, holds: impl Fn(usize) -> bool) -> usize {
    if most == 0 || holds(most) {
        return most;
    }
    partition_point(1, most, holds) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn requests_leave_in_deadline_order(deadlines in prop::collection::vec(0u64..50, 1..60), back in 0usize..20) {
            let mut queue = DeadlineQueue::default();
            for &deadline in &deadlines {
                queue.push(Request { deadline: Nanos(deadline), ..Request::default() }).unwrap();
            }
            let batch: Vec<_> = core::iter::from_fn(|| queue.pop()).take(back).collect();
            queue.take_back(&batch);
            let out: Vec<_> = core::iter::from_fn(|| queue.pop()).map(|request| request.deadline.0).collect();
            let mut sorted = deadlines.clone();
            sorted.sort_unstable();
            prop_assert_eq!(out, sorted);
        }

        #[test]
        fn bisection_finds_what_a_search_one_by_one_finds(most in 0usize..100, until in 0usize..120) {
            let found = last_that(most, |number| number <= until);
            prop_assert_eq!(found, most.min(until));
        }
    }

    #[test]
    fn a_full_queue_gives_the_request_back() {
        let mut queue = DeadlineQueue::default();
        (0..MAX_QUEUE_LENGTH).for_each(|_| queue.push(Request::default()).unwrap());
        assert!(queue.push(Request::default()).is_err());
    }
}
