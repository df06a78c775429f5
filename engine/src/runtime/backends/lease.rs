//! The place where an executor puts its state down while a model runs. A model is foreign code: it
//! may run for ever, and a thread in it can't be ended. So the thread holds nothing then that
//! others need; if it comes back too late, the watchdog has taken the state over, and it ends.
//! A driver of GPUs is foreign code too, which is called with the state in the thread's hands: the
//! thread notes since when it is in a duty cycle, and the watchdog gives up the GPU of one that
//! does not end.
//!
//! It costs two locks that nobody contends for and five stores a batch, and two stores a duty
//! cycle.

use super::executor_state::ExecutorState;
use rustix::process::Pid;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use symphony_gpu::Executor;
use symphony_transport::Nanos;

/// The niceness of a thread that was given up: it takes what others leave of its core.
const NICE: i32 = 19;

/// The lease between one executor thread and the watchdog. See the module's description.
pub(crate) struct ExecutorLease<E: Executor> {
    state: Mutex<Option<Box<ExecutorState<E>>>>,
    /// The time by which the model that runs is to be done; never if none runs.
    due: AtomicU64,
    /// The time from which the model that runs counts as hung; never if none runs.
    hung_at: AtomicU64,
    /// The time at which the thread's duty cycle has begun, or gone on after a model; never while
    /// none is under way or a model runs.
    in_cycle_since: AtomicU64,
    /// The system's number of the thread that computes; 0 before it has begun.
    thread: AtomicI32,
}

impl<E: Executor> ExecutorLease<E> {
    /// Makes the lease of a thread that has not begun.
    pub(crate) fn new() -> ExecutorLease<E> {
        let never = || AtomicU64::new(Nanos::MAX.0);
        ExecutorLease {
            state: Mutex::new(None),
            due: never(),
            hung_at: never(),
            in_cycle_since: never(),
            thread: AtomicI32::new(0),
        }
    }

    /// Notes that the calling thread computes.
    pub(crate) fn begin(&self) {
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    }

    /// Notes that the thread's duty cycle begins, or goes on after a model has run.
    #[inline]
    pub(crate) fn cycle_begins(&self, now: Nanos) {
        // Relaxed: it only tells the watchdog how long the thread has been at it.
        self.in_cycle_since.store(now.0, Ordering::Relaxed);
    }

    /// Notes that the thread's duty cycle is over.
    #[inline]
    pub(crate) fn cycle_ends(&self) {
        self.in_cycle_since.store(Nanos::MAX.0, Ordering::Relaxed);
    }

    /// Returns true if the thread has been in one duty cycle for longer than `patience`, besides
    /// what a model takes.
    pub(crate) fn is_stuck(&self, now: Nanos, patience: Nanos) -> bool {
        now.0 > self.in_cycle_since.load(Ordering::Relaxed).saturating_add(patience.0)
    }

    /// Puts the state down until [`ExecutorLease::take_back`]; from `due` on the watchdog may look
    /// at it, from `hung_at` on take it.
    pub(crate) fn put_down(&self, state: Box<ExecutorState<E>>, due: Nanos, hung_at: Nanos) {
        let mut place = self.lock();
        *place = Some(state);
        self.cycle_ends();
        // Relaxed: the lock orders these for the watchdog, which looks again once it has it.
        self.due.store(due.0, Ordering::Relaxed);
        self.hung_at.store(hung_at.0, Ordering::Relaxed);
    }

    /// Takes the state back. Returns `None` if it was taken over: the thread is to end.
    pub(crate) fn take_back(&self) -> Option<Box<ExecutorState<E>>> {
        let mut place = self.lock();
        self.due.store(Nanos::MAX.0, Ordering::Relaxed);
        self.hung_at.store(Nanos::MAX.0, Ordering::Relaxed);
        place.take()
    }

    /// Has `work` look at the state if the model that runs was to be done by now.
    pub(crate) fn while_late(&self, now: Nanos, work: impl FnOnce(&mut ExecutorState<E>)) {
        if now.0 >= self.due.load(Ordering::Relaxed)
            && let Some(state) = self.lock().as_mut()
        {
            work(state);
        }
    }

    /// Leaves the state, if the thread still has it, to the watchdog: the thread has panicked.
    pub(crate) fn leave(&self, state: Option<Box<ExecutorState<E>>>) {
        let mut place = self.lock();
        if let Some(state) = state {
            *place = Some(state);
        }
        self.hung_at.store(0, Ordering::Relaxed);
    }

    /// Takes the state over if the model that runs counts as hung, or if the thread left it.
    /// Returns it, and true if the thread has left it.
    pub(crate) fn take_over(&self, now: Nanos) -> Option<(Box<ExecutorState<E>>, bool)> {
        let is_overdue = || now.0 >= self.hung_at.load(Ordering::Relaxed);
        if !is_overdue() {
            return None;
        }
        let mut place = self.lock();
        let has_left = self.hung_at.load(Ordering::Relaxed) == 0;
        if is_overdue() { place.take().map(|state| (state, has_left)) } else { None }
    }

    /// Lowers the priority of the thread, which was given up.
    pub(crate) fn lower_priority(&self) {
        let thread = Pid::from_raw(self.thread.load(Ordering::Relaxed));
        // One that has ended needs no priority.
        let _ = thread.map(|thread| rustix::process::setpriority_process(Some(thread), NICE));
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<ExecutorState<E>>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
