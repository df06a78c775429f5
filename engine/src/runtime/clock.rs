//! The clock. Pinned threads read a [`Clock`] once a duty cycle and pass `now` down; nothing below
//! a driver ever reads one, so the simulator is a driver whose `now` is a variable.

use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
pub use symphony_transport::Nanos;

/// A monotonic clock on the processor's time-stamp counter (through `quanta`, which falls back to
/// the system's clock where the counter can't be trusted). Its origin is the moment it was made;
/// clones share it.
///
/// Costs about 12 ns a reading. The counters of one machine's cores agree to about 0.1 us.
#[derive(Clone, Debug)]
pub struct Clock {
    source: quanta::Clock,
    origin: u64,
}

impl Clock {
    /// Starts a clock at [`Nanos::ZERO`]. The first one of a process calibrates for up to 0.2 s.
    pub fn start() -> Clock {
        let source = quanta::Clock::new();
        let origin = source.raw();
        Clock { source, origin }
    }

    /// Makes a clock that stands at [`Nanos::ZERO`] until its other end moves it: the time of a
    /// simulation.
    pub(crate) fn of_virtual_time() -> (Clock, Arc<quanta::Mock>) {
        let (source, time) = quanta::Clock::mock();
        let origin = source.raw();
        (Clock { source, origin }, time)
    }

    /// Returns the time since the clock was started.
    #[inline]
    pub fn now(&self) -> Nanos {
        Nanos(self.source.delta_as_nanos(self.origin, self.source.raw()))
    }
}

/// Returns the processor time that this thread has had. Costs a call of the system.
#[cold]
pub(crate) fn thread_cpu_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_never_goes_back_and_clones_share_its_origin() {
        let clock = Clock::start();
        let twin = clock.clone();
        let mut last = Nanos::ZERO;
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
        assert!(twin.now() >= last);
    }
}
