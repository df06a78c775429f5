//! The turn of the task that an API core runs: a core serves nobody else meanwhile, so work that
//! can pause does so once its turn is long. This counts all of a turn: reading a socket, parsing,
//! the memory that the system hands out page by page.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The time after which a task pauses where it can: a quarter of the 2 ms that none may take, as
/// what lies between two looks at the clock takes time too.
const LONG: Duration = Duration::from_micros(500);

/// The pause, in which the core looks at its sockets and timers. A task that kept itself runnable
/// instead would keep it from that.
pub(super) const PAUSE: Duration = Duration::from_micros(1);

thread_local! {
    /// The beginning of the thread's current turn.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Notes that a task's turn begins on this thread.
#[inline]
pub(in crate::api) fn begin() {
    BEGAN.set(Some(Instant::now()));
}

/// Returns true if the thread's current turn has taken so long that its task should pause. False
/// on a thread that runs no such tasks.
#[inline]
pub(in crate::api) fn is_long() -> bool {
    BEGAN.get().is_some_and(|began| began.elapsed() >= LONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_long_from_half_a_millisecond_until_the_next_one() {
        assert!(!is_long());
        let began = Instant::now();
        begin();
        while began.elapsed() < LONG {
            // On a thread that is held up here, the second call sees a long turn rightly.
            let was_long = is_long();
            assert!(!was_long || began.elapsed() >= LONG);
        }
        while !is_long() {}
    }
}
