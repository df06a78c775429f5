//! Host memory that a fake device reads and writes by itself: a vector of its own, slots of a slab,
//! or memory at an address that whoever opened the library has been given or has registered.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use symphony_gpu::plan::AlignedBytes;
use symphony_transport::slab::ClassMemory;

/// Host memory of a device. Callers have checked their ranges against its length.
pub(crate) trait HostMemory: Send {
    /// Returns the number of bytes.
    fn length(&self) -> usize;

    /// Returns true if the device may use this range at present.
    fn is_lent(&self, _: Range<usize>) -> bool {
        true
    }

    /// Copies bytes out.
    fn read(&self, range: Range<usize>, to: &mut [u8]);

    /// Copies bytes in, from `at` on.
    fn write(&mut self, at: usize, from: &[u8]);
}

impl HostMemory for AlignedBytes {
    fn length(&self) -> usize {
        self.as_bytes().len()
    }

    fn read(&self, range: Range<usize>, to: &mut [u8]) {
        to.copy_from_slice(&self.as_bytes()[range]);
    }

    fn write(&mut self, at: usize, from: &[u8]) {
        self.as_bytes_mut()[at..at + from.len()].copy_from_slice(from);
    }
}

/// Memory whose address a caller of the library has, which is freed when this is dropped. No
/// reference to it is ever made: the caller reads and writes it at any time.
pub(crate) struct SharedPages {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: it alone frees the memory, and the memory may be reached from any thread.
unsafe impl Send for SharedPages {}

impl SharedPages {
    /// Allocates whole bytes at the start of a page, all zero; at least one.
    pub(crate) fn zeroed(bytes: usize) -> SharedPages {
        let layout = Layout::from_size_align(bytes.max(1), 4_096).expect("a size that an address space has");
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        SharedPages { start, layout }
    }

    /// Returns the address of the first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: allocated by `zeroed` with this layout, and freed once.
        unsafe { dealloc(self.start, self.layout) };
    }
}

impl HostMemory for SharedPages {
    fn length(&self) -> usize {
        self.layout.size()
    }

    fn read(&self, range: Range<usize>, to: &mut [u8]) {
        assert!(range.start <= range.end && range.end <= self.length() && to.len() == range.len());
        // SAFETY: the range lies in the allocation. That the caller does not write it meanwhile is
        // the caller's to hold, as with NVIDIA's driver: it waits for the copy.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(range.start), to.as_mut_ptr(), range.len()) };
    }

    fn write(&mut self, at: usize, from: &[u8]) {
        assert!(at <= self.length() && from.len() <= self.length() - at);
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start.add(at), from.len()) };
    }
}

/// Memory of slots, which is read and written only while somebody holds them.
impl HostMemory for ClassMemory {
    fn length(&self) -> usize {
        self.bytes()
    }

    fn is_lent(&self, range: Range<usize>) -> bool {
        self.is_held(range)
    }

    fn read(&self, range: Range<usize>, to: &mut [u8]) {
        assert!(self.is_held(range.clone()) && to.len() == range.len());
        // SAFETY: the range lies in the memory. Its slots are held, by whoever has asked for the
        // copy, who does not write them until it is over.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.start().as_ptr().add(range.start),
                to.as_mut_ptr(),
                range.len(),
            );
        };
    }

    fn write(&mut self, at: usize, from: &[u8]) {
        assert!(self.is_held(at..at + from.len()));
        // SAFETY: as in `read`; nor are they read.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), self.start().as_ptr().add(at), from.len());
        };
    }
}

/// Memory of a program that has registered it, by address: it is the program's own.
pub(crate) struct RegisteredPages {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: an address and a length; see `HostMemory for SharedPages`.
unsafe impl Send for RegisteredPages {}

impl RegisteredPages {
    /// Takes this memory, which is the program's until it has unregistered it.
    ///
    /// # Safety
    /// The bytes are allocated until then.
    pub(crate) unsafe fn new(start: *mut u8, bytes: usize) -> RegisteredPages {
        RegisteredPages { start, bytes }
    }
}

impl HostMemory for RegisteredPages {
    fn length(&self) -> usize {
        self.bytes
    }

    fn read(&self, range: Range<usize>, to: &mut [u8]) {
        assert!(range.start <= range.end && range.end <= self.bytes && to.len() == range.len());
        // SAFETY: the range lies in the memory, which is there; as for `SharedPages`.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(range.start), to.as_mut_ptr(), range.len()) };
    }

    fn write(&mut self, at: usize, from: &[u8]) {
        assert!(at <= self.bytes && from.len() <= self.bytes - at);
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.start.add(at), from.len()) };
    }
}
