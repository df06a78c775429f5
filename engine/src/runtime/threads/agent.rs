//! An agent is a role: its name and one duty-cycle function. This file owns the loop around it,
//! which reads the clock once a duty cycle and decides what a cycle without work does. An agent has
//! a pinned thread of its own where there are cores enough; those that would share a core share a
//! thread instead, a [`CompositeAgent`], so that a message from one to the other costs a duty cycle
//! and not a switch between threads.

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

/// A role of a thread.
pub trait Agent {
    /// Runs one duty cycle: polls every input in a fixed order, does a bounded amount of work, and
    /// returns the amount.
    fn poll(&mut self, now: Nanos) -> usize;

    /// Ends everything that is still held, as the engine stops, so that every request gets an
    /// answer.
    fn stop(&mut self, now: Nanos);
}

/// The action of a duty cycle without work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// Polls again at once: the core is this thread's own.
    Spin,
    /// Polls again at once for a while, then sleeps 50 us at a time, and 200 us after a tenth of a
    /// second: other threads need the core.
    Nap,
}

/// The sleep between two duty cycles of a thread that shares its core, once it has found no work
/// for a while.
pub(crate) const NAP: Duration = Duration::from_micros(50);

/// The number of duty cycles without work before the first nap: a few microseconds, in which an
/// answer often comes.
const CYCLES_BEFORE_NAP: u32 = 200;

/// The sleep between two duty cycles after [`NAPS_BEFORE_LONG_ONES`] naps: still well within the
/// lateness that [`measure_lateness`] makes the scheduler allow for; an idle engine then takes a
/// tenth of its core instead of a third.
const LONG_NAP: Duration = Duration::from_micros(200);

/// The number of naps before long ones: about a tenth of a second.
const NAPS_BEFORE_LONG_ONES: u32 = 1_500;

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
        mut self,
        placement: Placement,
        clock: Clock,
        mut on_thread_start: Option<ThreadHook>,
        faults: FaultLatch,
    ) -> std::io::Result<JoinHandle<()>> {
        let name = self.0.iter().map(|member| member.role.as_str()).collect::<Vec<_>>().join("+");
        install_hook();
        std::thread::Builder::new().name(name.clone()).spawn(move || {
            placement.take(&name);
            let heartbeat = faults.watch(self.0.iter().map(|member| member.role.clone()).collect());
            let mut running = 0;
            while let Err(panic) = catch(|| {
                if let Some(on_thread_start) = on_thread_start.take() {
                    on_thread_start(&name);
                }
                self.live(placement.idle, &clock, &heartbeat, &mut running);
            }) {
                self.0[running].die(&faults, &panic);
            }
        })
    }

    /// Runs duty cycles until all members have ended. `running` is the member whose turn it is.
    fn live(&mut self, idle: Idle, clock: &Clock, heartbeat: &Heartbeat, running: &mut usize) {
        run_cycles(idle, clock, |now| {
            if self.0.iter().all(Member::has_ended) {
                return None;
            }
            heartbeat.beat();
            let mut work = 0;
            for (at, member) in self.0.iter_mut().enumerate() {
                *running = at;
                heartbeat.runs(at);
                work += member.duty_cycle(now);
            }
            Some(work)
        });
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

/// Runs an agent's duty cycles until `stop` is set or `goes_on` is false, then stops the agent.
pub(crate) fn run_while<A: Agent>(
    agent: &mut A,
    idle: Idle,
    clock: &Clock,
    stop: &AtomicBool,
    goes_on: impl Fn(&A) -> bool,
) {
    run_cycles(idle, clock, |now| (!stop.load(Ordering::Relaxed) && goes_on(agent)).then(|| agent.poll(now)));
    agent.stop(clock.now());
}

/// Runs an agent's duty cycles until `stop` is set, then stops the agent.
pub fn run(agent: &mut impl Agent, idle: Idle, clock: &Clock, stop: &AtomicBool) {
    run_while(agent, idle, clock, stop, |_| true);
}

/// Runs duty cycles at the current time until one returns `None`; the others return the amount of
/// work.
fn run_cycles(idle: Idle, clock: &Clock, mut cycle: impl FnMut(Nanos) -> Option<usize>) {
    let mut cycles_without_work = 0u32;
    while let Some(work) = cycle(clock.now()) {
        if work > 0 {
            cycles_without_work = 0;
            continue;
        }
        cycles_without_work += 1;
        match idle {
            Idle::Nap if cycles_without_work > CYCLES_BEFORE_NAP + NAPS_BEFORE_LONG_ONES => {
                cycles_without_work -= 1;
                std::thread::sleep(LONG_NAP);
            }
            Idle::Nap if cycles_without_work > CYCLES_BEFORE_NAP => std::thread::sleep(NAP),
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
