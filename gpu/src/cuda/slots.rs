//! Slots of slabs that the device reads and writes by itself: the memory that is registered for it,
//! and the claims of a batch's rows. A claim is kept until no copy can touch its slot any more;
//! where nobody can say that, because the device is lost, it is kept for ever.

use super::driver::Pinned;
use super::open::CudaDevice;
use super::owned::Owned;
use std::sync::Arc;
use symphony_transport::slab::{ClassMemory, SlabView, SlotClaim};

/// A slot that the device reads and writes: the memory that it lies in, and where it begins there.
#[derive(Clone, Copy)]
pub(super) struct SharedSlot {
    pub(super) memory: Pinned,
    pub(super) start: usize,
}

/// The memory of slots that is registered with a driver.
#[derive(Default)]
pub(super) struct SharedSlabs(Vec<(ClassMemory, Owned<Pinned>)>);

impl SharedSlabs {
    /// Registers the slots of these slabs for a device. Of each slab no more is registered than its
    /// largest class has, evenly in all of its classes, since registered memory is never given to
    /// others: that is what the slab may use at once.
    ///
    /// Errors: why some of them, or all, could not be; their rows pass through memory of the
    /// executor.
    pub(super) fn new(device: &Arc<CudaDevice>, slabs: &[SlabView]) -> (SharedSlabs, Result<(), String>) {
        let (mut shared, mut result) = (Vec::new(), Ok(()));
        for slab in slabs {
            let classes: Vec<ClassMemory> = slab.memories().collect();
            let most = classes.iter().map(ClassMemory::bytes).max().unwrap_or(0);
            let of_each = most / classes.len().max(1);
            for memory in classes.into_iter().map(|memory| memory.limited_to(of_each)) {
                if memory.bytes() == 0 {
                    continue;
                }
                match device.open.calls().register(memory.clone()) {
                    Ok(pinned) => shared.push((memory, Owned::new(&device.open, pinned))),
                    Err(error) => result = Err(device.open.note(error).to_string()),
                }
            }
        }
        (SharedSlabs(shared), result)
    }

    /// Returns a slot as the device finds it; `None` if its memory is not registered.
    pub(super) fn find(&self, claim: &SlotClaim) -> Option<SharedSlot> {
        self.0.iter().find_map(|(memory, pinned)| {
            let start = memory.range_of(claim)?.start;
            Some(SharedSlot { memory: pinned.get(), start })
        })
    }
}

/// The rows of a batch: which slots the device uses itself, with the claims of these.
#[derive(Default)]
pub(super) struct LentSlots {
    /// The slots of the rows; `None` for a row that passes through memory of the executor.
    pub(super) slots: Vec<Option<SharedSlot>>,
    claims: Vec<SlotClaim>,
}

impl LentSlots {
    /// Adds a row, and keeps its claim if the device uses the slot itself.
    pub(super) fn add(&mut self, claim: SlotClaim, slot: Option<SharedSlot>) {
        self.slots.push(slot);
        self.claims.extend(slot.map(|_| claim));
    }

    /// Returns true if the device may still use a slot, as far as it was not seen that all copies
    /// are over.
    pub(super) fn are_lent(&self) -> bool {
        !self.claims.is_empty()
    }

    /// Gives the claims up: all copies are over.
    pub(super) fn give_back(&mut self) {
        self.claims.clear();
    }
}

impl Drop for LentSlots {
    /// Keeps claims that were not given up for ever: the device may still write there.
    fn drop(&mut self) {
        self.claims.drain(..).for_each(std::mem::forget);
    }
}
