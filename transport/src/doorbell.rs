//! Doorbells for threads and tasks that share a core, where nobody may spin on a ring: who finds no
//! work announces a [`Sleeper`] and goes to sleep, and who has written into a ring calls
//! [`Doorbells::ring`], which wakes everyone who is announced.
//!
//! A ring says nothing about whom it is for: a system that shares a core has a handful of sleepers,
//! and one that is woken for nothing looks at its rings and sleeps again. Writing with nobody
//! asleep costs a fence and a load.
//!
//! ```
//! use std::sync::atomic::{AtomicBool, Ordering};
//! use std::sync::Arc;
//! use symphony_transport::doorbell::{Doorbells, thread_waker};
//!
//! let (bells, written) = (Doorbells::new(), Arc::new(AtomicBool::new(false)));
//! let (sleeper, seen) = (bells.sleeper().unwrap(), Arc::clone(&written));
//! let reader = std::thread::spawn(move || {
//!     let waker = thread_waker();
//!     loop {
//!         sleeper.announce(&waker);
//!         if seen.load(Ordering::Acquire) {
//!             return sleeper.withdraw();
//!         }
//!         std::thread::park();
//!     }
//! });
//! written.store(true, Ordering::Release);
//! bells.ring();
//! reader.join().unwrap();
//! ```
//!
//! # Guarantees
//!
//! - Nothing is slept through: a sleeper that announces itself, then looks at its inputs, and
//!   sleeps if there are none, is woken by a `ring` that comes after what it did not see.
//! - A `ring` wakes each sleeper once. A wake-up may come late, after the sleeper has withdrawn: it
//!   is then for nothing.
//!
//! # Memory orderings
//!
//! The writer writes, then reads whether anybody sleeps; the sleeper says that it sleeps, then
//! reads what was written. Both have a sequentially consistent fence in between, so at least one of
//! the two sees what the other wrote. The list of sleepers is behind a lock: it is taken only to go
//! to sleep, to get up, and to wake somebody, beside each of which there is a system call.

use crate::sync::{Arc, AtomicUsize, Mutex, Ordering, fence};
use std::task::{Wake, Waker};

/// The doorbells of those who share cores, or none. Clones are the same doorbells.
#[derive(Clone, Default)]
pub struct Doorbells(Option<Arc<Announced>>);

/// The record of those who are asleep, or about to be.
struct Announced {
    /// The number of them.
    count: AtomicUsize,
    sleepers: Mutex<Sleepers>,
}

struct Sleepers {
    /// The number of the next sleeper.
    next: usize,
    /// The sleepers by their number.
    wakers: Vec<(usize, Waker)>,
}

impl Doorbells {
    /// Makes doorbells at which nobody sleeps.
    #[allow(clippy::new_without_default, reason = "the default is none")]
    pub fn new() -> Doorbells {
        let sleepers = Mutex::new(Sleepers { next: 0, wakers: Vec::new() });
        Doorbells(Some(Arc::new(Announced { count: AtomicUsize::new(0), sleepers })))
    }

    /// Returns no doorbells: to ring does nothing, and nobody can sleep by them.
    pub fn none() -> Doorbells {
        Doorbells(None)
    }

    /// Makes a sleeper; `None` where there are no doorbells.
    pub fn sleeper(&self) -> Option<Sleeper> {
        let bells = self.0.clone()?;
        let mut sleepers = lock(&bells.sleepers);
        let number = sleepers.next;
        sleepers.next += 1;
        drop(sleepers);
        Some(Sleeper { bells, number })
    }

    /// Returns true if somebody is announced.
    pub fn has_sleepers(&self) -> bool {
        self.0.as_ref().is_some_and(|bells| bells.count.load(Ordering::Relaxed) > 0)
    }

    /// Wakes everyone who is announced; called after something was written for one of them.
    #[inline]
    pub fn ring(&self) {
        let Some(bells) = &self.0 else { return };
        // Orders what was written before the look at the sleepers; see the module's description.
        fence(Ordering::SeqCst);
        if bells.count.load(Ordering::Relaxed) > 0 {
            bells.wake_all();
        }
    }
}

impl Announced {
    #[cold]
    fn wake_all(&self) {
        let mut sleepers = lock(&self.sleepers);
        let wakers = std::mem::take(&mut sleepers.wakers);
        self.count.store(0, Ordering::Relaxed);
        drop(sleepers);
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

fn lock(sleepers: &Mutex<Sleepers>) -> impl std::ops::DerefMut<Target = Sleepers> {
    // No code that may panic runs under the lock.
    sleepers.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// One who sleeps by [`Doorbells`]. Dropping it withdraws it.
pub struct Sleeper {
    bells: Arc<Announced>,
    number: usize,
}

impl Sleeper {
    /// Announces that it is about to sleep, until the next ring. It looks at its inputs after this
    /// and before it sleeps. Announcing it again changes nothing.
    pub fn announce(&self, waker: &Waker) {
        let mut sleepers = lock(&self.bells.sleepers);
        if !sleepers.wakers.iter().any(|(number, _)| *number == self.number) {
            sleepers.wakers.push((self.number, waker.clone()));
            self.bells.count.store(sleepers.wakers.len(), Ordering::Relaxed);
        }
        drop(sleepers);
        // Orders the announcement before the look at the inputs; see the module's description.
        fence(Ordering::SeqCst);
    }

    /// Returns true if it has been announced and not rung since.
    pub fn is_announced(&self) -> bool {
        lock(&self.bells.sleepers).wakers.iter().any(|(number, _)| *number == self.number)
    }

    /// Takes the announcement back.
    pub fn withdraw(&self) {
        let mut sleepers = lock(&self.bells.sleepers);
        sleepers.wakers.retain(|(number, _)| *number != self.number);
        self.bells.count.store(sleepers.wakers.len(), Ordering::Relaxed);
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// Returns a waker that ends [`std::thread::park`] on the calling thread.
pub fn thread_waker() -> Waker {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: std::sync::Arc<Unpark>) {
            self.0.unpark();
        }
    }
    Waker::from(std::sync::Arc::new(Unpark(std::thread::current())))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Counts its wake-ups.
    struct Counted(AtomicUsize);

    impl Wake for Counted {
        fn wake(self: std::sync::Arc<Counted>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counted() -> (std::sync::Arc<Counted>, Waker) {
        let counted = std::sync::Arc::new(Counted(AtomicUsize::new(0)));
        (std::sync::Arc::clone(&counted), Waker::from(counted))
    }

    #[test]
    fn a_ring_wakes_everyone_who_is_announced_once() {
        let bells = Doorbells::new();
        let sleepers = [bells.sleeper().unwrap(), bells.sleeper().unwrap(), bells.sleeper().unwrap()];
        let woken = [counted(), counted(), counted()];
        for (sleeper, (_, waker)) in sleepers.iter().zip(&woken) {
            sleeper.announce(waker);
            sleeper.announce(waker);
        }
        sleepers[2].withdraw();
        assert!(sleepers[0].is_announced() && !sleepers[2].is_announced() && bells.has_sleepers());
        bells.ring();
        bells.ring();
        assert!(!sleepers[0].is_announced() && !bells.has_sleepers());
        assert_eq!(woken.map(|(counted, _)| counted.0.load(Ordering::Relaxed)), [1, 1, 0]);
    }

    #[test]
    fn one_who_is_gone_is_not_woken() {
        let bells = Doorbells::new();
        let (woken, waker) = counted();
        bells.sleeper().unwrap().announce(&waker);
        bells.ring();
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn without_doorbells_there_is_no_sleeper() {
        assert!(Doorbells::none().sleeper().is_none() && Doorbells::default().sleeper().is_none());
        Doorbells::none().ring();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::AtomicBool;
    use loom::thread;

    /// Ends loom's park.
    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: std::sync::Arc<Unpark>) {
            self.0.unpark();
        }
    }

    /// Sleeps until all of these were written.
    fn sleep_until_all(sleeper: &Sleeper, written: &[Arc<AtomicBool>]) {
        let waker = Waker::from(std::sync::Arc::new(Unpark(thread::current())));
        loop {
            sleeper.announce(&waker);
            if written.iter().all(|flag| flag.load(Ordering::Relaxed)) {
                return sleeper.withdraw();
            }
            // Loom fails the test if nobody ends this.
            thread::park();
        }
    }

    #[test]
    fn nothing_is_slept_through() {
        loom::model(|| {
            let (bells, written) = (Doorbells::new(), Arc::new(AtomicBool::new(false)));
            let (sleeper, seen) = (bells.sleeper().unwrap(), [Arc::clone(&written)]);
            let reader = thread::spawn(move || sleep_until_all(&sleeper, &seen));
            written.store(true, Ordering::Relaxed);
            bells.ring();
            reader.join().unwrap();
        });
    }

    #[test]
    fn nothing_of_two_writers_is_slept_through() {
        let mut model = loom::model::Builder::new();
        // All orders of three threads that take a lock are too many to try.
        model.preemption_bound = Some(2);
        model.check(|| {
            let bells = Doorbells::new();
            let written = [Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false))];
            let writers = written.clone().map(|flag| {
                let bells = bells.clone();
                thread::spawn(move || {
                    flag.store(true, Ordering::Relaxed);
                    bells.ring();
                })
            });
            sleep_until_all(&bells.sleeper().unwrap(), &written);
            writers.into_iter().for_each(|writer| writer.join().unwrap());
        });
    }
}
