//! A file's words in memory: the one part of the recorder that needs `unsafe`. Written by one
//! thread, the journal's; readers read the file as a file. The system keeps what was stored even if
//! the process is killed the moment after.

use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most words that are stored at once.
const LONGEST: usize = 4;

/// A file that is mapped whole: a head counter, and words of 64 bits from `first` bytes on.
pub(super) struct Mapping {
    map: MmapRaw,
    /// The offset of the counter in bytes, a multiple of 8.
    head_at: usize,
    /// The last position from which [`LONGEST`] words are there.
    last: usize,
    /// The address of the first word, in `map`.
    base: NonNull<u64>,
}

// SAFETY: `base` points into `map`, which moves with it and may move to another thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `file`, which must have the bytes of `words` words after `first`. All pages are there
    /// before this returns, so that storing a word does not wait for one.
    ///
    /// Errors: the system's, or the file is too short.
    pub(super) fn new(file: &File, head_at: usize, first: usize, words: usize) -> io::Result<Mapping> {
        let map = MmapOptions::new().populate().map_raw(file)?;
        let end = words.checked_mul(size_of::<u64>()).and_then(|bytes| bytes.checked_add(first));
        let sound = head_at.is_multiple_of(align_of::<AtomicU64>())
            && first.is_multiple_of(align_of::<u64>())
            && head_at + size_of::<u64>() <= first
            && end.is_some_and(|end| end <= map.len());
        if !sound {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file is too short for its words"));
        }
        // SAFETY: `first` is within the mapping.
        let base = unsafe { map.as_mut_ptr().add(first) }.cast::<u64>();
        let base = NonNull::new(base).ok_or(io::ErrorKind::InvalidData)?;
        let last = words.checked_sub(LONGEST).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Mapping { map, head_at, last, base })
    }

    /// Stores up to [`LONGEST`] words from `at` on. Where that many might not be there, nothing
    /// happens.
    #[inline(always)]
    pub(super) fn store<const N: usize>(&mut self, at: usize, words: [u64; N]) {
        const { assert!(N <= LONGEST) };
        let fits = at <= self.last;
        debug_assert!(fits, "a journal keeps room for what an event can write");
        if fits {
            // SAFETY: `new` checked that the mapping holds `self.last + LONGEST` aligned words from
            // `base` on, and these are among them. Nothing else in this process refers to the
            // mapping's memory, and a store through a raw pointer makes no claim about what other
            // processes do to the file.
            unsafe { self.base.add(at).cast::<[u64; N]>().write(words) }
        }
    }

    /// Publishes everything stored so far, by storing the head.
    #[inline]
    pub(super) fn publish(&mut self, head: u64) {
        // SAFETY: `new` checked that 8 aligned bytes are there; they are only ever accessed as this
        // atomic.
        let counter = unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(self.head_at).cast()) };
        // Release: the words become visible before the count, also to a reader of the file after a
        // crash.
        counter.store(head, Ordering::Release);
    }
}
