//! Stalls of the machine while load is sent. A thread that only sleeps, a millisecond at a time,
//! sees each as a late awakening: its host had taken the core, or other programs had all of them.
//!
//! A request is *disturbed* if a stall, or the time in which those who were stalled catch up, lies
//! between the time at which it was meant to be sent and its end. That depends on the clock alone
//! and not on how the request ended, so a server that can't keep up looks no better without the
//! disturbed requests, while one that could keep up is not blamed for its machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use symphony::runtime::clock::Clock;
use symphony_transport::Nanos;

/// The time that the thread sleeps at once.
const NAP: Nanos = Nanos::from_millis(1);
/// The delay from which an awakening counts as a stall. A thread that waits for a core among other
/// busy ones gets it earlier.
const STALL: Nanos = Nanos::from_millis(2);
/// The time in which those who were stalled catch up, as a multiple of the stall: enough for
/// threads that are busy for 80 % of their time.
const RECOVERY: u64 = 4;

/// The stalls of a run so far; times are the run's own.
#[derive(Debug)]
pub struct Stalls {
    /// The last awakening of the thread that looks for them; the far future before its first.
    seen: AtomicU64,
    /// The end of the last stall and of the recovery from it.
    until: AtomicU64,
    count: AtomicU64,
    total: AtomicU64,
    longest: AtomicU64,
}

impl Default for Stalls {
    fn default() -> Stalls {
        Stalls {
            seen: AtomicU64::new(u64::MAX),
            until: AtomicU64::default(),
            count: AtomicU64::default(),
            total: AtomicU64::default(),
            longest: AtomicU64::default(),
        }
    }
}

impl Stalls {
    /// Notes that the thread that was to wake at `due` woke at `now`.
    pub(in crate::loadgen) fn woke(&self, due: Nanos, now: Nanos) {
        let stall = now - due;
        if stall > STALL {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.total.fetch_add(stall.0, Ordering::Relaxed);
            self.longest.fetch_max(stall.0, Ordering::Relaxed);
            self.until.fetch_max(now.0 + RECOVERY * stall.0, Ordering::Relaxed);
        }
        // Release, with the Acquire below: who sees the awakening sees the stall before it.
        self.seen.store(now.0, Ordering::Release);
    }

    /// True if a stall disturbed a request that was meant for `intended` and ended at `ended`.
    pub(super) fn disturbed(&self, intended: Nanos, ended: Nanos) -> bool {
        let seen = self.seen.load(Ordering::Acquire);
        // A thread that has not woken yet is in a stall that it can't note before it has.
        let stalled_now = ended.0 > seen.saturating_add(NAP.0 + STALL.0);
        stalled_now || self.until.load(Ordering::Relaxed) > intended.0
    }

    /// Returns their number, their total duration and that of the longest.
    pub fn so_far(&self) -> (u64, Nanos, Nanos) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (read(&self.count), Nanos(read(&self.total)), Nanos(read(&self.longest)))
    }
}

/// The thread that looks for stalls; it ends when this is dropped.
pub struct StallWatch {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StallWatch {
    /// Looks for stalls from now on, the run's `clock` having just been started. Where the system
    /// has no thread left, none is found.
    pub fn start(stalls: Arc<Stalls>, clock: Clock) -> StallWatch {
        let over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&over);
        let watch = move || {
            while !ended.load(Ordering::Relaxed) {
                let due = clock.now() + NAP;
                std::thread::sleep(NAP.into());
                stalls.woke(due, clock.now());
            }
        };
        let thread = std::thread::Builder::new().name("stalls".into()).spawn(watch).ok();
        StallWatch { over, thread }
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does nothing that can panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    #[test]
    fn a_late_awakening_is_a_stall_and_disturbs_what_it_and_the_recovery_touch() {
        let stalls = Stalls::default();
        assert!(!stalls.disturbed(ms(0), ms(9_999)), "nobody looks for stalls");
        stalls.woke(ms(10), ms(11));
        assert_eq!(stalls.so_far(), (0, Nanos::ZERO, Nanos::ZERO));
        // 10 ms from 20 ms on, and 40 ms of recovery.
        stalls.woke(ms(20), ms(30));
        assert_eq!(stalls.so_far(), (1, ms(10), ms(10)));
        assert!(stalls.disturbed(ms(5), ms(31)) && stalls.disturbed(ms(69), ms(69)));
        stalls.woke(ms(80), ms(80));
        assert!(!stalls.disturbed(ms(70), ms(81)));
    }

    #[test]
    fn a_request_that_ends_before_the_watch_has_woken_from_a_stall_is_disturbed() {
        let stalls = Stalls::default();
        stalls.woke(ms(10), ms(10));
        assert!(!stalls.disturbed(ms(9), ms(13)));
        assert!(stalls.disturbed(ms(9), ms(14)));
    }

    #[test]
    fn a_watch_sees_the_time_pass_and_ends() {
        let stalls = Arc::<Stalls>::default();
        let watch = StallWatch::start(Arc::clone(&stalls), Clock::start());
        while stalls.seen.load(Ordering::Relaxed) == u64::MAX {
            std::thread::yield_now();
        }
        drop(watch);
        assert_eq!(Arc::strong_count(&stalls), 1);
    }
}
