//! A frontend's side of the connection by which a backend reads its slots and writes outputs:
//! [`DirectSlots`]. Reads need nothing of it; outputs land, and are copied into slots by its owner.

use super::direct_memory::{DirectEnd, DirectMemory};
use symphony_transport::Nanos;
use symphony_transport::rdma::RdmaEvent;
use symphony_transport::wire::{ExportedClass, LandedAnswer, RdmaOffer};

/// The frontend's end, which lives as long as a connection of the link.
pub(super) struct DirectSlots {
    memory: Box<dyn DirectMemory>,
    end: Option<Box<dyn DirectEnd>>,
    /// The offer for the peer, until it is sent.
    offer: Option<(RdmaOffer, Vec<ExportedClass>)>,
}

impl DirectSlots {
    pub(super) fn new(memory: Box<dyn DirectMemory>) -> DirectSlots {
        DirectSlots { memory, end: None, offer: None }
    }

    /// Answers the peer's offer: makes an end, and connects it.
    ///
    /// Errors: a sentence; the connection is of no use.
    pub(super) fn answer(
        &mut self,
        (offer, exported): &(RdmaOffer, Vec<ExportedClass>),
        now: Nanos,
    ) -> Result<(), String> {
        let mut end = self.memory.open(now)?;
        end.connect(offer, exported)?;
        self.offer = Some(end.offer());
        self.end = Some(end);
        Ok(())
    }

    /// Ends the connection: from here on no peer reaches any memory by it.
    pub(super) fn lose(&mut self) {
        (self.end, self.offer) = (None, None);
    }

    /// Returns the offer that is to be sent to the peer.
    pub(super) fn offer(&self) -> Option<&(RdmaOffer, Vec<ExportedClass>)> {
        self.offer.as_ref()
    }

    /// Notes that the offer was sent.
    pub(super) fn has_offered(&mut self) {
        self.offer = None;
    }

    /// Hands each answer that has landed to `take`, with what copies its outputs, and gives its
    /// place back.
    ///
    /// Errors: a sentence; the connection is of no use any more.
    pub(super) fn poll(
        &mut self,
        now: Nanos,
        mut take: impl FnMut(&LandedAnswer, &dyn Fn(&mut [u8])),
    ) -> Result<(), String> {
        let Some(end) = &mut self.end else { return Ok(()) };
        end.poll(now)?;
        let mut has_landed = false;
        while let Some(event) = end.take_event() {
            let RdmaEvent::Landed(answer) = event else { continue };
            take(&answer, &|to| end.copy_landed(&answer, to));
            end.give_back();
            has_landed = true;
        }
        if has_landed { end.poll(now) } else { Ok(()) }
    }
}
