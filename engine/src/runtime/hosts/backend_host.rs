//! The backend's side of the link to the scheduler: batches go into the ring that the executor's
//! thread reads, answers and completions come out of its rings, as where it stands in one process
//! with the scheduler.

use super::host_port::HostPort;
use crate::runtime::threads::completions::NumberedCompletion;
use symphony_scheduler::limits;
use symphony_transport::Nanos;
use symphony_transport::link::{HostLink, LinkTerms};
use symphony_transport::message::{BatchEntry, BatchHeader, ENTRIES_PER_FRAME, Frame, GpuId, Response};
use symphony_transport::ring::{Consumer, Producer};
use symphony_transport::wire::{BackendCompletion, GpuPresence, GrantedBatch, Payload, Presence, RecordList};

/// The other ends of an executor's rings.
pub(crate) struct HostedRings {
    /// The batches to the executor.
    pub(crate) batches: Producer<Frame>,
    /// The answers to its rows.
    pub(crate) responses: Consumer<Response>,
    /// The completions of its batches.
    pub(crate) completions: Consumer<NumberedCompletion>,
}

/// A GPU of this host.
#[derive(Clone, Copy, Default)]
struct HostedGpu {
    /// The batches that the executor has, of whichever connection.
    under_way: usize,
    /// The scheduler of this connection may give it batches. Before that it has none of an earlier
    /// connection: so what comes from it is of this connection if this is true.
    is_announced: bool,
    /// The completions on this connection.
    completed: u64,
}

/// What waits for credits, in the order in which it is sent: a completion after the answers that
/// came before it.
#[derive(Default)]
struct AwaitingCredits {
    gpus: Vec<GpuPresence>,
    responses: Vec<Response>,
    completions: Vec<BackendCompletion>,
}

/// The link of a backend to its scheduler. See the module's description.
///
/// In each turn the driver calls [`BackendHost::connect`] or [`BackendHost::disconnect`] if its
/// socket says so, [`BackendHost::take_in`] with the bytes that came, [`BackendHost::poll`], and
/// [`BackendHost::take_out`].
pub(crate) struct BackendHost {
    port: HostPort,
    rings: HostedRings,
    first_gpu: u32,
    gpus: Vec<HostedGpu>,
    outbox: AwaitingCredits,
    /// The completions that were read in a turn before the answers.
    completed: Vec<NumberedCompletion>,
    refused: u64,
}

impl BackendHost {
    /// Makes the link of an executor whose first GPU has this number in the engine.
    pub(crate) fn new(
        terms: LinkTerms,
        rings: HostedRings,
        first_gpu: u32,
        gpus: usize,
        now: Nanos,
    ) -> BackendHost {
        let port = HostPort::new(terms, now);
        let (outbox, completed) = (AwaitingCredits::default(), Vec::new());
        let gpus = vec![HostedGpu::default(); gpus];
        BackendHost { port, rings, first_gpu, gpus, outbox, completed, refused: 0 }
    }

    /// Returns the number of batches that were ignored: of another incarnation, or for a GPU that
    /// was not announced or has as many as it may have.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Begins a connection, which ends the one before.
    pub(crate) fn connect(&mut self, now: Nanos) {
        self.forget();
        self.port.connect(now);
    }

    /// Ends the connection, which was closed.
    pub(crate) fn disconnect(&mut self, now: Nanos) {
        self.port.disconnect(now);
        self.forget();
    }

    /// Takes bytes of the connection.
    pub(crate) fn take_in(&mut self, bytes: &[u8]) {
        self.port.take_in(bytes);
    }

    /// Reads what has come, and finds out whether the scheduler is silent; then takes over what the
    /// executor has done. Returns true if the connection is over: the last bytes say why, and it is
    /// to be closed behind them.
    pub(crate) fn poll(&mut self, now: Nanos) -> bool {
        let BackendHost { port, rings, first_gpu, gpus, refused, .. } = self;
        let is_over = port.receive(now, |link, payload| {
            let Payload::Batch(granted, entries) = payload else {
                *refused += 1;
                return 1;
            };
            let gpu = granted.gpu.0.checked_sub(*first_gpu).and_then(|at| gpus.get_mut(at as usize));
            let taken = gpu.and_then(|gpu| gpu.take_batch((link, now), granted, entries, &mut rings.batches));
            *refused += u64::from(taken.is_none());
            entries.len()
        });
        if is_over.is_some() {
            self.forget();
        }
        self.collect();
        is_over.is_some()
    }

    /// Returns the bytes for the connection: answers, completions and GPUs as far as there are
    /// credits, and the link's own frames.
    pub(crate) fn take_out(&mut self, now: Nanos) -> Vec<u8> {
        self.announce(now);
        let BackendHost { port, outbox: AwaitingCredits { gpus, responses, completions }, .. } = self;
        port.send_records(now, gpus, |records| Payload::Gpus(records.into()));
        port.send_records(now, responses, |records| Payload::Responses(records.into()));
        if responses.is_empty() {
            port.send_records(now, completions, |records| Payload::Completions(records.into()));
        }
        port.send_own(now);
        port.take_out()
    }

    /// Drops what is of a connection that is over.
    fn forget(&mut self) {
        self.outbox = AwaitingCredits::default();
        for gpu in &mut self.gpus {
            (gpu.is_announced, gpu.completed) = (false, 0);
        }
    }

    /// Takes over what the executor has done. What is of an earlier connection is dropped: the
    /// scheduler has given the requests to others.
    fn collect(&mut self) {
        let BackendHost { port, rings, first_gpu, gpus, outbox, completed, .. } = self;
        // A batch's answers are in their ring before its completion is in the other: so the
        // completions are read first, and passed on last.
        completed.extend(std::iter::from_fn(|| rings.completions.pop()));
        let at = |gpu: GpuId| (gpu.0 - *first_gpu) as usize;
        let answers = std::iter::from_fn(|| rings.responses.pop());
        outbox.responses.extend(answers.filter(|response| gpus[at(response.gpu)].is_announced));
        for NumberedCompletion { completion, .. } in completed.drain(..) {
            let gpu = &mut gpus[at(completion.gpu)];
            gpu.under_way -= 1;
            if gpu.is_announced {
                gpu.completed += 1;
                let (incarnation, number) = (port.link().incarnation(), gpu.completed);
                outbox.completions.push(BackendCompletion { incarnation, number, completion });
            }
        }
    }

    /// Announces the GPUs that have nothing of an earlier connection, once instants of the
    /// scheduler can be mapped.
    fn announce(&mut self, now: Nanos) {
        let link = self.port.link();
        if !link.is_up() || link.clock().error(now).is_none() {
            return;
        }
        for (gpu, number) in self.gpus.iter_mut().zip(self.first_gpu..) {
            if !gpu.is_announced && gpu.under_way == 0 {
                gpu.is_announced = true;
                let (incarnation, presence) = (link.incarnation(), Presence::Up as u32);
                self.outbox.gpus.push(GpuPresence { incarnation, since: now, gpu: GpuId(number), presence });
            }
        }
    }
}

impl HostedGpu {
    /// Gives a batch to the executor. `None` if it may not be given.
    fn take_batch(
        &mut self,
        (link, now): (&HostLink, Nanos),
        granted: GrantedBatch,
        entries: RecordList<'_, BatchEntry>,
        ring: &mut Producer<Frame>,
    ) -> Option<()> {
        let may = granted.incarnation == link.incarnation()
            && self.is_announced
            && self.under_way < limits::MAX_OUTSTANDING_BATCHES
            && ring.has_room(BatchHeader::frames(entries.len()));
        let (exec_at, latest) =
            (link.clock().to_ours(granted.exec_at, now)?, link.clock().to_ours(granted.latest, now)?);
        if !may {
            return None;
        }
        // Neither too early nor too late by either clock.
        let exec_at = exec_at.latest;
        let latest = latest.earliest.max(exec_at);
        let header = GrantedBatch { exec_at, latest, ..granted }.header(entries.len() as u32);
        ring.write(header.into()).ok()?;
        let mut frame = [BatchEntry::default(); ENTRIES_PER_FRAME];
        for (at, entry) in entries.iter().enumerate() {
            frame[at % ENTRIES_PER_FRAME] = entry;
            if at + 1 == entries.len() || (at + 1) % ENTRIES_PER_FRAME == 0 {
                ring.write(std::mem::take(&mut frame).into()).ok()?;
            }
        }
        ring.publish();
        self.under_way += 1;
        Some(())
    }
}
