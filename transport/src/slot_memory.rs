//! The memory of a slab's class: zeroed, whole pages, huge ones where these are
//! asked for and the system has reserved enough. Owned by the slab, which hands out its slots.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{NonNull, null_mut};

/// Slots start on a cache line and fill whole ones, so that two holders never write the same line.
pub(crate) const CACHE_LINE: usize = 64;

/// The memory of a class fills whole pages, on which there is nothing else: a driver of a device
/// registers pages.
const PAGE: usize = 4_096;

/// The pages that a slab's memory lies on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlabPages {
    /// Pages that the system's allocator gives.
    Plain,
    /// Huge ones where the system has reserved enough for a class, and plain ones otherwise: a
    /// device that reads and writes the slots then has fewer pages to look up.
    HugeIfReserved,
}

/// Bytes of a huge page, for which the system rounds up.
const HUGE_PAGE: usize = 2 << 20;

/// The bytes of a class's slots.
pub(crate) struct SlotMemory {
    /// The first slot's first byte.
    pub(crate) start: NonNull<u8>,
    origin: Origin,
}

/// Where memory is from, and how it is given back.
enum Origin {
    /// An allocation, which starts at or a little before the first slot.
    Allocated(NonNull<u8>, Layout),
    /// A mapping of so many bytes of huge pages, which starts at the first slot.
    Mapped(usize),
}

// SAFETY: the bytes are owned as a Box<[u8]> owns them, and only pointed to.
unsafe impl Send for SlotMemory {}
// SAFETY: a shared reference gives nothing but an address; access to the bytes is exclusive by the
// guards and claims of the slab.
unsafe impl Sync for SlotMemory {}

impl SlotMemory {
    /// The alignment that the system's allocator gives by itself. If more is asked for, the
    /// standard library zeroes in a loop, which touches every page; so the start is aligned here
    /// instead.
    const NATURAL_ALIGN: usize = 16;

    /// Takes memory of at least `bytes`, which is not zero. Returns `None` if the system has not so
    /// much.
    pub(crate) fn zeroed(bytes: usize, pages: SlabPages) -> Option<SlotMemory> {
        let huge = match pages {
            SlabPages::HugeIfReserved => SlotMemory::on_huge_pages(bytes),
            SlabPages::Plain => None,
        };
        huge.or_else(|| SlotMemory::allocated(bytes))
    }

    /// Returns true if the memory lies on huge pages.
    pub(crate) fn is_huge(&self) -> bool {
        matches!(self.origin, Origin::Mapped(_))
    }

    fn on_huge_pages(bytes: usize) -> Option<SlotMemory> {
        let length = bytes.checked_next_multiple_of(HUGE_PAGE)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
        // SAFETY: a new mapping, of no file, where the system likes: it replaces nothing.
        let mapped =
            unsafe { libc::mmap(null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        let start = NonNull::new(mapped.cast::<u8>()).filter(|_| mapped != libc::MAP_FAILED)?;
        Some(SlotMemory { start, origin: Origin::Mapped(length) })
    }

    fn allocated(bytes: usize) -> Option<SlotMemory> {
        let padded = bytes.checked_next_multiple_of(PAGE)?.checked_add(PAGE - SlotMemory::NATURAL_ALIGN)?;
        let layout = Layout::from_size_align(padded, SlotMemory::NATURAL_ALIGN).ok()?;
        // SAFETY: the layout's size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let misaligned = memory.as_ptr().addr() % PAGE;
        let padding = if misaligned == 0 { 0 } else { PAGE - misaligned };
        // SAFETY: memory is aligned to NATURAL_ALIGN, so the padding is at most what was added to
        // the size.
        let start = unsafe { memory.add(padding) };
        Some(SlotMemory { start, origin: Origin::Allocated(memory, layout) })
    }
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        match self.origin {
            // SAFETY: allocated in `allocated` with this very layout; no guard outlives its view,
            // and a claim owns a share of the slab.
            Origin::Allocated(memory, layout) => unsafe { dealloc(memory.as_ptr(), layout) },
            // SAFETY: mapped in `on_huge_pages` with this very length; as above.
            Origin::Mapped(length) => unsafe {
                libc::munmap(self.start.as_ptr().cast(), length);
            },
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "miri maps no huge pages")]
    fn memory_is_zero_and_aligned_whether_there_are_huge_pages_or_not() {
        let bytes = 3 << 20;
        for pages in [SlabPages::Plain, SlabPages::HugeIfReserved] {
            let memory = SlotMemory::zeroed(bytes, pages).unwrap();
            assert_eq!(memory.start.as_ptr().addr() % PAGE, 0);
            assert!(pages == SlabPages::HugeIfReserved || !memory.is_huge());
            // SAFETY: as many bytes as were asked for, which nobody else has.
            let all = unsafe { std::slice::from_raw_parts(memory.start.as_ptr(), bytes) };
            assert!(all.iter().all(|&byte| byte == 0));
        }
        assert!(SlotMemory::zeroed(usize::MAX, SlabPages::HugeIfReserved).is_none());
    }
}
