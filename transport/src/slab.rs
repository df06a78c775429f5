//! A frontend's memory for inputs and outputs: slots of a few sizes, allocated once. The frontend's
//! thread holds the [`SlabOwner`] and allocates slots; every thread that fills or reads one
//! (frontend, backend, executor) holds a [`SlabView`] and claims the slot while it accesses it.
//! Messages carry the [`SlotId`] only.
//!
//! A claim is exclusive by an atomic compare-exchange, not by trust in the messages: a stale,
//! repeated or invented id gives `None`, never a second reference to the same bytes.
//!
//! ```
//! use symphony_transport::slab::{Slab, SlotClass};
//!
//! let small = SlotClass { slot_bytes: 1 << 10, count: 64 };
//! let large = SlotClass { slot_bytes: 1 << 20, count: 4 };
//! let (mut owner, view) = Slab::new(&[small, large], 0).unwrap();
//!
//! let slot = owner.alloc(600).unwrap();
//! view.claim(slot).unwrap()[..5].copy_from_slice(b"input");
//! std::thread::scope(|threads| {
//!     threads.spawn(|| {
//!         let mut bytes = view.claim(slot).unwrap();
//!         assert!(view.claim(slot).is_none()); // one at a time
//!         bytes[..5].make_ascii_uppercase();
//!     });
//! });
//! assert_eq!(&view.claim(slot).unwrap()[..5], b"INPUT");
//!
//! assert!(owner.free(slot));
//! assert!(view.claim(slot).is_none()); // stale
//! ```
//!
//! # Memory orderings
//!
//! The state of a slot is one `u32`: its generation and the flags *allocated* and *held*.
//!
//! - claim: compare-exchange from "this generation, allocated, not held" to "held", Acquire: the
//!   bytes that the holder before wrote are visible. A failed one is Relaxed: no byte is accessed.
//! - the guard's drop: store of "not held", Release: the next claim sees the bytes that this holder
//!   wrote. A plain store is enough: while a slot is held, no other thread changes its state.
//! - free: compare-exchange from "not held" to the next generation, Acquire: the last holder's
//!   accesses are over before the slot is free. A failed one is Relaxed.
//! - alloc: store of "allocated", Release: the first claim comes after the last holder's accesses,
//!   also where the id reached it without any synchronisation. A plain store is enough: no other
//!   thread changes a free slot's state. The fence behind it, Release, is for those who read
//!   without a claim (a device, for another host): they read the bytes, then the state, and use the
//!   bytes only if the state is still that of the id that they have.

use crate::slot_memory::{CACHE_LINE, SlotMemory};
use crate::sync::{Arc, AtomicU32, Ordering, Witness, WitnessAccess, fence};
use bytemuck::{Pod, Zeroable};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

pub use crate::slot_memory::SlabPages;

/// The bits of a [`SlotId`], from the lowest: index in its class, class, generation, frontend.
const INDEX_BITS: u32 = 20;
const CLASS_BITS: u32 = 4;
const GENERATION_BITS: u32 = 24;

/// The most size classes of a slab.
pub const MAX_CLASSES: usize = 1 << CLASS_BITS;
/// The most slots of a class.
pub const MAX_SLOTS_PER_CLASS: usize = 1 << INDEX_BITS;

/// The bits of a slot's state: the generation lies above them.
const HELD: u32 = 1;
const ALLOCATED: u32 = 2;
const FLAG_BITS: u32 = 2;

/// The identifier of one allocation of one slot, across threads. The slot's next allocation has
/// another id, so a stale id is noticed (until the slot was allocated 2^24 - 1 more times). Zero is
/// the id of no slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct SlotId(u64);

impl SlotId {
    fn new(frontend: u16, generation: u32, class: usize, index: u32) -> SlotId {
        let high = u64::from(frontend) << GENERATION_BITS | u64::from(generation);
        SlotId((high << CLASS_BITS | class as u64) << INDEX_BITS | u64::from(index))
    }

    /// Returns the number of the frontend that owns the slot's slab.
    pub fn frontend(self) -> u16 {
        (self.0 >> (INDEX_BITS + CLASS_BITS + GENERATION_BITS)) as u16
    }

    /// Returns true if `state`, read from the slot's state, says that the slot is allocated under
    /// this id. A device that reads a slot reads its state afterwards: the bytes are those of this
    /// id if this is true then. See [`ClassAddresses::states`].
    pub fn is_current(self, state_read: u32) -> bool {
        state_read & !HELD == state(self.generation()) | ALLOCATED
    }

    fn generation(self) -> u32 {
        (self.0 >> (INDEX_BITS + CLASS_BITS)) as u32 & ((1 << GENERATION_BITS) - 1)
    }

    pub(crate) fn class(self) -> usize {
        (self.0 >> INDEX_BITS) as usize & (MAX_CLASSES - 1)
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize & (MAX_SLOTS_PER_CLASS - 1)
    }
}

impl fmt::Debug for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (frontend, class, index) = (self.frontend(), self.class(), self.index());
        write!(f, "slot {frontend}/{class}/{index}, generation {}", self.generation())
    }
}

/// A number of slots of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotClass {
    /// Bytes of one slot, rounded up to whole cache lines of 64.
    pub slot_bytes: usize,
    /// The number of slots.
    pub count: usize,
}

/// An error that keeps a slab from being made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SlabError {
    /// The list of classes is empty or too long.
    #[error("a slab has 1 to {MAX_CLASSES} slot classes, not {0}")]
    Classes(usize),
    /// A class with slots of no bytes, or more of them than the machine can address.
    #[error("slot class {class} has slots of {slot_bytes} bytes: give at least 1, and what memory can hold")]
    SlotBytes {
        /// The class's index in the list that was given.
        class: usize,
        /// The size asked for.
        slot_bytes: usize,
    },
    /// A class with no slots or too many.
    #[error("slot class {class} has {count} slots: give 1 to {MAX_SLOTS_PER_CLASS}")]
    Count {
        /// The class's index in the list that was given.
        class: usize,
        /// The count asked for.
        count: usize,
    },
    /// The system did not give the memory.
    #[error("the system has no {0} bytes for a class of slots: ask for fewer or smaller slots")]
    OutOfMemory(usize),
}

/// Where the slots of a class lie, for a device that reads and writes them by address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassAddresses {
    /// The address of the first slot; the others follow without a gap.
    pub slots: usize,
    /// Bytes of a slot.
    pub slot_bytes: usize,
    /// The number of slots.
    pub count: usize,
    /// The address of the first slot's state, a little-endian `u32`; see [`SlotId::is_current`].
    pub states: usize,
    /// True if the slots lie on huge pages.
    pub is_huge: bool,
}

/// Bytes from the state of a slot to that of the next of its class.
pub const STATE_STRIDE: usize = size_of::<SlabSlot>();

/// The slots of one frontend, made by [`Slab::new`].
pub struct Slab {
    /// The size classes, smallest slots first.
    classes: Box<[SizeClass]>,
    /// The states of all slots, indexed by class.first + index in the class (the dense index).
    slots: Box<[SlabSlot]>,
    frontend: u16,
}

struct SizeClass {
    /// The dense index of its first slot.
    first: usize,
    count: usize,
    slot_bytes: usize,
    memory: SlotMemory,
}

/// A slot's state, first and on its own cache line: neighbours are claimed by other threads.
#[repr(C, align(64))]
struct SlabSlot {
    state: AtomicU32,
    bytes: Witness,
}

impl SlabSlot {
    /// Marks the slot as not held. Only its holder may call this.
    #[inline]
    fn release(&self) {
        // Relaxed: `hold` set HELD on behalf of the caller, and no other thread changes a held
        // slot's state.
        let held = self.state.load(Ordering::Relaxed);
        // Release: the bytes written by the holder are visible to the next claim. Pairs with the
        // Acquire there and in `free`.
        self.state.store(held & !HELD, Ordering::Release);
    }
}

impl Slab {
    /// Allocates the memory of `classes` (in any order) for the frontend numbered `frontend`, all
    /// of it zero. Pages that are never accessed cost nothing.
    ///
    /// # Errors
    ///
    /// [`SlabError`] where the classes are not within the bounds, or too large for the machine.
    #[allow(clippy::new_ret_no_self, reason = "a slab is only ever held by its owner and its views")]
    pub fn new(classes: &[SlotClass], frontend: u16) -> Result<(SlabOwner, SlabView), SlabError> {
        Slab::on_pages(classes, frontend, SlabPages::Plain, 0)
    }

    /// Allocates the memory as [`Slab::new`] does, on pages of this kind. Generations begin with
    /// one that follows from `seed`: 0 has them begin with 1, and two processes whose seeds differ
    /// hardly ever give out the same ids.
    ///
    /// # Errors
    ///
    /// As [`Slab::new`].
    pub fn on_pages(
        classes: &[SlotClass],
        frontend: u16,
        pages: SlabPages,
        seed: u64,
    ) -> Result<(SlabOwner, SlabView), SlabError> {
        if classes.is_empty() || classes.len() > MAX_CLASSES {
            return Err(SlabError::Classes(classes.len()));
        }
        let mut given: Vec<(usize, SlotClass)> = classes.iter().copied().enumerate().collect();
        given.sort_by_key(|(_, class)| class.slot_bytes);
        let mut first = 0;
        let mut made = Vec::with_capacity(given.len());
        for (number, class) in given {
            let class = SizeClass::new(number, class, first, pages)?;
            first += class.count;
            made.push(class);
        }
        let free = state(generation_after(seed as u32 % ((1 << GENERATION_BITS) - 1)));
        let slots =
            (0..first).map(|_| SlabSlot { state: AtomicU32::new(free), bytes: Witness::new() }).collect();
        let free = made.iter().map(|class| (0..class.count as u32).rev().collect()).collect();
        let view = SlabView { slab: Arc::new(Slab { classes: made.into(), slots, frontend }) };
        let owner = SlabOwner {
            view: view.clone(),
            free,
            in_use: 0,
            bytes_in_use: 0,
            most: usize::MAX,
            most_bytes: usize::MAX,
            not_sync: PhantomData,
        };
        Ok((owner, view))
    }

    /// Returns the class and the dense index of the slot, or `None` if this slab has no such slot.
    #[inline]
    fn find(&self, id: SlotId) -> Option<(&SizeClass, usize)> {
        let class = self.classes.get(id.class())?;
        (id.frontend() == self.frontend && id.index() < class.count)
            .then(|| (class, class.first + id.index()))
    }
}

/// Returns the state of a free slot whose next allocation has `generation`.
fn state(generation: u32) -> u32 {
    generation << FLAG_BITS
}

/// Returns the next generation. They wrap around to 1, so that the id zero is never valid.
fn generation_after(generation: u32) -> u32 {
    if generation + 1 == 1 << GENERATION_BITS { 1 } else { generation + 1 }
}

impl SizeClass {
    fn new(number: usize, class: SlotClass, first: usize, pages: SlabPages) -> Result<SizeClass, SlabError> {
        let SlotClass { slot_bytes, count } = class;
        if !(1..=MAX_SLOTS_PER_CLASS).contains(&count) {
            return Err(SlabError::Count { class: number, count });
        }
        let too_large = SlabError::SlotBytes { class: number, slot_bytes };
        let rounded = slot_bytes.checked_next_multiple_of(CACHE_LINE).filter(|&bytes| bytes > 0);
        let Some(slot_bytes) = rounded else { return Err(too_large) };
        let bytes = slot_bytes.checked_mul(count).ok_or(too_large)?;
        let memory = SlotMemory::zeroed(bytes, pages).ok_or(SlabError::OutOfMemory(bytes))?;
        Ok(SizeClass { first, count, slot_bytes, memory })
    }
}

/// The end that allocates slots, held by the frontend's thread. It is neither shared nor cloned.
pub struct SlabOwner {
    view: SlabView,
    /// The indices of the free slots of each class, the last freed one on top, as its bytes may
    /// still be in the cache. A list never outgrows its first length, so it never allocates.
    free: Box<[Vec<u32>]>,
    in_use: usize,
    bytes_in_use: usize,
    /// The most slots, and the most bytes of slots, that may be allocated at once.
    most: usize,
    most_bytes: usize,
    not_sync: PhantomData<Cell<()>>,
}

impl SlabOwner {
    /// Bounds the slots that are allocated at once to `slots` of `bytes` together. So each class
    /// can be made for all of the memory, which goes to those that are used.
    pub fn limited_to(self, slots: usize, bytes: usize) -> SlabOwner {
        SlabOwner { most: slots, most_bytes: bytes, ..self }
    }

    /// Allocates a slot of at least `bytes` from the smallest class that fits and has a free one
    /// within the limit. Returns `None` if there is none. The slot still has the bytes of its
    /// previous allocation.
    #[inline]
    pub fn alloc(&mut self, bytes: usize) -> Option<SlotId> {
        let left = self.most_bytes - self.bytes_in_use;
        if self.in_use == self.most {
            return None;
        }
        let slab = &*self.view.slab;
        let fitting = slab.classes.iter().zip(&mut self.free).enumerate();
        let (number, class, index) = fitting
            .filter(|(_, (class, _))| (bytes..=left).contains(&class.slot_bytes))
            .find_map(|(number, (class, free))| Some((number, class, free.pop()?)))?;
        let slot = &slab.slots[class.first + index as usize];
        // Relaxed: only this thread changes the state of a free slot, so this is the value stored
        // last.
        let free = slot.state.load(Ordering::Relaxed);
        // Release: the last holder's accesses come before the next claim. Pairs with the Acquire in
        // `claim`.
        slot.state.store(free | ALLOCATED, Ordering::Release);
        // Release: whoever reads what the next holder writes, and the state after it, finds the
        // state of this allocation there, and not that of the one before.
        fence(Ordering::Release);
        self.in_use += 1;
        self.bytes_in_use += class.slot_bytes;
        Some(SlotId::new(slab.frontend, free >> FLAG_BITS, number, index))
    }

    /// Frees a slot; its id is stale from here on. Returns false and does nothing if the id is
    /// stale already, or if the slot is held: then try again once its guard was dropped.
    #[inline]
    pub fn free(&mut self, id: SlotId) -> bool {
        let slab = &*self.view.slab;
        let Some((class, dense)) = slab.find(id) else { return false };
        let allocated = state(id.generation()) | ALLOCATED;
        let next = state(generation_after(id.generation()));
        // Acquire: the last holder's accesses are over before the slot is free. Pairs with the
        // guard's drop. Relaxed on failure: no byte is accessed.
        let freed =
            slab.slots[dense].state.compare_exchange(allocated, next, Ordering::Acquire, Ordering::Relaxed);
        if freed.is_err() {
            return false;
        }
        self.free[id.class()].push(id.index() as u32);
        self.in_use -= 1;
        self.bytes_in_use -= class.slot_bytes;
        true
    }

    /// Returns the number of slots of all classes.
    pub fn capacity(&self) -> usize {
        self.view.capacity()
    }

    /// Returns the bytes of each class's slots, smallest first.
    pub fn sizes(&self) -> impl Iterator<Item = usize> {
        self.view.slab.classes.iter().map(|class| class.slot_bytes)
    }

    /// Returns the number of slots of at least `bytes` that can be allocated where no other is.
    pub fn fitting(&self, bytes: usize) -> usize {
        self.within(bytes, self.most, self.most_bytes, |class, _| class.count)
    }

    /// Returns the number of free slots of at least `bytes`: that many calls of
    /// [`alloc`](SlabOwner::alloc) succeed.
    pub fn free_fitting(&self, bytes: usize) -> usize {
        let (slots, left) = (self.most - self.in_use, self.most_bytes - self.bytes_in_use);
        self.within(bytes, slots, left, |_, free| free.len())
    }

    /// Returns true if `slots` slots of at least `bytes` are free: that many calls of
    /// [`alloc`](SlabOwner::alloc) succeed. It is quick where the smallest class that fits has
    /// them.
    #[inline]
    pub fn has_room(&self, bytes: usize, slots: usize) -> bool {
        let mut classes = self.view.slab.classes.iter().zip(&self.free);
        let smallest = classes.find(|(class, _)| class.slot_bytes >= bytes);
        smallest.is_some_and(|(class, free)| {
            free.len() >= slots
                && self.most - self.in_use >= slots
                && self.most_bytes - self.bytes_in_use >= slots.saturating_mul(class.slot_bytes)
        }) || self.free_fitting(bytes) >= slots
    }

    /// Returns how many of the slots of at least `bytes`, of which each class has `count`, are
    /// `slots` at most and have `left` bytes at most, smallest first.
    #[cold]
    fn within(
        &self,
        bytes: usize,
        slots: usize,
        mut left: usize,
        count: impl Fn(&SizeClass, &[u32]) -> usize,
    ) -> usize {
        let mut fitting = 0;
        for (class, free) in self.view.slab.classes.iter().zip(&self.free) {
            if class.slot_bytes >= bytes {
                let taken = count(class, free).min(left / class.slot_bytes).min(slots - fitting);
                fitting += taken;
                left -= taken * class.slot_bytes;
            }
        }
        fitting
    }

    /// Returns the number of allocated slots.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// Returns the slot's number below [`capacity`](SlabOwner::capacity), for tables beside the
    /// slab. It is the same for every id of the slot. For an id of another slab it is `capacity`
    /// itself, which is an index of no table.
    #[inline]
    pub fn index(&self, id: SlotId) -> usize {
        self.view.slab.find(id).map_or(self.capacity(), |(_, dense)| dense)
    }

    /// Returns the view, to claim slots with and to clone for other threads.
    pub fn view(&self) -> &SlabView {
        &self.view
    }
}

/// The end that claims slots, held by every thread that accesses them. Clones share the slots; the
/// memory lives as long as the last of them.
#[derive(Clone)]
pub struct SlabView {
    slab: Arc<Slab>,
}

impl SlabView {
    /// Claims exclusive access to the slot's bytes until the guard is dropped. Returns `None` if
    /// the id is stale or of another slab, or if the slot is held already; it never waits.
    #[inline]
    pub fn claim(&self, id: SlotId) -> Option<SlotGuard<'_>> {
        let (dense, bytes) = self.hold(id)?;
        let slot = &self.slab.slots[dense];
        Some(SlotGuard { slot, access: slot.bytes.access(), bytes })
    }

    /// Claims the slot as [`SlabView::claim`] does. The claim is owned: it may outlive this view
    /// and go to another thread, for as long as a device reads or writes the bytes. It counts as a
    /// view of the slab, which costs two atomic additions.
    #[inline]
    pub fn claim_owned(&self, id: SlotId) -> Option<SlotClaim> {
        let (dense, bytes) = self.hold(id)?;
        let access = self.slab.slots[dense].bytes.access();
        Some(SlotClaim { access, dense, bytes, slab: Arc::clone(&self.slab) })
    }

    /// Marks the slot as held. Returns its dense index and its bytes.
    #[inline]
    fn hold(&self, id: SlotId) -> Option<(usize, NonNull<[u8]>)> {
        let (class, dense) = self.slab.find(id)?;
        let allocated = state(id.generation()) | ALLOCATED;
        // Acquire: the bytes that the holder before wrote are visible. Pairs with `release` and
        // with `alloc`. Relaxed on failure: no byte is accessed.
        self.slab.slots[dense]
            .state
            .compare_exchange(allocated, allocated | HELD, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        // SAFETY: `find` made sure that the index is below the class's count, so the slot lies in
        // its memory.
        let first = unsafe { class.memory.start.add(id.index() * class.slot_bytes) };
        Some((dense, NonNull::slice_from_raw_parts(first, class.slot_bytes)))
    }

    /// Returns the number of slots of all classes.
    pub fn capacity(&self) -> usize {
        self.slab.slots.len()
    }

    /// Returns the number of the frontend that owns the slab.
    pub fn frontend(&self) -> u16 {
        self.slab.frontend
    }

    /// Returns where the slots of each class lie, smallest slots first: the class's number in a
    /// [`SlotId`] is its place here. The addresses are good while a view of the slab is held.
    pub fn addresses(&self) -> Vec<ClassAddresses> {
        let of = |class: &SizeClass| ClassAddresses {
            slots: class.memory.start.as_ptr().expose_provenance(),
            slot_bytes: class.slot_bytes,
            count: class.count,
            states: (&raw const self.slab.slots[class.first]).expose_provenance(),
            is_huge: class.memory.is_huge(),
        };
        self.slab.classes.iter().map(of).collect()
    }

    /// Returns the memory of each class, smallest slots first.
    pub fn memories(&self) -> impl Iterator<Item = ClassMemory> {
        self.slab.classes.iter().enumerate().map(|(class, of)| ClassMemory {
            slab: Arc::clone(&self.slab),
            class,
            slots: of.count,
        })
    }
}

/// The memory of a class's slots, or of the first ones, which it keeps alive: for a device that
/// reads and writes slots by itself. It gives addresses only; whoever has a device use a slot holds
/// a [`SlotClaim`] of it until the device has ended.
#[derive(Clone)]
pub struct ClassMemory {
    slab: Arc<Slab>,
    class: usize,
    slots: usize,
}

impl ClassMemory {
    /// Returns the memory of as many of the first slots as have at most `bytes` together. Slots are
    /// given out from the first one on.
    pub fn limited_to(self, bytes: usize) -> ClassMemory {
        let slots = self.slots.min(bytes / self.class().slot_bytes);
        ClassMemory { slots, ..self }
    }

    /// Returns the address of the first byte, which is that of a page.
    pub fn start(&self) -> NonNull<u8> {
        self.class().memory.start
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.slots * self.class().slot_bytes
    }

    /// Returns where a claimed slot lies in this memory; `None` if it lies elsewhere.
    pub fn range_of(&self, claim: &SlotClaim) -> Option<Range<usize>> {
        let class = self.class();
        let index = claim.dense.checked_sub(class.first).filter(|&index| index < self.slots)?;
        let start = index * class.slot_bytes;
        Arc::ptr_eq(&self.slab, &claim.slab).then_some(start..start + class.slot_bytes)
    }

    /// Returns true if every slot of which a byte is in this range is claimed by somebody, as it
    /// has to be while a device uses the range.
    pub fn is_held(&self, range: Range<usize>) -> bool {
        let class = self.class();
        let mut slots = range.start / class.slot_bytes..range.end.div_ceil(class.slot_bytes);
        // Relaxed: it is a check of the caller's order, and accesses no byte.
        let is_held =
            |slot: usize| self.slab.slots[class.first + slot].state.load(Ordering::Relaxed) & HELD != 0;
        slots.end <= self.slots && slots.all(is_held)
    }

    fn class(&self) -> &SizeClass {
        &self.slab.classes[self.class]
    }
}

/// Exclusive access to all bytes of a slot, from [`SlabView::claim`]: they may be more than were
/// asked for.
pub struct SlotGuard<'a> {
    access: WitnessAccess,
    slot: &'a SlabSlot,
    bytes: NonNull<[u8]>,
}

impl Deref for SlotGuard<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are initialised (zeroed at first) and live as long as the view that is
        // borrowed. While the state says HELD no other guard of this slot exists, and slots do not
        // overlap.
        unsafe { self.bytes.as_ref() }
    }
}

impl DerefMut for SlotGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the guard itself is borrowed mutably.
        unsafe { self.bytes.as_mut() }
    }
}

impl Drop for SlotGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.access.end();
        self.slot.release();
    }
}

/// Exclusive access to all bytes of a slot that borrows nothing, from [`SlabView::claim_owned`].
/// The slot can't be freed before it is dropped.
pub struct SlotClaim {
    access: WitnessAccess,
    dense: usize,
    bytes: NonNull<[u8]>,
    slab: Arc<Slab>,
}

// SAFETY: it is exclusive access to bytes that the slab it owns a share of keeps alive, as a
// Box<[u8]> is; the pointer is only an address.
unsafe impl Send for SlotClaim {}

impl Deref for SlotClaim {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `SlotGuard`; the slab that this owns a share of keeps the bytes alive.
        unsafe { self.bytes.as_ref() }
    }
}

impl DerefMut for SlotClaim {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the claim itself is borrowed mutably.
        unsafe { self.bytes.as_mut() }
    }
}

impl Drop for SlotClaim {
    #[inline]
    fn drop(&mut self) {
        self.access.end();
        self.slab.slots[self.dense].release();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ring::ring;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::thread;

    const MANY: u64 = if cfg!(miri) { 100 } else { 200_000 };

    fn slab(classes: &[(usize, usize)]) -> (SlabOwner, SlabView) {
        let classes: Vec<_> =
            classes.iter().map(|&(slot_bytes, count)| SlotClass { slot_bytes, count }).collect();
        Slab::new(&classes, 7).unwrap()
    }

    #[test]
    fn the_smallest_class_with_a_free_slot_is_taken() {
        let (mut owner, view) = slab(&[(1000, 1), (100, 1), (5000, 1)]);
        let sizes: Vec<_> =
            (0..3).map(|_| owner.alloc(70).map(|id| view.claim(id).unwrap().len()).unwrap()).collect();
        assert_eq!(sizes, [128, 1024, 5056]);
        assert_eq!((owner.alloc(70), owner.in_use(), owner.capacity()), (None, 3, 3));
        assert_eq!((owner.fitting(1), owner.fitting(129), owner.fitting(5_057)), (3, 2, 0));
        assert_eq!(owner.free_fitting(1), 0);
    }

    #[test]
    fn classes_share_a_limit_of_slots_and_bytes() {
        let (owner, _view) = slab(&[(64, 100), (1_024, 100)]);
        let mut owner = owner.limited_to(20, 4_096);
        assert_eq!((owner.fitting(1), owner.fitting(1_000)), (20, 4));
        let large: Vec<_> = (0..3).map(|_| owner.alloc(1_000).unwrap()).collect();
        assert_eq!((owner.free_fitting(64), owner.free_fitting(65)), (16, 1));
        assert!(owner.has_room(64, 16) && !owner.has_room(64, 17) && !owner.has_room(65, 2));
        while owner.alloc(1).is_some() {}
        assert_eq!((owner.in_use(), owner.alloc(65)), (19, None));
        assert!(owner.free(large[0]));
        assert_eq!((owner.free_fitting(1), owner.free_fitting(1_000)), (2, 1));
        owner.alloc(1).unwrap();
        owner.alloc(1).unwrap();
        assert_eq!(
            (owner.in_use(), owner.alloc(1), owner.has_room(1, 1)),
            (20, None, false),
            "too many slots"
        );
    }

    #[test]
    fn what_is_larger_than_every_class_is_refused() {
        let (mut owner, _view) = slab(&[(100, 4)]);
        assert!(owner.alloc(128).is_some());
        assert_eq!(owner.alloc(129), None);
    }

    #[test]
    fn a_slot_is_zero_at_first_and_starts_on_a_cache_line() {
        let (mut owner, view) = slab(&[(1, 3), (65, 3)]);
        while let Some(id) = owner.alloc(1) {
            let bytes = view.claim(id).unwrap();
            assert_eq!(bytes.as_ptr().addr() % CACHE_LINE, 0);
            assert!(bytes.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn the_default_id_names_nothing() {
        let (mut owner, view) = Slab::new(&[SlotClass { slot_bytes: 64, count: 1 }], 0).unwrap();
        assert!(view.claim(SlotId::default()).is_none());
        assert_ne!(owner.alloc(1), Some(SlotId::default()));
        assert!(view.claim(SlotId::default()).is_none());
        assert!(!owner.free(SlotId::default()));
    }

    #[test]
    fn the_id_of_a_slot_to_come_names_nothing_yet() {
        let (mut owner, view) = slab(&[(64, 1)]);
        let to_come = SlotId::new(7, 1, 0, 0);
        assert!(view.claim(to_come).is_none());
        assert!(!owner.free(to_come));
        assert_eq!(owner.alloc(1), Some(to_come));
    }

    #[test]
    fn invented_ids_are_refused() {
        let (mut owner, view) = slab(&[(64, 2)]);
        let id = owner.alloc(1).unwrap();
        for wrong in [
            SlotId::new(8, 1, 0, 0),
            SlotId::new(7, 2, 0, 0),
            SlotId::new(7, 1, 1, 0),
            SlotId::new(7, 1, 0, 2),
            SlotId(u64::MAX),
        ] {
            assert!(view.claim(wrong).is_none(), "{wrong:?}");
            assert!(!owner.free(wrong), "{wrong:?}");
        }
        assert_eq!(owner.index(SlotId::new(8, 1, 0, 0)), owner.capacity());
        assert!(view.claim(id).is_some());
    }

    #[test]
    fn a_held_slot_is_not_freed() {
        let (mut owner, view) = slab(&[(64, 1)]);
        let id = owner.alloc(1).unwrap();
        let guard = view.claim(id).unwrap();
        assert!(!owner.free(id));
        assert!(view.claim(id).is_none());
        drop(guard);
        assert!(owner.free(id));
        assert!(!owner.free(id), "freed twice");
    }

    #[test]
    fn a_stale_id_is_noticed_also_after_reuse() {
        let (mut owner, view) = slab(&[(64, 1)]);
        let old = owner.alloc(1).unwrap();
        assert!(owner.free(old));
        let new = owner.alloc(1).unwrap();
        assert_eq!(owner.index(old), owner.index(new));
        assert!(view.claim(old).is_none() && !owner.free(old));
        assert!(view.claim(new).is_some());
    }

    #[test]
    fn the_state_at_its_address_is_that_of_the_id_until_the_slot_is_freed() {
        let (mut owner, view) = slab(&[(64, 2), (128, 3)]);
        let id = [owner.alloc(100), owner.alloc(100)][1].unwrap();
        let [_, class] = view.addresses()[..] else { panic!("two classes") };
        let slot = class.slots + id.index() * class.slot_bytes;
        assert_eq!(view.claim(id).unwrap().as_ptr().addr(), slot);
        let at = class.states + id.index() * STATE_STRIDE;
        // SAFETY: the address of a slot's state, which lives as long as `view`.
        let state = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU32>(at) };
        let is_current = || id.is_current(state.load(Ordering::Relaxed));
        assert!(is_current());
        let guard = view.claim(id).unwrap();
        assert!(is_current(), "also while it is held");
        drop(guard);
        owner.free(id);
        assert!(!is_current());
        assert_eq!(owner.alloc(100).map(SlotId::index), Some(id.index()));
        assert!(!is_current());
    }

    #[test]
    fn generations_begin_where_the_seed_says() {
        let generation = |seed| {
            let class = SlotClass { slot_bytes: 64, count: 2 };
            let (mut owner, view) = Slab::on_pages(&[class], 7, SlabPages::Plain, seed).unwrap();
            let id = owner.alloc(1).unwrap();
            assert!(view.claim(id).is_some());
            id.generation()
        };
        let last = (1 << GENERATION_BITS) - 1;
        assert_eq!([0, 1, last - 1, last].map(|seed| generation(u64::from(seed))), [1, 2, last, 1]);
    }

    #[test]
    fn generations_go_round_without_zero() {
        let (mut owner, view) = slab(&[(64, 1)]);
        let last = (1 << GENERATION_BITS) - 1;
        view.slab.slots[0].state.store(state(last), Ordering::Relaxed);
        let id = owner.alloc(1).unwrap();
        assert_eq!((id.generation(), id.frontend()), (last, 7));
        assert!(view.claim(id).is_some());
        assert!(owner.free(id));
        assert_eq!(owner.alloc(1).unwrap().generation(), 1);
    }

    #[test]
    fn the_memory_outlives_its_owner_while_there_is_a_view() {
        let (mut owner, view) = slab(&[(64, 1)]);
        let id = owner.alloc(1).unwrap();
        drop(owner);
        view.claim(id).unwrap()[0] = 1;
        assert_eq!(view.claim(id).unwrap()[0], 1);
    }

    #[test]
    fn an_owned_claim_outlives_every_view_and_goes_to_another_thread() {
        let (mut owner, view) = slab(&[(64, 1)]);
        let id = owner.alloc(1).unwrap();
        let mut claim = view.claim_owned(id).unwrap();
        assert!(view.claim(id).is_none() && view.claim_owned(id).is_none() && !owner.free(id));
        let writer = thread::spawn(move || {
            claim[0] = 7;
            claim
        });
        let claim = writer.join().unwrap();
        drop(claim);
        assert_eq!(view.claim(id).unwrap()[0], 7);
        let last = view.claim_owned(id).unwrap();
        drop((owner, view));
        assert_eq!(last[0], 7);
    }

    #[test]
    fn the_memory_of_a_class_says_where_its_slots_lie_and_which_are_held() {
        let (mut owner, view) = slab(&[(64, 3), (256, 2)]);
        let (_other_owner, other) = slab(&[(64, 3)]);
        let memories: Vec<ClassMemory> = view.memories().collect();
        assert_eq!([memories[0].bytes(), memories[1].bytes()], [192, 512]);
        assert!(memories.iter().all(|of| of.start().as_ptr().addr() % 4_096 == 0));
        let first = memories[0].clone().limited_to(191);
        assert_eq!(first.bytes(), 128);
        let ids: Vec<SlotId> = [1, 1, 1, 65].iter().map(|&bytes| owner.alloc(bytes).unwrap()).collect();
        let claims: Vec<SlotClaim> = ids.iter().map(|&id| view.claim_owned(id).unwrap()).collect();
        let within = |memory: &ClassMemory| -> Vec<Option<usize>> {
            claims.iter().map(|claim| memory.range_of(claim).map(|range| range.start)).collect()
        };
        assert_eq!(within(&memories[0]), [Some(0), Some(64), Some(128), None]);
        assert_eq!(within(&first), [Some(0), Some(64), None, None]);
        assert_eq!(within(&memories[1]), [None, None, None, Some(0)]);
        assert_eq!(within(&other.memories().next().unwrap()), [None; 4]);
        assert!(claims[1].as_ptr().addr() - memories[0].start().as_ptr().addr() == 64);
        assert!(memories[0].is_held(0..192) && memories[1].is_held(0..1) && !memories[1].is_held(0..257));
        drop(claims);
        assert!(!memories[0].is_held(70..71));
        drop((owner, view));
        assert_eq!(memories[0].bytes(), 192, "it keeps the slab alive");
    }

    #[test]
    fn classes_out_of_bounds_are_refused_with_the_reason() {
        let refused = |classes: &[(usize, usize)]| {
            let classes: Vec<_> =
                classes.iter().map(|&(slot_bytes, count)| SlotClass { slot_bytes, count }).collect();
            Slab::new(&classes, 0).err().unwrap()
        };
        assert_eq!(refused(&[]), SlabError::Classes(0));
        assert_eq!(refused(&[(64, 1); 17]), SlabError::Classes(17));
        assert_eq!(refused(&[(64, 1), (0, 1)]), SlabError::SlotBytes { class: 1, slot_bytes: 0 });
        assert_eq!(refused(&[(usize::MAX, 1)]), SlabError::SlotBytes { class: 0, slot_bytes: usize::MAX });
        assert_eq!(refused(&[(64, 0)]), SlabError::Count { class: 0, count: 0 });
        assert_eq!(refused(&[(64, (1 << 20) + 1)]), SlabError::Count { class: 0, count: (1 << 20) + 1 });
        // Miri stops where an allocation fails.
        if !cfg!(miri) {
            assert_eq!(refused(&[(1 << 62, 1)]), SlabError::OutOfMemory(1 << 62));
        }
        assert_eq!(refused(&[(64, 0)]).to_string(), "slot class 0 has 0 slots: give 1 to 1048576");
    }

    #[test]
    fn claims_from_two_threads_never_overlap() {
        let (mut owner, view) = slab(&[(64, 1)]);
        let id = owner.alloc(1).unwrap();
        let count = || {
            let mut claimed = 0u64;
            for _ in 0..MANY {
                if let Some(mut bytes) = view.claim(id) {
                    let counter: &mut u64 = bytemuck::from_bytes_mut(&mut bytes[..8]);
                    *counter += 1;
                    claimed += 1;
                }
            }
            claimed
        };
        let claimed = thread::scope(|threads| {
            let other = threads.spawn(count);
            count() + other.join().unwrap()
        });
        assert_eq!(bytemuck::from_bytes::<u64>(&view.claim(id).unwrap()[..8]), &claimed);
    }

    #[test]
    fn requests_go_to_another_thread_and_come_back_in_their_slots() {
        let (mut owner, view) = slab(&[(64, 3), (256, 5)]);
        let (mut to_worker, mut requests) = ring::<SlotId>(8);
        let (mut answers, mut from_worker) = ring::<SlotId>(8);
        let worker = thread::spawn(move || {
            while !(requests.is_abandoned() && requests.len() == 0) {
                let Some(id) = requests.pop() else {
                    thread::yield_now();
                    continue;
                };
                let mut bytes = view.claim(id).unwrap();
                bytes.reverse();
                drop(bytes);
                answers.push(id).unwrap();
            }
        });
        let mut expected = HashMap::new();
        let (mut sent, mut answered) = (0, 0);
        while answered < MANY {
            if sent < MANY
                && let Some(id) = owner.alloc(1 + sent as usize % 256)
            {
                owner.view().claim(id).unwrap()[..8].copy_from_slice(&sent.to_le_bytes());
                expected.insert(id, sent);
                to_worker.push(id).unwrap();
                sent += 1;
                continue;
            }
            let count = from_worker.drain(8, |id| {
                let number = expected.remove(&id).unwrap().to_be_bytes();
                assert_eq!(owner.view().claim(id).unwrap().last_chunk(), Some(&number));
                assert!(owner.free(id));
            });
            if count == 0 {
                thread::yield_now();
            }
            answered += count as u64;
        }
        assert_eq!((owner.in_use(), expected.len()), (0, 0));
        drop(to_worker);
        worker.join().unwrap();
    }

    #[derive(Clone, Debug)]
    enum Step {
        Alloc(usize),
        Free(prop::sample::Index),
        Claim(prop::sample::Index),
        Release(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..300usize).prop_map(Step::Alloc),
            2 => any::<prop::sample::Index>().prop_map(Step::Free),
            3 => any::<prop::sample::Index>().prop_map(Step::Claim),
            2 => any::<prop::sample::Index>().prop_map(Step::Release),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 2 } else { 1024 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn a_slab_does_what_a_table_of_live_slots_does(
            most in (1usize..9, 64usize..900),
            steps in proptest::collection::vec(step(), 1..if cfg!(miri) { 30 } else { 200 }),
        ) {
            let classes = [(64, 2), (128, 3), (256, 1)];
            let (owner, view) = slab(&classes);
            let mut owner = owner.limited_to(most.0, most.1);
            // Every id ever given, and the mark in each live slot.
            let (mut given, mut live) = (vec![SlotId::default()], HashMap::new());
            let mut held: Vec<(SlotId, SlotGuard<'_>)> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Alloc(bytes) => {
                        let free_of = |size: usize, count: usize| {
                            count - live.values().filter(|&&(class, _)| class == size).count()
                        };
                        let left = most.1 - live.values().map(|&(size, _)| size).sum::<usize>();
                        let expected = classes.iter().find(|&&(size, count)| {
                            (bytes..=left).contains(&size) && free_of(size, count) > 0 && live.len() < most.0
                        });
                        prop_assert_eq!(owner.has_room(bytes, 1), expected.is_some());
                        prop_assert_eq!(owner.free_fitting(bytes) > 0, expected.is_some());
                        let id = owner.alloc(bytes);
                        prop_assert_eq!(id.is_some(), expected.is_some());
                        if let (Some(id), Some(&(size, _))) = (id, expected) {
                            prop_assert!(!given.contains(&id));
                            let mut guard = view.claim(id).unwrap();
                            prop_assert_eq!(guard.len(), size);
                            guard.fill(number as u8);
                            given.push(id);
                            live.insert(id, (size, number as u8));
                        }
                    }
                    Step::Free(which) => {
                        let id = *which.get(&given);
                        let is_held = held.iter().any(|(other, _)| *other == id);
                        prop_assert_eq!(owner.free(id), live.contains_key(&id) && !is_held);
                        if !is_held {
                            live.remove(&id);
                        }
                    }
                    Step::Claim(which) => {
                        let id = *which.get(&given);
                        let is_held = held.iter().any(|(other, _)| *other == id);
                        let guard = view.claim(id);
                        prop_assert_eq!(guard.is_some(), live.contains_key(&id) && !is_held);
                        if let Some(guard) = guard {
                            let (size, mark) = live[&id];
                            prop_assert_eq!(&*guard, &vec![mark; size][..]);
                            held.push((id, guard));
                        }
                    }
                    Step::Release(which) if !held.is_empty() => {
                        held.swap_remove(which.index(held.len()));
                    }
                    Step::Release(_) => {}
                }
                prop_assert_eq!(owner.in_use(), live.len());
                let mut indices: Vec<_> = live.keys().map(|&id| owner.index(id)).collect();
                indices.sort();
                indices.dedup();
                prop_assert_eq!(indices.len(), live.len());
                prop_assert!(indices.iter().all(|&index| index < owner.capacity()));
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    fn one_slot() -> (SlabOwner, SlabView) {
        Slab::new(&[SlotClass { slot_bytes: 64, count: 1 }], 0).unwrap()
    }

    /// Adds one to the slot's first byte, if it can be claimed.
    fn count(view: &SlabView, id: SlotId) -> u8 {
        view.claim(id).map_or(0, |mut bytes| {
            bytes[0] += 1;
            1
        })
    }

    #[test]
    fn three_threads_claim_by_turns() {
        loom::model(|| {
            let (mut owner, view) = one_slot();
            let id = owner.alloc(1).unwrap();
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let view = view.clone();
                    thread::spawn(move || count(&view, id))
                })
                .collect();
            let mut counted = count(&view, id);
            counted += others.into_iter().map(|other| other.join().unwrap()).sum::<u8>();
            assert_eq!(view.claim(id).unwrap()[0], counted);
            assert!(counted >= 1);
        });
    }

    #[test]
    fn a_slot_changes_hands_only_after_its_last_holder() {
        loom::model(|| {
            let (mut owner, view) = one_slot();
            let old = owner.alloc(1).unwrap();
            // Nobody tells this thread the new id, so only the slab itself can order its claim.
            let new = SlotId::new(0, 2, 0, 0);
            let (holder, next) = (view.clone(), view);
            let holder = thread::spawn(move || count(&holder, old));
            let next = thread::spawn(move || count(&next, new));
            if owner.free(old) {
                assert_eq!(owner.alloc(1), Some(new));
            } else {
                assert_eq!(owner.alloc(1), None);
            }
            holder.join().unwrap();
            next.join().unwrap();
        });
    }

    #[test]
    fn bytes_that_were_read_without_a_claim_are_of_the_id_that_is_current_afterwards() {
        loom::model(|| {
            let (mut owner, view) = one_slot();
            let id = owner.alloc(1).unwrap();
            // What a device reads: Relaxed, since it takes part in no synchronisation.
            let bytes = loom::sync::Arc::new(AtomicU32::new(1));
            let written = bytes.clone();
            let next = thread::spawn(move || {
                assert!(owner.free(id));
                owner.alloc(1).unwrap();
                written.store(2, Ordering::Relaxed);
            });
            let read = bytes.load(Ordering::Relaxed);
            // Acquire: the device reads the state after the bytes.
            fence(Ordering::Acquire);
            let state_read = view.slab.slots[0].state.load(Ordering::Relaxed);
            assert!(read == 1 || !id.is_current(state_read));
            next.join().unwrap();
        });
    }

    #[test]
    fn a_held_slot_is_not_freed() {
        loom::model(|| {
            let (mut owner, view) = one_slot();
            let id = owner.alloc(1).unwrap();
            let holder = thread::spawn(move || count(&view, id));
            let freed = owner.free(id);
            let counted = holder.join().unwrap();
            assert!(freed || counted == 1);
            assert_eq!(owner.free(id), !freed);
            assert!(owner.view().claim(id).is_none());
        });
    }
}
