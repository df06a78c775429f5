//! The scheduler's side of a backend on another host: it stands where a local backend's rings
//! stand. It knows the requests of each batch that it has sent, so that none is lost with the host.

use super::host_port::{HostPort, happened};
use super::row_table::TrackedRow;
use std::collections::VecDeque;
use symphony_transport::Nanos;
use symphony_transport::link::{HostLink, LinkTerms, Parting};
use symphony_transport::message::{BatchEntry, BatchHeader, Ending, GpuId, NO_DEADLINE, Request, Response};
use symphony_transport::wire::{
    BackendCompletion, CloseCode, GpuPresence, GrantedBatch, MeasuredDelays, Payload, Presence,
};

/// The most that a latest start without a deadline is before [`NO_DEADLINE`].
const NEVER_WITHIN: Nanos = Nanos::from_secs(86_400);

/// Where what follows from a backend's messages goes.
pub(super) trait RemoteSink {
    /// Takes the presence of a GPU, for its RankThread.
    fn presence(&mut self, gpu: GpuId, is_up: bool);
    /// Takes the completion of a batch, for the RankThread of its GPU. One that did not run starts
    /// when it finishes.
    fn completed(&mut self, header: &BatchHeader, started: Nanos, finished: Nanos);
    /// Takes the answer to a row that its backend could not give to the frontend.
    fn answer(&mut self, row: &TrackedRow, response: Response);
    /// Takes a row whose batch has completed: its backend has answered it.
    fn ended(&mut self, row: &TrackedRow);
    /// Takes a row of a request that has to be queued again; all rows of a request come, one after
    /// the other. The queue drops it if its deadline does not allow for another batch.
    fn again(&mut self, row: &TrackedRow);
}

/// A batch that the host has, with its rows that are not known to have ended.
struct SentBatch {
    header: BatchHeader,
    rows: Vec<TrackedRow>,
}

/// A GPU of the host.
#[derive(Default)]
struct RemoteGpu {
    is_up: bool,
    /// The number of its last completion on this connection.
    completed: u64,
    /// The batches that it has, in the order in which it runs them.
    batches: VecDeque<SentBatch>,
    /// When the first of them became the first.
    first_since: Nanos,
}

/// A backend on another host. See the module's description.
pub(super) struct RemoteBackend {
    port: HostPort,
    /// The engine's number of its first GPU.
    first_gpu: u32,
    gpus: Vec<RemoteGpu>,
    /// What it has measured, on this connection or on an earlier one.
    measured: MeasuredDelays,
    /// The messages that were ignored: of another incarnation, or of what it was not given.
    refused: u64,
}

impl RemoteBackend {
    /// Makes the side of a backend that has never been connected: its GPUs are not there.
    pub(super) fn new(terms: LinkTerms, first_gpu: u32, gpus: usize, now: Nanos) -> RemoteBackend {
        let gpus = (0..gpus).map(|_| RemoteGpu::default()).collect();
        let measured = MeasuredDelays::UNKNOWN;
        RemoteBackend { port: HostPort::new(terms, now), first_gpu, gpus, measured, refused: 0 }
    }

    pub(super) fn port(&self) -> &HostPort {
        &self.port
    }

    pub(super) fn port_mut(&mut self) -> &mut HostPort {
        &mut self.port
    }

    /// Returns the number of its GPUs that can be granted.
    pub(super) fn gpus_up(&self) -> usize {
        self.gpus.iter().filter(|gpu| gpu.is_up).count()
    }

    /// Returns what it has measured of the network.
    pub(super) fn measured(&self) -> &MeasuredDelays {
        &self.measured
    }

    /// Returns true if the host has no batch.
    pub(super) fn is_idle(&self) -> bool {
        self.gpus.iter().all(|gpu| gpu.batches.is_empty())
    }

    /// Returns the number of messages that were ignored: of another incarnation, or of a batch that
    /// the host does not have.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Begins a connection, which ends the one before.
    pub(super) fn connect(&mut self, now: Nanos, sink: &mut impl RemoteSink) {
        self.lose(now, sink);
        self.port.connect(now);
    }

    /// Ends the connection, which was closed or could not be made.
    pub(super) fn disconnect(&mut self, now: Nanos, sink: &mut impl RemoteSink) {
        self.port.disconnect(now);
        self.lose(now, sink);
    }

    /// Reads what has come, and finds out whether the host is silent. Returns the end of the
    /// connection if it is over.
    pub(super) fn read(&mut self, now: Nanos, sink: &mut impl RemoteSink) -> Option<Parting> {
        let RemoteBackend { port, first_gpu, gpus, measured, refused } = self;
        let mut messages = BackendMessages { now, first_gpu: *first_gpu, gpus, measured, refused, sink };
        let parting = port.receive(now, |link, payload| messages.take(link, payload));
        let parting = parting.or_else(|| self.check_overdue(now));
        if parting.is_some() {
            self.lose(now, sink);
        }
        parting
    }

    /// Ends the connection if a batch should have been over two heartbeats ago: of a host that does
    /// not say what has become of it nothing is known, though its link may be alive. What it still
    /// says of this connection is not read, and a GPU comes back once it has nothing of it.
    fn check_overdue(&mut self, now: Nanos) -> Option<Parting> {
        let patience = self.port.link().patience();
        let mut numbered = self.gpus.iter().zip(self.first_gpu..);
        let sentence = numbered.find_map(|(gpu, number)| {
            let due = gpu.due()?;
            let overdue = now - due;
            (overdue >= patience).then(|| format!("the batch of GPU {number} is overdue by {overdue:?}"))
        })?;
        Some(self.port.close(now, CloseCode::Silent, &sentence))
    }

    /// Sends a batch of these rows. Where the host is gone, or has granted too few credits, the GPU
    /// is given back at once.
    pub(super) fn dispatch(
        &mut self,
        now: Nanos,
        header: BatchHeader,
        rows: Vec<TrackedRow>,
        sink: &mut impl RemoteSink,
    ) {
        let batch = SentBatch { header, rows };
        match self.send(now, &batch) {
            true => self.gpus[(header.gpu.0 - self.first_gpu) as usize].push(batch, now),
            false => give_back(now, &batch, sink),
        }
    }

    fn send(&mut self, now: Nanos, SentBatch { header, rows }: &SentBatch) -> bool {
        let is_up = self.gpus[(header.gpu.0 - self.first_gpu) as usize].is_up && !rows.is_empty();
        let Some(peer) = self.port.link().peer().filter(|_| is_up) else { return false };
        let granted = GrantedBatch::new(peer.incarnation, *header);
        let entry = |row: &TrackedRow| BatchEntry { id: row.request.id, slot: row.request.slot };
        let entries: Vec<_> = rows.iter().map(entry).collect();
        self.port.send(now, &Payload::Batch(granted, (&entries[..]).into())).is_ok()
    }

    /// Takes the host out: its GPUs are granted to nobody, its batches are given back.
    pub(super) fn lose(&mut self, now: Nanos, sink: &mut impl RemoteSink) {
        for (gpu, number) in self.gpus.iter_mut().zip(self.first_gpu..) {
            gpu.completed = 0;
            gpu.lose(now, GpuId(number), sink);
        }
    }
}

impl RemoteGpu {
    fn push(&mut self, batch: SentBatch, now: Nanos) {
        if self.batches.is_empty() {
            self.first_since = now;
        }
        self.batches.push_back(batch);
    }

    /// Returns when its first batch should be over, at the latest; `None` if it has none.
    fn due(&self) -> Option<Nanos> {
        let BatchHeader { exec_at, latest, duration, .. } = self.batches.front()?.header;
        // Where late is accepted, or no request has a deadline, it starts as soon as it can.
        let latest = if latest > NO_DEADLINE - NEVER_WITHIN { exec_at } else { latest.max(exec_at) };
        Some(latest.max(self.first_since) + duration)
    }

    fn lose(&mut self, now: Nanos, number: GpuId, sink: &mut impl RemoteSink) {
        self.set_up(false, number, sink);
        self.batches.drain(..).for_each(|batch| give_back(now, &batch, sink));
    }

    fn set_up(&mut self, is_up: bool, gpu: GpuId, sink: &mut impl RemoteSink) {
        if self.is_up != is_up {
            self.is_up = is_up;
            sink.presence(gpu, is_up);
        }
    }
}

/// Completes a batch that does not run, and gives back its rows. A request of which rows have
/// ended, or are in other batches, fails: only whole requests can be queued.
fn give_back(now: Nanos, SentBatch { header, rows }: &SentBatch, sink: &mut impl RemoteSink) {
    sink.completed(header, now, now);
    for rows in rows.chunk_by(|a, b| a.request.is_of_one_with(&b.request)) {
        let Request { row, .. } = rows[0].request;
        let is_whole = row == 0 && rows.len() == usize::from(rows[0].request.rows_after) + 1;
        for row in rows {
            if is_whole {
                sink.again(row);
            } else {
                sink.answer(row, failed(header, now));
            }
        }
    }
}

fn failed(header: &BatchHeader, now: Nanos) -> Response {
    let (ending, batch_size) = (Ending::Failed as u32, header.size);
    Response { finished: now, ending, batch_size, gpu: header.gpu, ..Response::default() }
}

/// The messages of one turn. What names another incarnation, or what the host was not given, is
/// counted and ignored.
struct BackendMessages<'a, S> {
    now: Nanos,
    first_gpu: u32,
    gpus: &'a mut [RemoteGpu],
    measured: &'a mut MeasuredDelays,
    refused: &'a mut u64,
    sink: &'a mut S,
}

impl<S: RemoteSink> BackendMessages<'_, S> {
    /// Takes a message, and returns the number of its records.
    fn take(&mut self, link: &HostLink, payload: Payload<'_>) -> usize {
        let (all, taken) = match payload {
            Payload::Responses(responses) => {
                // The batch of a row that was lost on the way to its frontend may have completed.
                responses.iter().for_each(|response| self.answer(link, response).unwrap_or_default());
                (responses.len(), responses.len())
            }
            Payload::Completions(records) => {
                (records.len(), records.iter().filter_map(|record| self.complete(link, record)).count())
            }
            Payload::Gpus(gpus) => {
                (gpus.len(), gpus.iter().filter_map(|gpu| self.presence(link, gpu)).count())
            }
            Payload::Delays(measured) => {
                *self.measured = measured;
                return 0;
            }
            _ => (1, 0),
        };
        *self.refused += (all - taken) as u64;
        all
    }

    fn gpu(&mut self, number: GpuId) -> Option<&mut RemoteGpu> {
        self.gpus.get_mut(number.0.checked_sub(self.first_gpu)? as usize)
    }

    /// Answers a row of one of the GPU's batches, whose frontend the backend could not reach.
    fn answer(&mut self, link: &HostLink, response: Response) -> Option<()> {
        let Response { batched, started, finished, .. } = response;
        let [batched, started, finished] =
            [batched, started, finished].map(|at| happened(link, at, self.now));
        let gpu = self.gpu(response.gpu)?;
        let is_meant = |row: &TrackedRow| (row.request.id, row.request.slot) == (response.id, response.slot);
        let row = gpu.batches.iter_mut().find_map(|batch| {
            let at = batch.rows.iter().position(is_meant)?;
            Some(batch.rows.remove(at))
        })?;
        self.sink.answer(&row, Response { batched, started, finished, ..response });
        Some(())
    }

    /// Completes a batch. Its rows have been answered before.
    fn complete(&mut self, link: &HostLink, record: BackendCompletion) -> Option<()> {
        let BackendCompletion { incarnation, number, completion } = record;
        link.peer().filter(|peer| peer.incarnation == incarnation)?;
        let [started, finished] =
            [completion.started, completion.finished].map(|at| happened(link, at, self.now));
        let now = self.now;
        let gpu = self.gpu(completion.gpu).filter(|gpu| gpu.completed < number)?;
        gpu.completed = number;
        let at = gpu.batches.iter().position(|batch| batch.header.batch == completion.batch)?;
        let batch = gpu.batches.remove(at)?;
        if at == 0 {
            gpu.first_since = now;
        }
        self.sink.completed(&batch.header, started, finished);
        batch.rows.iter().for_each(|row| self.sink.ended(row));
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

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_transport::message::{Completion, ModelId};
    use symphony_transport::slab::SlotId;
    use symphony_transport::wire::{Hello, HostRole, TensorWay, Text};

    const HEARTBEAT: Nanos = Nanos::from_millis(10);

    /// What a backend's messages have brought about.
    #[derive(Default)]
    struct Noted {
        up: Vec<u32>,
        completed: Vec<u64>,
        again: Vec<u64>,
    }

    impl RemoteSink for Noted {
        fn presence(&mut self, gpu: GpuId, is_up: bool) {
            self.up.retain(|up| *up != gpu.0);
            self.up.extend(is_up.then_some(gpu.0));
        }

        fn completed(&mut self, header: &BatchHeader, _: Nanos, _: Nanos) {
            self.completed.push(header.batch);
        }

        fn answer(&mut self, _: &TrackedRow, _: Response) {}

        fn ended(&mut self, _: &TrackedRow) {}

        fn again(&mut self, row: &TrackedRow) {
            self.again.push(row.request.id);
        }
    }

    fn terms(role: HostRole, peer: HostRole) -> LinkTerms {
        let hello = Hello {
            config: [0; 32],
            incarnation: 1,
            heartbeat_every: HEARTBEAT,
            role: role as u32,
            number: 0,
            first_gpu: 0,
            gpus: if role == HostRole::Backend { 2 } else { 0 },
            max_batch: 4,
            credits: 64,
            tensors: TensorWay::Frames as u32,
            name: Text::new("host"),
        };
        LinkTerms { hello, models: Vec::new(), peer: (peer, 0) }
    }

    /// A backend with two GPUs of which each side knows, on clocks that read the same.
    struct Pair {
        backend: RemoteBackend,
        host: HostPort,
        noted: Noted,
        now: Nanos,
    }

    impl Pair {
        fn new() -> Pair {
            let now = Nanos::from_secs(1);
            let backend = RemoteBackend::new(terms(HostRole::Scheduler, HostRole::Backend), 0, 2, now);
            let host = HostPort::new(terms(HostRole::Backend, HostRole::Scheduler), now);
            let mut pair = Pair { backend, host, noted: Noted::default(), now };
            pair.backend.connect(now, &mut pair.noted);
            pair.host.connect(now);
            (0..4).for_each(|_| assert_eq!(pair.turn(), None));
            let incarnation = pair.host.link().incarnation();
            let up =
                |gpu| GpuPresence { incarnation, since: now, gpu: GpuId(gpu), presence: Presence::Up as u32 };
            pair.host.send(now, &Payload::Gpus((&[up(0), up(1)][..]).into())).unwrap();
            assert_eq!(pair.turn(), None);
            assert_eq!(pair.noted.up, [0, 1]);
            pair
        }

        /// Exchanges what both have to say, the backend first.
        fn turn(&mut self) -> Option<Parting> {
            self.now += Nanos::from_millis(1);
            self.host.send_own(self.now);
            self.backend.port_mut().take_in(&self.host.take_out());
            let parting = self.backend.read(self.now, &mut self.noted);
            self.backend.port_mut().send_own(self.now);
            self.host.take_in(&self.backend.port_mut().take_out());
            self.host.receive(self.now, |_, _| 1);
            parting
        }

        fn dispatch(&mut self, batch: u64, gpu: u32) {
            let (exec_at, duration) = (self.now, Nanos::from_millis(5));
            let latest = exec_at + Nanos::from_millis(3);
            let gpu = GpuId(gpu);
            let header =
                BatchHeader { batch, exec_at, latest, duration, gpu, size: 1, ..BatchHeader::default() };
            let request = Request { id: batch, ..Request::default() };
            let row = TrackedRow { request, handle: SlotId::default() };
            self.backend.dispatch(self.now, header, vec![row], &mut self.noted);
        }

        fn complete(&mut self, batch: u64, gpu: u32) {
            let (incarnation, now) = (self.host.link().incarnation(), self.now);
            let (model, gpu) = (ModelId(0), GpuId(gpu));
            let completion = Completion { batch, started: now, finished: now, model, gpu };
            let record = BackendCompletion { incarnation, number: batch, completion };
            self.host.send(now, &Payload::Completions((&[record][..]).into())).unwrap();
        }
    }

    #[test]
    fn a_host_whose_batch_is_overdue_by_two_heartbeats_is_taken_out_though_it_is_not_silent() {
        let mut pair = Pair::new();
        pair.dispatch(1, 0);
        pair.dispatch(2, 1);
        let due = pair.now + Nanos::from_millis(8);
        pair.complete(2, 1);
        let parting = loop {
            if let Some(parting) = pair.turn() {
                break parting;
            }
            assert!(pair.now < due + pair.backend.port().link().patience(), "it is overdue");
        };
        assert_eq!(pair.now, due + Nanos(2 * HEARTBEAT.0));
        assert_eq!(parting.sentence, "the batch of GPU 0 is overdue by 20ms");
        assert!(parting.lost.is_some() && !pair.backend.port().link().is_up());
        assert_eq!(pair.noted.up, [0; 0], "no GPU of the host is granted");
        assert_eq!((&pair.noted.completed[..], &pair.noted.again[..]), (&[2, 1][..], &[1][..]));
    }

    #[test]
    fn a_batch_behind_another_has_its_time_from_the_end_of_that() {
        let mut pair = Pair::new();
        (1..=3).for_each(|batch| pair.dispatch(batch, 0));
        for batch in 1..=3 {
            // Each is late, but not by two heartbeats.
            (0..20).for_each(|_| assert_eq!(pair.turn(), None));
            pair.complete(batch, 0);
        }
        assert_eq!(pair.turn(), None);
        assert_eq!(pair.noted.completed, [1, 2, 3]);
    }
}
