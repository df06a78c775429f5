//! Slots of requests that have ended while a device may still read or write them: its copies are
//! under way, or it is lost and nobody can say. They are given to no other request. Owned by
//! whoever owns the slab, a frontend or a host of backends, which tries to take them back now and
//! then.

use symphony_transport::Nanos;
use symphony_transport::slab::{SlabOwner, SlotId};

/// The time between two attempts.
const EVERY: Nanos = Nanos::from_millis(1);

/// The slots that are set aside. See the module's description.
#[derive(Default)]
pub(crate) struct SetAside {
    slots: Vec<SlotId>,
    tried: Nanos,
}

impl SetAside {
    /// Adds a slot that could not be freed.
    pub(crate) fn add(&mut self, slot: SlotId) {
        self.slots.push(slot);
    }

    /// Returns the number of slots.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Frees those that are no longer held, unless that was tried just before. Returns their
    /// number.
    #[inline]
    pub(crate) fn take_back(&mut self, slab: &mut SlabOwner, now: Nanos) -> usize {
        if self.slots.is_empty() || now < self.tried + EVERY {
            return 0;
        }
        let before = self.slots.len();
        self.tried = now;
        self.slots.retain(|slot| !slab.free(*slot));
        before - self.slots.len()
    }
}
