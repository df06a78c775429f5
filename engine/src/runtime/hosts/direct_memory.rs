//! Memory of a peer that a device of this host reads and writes by itself, as the hosts at the ends
//! of a link see it: [`DirectMemory`], and [`DirectEnd`] for each connection. The device is behind
//! them (`runtime/links`), so that hosts stay without one.

use std::ops::Range;
use symphony_transport::Nanos;
use symphony_transport::message::Response;
use symphony_transport::rdma::{RdmaCounters, RdmaEvent};
use symphony_transport::slab::{SlotClaim, SlotId};
use symphony_transport::wire::{ExportedClass, LandedAnswer, RdmaOffer};

/// What a link's tensors go through beside its frames: makes an end for each of its connections.
pub(crate) trait DirectMemory: Send {
    /// Makes the end of a connection.
    ///
    /// Errors: a sentence that says what the device lacks.
    fn open(&mut self, now: Nanos) -> Result<Box<dyn DirectEnd>, String>;
}

/// One end of a connection. Dropping it takes all that its device may touch away from that: before,
/// neither a claimed slot nor the landing may be used again.
pub(crate) trait DirectEnd: Send {
    /// Returns what the peer needs to connect, and the slots that it may read.
    fn offer(&self) -> (RdmaOffer, Vec<ExportedClass>);

    /// Connects to the peer's end.
    ///
    /// Errors: a sentence; the connection is of no use.
    fn connect(&mut self, offer: &RdmaOffer, exported: &[ExportedClass]) -> Result<(), String>;

    /// Has the beginning of a peer's slot read into a slot of this host.
    fn read(&mut self, number: u64, from: SlotId, to: SlotClaim, bytes: usize);

    /// Has outputs written to the peer, and then the answer given.
    fn answer(&mut self, number: u64, outputs: SlotClaim, range: Range<usize>, response: Response);

    /// Takes what has completed, and has the device do what waits.
    ///
    /// Errors: a sentence; the connection is of no use any more.
    fn poll(&mut self, now: Nanos) -> Result<(), String>;

    /// Returns the next event.
    fn take_event(&mut self) -> Option<RdmaEvent>;

    /// Copies the outputs of an answer that has landed.
    fn copy_landed(&self, answer: &LandedAnswer, to: &mut [u8]);

    /// Gives back the place of the oldest answer that has landed.
    fn give_back(&mut self);

    /// Returns what the connection has done.
    fn counters(&self) -> RdmaCounters;
}
