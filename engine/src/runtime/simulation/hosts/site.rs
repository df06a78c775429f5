//! A host of the simulation: its clock, and its process, which is put together as the command of
//! its role does it.

use super::super::dice::Dice;
use super::clients::{HostClients, RequestCounts};
use super::computing::ComputingExecutor;
use super::plan::{HostClock, HostsPlan};
use crate::config::Role;
use crate::runtime::clock::Clock;
use crate::runtime::hosts::Host;
use crate::runtime::links::OpenMemory;
use crate::runtime::start::{Assembly, HostIdentity, HostPlan, assemble_host_in_virtual_time};
use crate::runtime::threads::agent::Member;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use symphony_transport::Nanos;

/// The lateness of its threads that a scheduler assumes.
const LATENESS: Nanos = Nanos::from_micros(300);

/// A process.
pub(super) struct Process {
    members: Vec<Member>,
    pub(super) host: Box<dyn Host>,
    /// The addresses that it connects to, by link.
    pub(super) dials: Vec<bool>,
    pub(super) clients: Vec<HostClients>,
    clock: Clock,
    time: Arc<quanta::Mock>,
    gpus_hang_until: Arc<AtomicU64>,
}

/// A host.
pub(super) struct Site {
    pub(super) identity: HostIdentity,
    clock: HostClock,
    pub(super) process: Option<Process>,
    pub(super) paused_until: Nanos,
    pub(super) dead_until: Nanos,
    pub(super) cut_until: Nanos,
    /// The time since which others can hear nothing of it.
    pub(super) unheard_since: Nanos,
    /// What became of the requests of its processes that are gone.
    pub(super) gone: RequestCounts,
}

impl Site {
    pub(super) fn new((identity, clock): (HostIdentity, HostClock)) -> Site {
        Site {
            identity,
            clock,
            process: None,
            paused_until: Nanos::ZERO,
            dead_until: Nanos::ZERO,
            cut_until: Nanos::ZERO,
            unheard_since: Nanos::MAX,
            gone: RequestCounts::default(),
        }
    }

    /// Returns whether others hear nothing of it at this time.
    pub(super) fn is_unheard(&self, now: Nanos) -> bool {
        now < self.paused_until.max(self.dead_until).max(self.cut_until)
    }

    /// Starts its process, if it has none. A process begins with the time as its incarnation:
    /// greater than all before.
    ///
    /// Errors: it does not start.
    pub(super) fn start(&mut self, plan: &HostsPlan, now: Nanos) -> Result<(), String> {
        if self.process.is_some() {
            return Ok(());
        }
        let (clock, time) = Clock::of_virtual_time();
        time.increment(self.clock.read(now).0);
        let host = HostPlan {
            whole: Arc::clone(&plan.config),
            identity: self.identity,
            incarnation: now.0.max(1),
            address: None,
        };
        let row_bytes = plan.row_bytes;
        let gpus_hang_until = Arc::new(AtomicU64::new(0));
        let hangs = Arc::clone(&gpus_hang_until);
        let devices = plan.devices.clone().map(|devices| -> OpenMemory {
            Box::new(move |_, _, slabs, links| Ok(devices.memories(slabs, links)))
        });
        let assembly = assemble_host_in_virtual_time(&host, (clock.clone(), LATENESS), devices, |emulated| {
            ComputingExecutor::new(emulated, row_bytes, hangs)
        });
        let Assembly { stages, mut frontends, links, .. } = assembly.map_err(|error| error.to_string())?;
        let links = links.ok_or("a host has links")?;
        // Nobody calls the frontend of the admin listener.
        frontends.truncate(frontends.len().saturating_sub(1));
        let clients = frontends.into_iter().map(|frontend| HostClients::new(frontend, plan.models));
        self.process = Some(Process {
            members: stages.into_iter().flatten().map(|(_, member)| member).collect(),
            dials: links.peers.iter().map(|peer| peer.dials).collect(),
            host: links.host,
            clients: clients.collect(),
            clock,
            time,
            gpus_hang_until,
        });
        Ok(())
    }

    /// Ends its process without a word.
    pub(super) fn kill(&mut self) {
        let Some(process) = self.process.take() else { return };
        process.clients.into_iter().for_each(|clients| self.gone.add(&clients.die()));
    }

    /// Has no batch of its GPUs end until this time, while all else of its process goes on.
    pub(super) fn hang_gpus(&mut self, until: Nanos) {
        if let Some(process) = &self.process {
            process.gpus_hang_until.fetch_max(self.clock.read(until).0, Ordering::Relaxed);
        }
    }

    /// Sets the clock of its process, and returns the time there.
    pub(super) fn local(&mut self, now: Nanos) -> Nanos {
        let local = self.clock.read(now);
        if let Some(process) = &self.process {
            process.time.increment(local.0.saturating_sub(process.clock.now().0));
        }
        local
    }

    /// Returns what became of its requests.
    pub(super) fn counts(&self) -> RequestCounts {
        let mut counts = self.gone;
        let clients = self.process.iter().flat_map(|process| &process.clients);
        clients.for_each(|clients| counts.add(&clients.counts));
        counts
    }

    pub(super) fn has_role(&self, role: Role) -> bool {
        self.identity.role == role
    }
}

impl Process {
    /// Runs a duty cycle of each of its threads.
    ///
    /// Errors: an answer is not as it must be.
    pub(super) fn cycle(&mut self, local: Nanos) -> Result<(), String> {
        self.members.iter_mut().for_each(|member| {
            member.duty_cycle(local);
        });
        self.clients.iter_mut().try_for_each(HostClients::take_answers)
    }

    /// Sends a request by one of its frontends.
    pub(super) fn ask(&mut self, dice: &mut Dice) {
        let at = dice.below(self.clients.len());
        self.clients[at].ask(dice);
    }
}
