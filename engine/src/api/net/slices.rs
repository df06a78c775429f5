//! Work in slices: a task that unpacks, parses or copies a large body reports its progress, and
//! after each slice the other tasks of its API core run. A slice ends after some bytes, or before
//! where its turn has become long: a byte's work differs by machine and by body, and memory that is
//! touched for the first time takes the system longer than the work in it.

use super::large_buffers::{LARGE, let_go};
use super::turn;
use std::cell::Cell;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The bytes after which a task pauses whatever the clock says. The slowest work on bytes, parsing
/// numbers, takes about a millisecond for them.
pub(in crate::api) const SLICE_BYTES: usize = 128 << 10;

/// The bytes between two looks at the clock.
const LOOK_BYTES: usize = 4 << 10;

/// The bytes that are copied, or compared, in the time in which one is parsed.
pub(in crate::api) const COPIED_PER_PARSED: usize = 4;

/// The bytes that are copied at a time: four pages, as each may be touched for the first time. A
/// virtual machine whose host has taken memory back waits 65 us for a page.
pub(in crate::api) const COPY_PIECE: usize = COPIED_PER_PARSED * LOOK_BYTES;

/// The work of one task since its last pause, in bytes.
#[derive(Debug)]
pub(in crate::api) struct Slices {
    since: Cell<usize>,
    /// The work at which it looks at the clock next.
    look_at: Cell<usize>,
    largest: Cell<usize>,
    pauses: bool,
}

impl Slices {
    /// Returns the counter of a task on an API core.
    pub(in crate::api) fn on_core() -> Slices {
        let look_at = Cell::new(LOOK_BYTES);
        Slices { since: Cell::new(0), look_at, largest: Cell::new(0), pauses: true }
    }

    /// Returns the counter of a thread without an executor, which counts slices and never pauses.
    pub(in crate::api) fn alone() -> Slices {
        Slices { pauses: false, ..Slices::on_core() }
    }

    /// Reports `bytes` of work, and pauses if the slice is full or the turn is long.
    #[inline]
    pub(in crate::api) async fn did(&self, bytes: usize) {
        let since = self.since.get() + bytes;
        self.since.set(since);
        if since >= self.look_at.get() {
            self.look_at.set(since + LOOK_BYTES);
            if since >= SLICE_BYTES || (self.pauses && turn::is_long()) {
                self.pause().await;
            }
        }
    }

    /// Copies `from` to `to`, which is as long, in slices.
    pub(in crate::api) async fn copy(&self, from: &[u8], to: &mut [u8]) {
        for (from, to) in from.chunks(COPY_PIECE).zip(to.chunks_mut(COPY_PIECE)) {
            to.copy_from_slice(from);
            self.did(from.len() / COPIED_PER_PARSED).await;
        }
    }

    /// Appends `from` to `to` in slices.
    pub(in crate::api) async fn append(&self, from: &[u8], to: &mut Vec<u8>) {
        self.reserve(to, from.len()).await;
        for from in from.chunks(COPY_PIECE) {
            to.extend_from_slice(from);
            self.did(from.len() / COPIED_PER_PARSED).await;
        }
    }

    /// Makes room for `more` bytes at the end of `to`. A large content that has to move is copied
    /// in slices.
    #[inline]
    pub(in crate::api) async fn reserve(&self, to: &mut Vec<u8>, more: usize) {
        if more <= to.capacity() - to.len() {
            return;
        }
        if to.len() < LARGE {
            return to.reserve(more);
        }
        self.grow_to(to, (to.len() + more).max(2 * to.capacity())).await;
    }

    /// Gives `to` this capacity, which is larger than the one that it has, in slices.
    #[cold]
    pub(in crate::api) async fn grow_to(&self, to: &mut Vec<u8>, capacity: usize) {
        let mut larger = Vec::with_capacity(capacity);
        for piece in to.chunks(COPY_PIECE) {
            larger.extend_from_slice(piece);
            self.did(piece.len() / COPIED_PER_PARSED).await;
        }
        let_go(std::mem::replace(to, larger));
    }

    #[cold]
    async fn pause(&self) {
        self.largest.set(self.largest.get().max(self.since.replace(0)));
        self.look_at.set(LOOK_BYTES);
        if self.pauses {
            glommio::timer::sleep(turn::PAUSE).await;
        }
    }

    /// Returns the largest slice so far, in bytes.
    pub(in crate::api) fn largest(&self) -> usize {
        self.largest.get().max(self.since.get())
    }
}

/// Runs a future that never waits, as work in slices that do not pause.
pub(in crate::api) fn ready_now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("it waits for nothing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_vector_grows_in_slices_and_keeps_its_content() {
        let slices = Slices::alone();
        let mut bytes = Vec::new();
        for piece in 0..100 {
            ready_now(slices.append(&[piece; 100_000], &mut bytes));
        }
        assert!(
            bytes.len() == 10_000_000 && bytes.iter().enumerate().all(|(at, &b)| b == (at / 100_000) as u8)
        );
        assert!((SLICE_BYTES..2 * SLICE_BYTES).contains(&slices.largest()), "{}", slices.largest());
    }
}
