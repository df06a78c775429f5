//! The end of requests that the engine has not answered in time: a
//! [`Frontend`](crate::runtime::Frontend) answers each of them itself once its deadline and the
//! grace are past, whatever happens behind it. Its slots stay taken until the engine lets go of its
//! last row; what comes then is counted and discarded.
//!
//! The times lie in a table beside the slab, which is swept every [`SWEEP`], a slice a millisecond:
//! sending costs one store, an answer nothing, and a sweep reads 8 bytes a slot (16,384 slots: 128
//! KiB, about 10 us in 20 ms).

use super::answer::{Answer, Outcome, Output};
use super::in_flight::SentRequest;
use super::timeline::Timeline;
use symphony_transport::Nanos;
use symphony_transport::message::GpuId;

/// The time in which the whole table is swept.
const SWEEP: Nanos = Nanos::from_millis(20);

/// The time between two slices of a sweep.
const SLICE: Nanos = Nanos::from_millis(1);

/// The times at which requests are ended. See the module's description.
pub(super) struct Overdue {
    /// The time at which the request that begins in each slot is ended, also of one that was
    /// answered meanwhile; [`Nanos::MAX`] if never.
    end_at: Box<[Nanos]>,
    grace: Nanos,
    /// The slot that the next slice begins at.
    cursor: usize,
    /// The time of the last slice.
    swept: Nanos,
    /// The time that was read last.
    now: Nanos,
}

impl Overdue {
    /// Makes a table for `slots` slots, whose requests are ended this long after they are due.
    pub(super) fn new(slots: usize, grace: Nanos) -> Overdue {
        let end_at = vec![Nanos::MAX; slots].into();
        Overdue { end_at, grace, cursor: 0, swept: Nanos::ZERO, now: Nanos::ZERO }
    }

    /// Returns the time that was noted last.
    pub(super) fn now(&self) -> Nanos {
        self.now
    }

    /// Notes the current time.
    #[inline]
    pub(super) fn note(&mut self, now: Nanos) {
        self.now = now;
    }

    /// Notes a request that begins in the slot of this index.
    #[inline]
    pub(super) fn sent(&mut self, index: usize, due: Nanos) {
        self.end_at[index] = due + self.grace;
    }

    /// Returns true if a slice is due, by the time that was noted last.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.now >= self.swept + SLICE
    }

    /// Begins a slice, and returns the number of slots in it: all if the last one was long ago.
    pub(super) fn begin_slice(&mut self) -> usize {
        let passed = (self.now - self.swept).0.min(SWEEP.0);
        self.swept = self.now;
        (self.end_at.len() as u64 * passed).div_ceil(SWEEP.0) as usize
    }

    /// Returns the next slot whose time has come among the next `left`, which it counts down.
    pub(super) fn next(&mut self, left: &mut usize) -> Option<usize> {
        while *left > 0 {
            *left -= 1;
            let index = self.cursor;
            self.cursor = if index + 1 == self.end_at.len() { 0 } else { index + 1 };
            if self.end_at[index] <= self.now {
                self.end_at[index] = Nanos::MAX;
                return Some(index);
            }
        }
        None
    }
}

/// Returns the answer to a request that its frontend ends at `now`, with this outcome.
pub(super) fn answer_to(sent: &SentRequest, slo: Nanos, outcome: Outcome, now: Nanos) -> Answer<'static> {
    let &SentRequest { model, arrival, due, rows, .. } = sent;
    Answer {
        outcome,
        rows: rows as usize,
        output: Output { range: 0..0, first: None, others: Vec::new(), slots: None },
        model,
        slo,
        timeline: Timeline { arrival, due, finished: now, answered: now, ..Timeline::default() },
        batch_size: 0,
        gpu: GpuId::default(),
    }
}
