//! The answer to a request: its outcome, its output and its times.

use super::in_flight::InFlight;
use super::timeline::Timeline;
use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, GpuId, ModelId};
use symphony_transport::slab::{SlotGuard, SlotId};

/// The way in which an accepted request ended, as its client should see it: that of its worst row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The request was answered in time.
    Good,
    /// The request ran, but its answer came this long after it was due.
    Late(Nanos),
    /// The frontend ended the request this long after it was due, as the engine had not.
    Overdue(Nanos),
    /// The frontend ended the request, as the engine can't go on: see
    /// [`Engine::fault`](crate::runtime::Engine::fault).
    Broken,
    /// The request did not run, or failed; never [`Ending::Done`].
    Bad(Ending),
}

/// An answer, lent to the callback of [`Frontend::poll`](super::Frontend::poll).
#[derive(Debug)]
pub struct Answer<'a> {
    /// The way in which the request ended.
    pub outcome: Outcome,
    /// The number of its rows.
    pub rows: usize,
    pub(super) output: Output<'a>,
    /// The model that it was for.
    pub model: ModelId,
    /// The latency that the model promises.
    pub slo: Nanos,
    /// The times of the request.
    pub timeline: Timeline,
    /// The size of its batch, zero if it was in none. Of several batches the one that finished last
    /// is meant, here and in `gpu`.
    pub batch_size: u32,
    /// The GPU that its batch was sent to.
    pub gpu: GpuId,
}

impl Answer<'_> {
    /// Returns the output of row `at`, from 0, in the layout of the model's
    /// [`Signature`](symphony_gpu::Signature); empty unless all rows ran.
    pub fn row(&self, at: usize) -> &[u8] {
        let Output { range, first, others, .. } = &self.output;
        let slot = if at == 0 { first.as_ref() } else { others.get(at - 1) };
        slot.and_then(|slot| slot.get(range.clone())).unwrap_or_default()
    }

    /// Returns the bytes of the output of all rows.
    pub fn output_bytes(&self) -> usize {
        (0..self.rows).map(|at| self.row(at).len()).sum()
    }

    /// Leaves the output in its slots, which the frontend then takes back only by
    /// [`Frontend::release`](super::Frontend::release). `None` if there is no output.
    pub fn keep(&self) -> Option<KeptOutput> {
        let Output { range, first, slots, .. } = &self.output;
        let OutputSlots { in_flight, head, kept } = slots.as_ref().filter(|_| first.is_some())?;
        kept.set(true);
        Some(KeptOutput { slots: in_flight.slots(*head).collect(), range: range.clone() })
    }

    /// Returns a copy of the output of all rows, one after another; empty unless all rows ran.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.output_bytes());
        (0..self.rows).for_each(|at| all.extend_from_slice(self.row(at)));
        all
    }
}

/// An output that its answer has left in the slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptOutput {
    /// The slots of the rows, in order.
    pub slots: Vec<SlotId>,
    /// The range of the output in each of them.
    pub range: Range<usize>,
}

/// The means to keep an output.
pub(super) struct OutputSlots<'a> {
    pub(super) in_flight: &'a InFlight,
    pub(super) head: usize,
    /// Set if the output is kept.
    pub(super) kept: &'a Cell<bool>,
}

/// The slab slots of an answer's rows, if there are any.
pub(super) struct Output<'a> {
    /// The range of the output in each of them.
    pub(super) range: Range<usize>,
    pub(super) first: Option<SlotGuard<'a>>,
    /// The slots of further rows: empty, without memory of its own, where there is one row.
    pub(super) others: Vec<SlotGuard<'a>>,
    /// The means to keep them.
    pub(super) slots: Option<OutputSlots<'a>>,
}

impl fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("bytes_per_row", &self.range.len()).finish_non_exhaustive()
    }
}
