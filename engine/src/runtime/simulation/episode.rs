//! One run of the simulation: an engine, its clients and its faults, from a seed to a verdict.
//!
//! ```text
//! 0        0.3          0.8                  1.8        the last fault ends     + 2 s    + 0.5 s
//! | warm up | count good | faults begin       |  ... they last |  recover         | count good | end
//! ```

use super::client::{AnswerCounts, SimulatedClients, WindowCount};
use super::control::SimulatedControl;
use super::dice::Dice;
use super::executors::SimulatedExecutors;
use super::faults::{InjectedFault, ScheduledFault, draw_faults};
use super::scenario::Scenario;
use super::wiring::{RoleInputs, wire_up};
use crate::runtime::clock::Clock;
use crate::runtime::start::{Assembly, assemble_in_virtual_time};
use crate::runtime::threads::agent::Member;
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use symphony_transport::Nanos;

/// The window before the faults in which good answers are counted.
const BEFORE: Range<Nanos> = Nanos::from_millis(300)..Nanos::from_millis(800);

/// The time in which faults begin.
const FAULTS: Range<Nanos> = Nanos::from_millis(800)..Nanos::from_millis(1_800);

/// The time after the last fault in which the engine recovers.
const RECOVERY: Nanos = Nanos::from_millis(2_000);

/// The length of the window after that in which good answers are counted again.
const AFTER: Nanos = Nanos::from_millis(500);

/// The least share of the good answers before the faults that there must be after them.
const RECOVERED: f64 = 0.95;

/// The least share of good answers before the faults with which a run can show recovery: below it,
/// the load alone was too much for the scenario's policy or SLOs.
const SERVED: f64 = 0.95;

/// The time in which everything that is in the engine must end once no more is sent.
const PATIENCE: Nanos = Nanos::from_millis(60_000);

/// The mean time between two turns of the control thread.
const CONTROL_GAP_NS: f64 = 3e6;

/// The lateness that the scheduler allows for, in mean cycles.
const LATENESS: u64 = 3;

/// Something that must hold and does not.
#[derive(Clone, Debug)]
pub struct BrokenInvariant {
    /// The seed of the run.
    pub seed: u64,
    /// What was seen, and when.
    pub what: String,
}

impl fmt::Display for BrokenInvariant {
    /// Says what was seen, and the command that repeats it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let profile = if cfg!(debug_assertions) { "" } else { " --release" };
        let BrokenInvariant { seed, what } = self;
        write!(f, "seed {seed}: {what}; again: cargo run{profile} --bin chaos -- --seed {seed}")
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct EpisodeReport {
    /// The requests, by what became of them.
    pub answers: AnswerCounts,
    /// The number of faults.
    pub faults: u64,
    /// The virtual time that it took, in milliseconds.
    pub virtual_ms: u64,
}

/// Runs the simulation of this seed.
///
/// Errors: something that must hold does not.
pub fn run_episode(seed: u64) -> Result<EpisodeReport, BrokenInvariant> {
    let (clock, time) = Clock::of_virtual_time();
    let run = || Episode::new(seed, clock.clone(), time)?.run();
    let result = catch_unwind(AssertUnwindSafe(run));
    let result = result.unwrap_or_else(|panic| Err(format!("panicked: {}", message_of(&*panic))));
    result.map_err(|what| {
        let at = clock.now().as_millis_f64();
        BrokenInvariant { seed, what: format!("{what}, at {at:.3} ms") }
    })
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// A role or a frontend, in the order of which it takes its turns.
struct SimulatedRole {
    inputs: RoleInputs,
    runs: RunsAs,
    stalled_until: Nanos,
}

/// What runs in a turn.
enum RunsAs {
    /// A thread of the engine.
    Member(Member),
    /// A frontend with its clients.
    Clients(Box<SimulatedClients>),
}

/// A run. See the module's description.
struct Episode {
    scenario: Scenario,
    dice: Dice,
    clock: Clock,
    time: Arc<quanta::Mock>,
    roles: Vec<SimulatedRole>,
    executors: SimulatedExecutors,
    control: Option<SimulatedControl>,
    control_at: Nanos,
    faults: VecDeque<ScheduledFault>,
    injected: u64,
    /// The end of the last fault.
    calm: Nanos,
    /// True while clients send requests.
    sending: bool,
    /// True while the control thread loads models.
    loading: bool,
}

impl Episode {
    fn new(seed: u64, clock: Clock, time: Arc<quanta::Mock>) -> Result<Episode, String> {
        let mut dice = Dice::new(seed, 0);
        let scenario = Scenario::draw(&mut dice);
        let config = scenario.config().map_err(|diagnostics| diagnostics.to_string())?;
        let later = config.models.clone();
        let (mut inputs, mut slabs) = (Vec::new(), Vec::new());
        let lateness = Nanos(scenario.cycle.0 * LATENESS);
        let assembly =
            assemble_in_virtual_time(config, scenario.frontends, (clock.clone(), lateness), |rings| {
                inputs = wire_up(rings, scenario.message_ring);
                slabs.clone_from(&rings.slabs);
            });
        let Assembly { stages, frontends, model_slots, .. } = assembly.map_err(|error| error.to_string())?;
        let control = match model_slots {
            Some(slots) => {
                let control = SimulatedControl::start(slots, later, Dice::new(seed, 1));
                Some(control.map_err(|error| error.to_string())?)
            }
            None => None,
        };
        let faults = draw_faults(&mut dice, &scenario, inputs.len(), FAULTS);
        let calm = faults.iter().map(|fault| fault.during.end).max().unwrap_or(FAULTS.end);
        let windows = [BEFORE, calm + RECOVERY..calm + RECOVERY + AFTER];
        let members = stages.into_iter().flatten().map(|(_, member)| RunsAs::Member(member));
        let clients = frontends.into_iter().enumerate().map(|(at, frontend)| {
            let dice = Dice::new(seed, 2 + at as u64);
            let clients = SimulatedClients::new(frontend, at, &scenario, windows.clone(), dice);
            RunsAs::Clients(Box::new(clients))
        });
        let runs: Vec<RunsAs> = members.chain(clients).collect();
        let roles = inputs.into_iter().zip(runs);
        let roles = roles.map(|(inputs, runs)| SimulatedRole { inputs, runs, stalled_until: Nanos::ZERO });
        let executors =
            SimulatedExecutors::new(slabs, scenario.gpus, scenario.row_bytes, Dice::new(seed, 99));
        Ok(Episode {
            roles: roles.collect(),
            executors,
            control,
            control_at: Nanos::ZERO,
            faults: faults.into(),
            injected: 0,
            calm,
            sending: true,
            loading: true,
            scenario,
            dice,
            clock,
            time,
        })
    }

    fn run(mut self) -> Result<EpisodeReport, String> {
        self.run_until(self.calm + RECOVERY + AFTER)?;
        self.run_until(self.clock.now() + Nanos::from_millis(100))?;
        self.check_recovery()?;
        if !self.scenario.stopped {
            self.sending = false;
            self.run_while("requests had no answer", |episode| Ok(episode.waiting() > 0))?;
        }
        if self.control.is_some() {
            self.loading = false;
            self.each_clients(SimulatedClients::release_table);
            self.run_while("models were not unloaded", Episode::control_goes_on)?;
        }
        self.sending = false;
        self.stop()?;
        for clients in self.clients() {
            clients.check_end()?;
        }
        let outstanding = self.executors.outstanding();
        if !self.scenario.stopped && outstanding > 0 {
            return Err(format!("{outstanding} batches have not completed"));
        }
        let mut answers = AnswerCounts::default();
        self.clients().for_each(|clients| answers.add(&clients.answers));
        Ok(EpisodeReport { answers, faults: self.injected, virtual_ms: self.clock.now().0 / 1_000_000 })
    }

    fn clients(&self) -> impl Iterator<Item = &SimulatedClients> {
        self.roles.iter().filter_map(|role| match &role.runs {
            RunsAs::Clients(clients) => Some(&**clients),
            RunsAs::Member(_) => None,
        })
    }

    fn each_clients(&mut self, act: impl Fn(&mut SimulatedClients)) {
        for role in &mut self.roles {
            if let RunsAs::Clients(clients) = &mut role.runs {
                act(clients);
            }
        }
    }

    /// Returns the number of requests without an answer.
    fn waiting(&self) -> usize {
        self.clients().map(SimulatedClients::waiting).sum()
    }

    fn check_recovery(&self) -> Result<(), String> {
        let share = |window: usize| {
            let counts = self.clients().map(|clients| clients.counts[window]);
            let all = counts.fold(WindowCount::default(), |all, one| WindowCount {
                asked: all.asked + one.asked,
                good: all.good + one.good,
            });
            all.good as f64 / all.asked.max(1) as f64
        };
        let (before, after) = (share(0), share(1));
        if before < SERVED || after >= RECOVERED * before {
            return Ok(());
        }
        Err(format!(
            "{:.1} % of the requests were good before the faults, {:.1} % are 2 s after the last",
            before * 100.0,
            after * 100.0
        ))
    }

    fn control_goes_on(&mut self) -> Result<bool, String> {
        match &mut self.control {
            Some(control) if self.clock.now() >= self.control_at => {
                self.control_at = self.clock.now() + self.dice.gap(CONTROL_GAP_NS);
                let ended = control.end()?;
                self.control = self.control.take().filter(|_| !ended);
            }
            _ => {}
        }
        Ok(self.control.is_some())
    }

    /// Stops the members of the engine, stage by stage, as [`Engine`](crate::runtime::Engine) does,
    /// and delivers the last answers.
    fn stop(&mut self) -> Result<(), String> {
        let Scenario { model_threads, rank_threads, .. } = self.scenario;
        for role in &mut self.roles {
            role.inputs.carry(self.clock.now(), &mut self.executors);
        }
        for stage in [
            0..model_threads,
            model_threads..model_threads + rank_threads,
            model_threads + rank_threads..model_threads + rank_threads + 1,
        ] {
            for role in &self.roles[stage.clone()] {
                if let RunsAs::Member(member) = &role.runs {
                    member.stop_signal.asked.store(true, std::sync::atomic::Ordering::Relaxed);
                }
            }
            self.run_while("a thread did not stop", |episode| {
                Ok(episode.roles[stage.clone()].iter().any(|role| match &role.runs {
                    RunsAs::Member(member) => !member.has_ended(),
                    RunsAs::Clients(_) => false,
                }))
            })?;
        }
        self.run_while("requests had no answer though the engine has stopped", |episode| {
            Ok(episode.waiting() > 0)
        })
    }

    fn run_while(
        &mut self,
        what: &str,
        mut goes_on: impl FnMut(&mut Episode) -> Result<bool, String>,
    ) -> Result<(), String> {
        let until = self.clock.now() + PATIENCE;
        while goes_on(self)? {
            if self.clock.now() > until {
                return Err(format!("{what} for {} s", PATIENCE.0 / 1_000_000_000));
            }
            self.run_until(self.clock.now() + Nanos::from_millis(1))?;
        }
        Ok(())
    }

    fn run_until(&mut self, until: Nanos) -> Result<(), String> {
        let mut now = self.clock.now();
        while now < until {
            now = self.step(now)?;
        }
        Ok(())
    }

    /// Passes some time, and gives one role its turn. Returns the time.
    #[inline]
    fn step(&mut self, now: Nanos) -> Result<Nanos, String> {
        let mean = self.scenario.cycle.0 / self.roles.len() as u64;
        let passed = Nanos(self.dice.below(2 * mean as usize) as u64 + 1);
        self.time.increment(passed.0);
        let now = now + passed;
        if self.faults.front().is_some_and(|fault| fault.during.start <= now) {
            self.inject(now);
        }
        let at = self.dice.below(self.roles.len());
        let role = &mut self.roles[at];
        if role.stalled_until <= now {
            role.inputs.carry(now, &mut self.executors);
            match &mut role.runs {
                RunsAs::Member(member) => {
                    member.duty_cycle(now);
                }
                RunsAs::Clients(clients) => {
                    clients.take_answers()?;
                    if self.sending {
                        clients.send(now, &self.scenario)?;
                    }
                }
            }
            if let Some(what) = self.executors.take_broken() {
                return Err(what);
            }
        }
        if now >= self.control_at && self.loading {
            self.control_at = now + self.dice.gap(CONTROL_GAP_NS);
            if let Some(control) = &mut self.control {
                control.go_on()?;
            }
        }
        Ok(now)
    }

    #[cold]
    fn inject(&mut self, now: Nanos) {
        let Some(ScheduledFault { during, fault }) = self.faults.pop_front() else { return };
        self.injected += 1;
        let until = during.end;
        match fault {
            InjectedFault::Stall { role } => self.roles[role].stalled_until = until,
            InjectedFault::Pause => self.roles.iter_mut().for_each(|role| role.stalled_until = until),
            InjectedFault::Late { role, wire } => {
                let inputs = &mut self.roles[role].inputs;
                inputs.hold(wire % inputs.wires().max(1), until);
            }
            InjectedFault::Hang { gpu } => self.executors.hang(gpu, until),
            InjectedFault::Fail { share } => self.executors.fail(until, share),
            InjectedFault::Flood { factor } => self.each_clients(|clients| clients.flood(until, factor)),
        }
        debug_assert!(during.start <= now);
    }
}
