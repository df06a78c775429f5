//! How many requests are in flight: up to the bound that the user gave, fewer while the server is
//! overloaded. Halved at each refusal and raised by one in a round of answers, as TCP does it.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// The first wait after a refusal; it doubles with each further one of the same request.
const FIRST_WAIT: Duration = Duration::from_millis(20);

/// The longest wait after a refusal.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Returns the wait after the given number of refusals of a request, from 1.
pub(super) fn wait_after(refusals: u32) -> Duration {
    FIRST_WAIT.saturating_mul(1 << refusals.saturating_sub(1).min(16)).min(LONGEST_WAIT)
}

/// The room for requests in flight, which threads share.
pub(super) struct RequestWindow {
    state: Mutex<WindowState>,
    changed: Condvar,
    most: f64,
}

struct WindowState {
    room: f64,
    taken: usize,
}

/// How a request ended, as the window sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    /// Answered, well or not.
    Answered,
    /// Refused, since there is too much work.
    Overloaded,
}

impl RequestWindow {
    /// Makes a window for at most `most` requests, at least 1.
    pub(super) fn new(most: usize) -> RequestWindow {
        let most = most.max(1) as f64;
        RequestWindow {
            state: Mutex::new(WindowState { room: most, taken: 0 }),
            changed: Condvar::new(),
            most,
        }
    }

    /// Runs `send` once there is room for it. Returns what it returns.
    pub(super) fn send<T>(&self, send: impl FnOnce() -> (Sent, T)) -> T {
        let state = self.state.lock().expect("no thread panics with it");
        let full = |state: &mut WindowState| state.taken as f64 >= state.room.floor();
        let mut state = self.changed.wait_while(state, full).expect("no thread panics with it");
        state.taken += 1;
        drop(state);
        let (sent, result) = send();
        let mut state = self.state.lock().expect("no thread panics with it");
        state.taken -= 1;
        state.room = match sent {
            Sent::Answered => (state.room + 1.0 / state.room).min(self.most),
            Sent::Overloaded => (state.room / 2.0).max(1.0),
        };
        drop(state);
        self.changed.notify_all();
        result
    }

    #[cfg(test)]
    fn room(&self) -> usize {
        self.state.lock().unwrap().room as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_halve_the_room_and_answers_raise_it_to_its_bound() {
        let window = RequestWindow::new(8);
        let rooms = |sent: Sent, times: usize| {
            (0..times).for_each(|_| window.send(|| (sent, ())));
            window.room()
        };
        assert_eq!(rooms(Sent::Overloaded, 1), 4);
        assert_eq!(rooms(Sent::Overloaded, 9), 1);
        assert_eq!(rooms(Sent::Answered, 1), 2);
        assert_eq!(rooms(Sent::Answered, 100), 8);
    }

    #[test]
    fn waits_double_up_to_a_bound() {
        assert_eq!(wait_after(1), FIRST_WAIT);
        assert_eq!(wait_after(3), FIRST_WAIT * 4);
        assert_eq!(wait_after(u32::MAX), LONGEST_WAIT);
    }
}
