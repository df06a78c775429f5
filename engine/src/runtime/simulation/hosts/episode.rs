//! One run of the simulation across hosts, from a seed to a verdict.
//!
//! ```text
//! 0       0.5             2.0   the last fault ends    + 3 s        + 0.5 s
//! | start | faults begin   | ... they last   | recover   | count good | end
//! ```

use super::super::dice::Dice;
use super::network::{Connection, ConnectionEvent, End, LONGEST_DELAY};
use super::process::{BackendPlan, BackendProcess};
use super::scheduler::{RowCounts, SchedulerHost};
use super::{HEARTBEAT, HostClock, MAX_BATCH};
use std::collections::VecDeque;
use symphony_scheduler::limits;
use symphony_transport::Nanos;

/// The times between which faults begin.
const FAULTS: (Nanos, Nanos) = (Nanos::from_millis(500), Nanos::from_millis(2_000));

/// The time to recover: the longest pause between two connections, and a handshake.
const RECOVERY: Nanos = Nanos::from_millis(3_000);

/// The window in which good answers are counted after that.
const AFTER: Nanos = Nanos::from_millis(500);

/// The least share of good answers in that window.
const RECOVERED: f64 = 0.95;

/// The time in which everything ends once no more is sent.
const PATIENCE: Nanos = Nanos::from_secs(2);

/// The mean time between two turns of a host.
const CYCLE: Nanos = Nanos::from_micros(100);

/// The rows that come for each GPU in a second.
const RATE_PER_GPU: f64 = 500.0;

/// What a run did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostsReport {
    /// What became of the rows.
    pub rows: RowCounts,
    /// Connections that were made.
    pub connections: u64,
    /// Processes that were killed, and started again.
    pub killed: u64,
    /// Backends that were stopped for a while.
    pub paused: u64,
    /// Networks that were cut without a word.
    pub cut: u64,
}

/// What goes wrong with a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HostFault {
    /// The connection is closed, and both sides are told.
    Close,
    /// Nothing passes between the scheduler and the backend.
    Cut,
    /// The backend's process stands still.
    Pause,
    /// The backend's process dies; the scheduler is told if its system lives.
    Kill { is_told: bool },
    /// The scheduler's process stands still.
    PauseScheduler,
}

struct ScheduledHostFault {
    begin: Nanos,
    end: Nanos,
    backend: usize,
    fault: HostFault,
}

/// A backend's host, and the scheduler's connection to it.
struct BackendSite {
    plan: BackendPlan,
    process: Option<BackendProcess>,
    connection: Connection,
    /// The number of the connection, and of the one that the process has.
    number: u64,
    accepted: u64,
    /// Whether the scheduler has the connection.
    is_open: bool,
    /// Whether the process has it.
    is_served: bool,
    paused_until: Nanos,
    dead_until: Nanos,
    cut_until: Nanos,
    /// The time since which the scheduler can hear nothing of it.
    unheard_since: Nanos,
}

impl BackendSite {
    fn new(plan: BackendPlan) -> BackendSite {
        BackendSite {
            process: Some(BackendProcess::start(&plan, 1, Nanos::ZERO)),
            plan,
            connection: Connection::default(),
            number: 0,
            accepted: 0,
            is_open: false,
            is_served: false,
            paused_until: Nanos::ZERO,
            dead_until: Nanos::ZERO,
            cut_until: Nanos::ZERO,
            unheard_since: Nanos::MAX,
        }
    }

    /// Returns whether the scheduler hears nothing of it at this time.
    fn is_unheard(&self, now: Nanos) -> bool {
        now < self.paused_until.max(self.dead_until).max(self.cut_until)
    }
}

/// A run. See the module's description.
struct HostsEpisode {
    now: Nanos,
    dice: Dice,
    scheduler: SchedulerHost,
    scheduler_paused_until: Nanos,
    sites: Vec<BackendSite>,
    faults: VecDeque<ScheduledHostFault>,
    next_request: Nanos,
    gap_ns: f64,
    is_sending: bool,
    report: HostsReport,
}

/// Runs the simulation of this seed.
///
/// # Errors
///
/// Something that must hold does not: the seed, what, and when.
pub fn run_hosts_episode(seed: u64) -> Result<HostsReport, String> {
    let mut episode = HostsEpisode::new(seed)?;
    let result = episode.run();
    result.map_err(|what| format!("seed {seed}: {what}, at {:.3} ms", episode.now.as_millis_f64()))
}

impl HostsEpisode {
    fn new(seed: u64) -> Result<HostsEpisode, String> {
        let mut dice = Dice::new(seed, 0);
        let (backends, models) = (dice.count(2, 4), dice.count(1, 4));
        let gpus: Vec<u32> = (0..backends).map(|_| dice.count(1, 3) as u32).collect();
        let all_gpus = gpus.iter().sum::<u32>();
        let mut plans = Vec::new();
        for (number, gpus) in (0..).zip(gpus.iter().copied()) {
            // In every other run there are too few credits for all that the GPUs may have.
            let most = 2 * MAX_BATCH * gpus * limits::MAX_OUTSTANDING_BATCHES as u32;
            let credits = if dice.chance(0.5) { most } else { 2 * MAX_BATCH };
            let first_gpu = plans.last().map_or(0, |plan: &BackendPlan| plan.first_gpu + plan.gpus);
            let (all_gpus, clock) = (all_gpus as usize, draw_clock(&mut dice));
            plans.push(BackendPlan { number, first_gpu, gpus, all_gpus, models, credits, clock });
        }
        let clock = draw_clock(&mut dice);
        let faults = draw_faults(&mut dice, backends);
        Ok(HostsEpisode {
            now: Nanos::ZERO,
            scheduler: SchedulerHost::new(&plans, clock, &mut dice)?,
            scheduler_paused_until: Nanos::ZERO,
            sites: plans.into_iter().map(BackendSite::new).collect(),
            faults,
            next_request: Nanos::from_millis(100),
            gap_ns: 1e9 / (RATE_PER_GPU * f64::from(all_gpus)),
            is_sending: true,
            report: HostsReport::default(),
            dice,
        })
    }

    fn run(&mut self) -> Result<HostsReport, String> {
        let calm = self.faults.iter().map(|fault| fault.end).max().unwrap_or(FAULTS.1);
        self.run_until(calm + RECOVERY)?;
        let before = self.scheduler.counts();
        self.run_until(calm + RECOVERY + AFTER)?;
        let after = self.scheduler.counts();
        let (good, ended) = (after.good - before.good, after.ended() - before.ended());
        if (good as f64) < RECOVERED * ended as f64 || ended == 0 {
            return Err(format!("{good} of {ended} rows are good after the faults"));
        }
        self.is_sending = false;
        self.run_until(self.now + PATIENCE)?;
        let rows = self.scheduler.counts();
        if rows.ended() != rows.sent || self.scheduler.busy_gpus() > 0 {
            let busy = self.scheduler.busy_gpus();
            return Err(format!("{rows:?}, and {busy} GPUs are busy, though nothing is sent any more"));
        }
        self.check_refused()?;
        Ok(HostsReport { rows, ..self.report })
    }

    /// Checks that no side was sent what it must refuse.
    fn check_refused(&self) -> Result<(), String> {
        let backends = self.sites.iter().flat_map(|site| &site.process).map(|process| process.host.refused());
        let refused =
            backends.chain(self.scheduler.remotes.iter().map(|remote| remote.refused())).sum::<u64>();
        if refused == 0 { Ok(()) } else { Err(format!("{refused} messages were refused")) }
    }

    fn run_until(&mut self, until: Nanos) -> Result<(), String> {
        let roles = self.sites.len() + 1;
        while self.now < until {
            self.now += Nanos(self.dice.below(2 * CYCLE.0 as usize / roles) as u64 + 1);
            while self.faults.front().is_some_and(|fault| fault.begin <= self.now) {
                self.inject();
            }
            match self.dice.below(roles) {
                0 if self.now >= self.scheduler_paused_until => self.scheduler_turn()?,
                0 => {}
                role => self.backend_turn(role - 1),
            }
        }
        Ok(())
    }

    fn inject(&mut self) {
        let Some(ScheduledHostFault { end, backend, fault, .. }) = self.faults.pop_front() else { return };
        let HostsEpisode { now, dice, sites, report, .. } = self;
        let site = &mut sites[backend];
        if !site.is_unheard(*now)
            && matches!(fault, HostFault::Cut | HostFault::Pause | HostFault::Kill { .. })
        {
            site.unheard_since = *now;
        }
        match fault {
            HostFault::Close => {
                site.connection.send(*now, End::Scheduler, ConnectionEvent::Closed, dice);
                site.connection.send(*now, End::Backend, ConnectionEvent::Closed, dice);
            }
            HostFault::Cut => {
                report.cut += 1;
                site.connection.is_cut = true;
                site.cut_until = site.cut_until.max(end);
            }
            HostFault::Pause => {
                report.paused += 1;
                site.paused_until = site.paused_until.max(end);
            }
            HostFault::Kill { is_told } => {
                report.killed += 1;
                site.process = None;
                site.is_served = false;
                site.dead_until = site.dead_until.max(end);
                if is_told {
                    site.connection.send(*now, End::Backend, ConnectionEvent::Closed, dice);
                }
                site.connection.is_cut = true;
            }
            HostFault::PauseScheduler => self.scheduler_paused_until = self.scheduler_paused_until.max(end),
        }
    }

    fn scheduler_turn(&mut self) -> Result<(), String> {
        for at in 0..self.sites.len() {
            self.dial(at);
            self.read(at);
            self.check_silence(at)?;
        }
        while self.is_sending && self.next_request <= self.now {
            self.scheduler.ask(self.now, &mut self.dice);
            self.next_request += self.dice.gap(self.gap_ns);
        }
        self.scheduler.turn(self.now)?;
        let now = self.scheduler.clock.read(self.now);
        for (site, remote) in self.sites.iter_mut().zip(&mut self.scheduler.remotes) {
            let bytes = remote.take_out(now);
            if site.is_open && !bytes.is_empty() {
                site.connection.send(self.now, End::Scheduler, ConnectionEvent::Bytes(bytes), &mut self.dice);
            }
        }
        Ok(())
    }

    /// Connects to a backend, when its link wants to.
    fn dial(&mut self, at: usize) {
        let (site, remote) = (&mut self.sites[at], &mut self.scheduler.remotes[at]);
        let now = self.scheduler.clock.read(self.now);
        if remote.link().dial_at().is_none_or(|dial_at| dial_at > now) {
            return;
        }
        if self.now < site.cut_until.max(site.dead_until) {
            return self.scheduler.disconnect(self.now, at);
        }
        remote.connect(now);
        site.connection = Connection::default();
        site.number += 1;
        site.is_open = true;
        self.report.connections += 1;
    }

    /// Takes in what has come from a backend.
    fn read(&mut self, at: usize) {
        let site = &mut self.sites[at];
        let mut is_closed = false;
        while site.is_open
            && let Some(delivery) = site.connection.receive(self.now, End::Scheduler)
        {
            match delivery {
                ConnectionEvent::Bytes(bytes) => self.scheduler.remotes[at].take_in(&bytes),
                ConnectionEvent::Closed => is_closed = true,
            }
        }
        if !site.is_open {
            return;
        }
        if self.scheduler.poll(self.now, at) {
            let bytes = self.scheduler.remotes[at].take_out(self.scheduler.clock.read(self.now));
            site.connection.send(self.now, End::Scheduler, ConnectionEvent::Bytes(bytes), &mut self.dice);
            site.connection.send(self.now, End::Scheduler, ConnectionEvent::Closed, &mut self.dice);
            site.is_open = false;
        } else if is_closed {
            site.is_open = false;
            self.scheduler.disconnect(self.now, at);
        }
    }

    /// Checks that a backend that can't be heard is taken out within two heartbeats.
    fn check_silence(&mut self, at: usize) -> Result<(), String> {
        let site = &mut self.sites[at];
        if !site.is_unheard(self.now) {
            site.unheard_since = Nanos::MAX;
            return Ok(());
        }
        // What was under way is heard still; a turn may take some cycles.
        let bound = Nanos(2 * HEARTBEAT.0) + LONGEST_DELAY + Nanos::from_millis(3);
        let since = self.now - site.unheard_since;
        let up = self.scheduler.remotes[at].gpus_up();
        if since > bound && up > 0 {
            return Err(format!("backend {at} is unheard since {since:?}, and {up} of its GPUs are up"));
        }
        Ok(())
    }

    fn backend_turn(&mut self, at: usize) {
        let HostsEpisode { now, dice, sites, .. } = self;
        let (site, now) = (&mut sites[at], *now);
        if now < site.paused_until.max(site.dead_until) {
            return;
        }
        let local = site.plan.clock.read(now);
        // A process begins with the time as its incarnation: greater than all before.
        let process = site.process.get_or_insert_with(|| BackendProcess::start(&site.plan, now.0, now));
        if site.accepted != site.number {
            (site.accepted, site.is_served) = (site.number, true);
            process.host.connect(local);
        }
        let mut is_closed = false;
        while site.is_served
            && let Some(delivery) = site.connection.receive(now, End::Backend)
        {
            match delivery {
                ConnectionEvent::Bytes(bytes) => process.host.take_in(&bytes),
                ConnectionEvent::Closed => is_closed = true,
            }
        }
        let was_served = site.is_served;
        if process.turn(local) {
            site.is_served = false;
        } else if is_closed {
            site.is_served = false;
            process.host.disconnect(local);
        }
        let bytes = process.host.take_out(local);
        if was_served && !bytes.is_empty() {
            site.connection.send(now, End::Backend, ConnectionEvent::Bytes(bytes), dice);
        }
        if was_served && !site.is_served {
            site.connection.send(now, End::Backend, ConnectionEvent::Closed, dice);
        }
    }
}

/// Draws a clock whose rate is good to 100 ppm.
fn draw_clock(dice: &mut Dice) -> HostClock {
    let drift_ppb = dice.count(0, 200_000) as i128 - 100_000;
    HostClock { offset: 1 << dice.count(30, 60), drift_ppb }
}

/// Draws what goes wrong, in the order of its beginnings.
fn draw_faults(dice: &mut Dice, backends: usize) -> VecDeque<ScheduledHostFault> {
    let count = dice.count(1, 12);
    let mut draw = || {
        let fault = match dice.below(6) {
            0 => HostFault::Close,
            1 => HostFault::Cut,
            2 => HostFault::Pause,
            3 => HostFault::Kill { is_told: true },
            4 => HostFault::Kill { is_told: false },
            _ => HostFault::PauseScheduler,
        };
        let most = if fault == HostFault::PauseScheduler { 100 } else { 400 };
        let begin = Nanos(dice.number(FAULTS.0.0 as f64, FAULTS.1.0 as f64) as u64);
        let end = begin + dice.time(Nanos::from_millis(1), Nanos::from_millis(most));
        ScheduledHostFault { begin, end, backend: dice.below(backends), fault }
    };
    let mut faults: Vec<_> = (0..count).map(|_| draw()).collect();
    faults.sort_by_key(|fault| fault.begin);
    faults.into()
}
