//! One run of the simulation across hosts, from a seed to a verdict.
//!
//! ```text
//! 0       0.5             2.0   the last fault ends    + 2 s        + 0.5 s
//! | start | faults begin   | ... they last   | recover   | count good | end
//! ```

use super::super::dice::Dice;
use super::super::report::{BrokenInvariant, SeedReport, judge};
use super::clients::{HostClients, RequestCounts};
use super::devices::Devices;
use super::network::{Connection, ConnectionEvent, End, LONGEST_DELAY};
use super::plan::{GRACE, HEARTBEAT, HostsPlan};
use super::site::Site;
use crate::config::Role;
use crate::runtime::hosts::Host;
use std::collections::VecDeque;
use symphony_transport::Nanos;
use symphony_transport::rdma::RdmaCounters;
use symphony_transport::wire::HostRole;

/// The times between which faults begin.
const FAULTS: (Nanos, Nanos) = (Nanos::from_millis(500), Nanos::from_millis(2_000));

/// The time to recover: the longest pause between two connections, a handshake, and the requests
/// that were sent before.
const RECOVERY: Nanos = Nanos::from_millis(2_000);

/// The window in which good answers are counted after that.
const AFTER: Nanos = Nanos::from_millis(500);

/// The least share of good answers in that window.
const RECOVERED: f64 = 0.95;

/// The time in which everything ends once no more is sent: that after which a row whose answer is
/// lost ends, and more.
const PATIENCE: Nanos = Nanos::from_secs(4);

/// The time between two looks whether everything has ended.
const LOOK_EVERY: Nanos = Nanos::from_millis(50);

/// The mean time between two turns of a host.
const CYCLE: Nanos = Nanos::from_micros(100);

/// The requests that come for each GPU in a second.
const RATE_PER_GPU: f64 = 450.0;

/// What a run did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct HostsReport {
    /// What became of the requests.
    pub requests: RequestCounts,
    /// Rows that a scheduler has queued again, and requests that frontends have sent again, in the
    /// processes that lived to the end.
    pub repeated: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Processes that were killed, and started again: frontends, schedulers, backends.
    pub killed: [u64; 3],
    /// Processes that were stopped for a while, by the same roles.
    pub paused: [u64; 3],
    /// Networks that were cut without a word.
    pub cut: u64,
    /// Backends whose GPUs hung for a while.
    pub hung: u64,
    /// Reads past the links, in the processes that lived to the end: of slots that were the
    /// request's still, and of others.
    pub direct_reads: [u64; 2],
    /// The virtual time that it took, in milliseconds.
    pub virtual_ms: u64,
}

impl SeedReport for HostsReport {
    fn run(seed: u64) -> Result<HostsReport, BrokenInvariant> {
        run_hosts_episode(seed)
    }

    fn add(&mut self, other: &HostsReport) {
        self.requests.add(&other.requests);
        self.repeated += other.repeated;
        self.connections += other.connections;
        for role in 0..3 {
            self.killed[role] += other.killed[role];
            self.paused[role] += other.paused[role];
        }
        self.cut += other.cut;
        self.hung += other.hung;
        for which in 0..2 {
            self.direct_reads[which] += other.direct_reads[which];
        }
        self.virtual_ms += other.virtual_ms;
    }

    /// Each row is a request of the protocol between hosts.
    fn requests(&self) -> u64 {
        self.requests.rows
    }
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HostFault {
    /// A connection is closed, and both sides are told.
    Close,
    /// Nothing passes on one connection.
    CutWire,
    /// Nothing passes between a host and all others.
    CutHost,
    /// A process stands still.
    Pause,
    /// The GPUs of a backend end no batch, while its process goes on.
    HangGpus,
    /// A process dies; others are told if its system lives.
    Kill { is_told: bool },
}

struct ScheduledHostFault {
    begin: Nanos,
    end: Nanos,
    site: usize,
    wire: usize,
    fault: HostFault,
}

/// What connects two links.
struct HostWire {
    /// The site and the link at each end.
    ends: [(usize, usize); 2],
    connection: Connection,
    /// Whether each end has the connection.
    is_open: [bool; 2],
    /// The connection waits for its acceptor.
    is_offered: bool,
    cut_until: Nanos,
}

/// A run. See the module's description.
struct HostsEpisode {
    now: Nanos,
    dice: Dice,
    plan: HostsPlan,
    sites: Vec<Site>,
    wires: Vec<HostWire>,
    /// The wires of each site, with its end of each.
    wires_of: Vec<Vec<(usize, End)>>,
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
pub fn run_hosts_episode(seed: u64) -> Result<HostsReport, BrokenInvariant> {
    judge("--hosts ", seed, || {
        let mut episode = HostsEpisode::new(seed)?;
        let result = episode.run();
        result.map_err(|what| format!("{what}, at {:.3} ms", episode.now.as_millis_f64()))
    })
}

impl HostsEpisode {
    fn new(seed: u64) -> Result<HostsEpisode, String> {
        let mut dice = Dice::new(seed, 0);
        let plan = HostsPlan::draw(&mut dice, Devices::new(Dice::new(seed, 1)))?;
        let mut sites: Vec<Site> = plan.hosts.iter().copied().map(Site::new).collect();
        sites.iter_mut().try_for_each(|site| site.start(&plan, Nanos::ZERO))?;
        let wires = wires_between(&sites);
        let own = |site| {
            let ends = |(at, wire): (usize, &HostWire)| {
                let end = End::BOTH.into_iter().find(|end| wire.ends[*end as usize].0 == site)?;
                Some((at, end))
            };
            wires.iter().enumerate().filter_map(ends).collect()
        };
        let wires_of = (0..sites.len()).map(own).collect();
        let faults = draw_faults(&mut dice, sites.len(), wires.len());
        Ok(HostsEpisode {
            now: Nanos::ZERO,
            faults,
            next_request: Nanos::from_millis(100),
            gap_ns: 1e9 / (RATE_PER_GPU * plan.gpus as f64),
            is_sending: true,
            report: HostsReport::default(),
            dice,
            plan,
            sites,
            wires,
            wires_of,
        })
    }

    fn run(&mut self) -> Result<HostsReport, String> {
        let calm = self.faults.iter().map(|fault| fault.end).max().unwrap_or(FAULTS.1);
        self.run_until(calm)?;
        self.plan.devices.iter().for_each(Devices::calm);
        self.run_until(calm + RECOVERY)?;
        let before = self.counts();
        self.run_until(calm + RECOVERY + AFTER)?;
        let after = self.counts();
        // Who was cancelled by its client is neither good nor bad.
        let ended = |counts: &RequestCounts| counts.ended() - counts.withdrawn;
        let (good, ended) = (after.good - before.good, ended(&after) - ended(&before));
        if (good as f64) < RECOVERED * ended as f64 || ended == 0 {
            return Err(format!(
                "{good} of {ended} requests are good after the faults: {before:?} {after:?}"
            ));
        }
        self.is_sending = false;
        self.run_until(self.now + HostClients::longest_wait(GRACE))?;
        self.check_answered()?;
        self.run_until_idle(self.now + PATIENCE)?;
        let processes = self.sites.iter().flat_map(|site| &site.process);
        let hosts: Vec<&dyn Host> = processes.map(|process| &*process.host).collect();
        let repeated = hosts.iter().map(|host| host.repeated()).sum();
        let counters =
            hosts.iter().flat_map(|host| (0..host.links()).filter_map(|at| host.direct_counters(at)));
        let counters = counters.fold(RdmaCounters::default(), RdmaCounters::plus);
        let direct_reads = [counters.reads, counters.stale_reads];
        let virtual_ms = self.now.0 / 1_000_000;
        Ok(HostsReport { requests: self.counts(), repeated, direct_reads, virtual_ms, ..self.report })
    }

    /// Runs until nothing is left anywhere: mostly that is at once.
    ///
    /// Errors: something is left at this time.
    fn run_until_idle(&mut self, until: Nanos) -> Result<(), String> {
        while self.now < until && self.check_idle().is_err() {
            self.run_until(self.now + LOOK_EVERY)?;
        }
        self.check_idle()
    }

    fn counts(&self) -> RequestCounts {
        let mut counts = RequestCounts::default();
        self.sites.iter().for_each(|site| counts.add(&site.counts()));
        counts
    }

    /// Checks that every request of a frontend that lives has its answer.
    fn check_answered(&self) -> Result<(), String> {
        let counts = self.counts();
        if counts.ended() != counts.sent {
            return Err(format!("not every request has an answer: {counts:?}"));
        }
        Ok(())
    }

    /// Checks that nothing is left anywhere, and that no side was sent what it must refuse.
    fn check_idle(&self) -> Result<(), String> {
        for site in &self.sites {
            let (role, number) = (site.identity.role, site.identity.number);
            let Some(process) = &site.process else { return Err(format!("{role:?} {number} is dead")) };
            if !process.host.is_idle() {
                return Err(format!("{role:?} {number} has something left, though nothing is sent any more"));
            }
            for clients in &process.clients {
                let (open, slots) = clients.waiting();
                if open + slots > 0 {
                    return Err(format!("{role:?} {number}: {open} requests and {slots} slots are left"));
                }
            }
            if process.host.refused() > 0 {
                return Err(format!("{role:?} {number} has refused {} messages", process.host.refused()));
            }
        }
        Ok(())
    }

    fn run_until(&mut self, until: Nanos) -> Result<(), String> {
        let sites = self.sites.len();
        while self.now < until {
            self.now += Nanos(self.dice.below(2 * CYCLE.0 as usize / sites) as u64 + 1);
            while self.faults.front().is_some_and(|fault| fault.begin <= self.now) {
                self.inject();
            }
            while self.is_sending && self.next_request <= self.now {
                self.ask();
                self.next_request += self.dice.gap(self.gap_ns);
            }
            let site = self.dice.below(sites);
            self.site_turn(site)?;
        }
        Ok(())
    }

    /// Sends a request by one of the frontends that live and are not stopped.
    fn ask(&mut self) {
        let now = self.now;
        let lives = |site: &&mut Site| site.has_role(Role::Frontend) && now >= site.paused_until;
        let mut live: Vec<&mut Site> = self.sites.iter_mut().filter(lives).collect();
        if live.is_empty() {
            return;
        }
        let at = self.dice.below(live.len());
        live[at].local(now);
        if let Some(process) = &mut live[at].process {
            process.ask(&mut self.dice);
        }
    }

    fn inject(&mut self) {
        let Some(ScheduledHostFault { end, site: at, wire, fault, .. }) = self.faults.pop_front() else {
            return;
        };
        let HostsEpisode { now, dice, sites, wires, wires_of, report, .. } = self;
        let site = &mut sites[at];
        let is_of_host = matches!(fault, HostFault::CutHost | HostFault::Pause | HostFault::Kill { .. });
        if is_of_host && !site.is_unheard(*now) {
            site.unheard_since = *now;
        }
        match fault {
            HostFault::Close => {
                for from in End::BOTH {
                    wires[wire].connection.send(*now, from, ConnectionEvent::Closed, dice);
                }
            }
            HostFault::CutWire => {
                report.cut += 1;
                wires[wire].connection.is_cut = true;
                wires[wire].cut_until = wires[wire].cut_until.max(end);
            }
            HostFault::CutHost => {
                report.cut += 1;
                site.cut_until = site.cut_until.max(end);
                for (wire, _) in &wires_of[at] {
                    wires[*wire].connection.is_cut = true;
                    wires[*wire].cut_until = wires[*wire].cut_until.max(end);
                }
            }
            HostFault::Pause => {
                report.paused[site.identity.role as usize] += 1;
                site.paused_until = site.paused_until.max(end);
            }
            HostFault::HangGpus => {
                report.hung += u64::from(site.has_role(Role::Backend));
                site.hang_gpus(end);
            }
            HostFault::Kill { is_told } => {
                report.killed[site.identity.role as usize] += 1;
                site.kill();
                site.dead_until = site.dead_until.max(end);
                for (wire, own) in &wires_of[at] {
                    let HostWire { connection, is_open, is_offered, .. } = &mut wires[*wire];
                    if is_told {
                        connection.send(*now, *own, ConnectionEvent::Closed, dice);
                    }
                    connection.is_cut = true;
                    is_open[*own as usize] = false;
                    *is_offered = false;
                }
            }
        }
    }

    /// Runs a turn of a host: of its links, and of each of its threads.
    fn site_turn(&mut self, at: usize) -> Result<(), String> {
        let now = self.now;
        let site = &mut self.sites[at];
        if now < site.paused_until.max(site.dead_until) {
            return Ok(());
        }
        site.start(&self.plan, now)?;
        let local = site.local(now);
        for own in 0..self.wires_of[at].len() {
            let (wire, end) = self.wires_of[at][own];
            self.connect(wire, end, local);
            self.read(wire, end, local);
        }
        if let Some(process) = &mut self.sites[at].process {
            process.host.turn(local);
            process.cycle(local)?;
            process.host.turn(local);
        }
        for own in 0..self.wires_of[at].len() {
            let (wire, end) = self.wires_of[at][own];
            self.write(wire, end, local);
        }
        self.check_silence(at)
    }

    /// Makes a connection: the one that an end's link wants, or the one that is offered to it.
    fn connect(&mut self, at: usize, end: End, local: Nanos) {
        let HostsEpisode { wires, sites, report, now, .. } = self;
        let HostWire { ends, connection, is_open, is_offered, cut_until } = &mut wires[at];
        let (site, link) = ends[end as usize];
        let (peer, _) = ends[1 - end as usize];
        let peer_is_there = *now >= sites[peer].dead_until && *now >= *cut_until;
        let Some(process) = &mut sites[site].process else { return };
        if end == End::Acceptor {
            if std::mem::take(is_offered) {
                process.host.connect(link, local);
                is_open[end as usize] = true;
            }
            return;
        }
        if process.host.link(link).dial_at().is_none_or(|dial_at| dial_at > local) {
            return;
        }
        if !peer_is_there {
            return process.host.disconnect(link, local);
        }
        process.host.connect(link, local);
        *connection = Connection::default();
        (*is_open, *is_offered) = ([true, false], true);
        report.connections += 1;
    }

    /// Takes in what has come to an end of a wire. An end whose connection was replaced by one that
    /// did not come to it still has that one, on which nothing comes any more.
    fn read(&mut self, at: usize, end: End, local: Nanos) {
        let HostsEpisode { wires, sites, dice, now, .. } = self;
        let HostWire { ends, connection, is_open, .. } = &mut wires[at];
        let (site, link) = ends[end as usize];
        let Some(process) = &mut sites[site].process else { return };
        let is_there = is_open[end as usize];
        let mut is_closed = false;
        while is_there && let Some(delivery) = connection.receive(*now, end) {
            match delivery {
                ConnectionEvent::Bytes(bytes) => process.host.take_in(link, &bytes),
                ConnectionEvent::Closed => is_closed = true,
            }
        }
        if process.host.read(link, local).is_some() {
            let bytes = process.host.take_out(link, local);
            if is_there {
                connection.send(*now, end, ConnectionEvent::Bytes(bytes), dice);
                connection.send(*now, end, ConnectionEvent::Closed, dice);
            }
            is_open[end as usize] = false;
        } else if is_closed {
            is_open[end as usize] = false;
            process.host.disconnect(link, local);
        }
    }

    /// Puts the bytes of an end on their way.
    fn write(&mut self, at: usize, end: End, local: Nanos) {
        let HostsEpisode { wires, sites, dice, now, .. } = self;
        let HostWire { ends, connection, is_open, .. } = &mut wires[at];
        let (site, link) = ends[end as usize];
        let Some(process) = &mut sites[site].process else { return };
        let bytes = process.host.take_out(link, local);
        if is_open[end as usize] && !bytes.is_empty() {
            connection.send(*now, end, ConnectionEvent::Bytes(bytes), dice);
        }
    }

    /// Checks, at a turn of the scheduler, that a backend that can't be heard is taken out within
    /// two heartbeats in which the scheduler itself did not stand still.
    fn check_silence(&mut self, at: usize) -> Result<(), String> {
        if !self.sites[at].has_role(Role::Scheduler) {
            return Ok(());
        }
        let now = self.now;
        let listens_since = self.sites[at].paused_until;
        for site in 0..self.sites.len() {
            if !self.sites[site].is_unheard(now) {
                self.sites[site].unheard_since = Nanos::MAX;
                continue;
            }
            // What was under way is heard still; a turn may take some cycles.
            let bound = Nanos(2 * HEARTBEAT.0) + LONGEST_DELAY + Nanos::from_millis(3);
            let since = now - self.sites[site].unheard_since.max(listens_since);
            let Site { identity, .. } = self.sites[site];
            let Some(process) = &self.sites[at].process else { continue };
            if since <= bound || identity.role != Role::Backend {
                continue;
            }
            let link = (0..process.host.links())
                .find(|link| process.host.peer(*link) == (HostRole::Backend, identity.number as u32));
            let up = link.map_or(0, |link| process.host.gpus_up(link));
            if up > 0 {
                let number = identity.number;
                return Err(format!(
                    "backend {number} is unheard for {since:?}, and {up} of its GPUs are up"
                ));
            }
        }
        Ok(())
    }
}

/// Returns what connects the sites: a wire for each link that a process connects itself.
fn wires_between(sites: &[Site]) -> Vec<HostWire> {
    let mut wires = Vec::new();
    let role = |role| match role {
        Role::Frontend => HostRole::Frontend,
        Role::Scheduler => HostRole::Scheduler,
        Role::Backend => HostRole::Backend,
    };
    for (dialer, site) in sites.iter().enumerate() {
        let Some(process) = &site.process else { continue };
        for link in (0..process.host.links()).filter(|link| process.dials[*link]) {
            let peer = process.host.peer(link);
            let own = (role(site.identity.role), site.identity.number as u32);
            let is_peer = |other: &Site| (role(other.identity.role), other.identity.number as u32) == peer;
            let Some(acceptor) = sites.iter().position(is_peer) else { continue };
            let Some(other) = &sites[acceptor].process else { continue };
            let Some(back) = (0..other.host.links()).find(|link| other.host.peer(*link) == own) else {
                continue;
            };
            wires.push(HostWire {
                ends: [(dialer, link), (acceptor, back)],
                connection: Connection::default(),
                is_open: [false; 2],
                is_offered: false,
                cut_until: Nanos::ZERO,
            });
        }
    }
    wires
}

/// Draws what goes wrong, in the order of its beginnings.
fn draw_faults(dice: &mut Dice, sites: usize, wires: usize) -> VecDeque<ScheduledHostFault> {
    let count = dice.count(1, 12);
    let mut draw = || {
        let fault = match dice.below(8) {
            0 => HostFault::Close,
            1 => HostFault::CutWire,
            2 => HostFault::CutHost,
            3 | 4 => HostFault::Pause,
            5 => HostFault::Kill { is_told: true },
            6 => HostFault::HangGpus,
            _ => HostFault::Kill { is_told: false },
        };
        let begin = Nanos(dice.number(FAULTS.0.0 as f64, FAULTS.1.0 as f64) as u64);
        let end = begin + dice.time(Nanos::from_millis(1), Nanos::from_millis(400));
        ScheduledHostFault { begin, end, site: dice.below(sites), wire: dice.below(wires), fault }
    };
    let mut faults: Vec<_> = (0..count).map(|_| draw()).collect();
    faults.sort_by_key(|fault| fault.begin);
    faults.into()
}
