//! An allocator that knows how much memory the current thread holds, and the most that it held.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator with these counts. Each program that counts names it as its own.
pub(crate) struct PeakMemory;

impl PeakMemory {
    fn took(bytes: usize) {
        let _ = HELD.try_with(|held| {
            held.set(held.get() + bytes as isize);
            PEAK.with(|peak| peak.set(peak.get().max(held.get())));
        });
    }

    fn gave(bytes: usize) {
        let _ = HELD.try_with(|held| held.set(held.get() - bytes as isize));
    }
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for PeakMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PeakMemory::took(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        PeakMemory::took(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        PeakMemory::gave(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }

    /// Reallocates. Both pieces count for a moment, as they exist if the memory has to move.
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        PeakMemory::took(size);
        PeakMemory::gave(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// Runs `work` and returns the most bytes that this thread held meanwhile beyond those before.
pub(crate) fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let result = work();
    (result, (PEAK.get() - before) as usize)
}
