//! The end of `symphony serve`: signals, and a thread that ends the process when the time-out for a
//! shutdown has passed, whatever hangs. It uses nothing that the rest of the process could hold:
//! even the log line is written by a thread of its own, as standard error may be blocked.

use super::failure::{CUT_OFF, CommandFailure, FAULT};
use crate::runtime::FaultLatch;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The interval at which the thread looks for a signal or a fault.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// The longest wait for the last log line.
const LAST_LINE: Duration = Duration::from_millis(100);

/// The most of the time-out that is kept for the answers of what is cut off and for the threads.
const LONGEST_RESERVE: Duration = Duration::from_secs(2);

/// The signals of a serving process, and the bound on its shutdown. Clones share both.
#[derive(Clone, Default)]
pub(super) struct Shutdown(Arc<ShutdownState>);

#[derive(Default)]
struct ShutdownState {
    /// Set by the first SIGINT or SIGTERM; the second ends the process.
    stop: Arc<AtomicBool>,
    /// Set by each SIGHUP.
    reload: Arc<AtomicBool>,
    /// Set once requests may be accepted.
    serving: OnceLock<(Duration, FaultLatch)>,
    /// Set once every accepted request has its own answer.
    answered: AtomicBool,
}

impl Shutdown {
    /// Installs the signal handlers and starts the thread.
    ///
    /// Errors: [`CommandFailure::Machine`].
    pub(super) fn watch_signals() -> Result<Shutdown, CommandFailure> {
        let shutdown = Shutdown::default();
        let unwatched = |error| CommandFailure::Machine(format!("signals can't be watched: {error}"));
        let ShutdownState { stop, reload, .. } = &*shutdown.0;
        signal_hook::flag::register(SIGHUP, Arc::clone(reload)).map_err(unwatched)?;
        for signal in [SIGINT, SIGTERM] {
            // Registered in this order: while the flag is not yet set the first does nothing, and
            // the second sets it.
            signal_hook::flag::register_conditional_shutdown(signal, CUT_OFF.into(), Arc::clone(stop))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(stop)))
                .map_err(unwatched)?;
        }
        let watching = shutdown.clone();
        let no_thread = |error| CommandFailure::Machine(format!("the system gave no thread: {error}"));
        std::thread::Builder::new()
            .name("shutdown".into())
            .spawn(move || watching.watch())
            .map_err(no_thread)?;
        Ok(shutdown)
    }

    /// Notes that requests may be accepted from now on; until then a signal ends the process at
    /// once. After a signal, or a fault in `faults`, the process lives for at most `timeout`.
    pub(super) fn serving(&self, timeout: Duration, faults: FaultLatch) {
        let first = self.0.serving.set((timeout, faults));
        debug_assert!(first.is_ok(), "a process serves once");
    }

    /// Returns true once a signal has asked for the end.
    pub(super) fn is_asked(&self) -> bool {
        self.0.stop.load(Ordering::Relaxed)
    }

    /// Returns true if a reload was asked for since the last call.
    pub(super) fn take_reload(&self) -> bool {
        self.0.reload.swap(false, Ordering::Relaxed)
    }

    /// Notes that every accepted request has its own answer: what may still hang does not count.
    pub(super) fn answered(&self) {
        self.0.answered.store(true, Ordering::Relaxed);
    }

    fn watch(&self) {
        let has_fault = || self.0.serving.get().is_some_and(|(_, faults)| faults.get().is_some());
        while !self.is_asked() && !has_fault() {
            std::thread::sleep(WATCH_EVERY);
        }
        let Some((timeout, faults)) = self.0.serving.get() else {
            // Nothing was accepted yet.
            signal_hook::low_level::exit(0);
        };
        std::thread::sleep(*timeout);
        let code = match faults.get() {
            Some(_) => FAULT,
            None if self.0.answered.load(Ordering::Relaxed) => 0,
            None => CUT_OFF,
        };
        let line = format!("not ended within {} s, so it ends now, with exit code {code}", timeout.as_secs());
        if let Ok(logging) = std::thread::Builder::new().spawn(move || tracing::error!("{line}")) {
            let steps = 10;
            (0..steps).filter(|_| !logging.is_finished()).for_each(|_| std::thread::sleep(LAST_LINE / steps));
        }
        signal_hook::low_level::exit(code.into());
    }
}

/// Returns the time after which, in a shutdown of at most `timeout`, requests without an answer are
/// answered 503. What is left is for these answers and for the engine's threads to end.
pub(super) fn cut_off_after(timeout: Duration) -> Duration {
    timeout - (timeout / 4).min(LONGEST_RESERVE)
}
