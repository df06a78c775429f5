//! The scheduler's host: the links to all hosts with frontends and to all backends. It stands where
//! frontends and executors stand in one process, at the other ends of the rings of ModelThreads and
//! RankThreads, which do not know of it.

use super::delay_feed::{DelayFeed, NetworkView, SlowestHost};
use super::host::Host;
use super::measured_delays::way_here;
use super::remote_backend::{RemoteBackend, RemoteSink};
use super::remote_frontend::{FrontendRings, RemoteFrontend};
use super::row_table::{RowTable, TrackedRow};
use crate::runtime::backends::batches::Batch;
use crate::runtime::backends::executors::ExecutorRings;
use std::collections::VecDeque;
use std::sync::Arc;
use symphony_transport::Nanos;
use symphony_transport::link::{HostLink, LinkTerms, Parting};
use symphony_transport::message::{BatchHeader, GpuId, Response};
use symphony_transport::ring::Producer;
use symphony_transport::wire::{GpuPresence, HostRole, MeasuredDelays, Presence};

/// A host with frontends, as the scheduler is told of it.
pub(crate) struct FrontendPlace {
    pub(crate) terms: LinkTerms,
    /// The engine's number of its first frontend.
    pub(crate) first: u32,
    /// The rings of each of its frontends.
    pub(crate) rings: Vec<FrontendRings>,
}

/// A host with GPUs, as the scheduler is told of it.
pub(crate) struct BackendPlace {
    pub(crate) terms: LinkTerms,
    /// The engine's number of its first GPU.
    pub(crate) first_gpu: u32,
    pub(crate) gpus: usize,
    /// The rings that its executors would have.
    pub(crate) rings: ExecutorRings,
}

/// The ways to RankThreads.
pub(crate) struct PresenceRings {
    /// The RankThread of each GPU.
    pub(crate) rank_of: Arc<[u32]>,
    /// The ring to each RankThread.
    pub(crate) rings: Vec<Producer<GpuPresence>>,
}

/// A backend with the rings of its executors.
struct BackendLink {
    backend: RemoteBackend,
    rings: ExecutorRings,
}

/// What links bring about in each other, and in RankThreads.
struct Effects {
    rows: RowTable,
    presence: PresenceRings,
    /// The presences that a ring had no room for.
    presences: VecDeque<GpuPresence>,
    /// The rows to be queued again.
    again: VecDeque<TrackedRow>,
    /// The answers for frontends.
    answers: Vec<(u32, Response)>,
    /// The rows that were queued again.
    queued_again: u64,
}

impl Effects {
    fn set_present(&mut self, gpu: GpuId, is_up: bool) {
        let presence = if is_up { Presence::Up } else { Presence::Down } as u32;
        self.presences.push_back(GpuPresence { incarnation: 0, since: Nanos::ZERO, gpu, presence });
    }

    /// Sends what RankThreads are to be told of GPUs. Completions come after it.
    fn send_presences(&mut self) {
        while let Some(&next) = self.presences.front() {
            let rank = self.presence.rank_of[next.gpu.0 as usize] as usize;
            if self.presence.rings[rank].push(next).is_err() {
                return;
            }
            self.presences.pop_front();
        }
    }
}

/// The effects of one backend's messages.
struct BackendSink<'a> {
    effects: &'a mut Effects,
    rings: &'a mut ExecutorRings,
}

impl RemoteSink for BackendSink<'_> {
    fn presence(&mut self, gpu: GpuId, is_up: bool) {
        self.effects.set_present(gpu, is_up);
        self.effects.send_presences();
    }

    fn completed(&mut self, header: &BatchHeader, started: Nanos, finished: Nanos) {
        let batch = Batch { header: *header, ..Batch::default() };
        let answers = &mut self.rings.answers;
        if started < finished {
            answers.ran(&batch, started, finished);
        } else {
            answers.executing.cancelled(header, finished);
        }
        answers.complete(&batch, started, finished);
    }

    fn answer(&mut self, row: &TrackedRow, response: Response) {
        if let Some(row) = self.effects.rows.end(row.handle) {
            self.effects.answers.push((u32::from(row.request.frontend), row.answered(response)));
        }
    }

    fn ended(&mut self, row: &TrackedRow) {
        self.effects.rows.end(row.handle);
    }

    fn again(&mut self, row: &TrackedRow) {
        if self.effects.rows.get(row.handle).is_some() {
            self.effects.queued_again += 1;
            self.effects.again.push_back(*row);
        }
    }
}

/// The scheduler's host. See the module's description. Its links are those to frontends, and then
/// those to backends.
pub(crate) struct SchedulerHost {
    frontends: Vec<RemoteFrontend>,
    backends: Vec<BackendLink>,
    effects: Effects,
    feed: DelayFeed,
    received: Vec<Batch>,
}

impl SchedulerHost {
    /// Makes the host. RankThreads are told that no GPU is there.
    pub(crate) fn new(
        frontends: Vec<FrontendPlace>,
        backends: Vec<BackendPlace>,
        thread_of: &Arc<[u32]>,
        presence: PresenceRings,
        feed: DelayFeed,
        now: Nanos,
    ) -> SchedulerHost {
        let frontend = |FrontendPlace { terms, first, rings }| {
            RemoteFrontend::new(terms, first, rings, Arc::clone(thread_of), now)
        };
        let backend = |BackendPlace { terms, first_gpu, gpus, rings }| BackendLink {
            backend: RemoteBackend::new(terms, first_gpu, gpus, now),
            rings,
        };
        let mut effects = Effects {
            rows: RowTable::default(),
            presence,
            presences: VecDeque::new(),
            again: VecDeque::new(),
            answers: Vec::new(),
            queued_again: 0,
        };
        (0..effects.presence.rank_of.len()).for_each(|gpu| effects.set_present(GpuId(gpu as u32), false));
        effects.send_presences();
        SchedulerHost {
            frontends: frontends.into_iter().map(frontend).collect(),
            backends: backends.into_iter().map(backend).collect(),
            effects,
            feed,
            received: Vec::new(),
        }
    }

    /// Calls `act` with a backend and what its messages act on.
    fn with_backend<T>(
        &mut self,
        at: usize,
        act: impl FnOnce(&mut RemoteBackend, &mut BackendSink<'_>) -> T,
    ) -> T {
        let BackendLink { backend, rings } = &mut self.backends[at];
        act(backend, &mut BackendSink { effects: &mut self.effects, rings })
    }

    /// Sends the batches that ModelThreads have put together for a backend.
    fn dispatch(&mut self, at: usize, now: Nanos) -> usize {
        let mut received = std::mem::take(&mut self.received);
        self.backends[at].rings.inbox.receive(now, |batch| received.push(batch));
        let count = received.len();
        for batch in received.drain(..) {
            let entries = &batch.entries;
            let rows: Vec<_> = entries.iter().filter_map(|entry| self.effects.rows.get(entry.slot)).collect();
            for entry in entries {
                let frontend = u32::from(entry.slot.frontend());
                self.frontends.iter_mut().filter(|of| of.has(frontend)).for_each(|of| of.left(frontend));
            }
            let header = BatchHeader { size: rows.len() as u32, ..batch.header };
            self.with_backend(at, |backend, sink| backend.dispatch(now, header, rows, sink));
            self.backends[at].rings.inbox.recycle(batch);
        }
        self.received = received;
        count
    }

    /// Queues rows again, as far as the rings have room.
    fn queue_again(&mut self) -> usize {
        let Effects { again, rows, .. } = &mut self.effects;
        let mut queued = 0;
        while let Some(first) = again.front().copied() {
            let count = usize::from(first.request.rows_after) + 1;
            let request: Vec<TrackedRow> = again.iter().take(count).copied().collect();
            // Its frontend may have gone since.
            let is_there = rows.get(first.handle).is_some();
            let frontend = u32::from(first.request.frontend);
            let mut hosts = self.frontends.iter_mut();
            let host = hosts.find(|of| of.has(frontend)).filter(|_| is_there);
            if !host.is_none_or(|host| host.again(&request)) {
                break;
            }
            again.drain(..count);
            queued += count;
        }
        queued
    }

    fn pass_answers_on(&mut self) -> usize {
        let answers = std::mem::take(&mut self.effects.answers);
        for &(frontend, response) in &answers {
            let mut hosts = self.frontends.iter_mut();
            hosts.find(|of| of.has(frontend)).into_iter().for_each(|of| of.answer(response));
        }
        answers.len()
    }

    /// Has the policy allow for what the hosts that are there have measured.
    fn feed_delays(&mut self, now: Nanos) {
        let SchedulerHost { feed, backends, frontends, .. } = self;
        feed.turn(now, || {
            let [mut of_backends, mut of_frontends] = [SlowestHost::default(); 2];
            let present = backends.iter().map(|of| &of.backend).filter(|backend| backend.gpus_up() > 0);
            present.for_each(|backend| of_backends.add(backend.measured()));
            let present = frontends.iter().filter(|frontend| frontend.port().link().is_up());
            present.for_each(|frontend| of_frontends.add(frontend.measured()));
            let present = backends.iter().filter_map(|of| way_here(of.backend.port().link()));
            NetworkView { backends: of_backends, frontends: of_frontends, completions: present.max() }
        });
    }

    fn backend(&self, at: usize) -> Option<usize> {
        at.checked_sub(self.frontends.len())
    }
}

impl Host for SchedulerHost {
    fn links(&self) -> usize {
        self.frontends.len() + self.backends.len()
    }

    fn link(&self, at: usize) -> &HostLink {
        match self.backend(at) {
            Some(backend) => self.backends[backend].backend.port().link(),
            None => self.frontends[at].port().link(),
        }
    }

    fn peer(&self, at: usize) -> (HostRole, u32) {
        match self.backend(at) {
            Some(backend) => (HostRole::Backend, backend as u32),
            None => (HostRole::Frontend, at as u32),
        }
    }

    fn connect(&mut self, at: usize, now: Nanos) {
        match self.backend(at) {
            Some(backend) => self.with_backend(backend, |of, sink| of.connect(now, sink)),
            None => self.frontends[at].connect(now, &mut self.effects.rows),
        }
    }

    fn disconnect(&mut self, at: usize, now: Nanos) {
        match self.backend(at) {
            Some(backend) => self.with_backend(backend, |of, sink| of.disconnect(now, sink)),
            None => self.frontends[at].disconnect(now, &mut self.effects.rows),
        }
    }

    fn take_in(&mut self, at: usize, bytes: &[u8]) {
        match self.backend(at) {
            Some(backend) => self.backends[backend].backend.port_mut().take_in(bytes),
            None => self.frontends[at].port_mut().take_in(bytes),
        }
    }

    fn read(&mut self, at: usize, now: Nanos) -> Option<Parting> {
        match self.backend(at) {
            Some(backend) => self.with_backend(backend, |of, sink| of.read(now, sink)),
            None => self.frontends[at].read(now, &mut self.effects.rows),
        }
    }

    fn turn(&mut self, now: Nanos) -> usize {
        self.backends.iter_mut().for_each(|of| of.rings.answers.counting.cycle_begins(now));
        self.effects.send_presences();
        self.feed_delays(now);
        let mut work: usize = (0..self.backends.len()).map(|at| self.dispatch(at, now)).sum();
        work += self.queue_again() + self.pass_answers_on();
        let SchedulerHost { frontends, effects, .. } = self;
        work += frontends.iter_mut().map(|of| of.turn(now, &mut effects.rows)).sum::<usize>();
        self.backends.iter_mut().for_each(|of| of.rings.answers.counting.cycle_ends(now, work));
        work
    }

    fn take_out(&mut self, at: usize, now: Nanos) -> Vec<u8> {
        match self.backend(at) {
            Some(backend) => {
                let port = self.backends[backend].backend.port_mut();
                port.send_own(now);
                port.take_out()
            }
            None => self.frontends[at].take_out(now),
        }
    }

    fn refused(&self) -> u64 {
        let of_backends = self.backends.iter().map(|of| of.backend.refused());
        of_backends.chain(self.frontends.iter().map(RemoteFrontend::refused)).sum()
    }

    fn gpus_up(&self, at: usize) -> usize {
        self.backend(at).map_or(0, |backend| self.backends[backend].backend.gpus_up())
    }

    fn told_delays(&self, at: usize) -> Option<&MeasuredDelays> {
        Some(match self.backend(at) {
            Some(backend) => self.backends[backend].backend.measured(),
            None => self.frontends[at].measured(),
        })
    }

    fn repeated(&self) -> u64 {
        self.effects.queued_again
    }

    fn drain(&mut self) {
        self.frontends.iter_mut().for_each(RemoteFrontend::drain);
    }

    fn is_idle(&self) -> bool {
        self.effects.rows.requests() == 0
            && self.frontends.iter().all(RemoteFrontend::is_idle)
            && self.backends.iter().all(|of| of.backend.is_idle())
    }

    fn leave(&mut self, now: Nanos) {
        self.frontends.iter_mut().for_each(|of| drop(of.port_mut().leave(now)));
        for at in 0..self.backends.len() {
            self.with_backend(at, |of, _| drop(of.port_mut().leave(now)));
        }
    }
}
