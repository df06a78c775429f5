//! The scheduler's side of a backend on another host: it stands where a local backend's rings
//! stand. It knows the requests of each batch that it has sent, so that none is lost with the host.

use super::host_port::HostPort;
use std::collections::VecDeque;
use symphony_scheduler::rank::RankInput;
use symphony_transport::Nanos;
use symphony_transport::link::{HostLink, LinkTerms};
use symphony_transport::message::{BatchEntry, BatchHeader, Completion, Ending, GpuId, Request, Response};
use symphony_transport::wire::{BackendCompletion, GpuPresence, GrantedBatch, Payload, Presence};

/// Where what follows from a backend's messages goes.
pub(crate) trait RemoteSink {
    /// Takes a completion or a presence, for the RankThread of the GPU.
    fn to_rank(&mut self, input: RankInput);
    /// Takes the answer to a row, for its frontend.
    fn answer(&mut self, request: &Request, response: Response);
    /// Takes a row of a request that has to be queued again; all rows of a request come, one after
    /// the other. The queue drops it if its deadline does not allow for another batch.
    fn again(&mut self, request: &Request);
}

/// A batch that the host has.
struct SentBatch {
    header: BatchHeader,
    requests: Vec<Request>,
    /// The number of rows that were answered, the first ones.
    answered: usize,
}

/// A GPU of the host.
#[derive(Default)]
struct RemoteGpu {
    is_up: bool,
    /// The number of its last completion on this connection.
    completed: u64,
    batches: VecDeque<SentBatch>,
}

/// A backend on another host. See the module's description.
///
/// In each turn the driver calls [`RemoteBackend::connect`] or [`RemoteBackend::disconnect`] if its
/// socket says so, [`RemoteBackend::take_in`] with the bytes that came, [`RemoteBackend::poll`];
/// then [`RemoteBackend::dispatch`] for each batch, and [`RemoteBackend::take_out`] at its end.
pub(crate) struct RemoteBackend {
    port: HostPort,
    /// The engine's number of its first GPU.
    first_gpu: u32,
    gpus: Vec<RemoteGpu>,
    /// The messages that were ignored: of another incarnation, or of what it was not given.
    refused: u64,
}

impl RemoteBackend {
    /// Makes the side of a backend that has never been connected: its GPUs are not there.
    pub(crate) fn new(terms: LinkTerms, first_gpu: u32, gpus: usize, now: Nanos) -> RemoteBackend {
        let gpus = (0..gpus).map(|_| RemoteGpu::default()).collect();
        RemoteBackend { port: HostPort::new(terms, now), first_gpu, gpus, refused: 0 }
    }

    /// Returns its link: when to connect, and whether it is up.
    pub(crate) fn link(&self) -> &HostLink {
        self.port.link()
    }

    /// Returns the number of its GPUs that can be granted.
    pub(crate) fn gpus_up(&self) -> usize {
        self.gpus.iter().filter(|gpu| gpu.is_up).count()
    }

    /// Returns the number of messages that were ignored: of another incarnation, or of a batch that
    /// the host does not have.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }

    /// Begins a connection.
    pub(crate) fn connect(&mut self, now: Nanos) {
        self.port.connect(now);
    }

    /// Ends the connection, which was closed or could not be made.
    pub(crate) fn disconnect(&mut self, now: Nanos, sink: &mut impl RemoteSink) {
        self.port.disconnect(now);
        self.lose(now, sink);
    }

    /// Takes bytes of the connection.
    pub(crate) fn take_in(&mut self, bytes: &[u8]) {
        self.port.take_in(bytes);
    }

    /// Returns the bytes for the connection, the link's own frames included.
    pub(crate) fn take_out(&mut self, now: Nanos) -> Vec<u8> {
        self.port.send_own(now);
        self.port.take_out()
    }

    /// Reads what has come, and finds out whether the host is silent. Returns true if the
    /// connection is over: the last bytes say why, and it is to be closed behind them.
    pub(crate) fn poll(&mut self, now: Nanos, sink: &mut impl RemoteSink) -> bool {
        let RemoteBackend { port, first_gpu, gpus, refused } = self;
        let mut messages = BackendMessages { now, first_gpu: *first_gpu, gpus, refused, sink };
        let is_over = port.receive(now, |link, payload| messages.take(link, payload)).is_some();
        if is_over {
            self.lose(now, sink);
        }
        is_over
    }

    /// Sends a batch of these requests, the first slice's before the second's. Where the host is
    /// gone, or has granted too few credits, the GPU is given back at once.
    pub(crate) fn dispatch(
        &mut self,
        now: Nanos,
        header: BatchHeader,
        requests: (&[Request], &[Request]),
        sink: &mut impl RemoteSink,
    ) {
        let requests = [requests.0, requests.1].concat();
        let batch = SentBatch { header, requests, answered: 0 };
        match self.send(now, &batch) {
            true => self.gpus[(header.gpu.0 - self.first_gpu) as usize].batches.push_back(batch),
            false => give_back(now, &batch, sink),
        }
    }

    fn send(&mut self, now: Nanos, SentBatch { header, requests, .. }: &SentBatch) -> bool {
        let is_up = self.gpus[(header.gpu.0 - self.first_gpu) as usize].is_up;
        let Some(peer) = self.port.link().peer().filter(|_| is_up) else { return false };
        let granted = GrantedBatch::new(peer.incarnation, *header);
        let entries: Vec<_> =
            requests.iter().map(|&Request { id, slot, .. }| BatchEntry { id, slot }).collect();
        self.port.send(now, &Payload::Batch(granted, (&entries[..]).into())).is_ok()
    }

    /// Takes the host out: its GPUs are granted to nobody, its batches are given back.
    fn lose(&mut self, now: Nanos, sink: &mut impl RemoteSink) {
        for (gpu, number) in self.gpus.iter_mut().zip(self.first_gpu..) {
            gpu.completed = 0;
            gpu.lose(now, GpuId(number), sink);
        }
    }
}

impl RemoteGpu {
    fn lose(&mut self, now: Nanos, number: GpuId, sink: &mut impl RemoteSink) {
        self.set_up(false, number, sink);
        self.batches.drain(..).for_each(|batch| give_back(now, &batch, sink));
    }

    fn set_up(&mut self, is_up: bool, gpu: GpuId, sink: &mut impl RemoteSink) {
        if self.is_up != is_up {
            self.is_up = is_up;
            sink.to_rank(RankInput::Presence { gpu, is_up });
        }
    }
}

/// Completes a batch that does not run, and gives back its requests. One of which rows were
/// answered, or are in other batches, fails: only whole requests can be queued.
fn give_back(now: Nanos, batch: &SentBatch, sink: &mut impl RemoteSink) {
    let SentBatch { header, requests, answered } = batch;
    complete(header, now, now, sink);
    let mut begin = *answered;
    for rows in requests[begin..].chunk_by(Request::is_of_one_with) {
        let is_whole = rows[0].row == 0 && rows[rows.len() - 1].rows_after == 0;
        begin += rows.len();
        for row in rows {
            if is_whole {
                sink.again(row);
            } else {
                sink.answer(row, failed(row, header, now));
            }
        }
    }
    debug_assert_eq!(begin, requests.len());
}

fn failed(request: &Request, header: &BatchHeader, now: Nanos) -> Response {
    let &Request { id, slot, .. } = request;
    let (ending, batch_size) = (Ending::Failed as u32, header.size);
    Response { id, slot, finished: now, ending, batch_size, gpu: header.gpu, ..Response::default() }
}

fn complete(header: &BatchHeader, started: Nanos, finished: Nanos, sink: &mut impl RemoteSink) {
    let &BatchHeader { batch, model, gpu, .. } = header;
    sink.to_rank(RankInput::Completion(Completion { batch, started, finished, model, gpu }));
}

/// The messages of one turn. What names another incarnation, or what the host was not given, is
/// counted and ignored.
struct BackendMessages<'a, S> {
    now: Nanos,
    first_gpu: u32,
    gpus: &'a mut [RemoteGpu],
    refused: &'a mut u64,
    sink: &'a mut S,
}

impl<S: RemoteSink> BackendMessages<'_, S> {
    /// Takes a message, and returns the number of its records.
    fn take(&mut self, link: &HostLink, payload: Payload<'_>) -> usize {
        let (all, taken) = match payload {
            Payload::Responses(responses) => {
                (responses.len(), responses.iter().filter_map(|response| self.answer(link, response)).count())
            }
            Payload::Completions(records) => {
                (records.len(), records.iter().filter_map(|record| self.complete(link, record)).count())
            }
            Payload::Gpus(gpus) => {
                (gpus.len(), gpus.iter().filter_map(|gpu| self.presence(link, gpu)).count())
            }
            _ => (1, 0),
        };
        *self.refused += (all - taken) as u64;
        all
    }

    fn gpu(&mut self, number: GpuId) -> Option<&mut RemoteGpu> {
        self.gpus.get_mut(number.0.checked_sub(self.first_gpu)? as usize)
    }

    /// Maps an instant of the host's clock. It is not after now: what it is of has happened.
    fn instant(&self, link: &HostLink, theirs: Nanos) -> Nanos {
        link.clock().to_ours(theirs, self.now).map_or(self.now, |bounds| bounds.latest.min(self.now))
    }

    /// Answers a row: the next one of one of the GPU's batches.
    fn answer(&mut self, link: &HostLink, response: Response) -> Option<()> {
        let Response { batched, started, finished, .. } = response;
        let [batched, started, finished] = [batched, started, finished].map(|at| self.instant(link, at));
        let gpu = self.gpu(response.gpu)?;
        let is_next = |batch: &&mut SentBatch| {
            let next = batch.requests.get(batch.answered);
            next.is_some_and(|next| (next.id, next.slot) == (response.id, response.slot))
        };
        let batch = gpu.batches.iter_mut().find(is_next)?;
        let request = batch.requests[batch.answered];
        batch.answered += 1;
        self.sink.answer(&request, Response { batched, started, finished, ..response });
        Some(())
    }

    /// Completes a batch. Its rows have been answered before.
    fn complete(&mut self, link: &HostLink, record: BackendCompletion) -> Option<()> {
        let BackendCompletion { incarnation, number, completion } = record;
        link.peer().filter(|peer| peer.incarnation == incarnation)?;
        let [started, finished] = [completion.started, completion.finished].map(|at| self.instant(link, at));
        let now = self.now;
        let gpu = self.gpu(completion.gpu).filter(|gpu| gpu.completed < number)?;
        gpu.completed = number;
        let at = gpu.batches.iter().position(|batch| batch.header.batch == completion.batch)?;
        let batch = gpu.batches.remove(at)?;
        for row in &batch.requests[batch.answered..] {
            self.sink.answer(row, failed(row, &batch.header, now));
        }
        complete(&batch.header, started, finished, self.sink);
        Some(())
    }

    fn presence(&mut self, link: &HostLink, record: GpuPresence) -> Option<()> {
        link.peer().filter(|peer| peer.incarnation == record.incarnation)?;
        let at = record.gpu.0.checked_sub(self.first_gpu)? as usize;
        let gpu = self.gpus.get_mut(at)?;
        match Presence::from_code(record.presence)? {
            Presence::Up => gpu.set_up(true, record.gpu, self.sink),
            Presence::Down => gpu.set_up(false, record.gpu, self.sink),
            Presence::Lost => gpu.lose(self.now, record.gpu, self.sink),
        }
        Some(())
    }
}
