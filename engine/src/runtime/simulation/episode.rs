//! One run of the simulation: an engine, its clients and its faults, from a seed to a verdict.
//!
//! ```text
//! 0        0.8               1.8             the last fault ends   + 2 s        + 0.5 s
//! | warm up | faults begin    |  ... they last | recover            | count good | end
//! ```

use super::client::{AnswerCounts, SimulatedClients};
use super::control::SimulatedControl;
use super::dice::Dice;
use super::executors::SimulatedExecutors;
use super::faults::{InjectedFault, ScheduledFault, draw_faults};
use super::passage::{MessageFaults, MessageKind};
use super::report::{BrokenInvariant, EpisodeReport, FaultCounts, SeedReport, judge};
use super::scenario::{Scenario, ScenarioEnd};
use super::wiring::{RoleInputs, wire_up};
use crate::runtime::clock::Clock;
use crate::runtime::fault::FaultLatch;
use crate::runtime::frontend::ModelInfo;
use crate::runtime::start::{Assembly, assemble_in_virtual_time};
use crate::runtime::threads::agent::Member;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use symphony_transport::Nanos;

/// The time in which faults begin.
const FAULTS: Range<Nanos> = Nanos::from_millis(800)..Nanos::from_millis(1_800);

/// The time after the last fault in which the engine recovers.
const RECOVERY: Nanos = Nanos::from_millis(2_000);

/// The length of the window after that in which good answers are counted.
const AFTER: Nanos = Nanos::from_millis(500);

/// The length of that window where the other one is too short to tell: a load that is too much even
/// without faults differs by more than recovery allows for from one half second to the next.
const LONG_AFTER: Nanos = Nanos::from_millis(4_000);

/// The least share, of the good answers that there would be without faults, that there must be
/// after them.
const RECOVERED: f64 = 0.95;

/// The time in which everything that is in the engine must end once no more is sent.
const PATIENCE: Nanos = Nanos::from_millis(60_000);

/// The mean time between two turns of the control thread.
const CONTROL_GAP_NS: f64 = 3e6;

/// The lateness that the scheduler allows for, in mean cycles.
const LATENESS: u64 = 3;

/// The stream of the dice by which models are run as one, so that all else is drawn as without.
const OF_GROUPS: u64 = 97;

/// Runs the simulation of this seed. Where fewer than 95 % of the requests are good after the
/// faults, it is run again without them, to tell what the load would have allowed for.
///
/// Errors: something that must hold does not.
pub fn run_episode(seed: u64) -> Result<EpisodeReport, BrokenInvariant> {
    let (clock, time) = Clock::of_virtual_time();
    let run = || {
        let mut episode = Episode::new(seed, true, AFTER, (clock.clone(), time))?;
        let after = episode.run_to_recovery()?;
        if after < RECOVERED && after < RECOVERED * good_share(seed, false, AFTER)? {
            let share = |with_faults| good_share(seed, with_faults, LONG_AFTER);
            check_recovery(share(true)?, share(false)?)?;
        }
        episode.run_to_end()
    };
    judge("", seed, run).map_err(|broken| {
        let at = clock.now().as_millis_f64();
        BrokenInvariant { what: format!("{}, at {at:.3} ms", broken.what), ..broken }
    })
}

impl SeedReport for EpisodeReport {
    fn run(seed: u64) -> Result<EpisodeReport, BrokenInvariant> {
        run_episode(seed)
    }

    fn add(&mut self, other: &EpisodeReport) {
        self.answers.add(&other.answers);
        self.faults.add(&other.faults);
        self.mixed_batches += other.mixed_batches;
        self.virtual_ms += other.virtual_ms;
    }

    fn requests(&self) -> u64 {
        self.answers.accepted
    }
}

/// Returns the share of good requests in a window of this length, with or without faults.
fn good_share(seed: u64, with_faults: bool, window: Nanos) -> Result<f64, String> {
    Episode::new(seed, with_faults, window, Clock::of_virtual_time())?.run_to_recovery()
}

/// Checks the shares of good requests after the faults, and at the same time without any.
///
/// Errors: they differ by more than recovery allows for.
fn check_recovery(after: f64, without: f64) -> Result<(), String> {
    if after >= RECOVERED * without {
        return Ok(());
    }
    Err(format!(
        "{:.1} % of the requests are good 2 s after the last fault, {:.1} % are without faults",
        after * 100.0,
        without * 100.0
    ))
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
    /// Nothing: it was a frontend, and has died.
    Nothing,
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
    injected: FaultCounts,
    /// The latch of the engine's faults.
    latch: FaultLatch,
    /// The end of the window in which good answers are counted.
    counted: Nanos,
    /// The answers of frontends that are gone.
    gone: AnswerCounts,
    /// True while clients send requests.
    sending: bool,
    /// True while the control thread loads models.
    loading: bool,
}

impl Episode {
    /// Makes the engine of this seed, and its faults if it is to have some. Good answers are
    /// counted in a window of the length `after`.
    fn new(
        seed: u64,
        with_faults: bool,
        after: Nanos,
        (clock, time): (Clock, Arc<quanta::Mock>),
    ) -> Result<Episode, String> {
        let mut dice = Dice::new(seed, 0);
        let scenario = Scenario::draw(&mut dice, &mut Dice::new(seed, OF_GROUPS));
        let config = scenario.config().map_err(|diagnostics| diagnostics.to_string())?;
        let later = config.models[scenario.grouped..].to_vec();
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
        let mut faults = draw_faults(&mut dice, &scenario, inputs.len(), FAULTS);
        let calm = faults.iter().map(|fault| fault.during.end).max().unwrap_or(FAULTS.end);
        let window = calm + RECOVERY..calm + RECOVERY + after;
        faults.retain(|_| with_faults);
        let latch = frontends.first().map(|frontend| frontend.faults().clone());
        let latch = latch.ok_or("the engine has no frontend")?;
        let models = frontends.first().map(|frontend| Arc::clone(frontend.models()));
        let models: Arc<[ModelInfo]> =
            models.iter().flat_map(|models| &models[..scenario.models()]).cloned().collect();
        let members = stages.into_iter().flatten().map(|(_, member)| RunsAs::Member(member));
        let clients = frontends.into_iter().enumerate().map(|(at, frontend)| {
            let dice = Dice::new(seed, 2 + at as u64);
            let clients = SimulatedClients::new(frontend, at, &scenario, window.clone(), dice);
            RunsAs::Clients(Box::new(clients))
        });
        let runs: Vec<RunsAs> = members.chain(clients).collect();
        let roles = inputs.into_iter().zip(runs);
        let roles = roles.map(|(inputs, runs)| SimulatedRole { inputs, runs, stalled_until: Nanos::ZERO });
        let messages = MessageFaults::new(slabs.len(), scenario.in_flight, Dice::new(seed, 98));
        let (gpus, row_bytes) = (scenario.gpus, scenario.row_bytes);
        let executors =
            SimulatedExecutors::new(slabs, gpus, (models, row_bytes), Dice::new(seed, 99), messages);
        Ok(Episode {
            roles: roles.collect(),
            executors,
            control,
            control_at: Nanos::ZERO,
            faults: faults.into(),
            injected: FaultCounts::default(),
            latch,
            counted: window.end,
            gone: AnswerCounts::default(),
            sending: true,
            loading: true,
            scenario,
            dice,
            clock,
            time,
        })
    }

    /// Runs until the engine has had the time to recover from the faults. Returns the share of the
    /// requests after that which are good.
    fn run_to_recovery(&mut self) -> Result<f64, String> {
        self.run_until(self.counted)?;
        self.run_until(self.clock.now() + Nanos::from_millis(100))?;
        let counts = self.clients().map(|clients| clients.count);
        let (asked, good) = counts.fold((0, 0), |all, one| (all.0 + one.asked, all.1 + one.good));
        Ok(good as f64 / (asked as f64).max(1.0))
    }

    /// Ends the engine as the scenario says, and checks that nothing is left.
    fn run_to_end(mut self) -> Result<EpisodeReport, String> {
        if self.scenario.end == ScenarioEnd::Dead {
            self.die()?;
            return Ok(self.report());
        }
        if self.scenario.end == ScenarioEnd::Drained {
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
        self.run_while("requests had no answer though the engine has stopped", |episode| {
            Ok(episode.waiting() > 0)
        })?;
        for (at, (inputs, clients)) in self.frontends().enumerate() {
            clients.check_end(self.executors.messages.lost_rows(at), inputs.doubled_answers())?;
        }
        let outstanding = self.executors.outstanding();
        if self.scenario.end == ScenarioEnd::Drained && outstanding > 0 {
            return Err(format!("{outstanding} batches have not completed"));
        }
        Ok(self.report())
    }

    /// Kills a role or an API core, and checks that all else ends.
    fn die(&mut self) -> Result<(), String> {
        self.loading = false;
        let at = self.dice.below(self.roles.len());
        let answered = match &mut self.roles[at].runs {
            RunsAs::Member(member) => {
                member.die(&self.latch, "panicked");
                AnswerCounts::default()
            }
            RunsAs::Clients(clients) => clients.die("api-core"),
            RunsAs::Nothing => AnswerCounts::default(),
        };
        if let RunsAs::Clients(_) = &self.roles[at].runs {
            self.roles[at].runs = RunsAs::Nothing;
            self.gone.add(&answered);
        }
        self.injected.dead_roles += 1;
        let ends = self.scenario.largest_slo() + self.scenario.grace + Nanos::from_millis(50);
        self.run_until(self.clock.now() + ends)?;
        self.sending = false;
        self.stop()?;
        self.run_until(self.clock.now() + ends)?;
        if self.latch.get().is_none() {
            return Err("a role has died, and no fault is reported".to_owned());
        }
        self.clients().try_for_each(SimulatedClients::check_dead_end)
    }

    fn report(&self) -> EpisodeReport {
        let mut answers = self.gone;
        self.clients().for_each(|clients| answers.add(&clients.answers));
        let mut faults = self.injected;
        let messages = &self.executors.messages;
        (faults.lost_answers, faults.doubled_answers) = messages.counts(MessageKind::Answers);
        (faults.lost_completions, faults.doubled_completions) = messages.counts(MessageKind::Completions);
        let mixed_batches = self.executors.mixed;
        EpisodeReport { answers, faults, mixed_batches, virtual_ms: self.clock.now().0 / 1_000_000 }
    }

    fn frontends(&self) -> impl Iterator<Item = (&RoleInputs, &SimulatedClients)> {
        self.roles.iter().filter_map(|role| match &role.runs {
            RunsAs::Clients(clients) => Some((&role.inputs, &**clients)),
            RunsAs::Member(_) | RunsAs::Nothing => None,
        })
    }

    fn clients(&self) -> impl Iterator<Item = &SimulatedClients> {
        self.frontends().map(|(_, clients)| clients)
    }

    fn each_clients(&mut self, act: impl Fn(&mut SimulatedClients)) {
        for role in &mut self.roles {
            if let RunsAs::Clients(clients) = &mut role.runs {
                act(clients);
            }
        }
    }

    /// Returns the number of requests without an answer, and of slots in use for no reason.
    fn waiting(&self) -> usize {
        let lost = |at| self.executors.messages.lost_rows(at);
        self.clients().enumerate().map(|(at, clients)| clients.waiting(lost(at))).sum()
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
                    RunsAs::Clients(_) | RunsAs::Nothing => false,
                }))
            })?;
        }
        Ok(())
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
                    clients.take_answers(now)?;
                    if self.sending {
                        clients.send(now, &self.scenario)?;
                    }
                }
                RunsAs::Nothing => {}
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
        let until = during.end;
        let (counts, executors) = (&mut self.injected, &mut self.executors);
        match fault {
            InjectedFault::Stall { role } => {
                counts.stalls += 1;
                self.roles[role].stalled_until = until;
            }
            InjectedFault::Pause => {
                counts.pauses += 1;
                self.roles.iter_mut().for_each(|role| role.stalled_until = until);
            }
            InjectedFault::Late { role, wire } => {
                counts.late_rings += 1;
                let inputs = &mut self.roles[role].inputs;
                inputs.hold(wire % inputs.wires().max(1), until);
            }
            InjectedFault::Hang { gpu } => {
                counts.hung_gpus += 1;
                executors.hang(gpu, until);
            }
            InjectedFault::Die { gpu } => {
                counts.dead_executors += 1;
                executors.die(gpu, until);
            }
            InjectedFault::Fail { share } => {
                counts.failures += 1;
                executors.fail(until, share);
            }
            InjectedFault::Lose { kind, share } => executors.messages.lose(kind, until, share),
            InjectedFault::Double { kind, share } => executors.messages.double(kind, until, share),
            InjectedFault::Flood { factor } => {
                counts.floods += 1;
                self.each_clients(|clients| clients.flood(until, factor));
            }
        }
        debug_assert!(during.start <= now);
    }
}
