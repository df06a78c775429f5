//! An agent is one pinned thread: a role's name and one duty-cycle function. This file owns the loop around it:
//! it reads the clock once a turn, and decides what a turn without work does.

use crate::clock::{Clock, Nanos};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A role that a thread plays.
pub trait Agent {
    /// One turn: polls every input in a fixed order, does a bounded amount of work, and returns how much.
    fn poll(&mut self, now: Nanos) -> usize;

    /// The engine stops: ends what is still held, so that nothing is lost without an answer.
    fn stop(&mut self, now: Nanos);
}

/// What a turn without work does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// Looks again at once: the core is this thread's own.
    Spin,
    /// Looks again at once for a while, then sleeps 20 us at a time: other threads need the core.
    Nap,
}

/// How long a thread that shares its core sleeps between looks, once it has found nothing for a while.
pub(super) const NAP: Duration = Duration::from_micros(20);

/// Turns without work before the first nap: a few microseconds, in which an answer often comes.
const TURNS_BEFORE_NAP: u32 = 200;

/// Where a thread runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seat {
    /// The core to pin it to; `None` leaves it to the system.
    pub core: Option<usize>,
    /// What its turns without work do.
    pub idle: Idle,
}

impl Seat {
    /// Makes the calling thread this seat's: pins it, and has the system wake it without the usual delay of
    /// 50 us that lets wake-ups coincide.
    ///
    /// A core that can't be had is said, not fatal: the engine works, slower.
    pub fn take(&self, role: &str) {
        if let Some(core) = self.core
            && !core_affinity::set_for_current(core_affinity::CoreId { id: core })
        {
            eprintln!("warning: {role} could not be pinned to core {core}; it runs where the system puts it");
        }
        if self.idle == Idle::Nap {
            let shortest = NonZeroU64::new(1);
            let _ = rustix::thread::set_current_timer_slack(shortest);
        }
    }
}

/// Starts a thread that makes an agent and runs its turns until `stop` is set.
///
/// Errors: the system gives no thread.
pub fn spawn<A: Agent>(
    role: String,
    seat: Seat,
    clock: Clock,
    stop: Arc<AtomicBool>,
    make: impl FnOnce() -> A + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(role.clone()).spawn(move || {
        seat.take(&role);
        let mut agent = make();
        run(&mut agent, seat.idle, &clock, &stop);
    })
}

/// The loop of every agent, until `stop` is set.
pub fn run(agent: &mut impl Agent, idle: Idle, clock: &Clock, stop: &AtomicBool) {
    let mut turns_without_work = 0;
    while !stop.load(Ordering::Relaxed) {
        if agent.poll(clock.now()) > 0 {
            turns_without_work = 0;
            continue;
        }
        turns_without_work += 1;
        match idle {
            Idle::Nap if turns_without_work > TURNS_BEFORE_NAP => std::thread::sleep(NAP),
            _ => std::hint::spin_loop(),
        }
    }
    agent.stop(clock.now());
}

/// Measures how late a thread in this seat sees that a time has come: the 99th percentile of 400 naps' excess, or
/// of 20,000 spinning turns' length. Takes about 40 ms at most.
pub fn measure_lateness(seat: Seat, clock: &Clock) -> Nanos {
    let clock = clock.clone();
    let measuring = std::thread::spawn(move || {
        seat.take("the timer measurement");
        let turns = if seat.idle == Idle::Nap { 400 } else { 20_000 };
        let mut gaps: Vec<Nanos> = (0..turns)
            .map(|_| {
                let before = clock.now();
                match seat.idle {
                    Idle::Nap => std::thread::sleep(NAP),
                    Idle::Spin => std::hint::spin_loop(),
                }
                clock.now() - before
            })
            .collect();
        gaps.sort_unstable();
        gaps[turns * 99 / 100]
    });
    measuring.join().unwrap_or(Nanos::from_millis(1))
}
