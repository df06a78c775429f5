//! Panics of the tasks that serve connections. Such a panic ends the request, and its connection,
//! but not the API core: [`contained`] makes it a value, [`HandlerPanics`] logs and counts it. Many
//! of them in a short time, or one in the midst of a change of what the core can't do without (a
//! [`VitalCell`]), are a fault of the core.

use crate::runtime::FaultLatch;
use crate::runtime::panics::catch;
use crate::telemetry::Metrics;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// The most panics of an API core within [`WITHIN`] that are put down to single requests. A client
/// that repeats its request each second stays below it.
pub(in crate::api) const MOST_PANICS: usize = 100;

/// The time in which [`MOST_PANICS`] may happen.
pub(in crate::api) const WITHIN: Duration = Duration::from_secs(60);

/// The panics of the connections of an API core.
pub(in crate::api) struct HandlerPanics {
    /// The name of the core's thread.
    role: String,
    faults: FaultLatch,
    metrics: Rc<Metrics>,
    /// The times of the last panics, the oldest first.
    recent: RefCell<VecDeque<Instant>>,
    /// True once a panic has left the state of the core half changed.
    broken: Rc<Cell<bool>>,
}

impl HandlerPanics {
    /// Creates the account of the core of this name; `broken` is that of its [`VitalCell`].
    pub(in crate::api) fn new(
        role: &str,
        faults: FaultLatch,
        metrics: Rc<Metrics>,
        broken: Rc<Cell<bool>>,
    ) -> HandlerPanics {
        HandlerPanics { role: role.to_owned(), faults, metrics, recent: RefCell::default(), broken }
    }

    /// Logs and counts a panic; `panic` is its place and message.
    #[cold]
    pub(in crate::api) fn note(&self, panic: &str) {
        self.metrics.handler_panicked();
        tracing::error!("a request's handler on {} {panic}", self.role);
        if self.broken.get() {
            return self.faults.report(&self.role, format_args!("died in the midst of a change: {panic}"));
        }
        let mut recent = self.recent.borrow_mut();
        let now = Instant::now();
        recent.retain(|&at| now.duration_since(at) < WITHIN);
        recent.push_back(now);
        if recent.len() > MOST_PANICS {
            let (most, within) = (MOST_PANICS, WITHIN.as_secs());
            self.faults.report(
                &self.role,
                format_args!("has had more than {most} panics within {within} s; the last {panic}"),
            );
        }
    }
}

/// Runs a future to its end.
///
/// Errors: it panicked; the place and the message. What it owned has been dropped.
pub(in crate::api) async fn contained<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let mut work = pin!(work);
    // After a panic, nothing polls it again.
    poll_fn(|cx| match catch(|| work.as_mut().poll(cx)) {
        Ok(progress) => progress.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// State that all connections of a core depend on. A panic while it is borrowed for a change may
/// have left it half changed, and is noted.
pub(in crate::api) struct VitalCell<T> {
    state: RefCell<T>,
    broken: Rc<Cell<bool>>,
}

/// A borrow of a [`VitalCell`].
pub(in crate::api) struct VitalRef<'a, T> {
    state: RefMut<'a, T>,
    broken: &'a Cell<bool>,
    /// True if it was made while a panic unwound that began elsewhere.
    unwinding: bool,
}

impl<T> VitalCell<T> {
    /// Wraps `state`.
    pub(in crate::api) fn new(state: T) -> VitalCell<T> {
        VitalCell { state: RefCell::new(state), broken: Rc::default() }
    }

    /// Borrows the state; nothing may do so meanwhile.
    #[inline]
    pub(in crate::api) fn borrow(&self) -> VitalRef<'_, T> {
        let unwinding = std::thread::panicking();
        VitalRef { state: self.state.borrow_mut(), broken: &self.broken, unwinding }
    }

    /// Returns the flag that is set once a panic has left the state half changed.
    pub(in crate::api) fn broken(&self) -> Rc<Cell<bool>> {
        self.broken.clone()
    }
}

impl<T> Deref for VitalRef<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.state
    }
}

impl<T> DerefMut for VitalRef<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state
    }
}

impl<T> Drop for VitalRef<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.unwinding && std::thread::panicking() {
            self.broken.set(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_during_a_change_breaks_the_state_and_one_beside_it_does_not() {
        let cell = VitalCell::new(1);
        let broken = cell.broken();
        struct Touches<'a>(&'a VitalCell<i32>);
        impl Drop for Touches<'_> {
            fn drop(&mut self) {
                *self.0.borrow() += 1;
            }
        }
        catch(|| {
            let _touches = Touches(&cell);
            panic!("beside it")
        })
        .unwrap_err();
        assert_eq!((*cell.borrow(), broken.get()), (2, false));
        catch(|| {
            let _held = cell.borrow();
            panic!("within")
        })
        .unwrap_err();
        assert!(broken.get());
    }
}
