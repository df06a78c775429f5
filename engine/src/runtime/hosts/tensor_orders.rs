//! What a backend has done with the slots of frontends, whichever way it is done.

use std::ops::Range;
use symphony_transport::message::Response;
use symphony_transport::slab::SlotId;

/// An order to read the beginning of a frontend's slot into a local one.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadOrder {
    /// Chosen by the reader.
    pub(super) number: u64,
    pub(super) from: SlotId,
    pub(super) to: SlotId,
    pub(super) bytes: usize,
}

/// An answer, and the local slot that its outputs are in, where it has some.
#[derive(Clone, Debug)]
pub(super) struct RowAnswer {
    /// The answer, with the frontend's slot.
    pub(super) response: Response,
    pub(super) outputs: Option<(SlotId, Range<usize>)>,
}

/// What has become of an order.
#[derive(Clone, Debug)]
pub(super) enum PathOutcome {
    /// A read has ended; `true` if its bytes are there.
    Read(u64, bool),
    /// An answer and its outputs were handed over: its local slot is free.
    Answered(RowAnswer),
    /// An answer can't be given.
    Undelivered(RowAnswer),
}
