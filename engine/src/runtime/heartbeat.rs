//! Heartbeats of pinned threads: each counts its duty cycles where the stall watch sees it, at the
//! cost of two stores a cycle. A thread whose count stands still for too long hangs, in native code
//! or in a loop without an end. CPU executors have none: a batch may take any time.

use crate::runtime::counters::count::Count;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The heartbeat of one thread, which the thread holds for as long as it is to be watched.
pub(crate) struct Heartbeat(Arc<HeartbeatState>);

struct HeartbeatState {
    /// The roles of the thread.
    roles: Vec<String>,
    beats: Count,
    /// The index of the role whose turn it is.
    running: AtomicUsize,
}

impl Heartbeat {
    /// Counts a duty cycle.
    #[inline]
    pub(crate) fn beat(&self) {
        self.0.beats.add(1);
    }

    /// Notes whose turn it is.
    #[inline]
    pub(crate) fn runs(&self, role: usize) {
        // Relaxed: it only names the culprit.
        self.0.running.store(role, Ordering::Relaxed);
    }
}

/// A heartbeat as it was seen last.
struct SeenHeartbeat {
    state: Weak<HeartbeatState>,
    beats: u64,
    /// The time for which it has stood still, as far as was observed.
    still: Duration,
}

/// The heartbeats of an engine.
#[derive(Default)]
pub(crate) struct Heartbeats(Mutex<Vec<SeenHeartbeat>>);

impl Heartbeats {
    /// Adds a thread with these roles.
    pub(crate) fn add(&self, roles: Vec<String>) -> Heartbeat {
        let state = HeartbeatState { roles, beats: Count::new(), running: AtomicUsize::new(0) };
        let state = Arc::new(state);
        let seen = SeenHeartbeat { state: Arc::downgrade(&state), beats: 0, still: Duration::ZERO };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
        Heartbeat(state)
    }

    /// Looks at every heartbeat, `gap` after the last look. Returns the role that hangs, if one has
    /// stood still for `timeout`.
    pub(crate) fn observe(&self, gap: Duration, timeout: Duration) -> Option<String> {
        let mut hung = None;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain_mut(|seen| {
            let Some(state) = seen.state.upgrade() else { return false };
            let beats = state.beats.get();
            seen.still = if beats == seen.beats { seen.still + gap } else { Duration::ZERO };
            seen.beats = beats;
            if seen.still >= timeout {
                hung = state.roles.get(state.running.load(Ordering::Relaxed)).cloned();
            }
            true
        });
        hung
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_whose_turn_it_is_hangs_once_its_thread_stands_still_for_the_time_out() {
        let (heartbeats, second) = (Heartbeats::default(), Duration::from_secs(1));
        let beating = heartbeats.add(vec!["api".into()]);
        let thread = heartbeats.add(vec!["model-0".into(), "rank".into()]);
        let look = || heartbeats.observe(second, 3 * second);
        for _ in 0..10 {
            beating.beat();
            thread.beat();
            assert_eq!(look(), None);
        }
        thread.runs(1);
        for expected in [None, None, Some("rank".to_owned())] {
            beating.beat();
            assert_eq!(look(), expected);
        }
        drop(thread);
        beating.beat();
        assert_eq!(look(), None, "a thread that has ended hangs no more");
    }
}
