//! An agent is a role: its name and one duty-cycle function. This file owns the loop around it,
//! which reads the clock once a duty cycle and decides what a cycle without work does. An agent has
//! a pinned thread of its own where there are cores enough; those that would share a core share a
//! thread instead, a [`CompositeAgent`], so that a message from one to the other costs a duty cycle
//! and not a switch between threads. Threads that have to share a core sleep by [`Doorbells`]: see
//! docs/design/doorbells.md.

use crate::runtime::ThreadHook;
use crate::runtime::clock::Clock;
use crate::runtime::fault::FaultLatch;
use crate::runtime::heartbeat::Heartbeat;
use crate::runtime::panics::{catch, install_hook};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use symphony_transport::Nanos;
use symphony_transport::doorbell::{Doorbells, thread_waker};

/// A role of a thread.
pub trait Agent {
    /// Runs one duty cycle: polls every input in a fixed order, does a bounded amount of work, and
    /// returns the amount.
    fn poll(&mut self, now: Nanos) -> usize;

    /// Returns the time before which a duty cycle finds no work unless a message comes. It may be
    /// early; [`Nanos::MAX`] where only messages bring work. An agent that looks at what no
    /// doorbell tells of leaves it at zero.
    fn next_due(&self) -> Nanos {
        Nanos::ZERO
    }

    /// Ends everything that is still held, as the engine stops, so that every request gets an
    /// answer.
    fn stop(&mut self, now: Nanos);
}

/// The action of a duty cycle without work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// Polls again at once: the core is this thread's own.
    Spin,
    /// Polls again at once for a while, then sleeps: other threads need the core. Where there are
    /// [`Doorbells`] it sleeps until one rings or its next work is due, else 50 us at a time.
    Nap,
}

/// The sleep between two duty cycles of a thread that shares its core and that no doorbell wakes.
pub(crate) const NAP: Duration = Duration::from_micros(50);

/// The number of duty cycles without work before the first nap: a few microseconds, in which an
/// answer often comes.
const CYCLES_BEFORE_NAP: u32 = 200;

/// The number of duty cycles without work before a thread sleeps that a doorbell wakes. It shares
/// its core with those that would bring the answer.
const CYCLES_BEFORE_SLEEP: u32 = 2;

/// The longest sleep that only a doorbell ends: what no doorbell tells of (a stop, a model that was
/// loaded, a setting of the tuner) is seen a millisecond later at most, for a few thousandths of a
/// core.
const LONGEST_SLEEP: Nanos = Nanos::from_millis(1);

/// The core and the idle strategy of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The core that the thread is pinned to; `None` leaves it to the system.
    pub core: Option<usize>,
    /// The action of the thread's duty cycles without work.
    pub idle: Idle,
}

impl Placement {
    /// Applies the placement to the calling thread: pins it, and has the system wake it without the
    /// usual delay of 50 us that lets wake-ups coincide.
    ///
    /// A core that can't be had is logged, not fatal: the engine works, slower.
    pub fn take(&self, role: &str) {
        if let Some(core) = self.core
            && !core_affinity::set_for_current(core_affinity::CoreId { id: core })
        {
            tracing::warn!(core, "{role} could not be pinned to its core; it runs where the system puts it");
        }
        if self.idle == Idle::Nap {
            let shortest = NonZeroU64::new(1);
            let _ = rustix::thread::set_current_timer_slack(shortest);
        }
    }
}

/// The request that a member of a composite agent stop, and its answer.
#[derive(Debug, Default)]
pub(crate) struct StopSignal {
    /// Set from outside.
    pub(crate) asked: AtomicBool,
    /// Set by the composite agent.
    pub(crate) done: AtomicBool,
}

/// A role in a composite agent.
pub(crate) struct Member {
    pub(crate) role: String,
    agent: Box<dyn Agent + Send>,
    pub(crate) stop_signal: Arc<StopSignal>,
}

impl Member {
    /// Gives an agent its role.
    pub(crate) fn new(role: String, agent: impl Agent + Send + 'static) -> Member {
        Member { role, agent: Box::new(agent), stop_signal: Arc::default() }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.stop_signal.done.load(Ordering::Relaxed)
    }

    /// Ends a member that has panicked. Its agent is dropped: the ends of its rings say so to those
    /// that ask.
    #[cold]
    pub(crate) fn die(&mut self, faults: &FaultLatch, panic: &str) {
        faults.report(&self.role, format_args!("died: {panic}"));
        let agent = std::mem::replace(&mut self.agent, Box::new(EndedAgent));
        // Its state may be such that not even this succeeds; the fault is reported already.
        let _ = catch(|| drop(agent));
        self.stop_signal.done.store(true, Ordering::Release);
    }

    /// Returns the time before which it has no work; see [`Agent::next_due`].
    fn next_due(&self) -> Nanos {
        if self.has_ended() { Nanos::MAX } else { self.agent.next_due() }
    }

    /// Runs a duty cycle, or ends the agent if that was asked for. Returns the amount of work.
    pub(crate) fn duty_cycle(&mut self, now: Nanos) -> usize {
        if self.has_ended() {
            return 0;
        }
        if self.stop_signal.asked.load(Ordering::Relaxed) {
            self.agent.stop(now);
            // Release: the thread that acts on the agent's end must see what it wrote last.
            self.stop_signal.done.store(true, Ordering::Release);
            return 1;
        }
        self.agent.poll(now)
    }
}

impl Drop for Member {
    /// Sets the answer: an agent whose thread panics has ended too, and nothing may wait for it.
    fn drop(&mut self) {
        self.stop_signal.done.store(true, Ordering::Release);
    }
}

/// An agent with a callback before each of its duty cycles.
pub(crate) struct HookedAgent<A> {
    pub(crate) before: ThreadHook,
    pub(crate) role: String,
    pub(crate) agent: A,
}

impl<A: Agent> Agent for HookedAgent<A> {
    fn poll(&mut self, now: Nanos) -> usize {
        (self.before)(&self.role);
        self.agent.poll(now)
    }

    fn next_due(&self) -> Nanos {
        self.agent.next_due()
    }

    fn stop(&mut self, now: Nanos) {
        self.agent.stop(now);
    }
}

/// The agent of a member that has died.
struct EndedAgent;

impl Agent for EndedAgent {
    fn poll(&mut self, _: Nanos) -> usize {
        0
    }

    fn next_due(&self) -> Nanos {
        Nanos::MAX
    }

    fn stop(&mut self, _: Nanos) {}
}

/// Agents that share a thread, in the order of their duty cycles.
pub(crate) struct CompositeAgent(pub(crate) Vec<Member>);

impl CompositeAgent {
    /// Starts the composite agent's thread; it ends when all its members have. `on_thread_start` is
    /// called on it first. A member that panics is reported to `faults` and ends alone: the others
    /// go on until they are stopped, so that they answer what they hold.
    ///
    /// Errors: the system gives no thread.
    pub(crate) fn spawn(
        self,
        placement: Placement,
        bells: Doorbells,
        clock: Clock,
        mut on_thread_start: Option<ThreadHook>,
        faults: FaultLatch,
    ) -> std::io::Result<JoinHandle<()>> {
        let name = self.0.iter().map(|member| member.role.as_str()).collect::<Vec<_>>().join("+");
        install_hook();
        std::thread::Builder::new().name(name.clone()).spawn(move || {
            placement.take(&name);
            let waiting = Waiting::new(placement.idle, bells);
            let roles = self.0.iter().map(|member| member.role.clone()).collect();
            let mut running = RunningComposite { members: self.0, heartbeat: faults.watch(roles), turn: 0 };
            while let Err(panic) = catch(|| {
                if let Some(on_thread_start) = on_thread_start.take() {
                    on_thread_start(&name);
                }
                run_cycles(&waiting, &clock, &mut running);
            }) {
                running.members[running.turn].die(&faults, &panic);
            }
        })
    }
}

/// The waiting of a thread for work.
pub(crate) struct Waiting {
    idle: Idle,
    bells: Doorbells,
    longest_sleep: Nanos,
}

impl Waiting {
    /// Makes the waiting of a thread that idles like this, and that these doorbells wake.
    pub(crate) fn new(idle: Idle, bells: Doorbells) -> Waiting {
        Waiting { idle, bells, longest_sleep: LONGEST_SLEEP }
    }

    /// Returns the time to sleep if the next work is due then. Work that is due and was not done
    /// waits for room in a ring.
    fn time_to_sleep(&self, due: Nanos, now: Nanos) -> Duration {
        match due.0.checked_sub(now.0) {
            Some(left) if left > 0 => Duration::from_nanos(left.min(self.longest_sleep.0)),
            _ => NAP,
        }
    }
}

/// Something that runs in duty cycles.
trait RunsInCycles {
    /// Runs a duty cycle and returns the amount of work; `None` once there are to be no more.
    fn cycle(&mut self, now: Nanos) -> Option<usize>;

    /// Returns the time before which there is no work; see [`Agent::next_due`].
    fn next_due(&self) -> Nanos;
}

/// A composite agent on its thread.
struct RunningComposite {
    members: Vec<Member>,
    heartbeat: Heartbeat,
    /// The member whose turn it is.
    turn: usize,
}

impl RunsInCycles for RunningComposite {
    fn cycle(&mut self, now: Nanos) -> Option<usize> {
        if self.members.iter().all(Member::has_ended) {
            return None;
        }
        self.heartbeat.beat();
        let mut work = 0;
        for (at, member) in self.members.iter_mut().enumerate() {
            self.turn = at;
            self.heartbeat.runs(at);
            work += member.duty_cycle(now);
        }
        Some(work)
    }

    fn next_due(&self) -> Nanos {
        self.members.iter().map(Member::next_due).min().unwrap_or(Nanos::MAX)
    }
}

/// Starts a thread that makes an agent and runs its duty cycles until `stop` is set.
///
/// Errors: the system gives no thread.
pub fn spawn<A: Agent>(
    role: String,
    placement: Placement,
    clock: Clock,
    stop: Arc<AtomicBool>,
    make: impl FnOnce() -> A + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(role.clone()).spawn(move || {
        placement.take(&role);
        let mut agent = make();
        run(&mut agent, placement.idle, &clock, &stop);
    })
}

/// An agent that has a thread to itself, until `stop` is set or `goes_on` is false.
struct RunningAgent<'a, A, F> {
    agent: &'a mut A,
    stop: &'a AtomicBool,
    goes_on: F,
}

impl<A: Agent, F: Fn(&A) -> bool> RunsInCycles for RunningAgent<'_, A, F> {
    #[inline]
    fn cycle(&mut self, now: Nanos) -> Option<usize> {
        let goes_on = !self.stop.load(Ordering::Relaxed) && (self.goes_on)(self.agent);
        goes_on.then(|| self.agent.poll(now))
    }

    fn next_due(&self) -> Nanos {
        self.agent.next_due()
    }
}

/// Runs an agent's duty cycles until `stop` is set or `goes_on` is false, then stops the agent.
pub(crate) fn run_while<A: Agent>(
    agent: &mut A,
    waiting: &Waiting,
    clock: &Clock,
    stop: &AtomicBool,
    goes_on: impl Fn(&A) -> bool,
) {
    run_cycles(waiting, clock, &mut RunningAgent { agent, stop, goes_on });
    agent.stop(clock.now());
    waiting.bells.ring();
}

/// Runs an agent's duty cycles until `stop` is set, then stops the agent.
pub fn run(agent: &mut impl Agent, idle: Idle, clock: &Clock, stop: &AtomicBool) {
    run_while(agent, &Waiting::new(idle, Doorbells::none()), clock, stop, |_| true);
}

/// Runs duty cycles until there are to be no more. Those that find work ring the bells: a thread
/// that sleeps may have been waiting for what they did.
fn run_cycles(waiting: &Waiting, clock: &Clock, cycles: &mut impl RunsInCycles) {
    let Waiting { idle, bells, .. } = waiting;
    let sleeper = match idle {
        Idle::Spin => None,
        Idle::Nap => bells.sleeper().map(|sleeper| (sleeper, thread_waker())),
    };
    let mut cycles_without_work = 0u32;
    while let Some(work) = cycles.cycle(clock.now()) {
        if work > 0 {
            if cycles_without_work >= CYCLES_BEFORE_SLEEP {
                sleeper.iter().for_each(|(sleeper, _)| sleeper.withdraw());
            }
            cycles_without_work = 0;
            bells.ring();
            continue;
        }
        cycles_without_work = cycles_without_work.saturating_add(1);
        match (idle, &sleeper) {
            (Idle::Nap, Some((sleeper, waker))) if cycles_without_work == CYCLES_BEFORE_SLEEP => {
                // The cycle after this is the look at its inputs before it sleeps.
                sleeper.announce(waker);
            }
            (Idle::Nap, Some((sleeper, waker))) if cycles_without_work > CYCLES_BEFORE_SLEEP => {
                std::thread::park_timeout(waiting.time_to_sleep(cycles.next_due(), clock.now()));
                sleeper.announce(waker);
            }
            (Idle::Nap, None) if cycles_without_work > CYCLES_BEFORE_NAP => std::thread::sleep(NAP),
            _ => std::hint::spin_loop(),
        }
    }
}

/// Measures how late a thread in this placement sees that a time has come: the 99th percentile of
/// 400 naps' excess, or of the length of 20,000 spinning cycles. Takes about 40 ms at most.
pub fn measure_lateness(placement: Placement, clock: &Clock) -> Nanos {
    let clock = clock.clone();
    let measuring = std::thread::spawn(move || {
        placement.take("the timer measurement");
        let cycles = if placement.idle == Idle::Nap { 400 } else { 20_000 };
        let mut gaps: Vec<Nanos> = (0..cycles)
            .map(|_| {
                let before = clock.now();
                match placement.idle {
                    Idle::Nap => std::thread::sleep(NAP),
                    Idle::Spin => std::hint::spin_loop(),
                }
                clock.now() - before
            })
            .collect();
        gaps.sort_unstable();
        gaps[cycles * 99 / 100]
    });
    measuring.join().unwrap_or(Nanos::from_millis(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_transport::ring::{Consumer, Producer, ring};

    /// Far longer than a test takes.
    const FOR_EVER: Nanos = Nanos::from_secs(100);

    fn waiting_for_bells(bells: &Doorbells) -> Waiting {
        Waiting { longest_sleep: FOR_EVER, ..Waiting::new(Idle::Nap, bells.clone()) }
    }

    /// Finds this much work in each of its cycles, and then stops.
    struct Script<'a> {
        work: std::vec::IntoIter<usize>,
        bells: &'a Doorbells,
        /// Whether somebody was asleep at each of its cycles.
        asleep: Vec<bool>,
        stop: &'a AtomicBool,
    }

    impl Agent for Script<'_> {
        fn poll(&mut self, _: Nanos) -> usize {
            self.asleep.push(self.bells.has_sleepers());
            // Ends the sleep that follows.
            self.bells.ring();
            self.work.next().unwrap_or_else(|| {
                self.stop.store(true, Ordering::Relaxed);
                1
            })
        }

        fn next_due(&self) -> Nanos {
            Nanos::MAX
        }

        fn stop(&mut self, _: Nanos) {}
    }

    #[test]
    fn a_thread_looks_once_more_after_it_has_announced_its_sleep_and_work_takes_that_back() {
        let (bells, stop) = (Doorbells::new(), AtomicBool::new(false));
        let work = vec![0, 0, 0, 0, 1, 0, 1].into_iter();
        let mut script = Script { work, bells: &bells, asleep: Vec::new(), stop: &stop };
        run_while(&mut script, &waiting_for_bells(&bells), &Clock::start(), &stop, |_| true);
        assert_eq!(script.asleep, [false, false, true, true, true, false, false, false]);
    }

    /// Returns every message to the other, a number higher.
    struct Returns {
        from: Consumer<u64>,
        to: Producer<u64>,
        last: u64,
        stop: Arc<AtomicBool>,
    }

    impl Agent for Returns {
        fn poll(&mut self, _: Nanos) -> usize {
            let Some(number) = self.from.pop() else { return 0 };
            self.to.push(number + 1).unwrap();
            self.stop.fetch_or(number >= self.last, Ordering::Relaxed);
            1
        }

        fn next_due(&self) -> Nanos {
            Nanos::MAX
        }

        fn stop(&mut self, _: Nanos) {}
    }

    #[test]
    fn no_message_between_threads_that_sleep_is_slept_through() {
        let (bells, clock) = (Doorbells::new(), Clock::start());
        let ((mut to_first, first), (to_second, second)) = (ring(8), ring(8));
        to_first.push(0u64).unwrap();
        let began = clock.now();
        std::thread::scope(|scope| {
            for (from, to) in [(first, to_second), (second, to_first)] {
                let (bells, clock) = (&bells, &clock);
                scope.spawn(move || {
                    let stop = Arc::new(AtomicBool::new(false));
                    let mut agent = Returns { from, to, last: 4_000, stop: Arc::clone(&stop) };
                    run_while(&mut agent, &waiting_for_bells(bells), clock, &stop, |_| true);
                });
            }
        });
        assert!(clock.now() - began < FOR_EVER, "a message was seen only at the end of the longest sleep");
    }

    #[test]
    fn a_thread_sleeps_until_its_work_is_due_and_naps_where_that_is_blocked() {
        let waiting = Waiting::new(Idle::Nap, Doorbells::new());
        let time = |due, now| waiting.time_to_sleep(Nanos(due), Nanos(now));
        assert_eq!(time(1_300, 1_000), Duration::from_nanos(300));
        assert_eq!(time(u64::MAX, 1_000), Duration::from_nanos(LONGEST_SLEEP.0));
        assert_eq!((time(1_000, 1_000), time(5, 1_000)), (NAP, NAP));
    }
}
