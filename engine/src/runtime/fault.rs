//! The fatal fault of an engine: a thread that died or hangs, or a promise between threads that was
//! broken. Any thread reports one, at the cost of nothing until then; the first report holds. From
//! it on the engine accepts nothing, frontends end what is in flight at their next poll, and
//! whoever runs the engine ends it: `symphony serve` with an exit code of its own.

use crate::runtime::heartbeat::{Heartbeat, Heartbeats};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The reason why an engine can't go on: which thread was at fault, and what happened to it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the engine's thread {thread} {what}")]
pub struct FatalFault {
    /// The name of the thread, which is that of its role.
    pub thread: String,
    /// The event, as the rest of a sentence about the thread: "died: panicked at …".
    pub what: String,
}

/// The place of an engine's fatal fault, which all of its threads share. Clones share it too.
#[derive(Clone)]
pub struct FaultLatch(Arc<LatchState>);

struct LatchState {
    accepting: Arc<AtomicBool>,
    first: OnceLock<FatalFault>,
    heartbeats: Heartbeats,
}

impl FaultLatch {
    /// Makes the latch of an engine that accepts requests while `accepting` is set.
    pub fn new(accepting: Arc<AtomicBool>) -> FaultLatch {
        FaultLatch(Arc::new(LatchState {
            accepting,
            first: OnceLock::new(),
            heartbeats: Heartbeats::default(),
        }))
    }

    /// Reports a fatal fault of the thread named `thread`; `what` is the rest of a sentence that
    /// begins with the thread's name. Only the first report of an engine has an effect: from then
    /// on it accepts no requests.
    #[cold]
    pub fn report(&self, thread: &str, what: impl fmt::Display) {
        let fault = FatalFault { thread: thread.to_owned(), what: what.to_string() };
        // A later fault is most likely a consequence of the first.
        let _ = self.0.first.set(fault);
        // After the fault: who finds that nothing is accepted asks why, and must see it.
        self.0.accepting.store(false, Ordering::Release);
    }

    /// Returns a heartbeat for a pinned thread with these roles. From now on until it is dropped
    /// the thread is watched.
    pub(crate) fn watch(&self, roles: Vec<String>) -> Heartbeat {
        self.0.heartbeats.add(roles)
    }

    /// Looks at the heartbeats, `gap` after the last look, and reports one that has stood still for
    /// `timeout`.
    pub(crate) fn look(&self, gap: Duration, timeout: Duration) {
        if let Some(role) = self.0.heartbeats.observe(gap, timeout) {
            self.report(&role, format_args!("hangs: it has made no duty cycle for {} s", timeout.as_secs()));
        }
    }

    /// Returns the fault that was reported first.
    pub fn get(&self) -> Option<&FatalFault> {
        self.0.first.get()
    }
}

impl fmt::Debug for FaultLatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FaultLatch").field(&self.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_report_holds_and_ends_acceptance() {
        let accepting = Arc::new(AtomicBool::new(true));
        let faults = FaultLatch::new(Arc::clone(&accepting));
        assert_eq!(faults.get(), None);
        faults.report("rank", "died: panicked at a.rs:1:1: why");
        faults.clone().report("model-0", "hangs");
        let text = faults.get().map(ToString::to_string);
        assert_eq!(text.as_deref(), Some("the engine's thread rank died: panicked at a.rs:1:1: why"));
        assert!(!accepting.load(Ordering::Relaxed));
    }
}
