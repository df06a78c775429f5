//! The next work of a ModelThread: each of its queues' timers, the queues for which requests have
//! come in this duty cycle, and the frontend whose turn is next. Owned by the ModelThread.

use symphony_scheduler::rank::min_tree::MinTree;
use symphony_transport::Nanos;

/// A queue for which requests have come in this duty cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Touched {
    /// The queue's index in the thread.
    pub(crate) index: usize,
    /// The time at which the first of these requests arrived.
    pub(crate) since: Nanos,
}

/// The next work of a ModelThread. See the module's description. Queues are identified by their
/// index in the thread.
///
/// Timers are a [`MinTree`] and no wheel: requests mostly move them a little earlier or later,
/// which is two stores there, and a thread has tens of queues, thousands at most.
pub struct Agenda {
    timers: MinTree,
    touched: Vec<Touched>,
    is_touched: Box<[bool]>,
    /// The frontend whose requests are taken first: the first for which the duty cycle before had
    /// no room.
    pub(crate) first_frontend: usize,
}

impl Agenda {
    /// Makes the agenda of this number of queues, none of which has a timer or requests.
    pub fn new(models: usize) -> Agenda {
        Agenda {
            timers: MinTree::new(models),
            touched: Vec::with_capacity(models),
            is_touched: vec![false; models].into(),
            first_frontend: 0,
        }
    }

    /// Sets a queue's timer; [`Nanos::MAX`] is none.
    #[inline]
    pub(crate) fn set_timer(&mut self, index: usize, at: Nanos) {
        self.timers.set(index, at);
    }

    /// Returns the earliest timer if it has come by `now`; it stays set.
    #[inline]
    pub(crate) fn due(&self, now: Nanos) -> Option<(usize, Nanos)> {
        if self.timers.min_key() > now {
            return None;
        }
        self.timers.min().map(|(at, index)| (index, at))
    }

    /// Returns the earliest timer; [`Nanos::MAX`] if there is none.
    pub(crate) fn next_timer(&self) -> Nanos {
        self.timers.min_key()
    }

    /// Notes that a request that arrived at `arrival` has come for a queue.
    #[inline]
    pub(crate) fn touch(&mut self, index: usize, arrival: Nanos) {
        if !std::mem::replace(&mut self.is_touched[index], true) {
            self.touched.push(Touched { index, since: arrival });
        }
    }

    /// Calls `settle` with each touched queue, in the order in which requests came for them, and
    /// clears the list.
    #[inline]
    pub(crate) fn for_each_touched(&mut self, mut settle: impl FnMut(&mut MinTree, Touched)) {
        for &touched in &self.touched {
            self.is_touched[touched.index] = false;
            settle(&mut self.timers, touched);
        }
        self.touched.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_touched_once_a_cycle_since_its_first_request() {
        let mut agenda = Agenda::new(4);
        for (index, arrival) in [(2, 5), (0, 6), (2, 7)] {
            agenda.touch(index, Nanos(arrival));
        }
        let mut seen = Vec::new();
        for _ in 0..2 {
            agenda.for_each_touched(|timers, touched| {
                timers.set(touched.index, Nanos(9));
                seen.push((touched.index, touched.since.0));
            });
        }
        assert_eq!(seen, [(2, 5), (0, 6)]);
        assert_eq!((agenda.due(Nanos(8)), agenda.due(Nanos(9))), (None, Some((0, Nanos(9)))));
    }
}
