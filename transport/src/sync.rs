//! The atomics, the lock and the cell that [`crate::ring`], [`crate::slab`] and [`crate::doorbell`]
//! are made of: those of `std`, or loom's where `cfg(loom)` is set. Loom then tries every order of
//! a test's accesses.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence},
    sync::{Arc, Mutex},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence},
};

/// A cell of `std` with the methods of loom's cell.
#[cfg(not(loom))]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// A stand-in for memory that loom cannot see: it fails a test in which two accesses overlap, or in
/// which one does not happen before the next. Without loom it has no size and does nothing.
pub(crate) struct Witness(#[cfg(loom)] UnsafeCell<()>);

/// An exclusive access, from [`Witness::access`] to [`WitnessAccess::end`].
pub(crate) struct WitnessAccess(#[cfg(loom)] Option<loom::cell::MutPtr<()>>);

impl WitnessAccess {
    #[inline]
    pub(crate) fn end(&mut self) {
        #[cfg(loom)]
        drop(self.0.take());
    }
}

impl Witness {
    pub(crate) fn new() -> Witness {
        Witness(
            #[cfg(loom)]
            UnsafeCell::new(()),
        )
    }

    #[inline]
    pub(crate) fn access(&self) -> WitnessAccess {
        WitnessAccess(
            #[cfg(loom)]
            Some(self.0.get_mut()),
        )
    }
}
