//! A backend's host: its link to the scheduler, from where batches come, and its links to the hosts
//! with frontends, where their tensors are. It stands where ModelThreads, RankThreads and frontends
//! stand in one process: executors read local slots, into which the inputs of a batch were read
//! before they get it.
//!
//! ```text
//! scheduler ══batch══▶ fetch the inputs of its rows ◀══read══▶ frontends
//!                        │ all there, or its time is over        ▲
//!                        ▼                                       │
//!                      executor ──answers── outputs ═══write═════┘
//! scheduler ◀══════════completion
//! ```

use super::direct_memory::DirectMemory;
use super::host::Host;
use super::host_port::HostPort;
use super::measured_delays::{FetchTimes, TellingTime, way_here};
use super::tensor_orders::{PathOutcome, ReadOrder, RowAnswer};
use super::tensor_path::{LinkPath, TensorPath};
use crate::runtime::set_aside::SetAside;
use crate::runtime::threads::completions::CheckedCompletions;
use crate::runtime::threads::rank_thread::Completions;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use symphony_scheduler::limits;
use symphony_transport::Nanos;
use symphony_transport::link::{HostLink, InstantBounds, LinkTerms, Parting};
use symphony_transport::message::{
    BatchEntry, BatchHeader, Completion, ENTRIES_PER_FRAME, Ending, Frame, GpuId, ModelId, Response,
};
use symphony_transport::rdma::RdmaCounters;
use symphony_transport::ring::{Consumer, Producer};
use symphony_transport::slab::{SlabOwner, SlotId};
use symphony_transport::wire::{
    BackendCompletion, GpuPresence, GrantedBatch, HostRole, MeasuredDelays, Payload, Presence, RecordList,
};

/// The bits of a row's number in that of its read: a batch has at most 1,024.
const ROW_BITS: u32 = 10;
const _: () = assert!(limits::MAX_BATCH <= 1 << ROW_BITS);

/// The other ends of the executors' rings.
pub(crate) struct HostedRings {
    /// The batches to each backend thread.
    pub(crate) batches: Vec<Producer<Frame>>,
    /// The backend thread of each of the host's GPUs.
    pub(crate) gpu_backends: Arc<[u32]>,
    /// The answers of each backend thread.
    pub(crate) responses: Vec<Consumer<Response>>,
    /// The completions of each.
    pub(crate) completions: Vec<CheckedCompletions>,
}

impl HostedRings {
    /// Returns the ring to the backend thread of a GPU of the host.
    fn of_gpu(&mut self, gpu: GpuId) -> &mut Producer<Frame> {
        &mut self.batches[self.gpu_backends[gpu.0 as usize] as usize]
    }
}

/// Returns true if the batch fits the ring to its executor.
fn has_room(rings: &mut HostedRings, batch: &FetchedBatch) -> bool {
    rings.of_gpu(batch.header.gpu).has_room(BatchHeader::frames(batch.rows.len()))
}

/// The bytes of a row of a model.
#[derive(Clone, Copy, Default)]
pub(crate) struct RowBytes {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
}

/// A host with frontends, as a backend is told of it.
pub(crate) struct FrontendOfBackend {
    pub(crate) terms: LinkTerms,
    /// The number of its frontends, which follow those of the hosts before it.
    pub(crate) frontends: u32,
    /// The device that moves tensors, where hosts are configured for one.
    pub(crate) memory: Option<Box<dyn DirectMemory>>,
}

/// What a backend's host is made of.
pub(crate) struct BackendParts {
    /// The terms of the link to the scheduler.
    pub(crate) scheduler: LinkTerms,
    pub(crate) frontends: Vec<FrontendOfBackend>,
    pub(crate) rings: HostedRings,
    /// The local slots.
    pub(crate) slab: SlabOwner,
    /// The sizes of each model's rows.
    pub(crate) row_bytes: Vec<RowBytes>,
    /// The engine's number of its first GPU.
    pub(crate) first_gpu: u32,
    pub(crate) gpus: usize,
}

/// A GPU of this host.
#[derive(Clone, Copy, Default)]
struct HostedGpu {
    /// The batches that are fetched or that the executor has, of whichever connection.
    under_way: usize,
    /// The scheduler of this connection may give it batches. Before that it has none of an earlier
    /// connection: so what comes from it is of this connection if this is true.
    is_announced: bool,
    /// The completions on this connection.
    completed: u64,
}

/// A row that an executor has, by its local slot.
#[derive(Clone, Copy, Default)]
struct HostedRow {
    /// The id and slot at its frontend.
    id: u64,
    slot: SlotId,
    model: ModelId,
}

/// A row whose inputs are read.
struct FetchedRow {
    /// The entry for the executor; `None` if it has no local slot.
    entry: Option<BatchEntry>,
    of: HostedRow,
    is_missing: bool,
    /// Why it does not run.
    failed: Option<Ending>,
}

/// A batch whose inputs are read.
struct FetchedBatch {
    /// The header, with the local number of its GPU.
    header: BatchHeader,
    rows: Vec<FetchedRow>,
    missing: usize,
    /// When it came, and the bytes that are fetched for it.
    came: Nanos,
    bytes: usize,
}

/// What waits for the scheduler's credits, in the order in which it is sent: a completion after the
/// answers that came before it.
#[derive(Default)]
struct AwaitingCredits {
    gpus: Vec<GpuPresence>,
    responses: Vec<Response>,
    completions: Vec<BackendCompletion>,
}

/// A backend's host. See the module's description. Its first link is that to the scheduler; those
/// to hosts with frontends follow.
pub(crate) struct BackendHost {
    scheduler: HostPort,
    paths: Vec<LinkPath>,
    /// The path to each frontend.
    path_of: Vec<usize>,
    rings: HostedRings,
    slab: SlabOwner,
    /// The local slots of rows that have ended while a device may still use them: an executor's, or
    /// the one that reads inputs.
    set_aside: SetAside,
    /// The rows that have local slots.
    rows: Vec<HostedRow>,
    row_bytes: Vec<RowBytes>,
    first_gpu: u32,
    gpus: Vec<HostedGpu>,
    /// The batches whose inputs are read, by the order in which they came.
    fetching: BTreeMap<u64, FetchedBatch>,
    next_batch: u64,
    /// The batches that a ring had no room for.
    fetched: VecDeque<FetchedBatch>,
    outbox: AwaitingCredits,
    fetches: FetchTimes,
    telling: TellingTime,
    completed: Vec<Completion>,
    drains: bool,
    refused: u64,
}

impl BackendHost {
    /// Makes the host, whose executors have nothing.
    pub(crate) fn new(parts: BackendParts, now: Nanos) -> BackendHost {
        let BackendParts { scheduler, frontends, rings, slab, row_bytes, first_gpu, gpus } = parts;
        let numbered = frontends.iter().enumerate();
        let path_of = numbered.flat_map(|(at, of)| std::iter::repeat_n(at, of.frontends as usize)).collect();
        let path = |of: FrontendOfBackend| LinkPath::new(of.terms, slab.view().clone(), of.memory, now);
        BackendHost {
            scheduler: HostPort::new(scheduler, now),
            paths: frontends.into_iter().map(path).collect(),
            path_of,
            rings,
            rows: vec![HostedRow::default(); slab.capacity()],
            slab,
            set_aside: SetAside::default(),
            row_bytes,
            first_gpu,
            gpus: vec![HostedGpu::default(); gpus],
            fetching: BTreeMap::new(),
            next_batch: 0,
            fetched: VecDeque::new(),
            outbox: AwaitingCredits::default(),
            fetches: FetchTimes::default(),
            telling: TellingTime::default(),
            completed: Vec::new(),
            drains: false,
            refused: 0,
        }
    }

    /// Drops what is of a connection to the scheduler that is over. Batches that no executor has go
    /// with it: their rows are given to others.
    fn forget(&mut self) {
        self.outbox = AwaitingCredits::default();
        for gpu in &mut self.gpus {
            (gpu.is_announced, gpu.completed) = (false, 0);
        }
        let fetching = std::mem::take(&mut self.fetching).into_values();
        let dropped: Vec<FetchedBatch> = fetching.chain(self.fetched.drain(..)).collect();
        for FetchedBatch { header, rows, .. } in dropped {
            self.gpus[header.gpu.0 as usize].under_way -= 1;
            for entry in rows.iter().filter_map(|row| row.entry) {
                self.free(entry.slot);
            }
        }
    }

    /// Frees a local slot, or sets it aside as long as a device may use it.
    fn free(&mut self, slot: SlotId) {
        if !self.slab.free(slot) {
            self.set_aside.add(slot);
        }
    }

    fn receive(&mut self, now: Nanos) -> Option<Parting> {
        let mut granted = Vec::new();
        let BackendHost { scheduler, refused, .. } = self;
        let parting = scheduler.receive(now, |link, payload| match payload {
            Payload::Batch(batch, entries) => {
                granted.extend(mapped(link, batch, now).map(|batch| (batch, to_vec(entries))));
                entries.len()
            }
            _ => {
                *refused += 1;
                1
            }
        });
        if parting.is_some() {
            self.forget();
        } else {
            granted.into_iter().for_each(|(batch, entries)| self.take_batch(batch, &entries, now));
        }
        parting
    }

    /// Takes a batch, unless it may not be given: then it is counted.
    fn take_batch(&mut self, granted: GrantedBatch, entries: &[BatchEntry], now: Nanos) {
        let at = granted.gpu.0.checked_sub(self.first_gpu).map(|at| at as usize);
        let is_of_now = granted.incarnation == self.scheduler.link().incarnation();
        let gpu = at.and_then(|at| self.gpus.get_mut(at)).filter(|gpu| {
            let may = gpu.is_announced && gpu.under_way < limits::MAX_OUTSTANDING_BATCHES;
            is_of_now && may && (granted.model.0 as usize) < self.row_bytes.len()
        });
        let Some(gpu) = gpu else {
            self.refused += 1;
            return;
        };
        gpu.under_way += 1;
        let gpu = GpuId(granted.gpu.0 - self.first_gpu);
        let header = BatchHeader { gpu, ..granted.header(entries.len() as u32) };
        let number = self.next_batch;
        self.next_batch += 1;
        let rows = Vec::with_capacity(entries.len());
        let mut batch = FetchedBatch { header, rows, missing: 0, came: now, bytes: 0 };
        for (row, &entry) in entries.iter().enumerate() {
            let row = self.begin_row(number << ROW_BITS | row as u64, granted.model, entry);
            batch.missing += usize::from(row.is_missing);
            batch.rows.push(row);
        }
        batch.bytes = batch.missing * self.row_bytes[granted.model.0 as usize].inputs;
        self.fetching.insert(number, batch);
    }

    /// Gives a row a local slot, and has its inputs read.
    fn begin_row(&mut self, number: u64, model: ModelId, entry: BatchEntry) -> FetchedRow {
        let of = HostedRow { id: entry.id, slot: entry.slot, model };
        let RowBytes { inputs, outputs } = self.row_bytes[model.0 as usize];
        let local = self.slab.alloc((inputs + outputs).max(1));
        let frontend = entry.slot.frontend();
        let path = self.path_of.get(usize::from(frontend)).map(|&path| &mut self.paths[path]);
        let (Some(to), Some(path)) = (local, path) else {
            if let Some(slot) = local {
                self.slab.free(slot);
            }
            return FetchedRow { entry: None, of, is_missing: false, failed: Some(Ending::Failed) };
        };
        self.rows[self.slab.index(to)] = of;
        let is_missing = inputs > 0;
        if is_missing {
            path.read(ReadOrder { number, from: entry.slot, to, bytes: inputs });
        }
        // Requests of two frontends may have the same id.
        let entry = BatchEntry { id: entry.id | u64::from(frontend) << 48, slot: to };
        FetchedRow { entry: Some(entry), of, is_missing, failed: None }
    }

    /// Takes what has become of reads and answers.
    fn take_outcomes(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for at in 0..self.paths.len() {
            while let Some(outcome) = self.paths[at].take_outcome() {
                taken += 1;
                match outcome {
                    PathOutcome::Read(number, is_there) => self.row_is_read(number, is_there, now),
                    PathOutcome::Answered(answer) => self.free_outputs(&answer),
                    PathOutcome::Undelivered(answer) => {
                        self.free_outputs(&answer);
                        self.report(answer.response, now);
                    }
                }
            }
        }
        taken
    }

    fn row_is_read(&mut self, number: u64, is_there: bool, now: Nanos) {
        let Some(batch) = self.fetching.get_mut(&(number >> ROW_BITS)) else { return };
        let row = &mut batch.rows[(number & ((1 << ROW_BITS) - 1)) as usize];
        if std::mem::take(&mut row.is_missing) {
            batch.missing -= 1;
            row.failed = (!is_there).then_some(Ending::Failed);
            if batch.missing == 0 {
                note_fetch(&mut self.fetches, batch, now);
            }
        }
    }

    fn free_outputs(&mut self, answer: &RowAnswer) {
        if let Some((local, _)) = answer.outputs {
            self.slab.free(local);
        }
    }

    /// Tells the scheduler of an answer that its frontend could not be given.
    fn report(&mut self, response: Response, now: Nanos) {
        let gpu = self.gpus.get((response.gpu.0 - self.first_gpu) as usize);
        if gpu.is_some_and(|gpu| gpu.is_announced) {
            let ending = Ending::Failed as u32;
            self.outbox.responses.push(Response { ending, finished: now, ..response });
        }
    }

    /// Hands the batches whose inputs are there, or that can wait no longer, to their executors.
    fn launch(&mut self, now: Nanos) -> usize {
        let is_due = |_: &u64, batch: &mut FetchedBatch| batch.missing == 0 || now > batch.header.latest;
        let due: Vec<FetchedBatch> = self.fetching.extract_if(.., is_due).map(|(_, batch)| batch).collect();
        let count = due.len();
        for mut batch in due {
            if batch.missing > 0 {
                // It takes longer than that.
                note_fetch(&mut self.fetches, &batch, now);
            }
            for row in batch.rows.iter_mut().filter(|row| row.is_missing) {
                (row.is_missing, row.failed) = (false, Some(Ending::DroppedAtBackend));
            }
            self.end_failed(&mut batch, now);
            self.fetched.push_back(batch);
        }
        while let Some(batch) = self.fetched.pop_front_if(|batch| has_room(&mut self.rings, batch)) {
            self.hand_over(batch, now);
        }
        count
    }

    /// Answers the rows of a batch that do not run, and takes them out.
    fn end_failed(&mut self, batch: &mut FetchedBatch, now: Nanos) {
        let gpu = GpuId(batch.header.gpu.0 + self.first_gpu);
        for row in batch.rows.extract_if(.., |row| row.failed.is_some()) {
            let HostedRow { id, slot, .. } = row.of;
            let ending = row.failed.unwrap_or(Ending::Failed) as u32;
            let batch_size = batch.header.size;
            let started = batch.header.latest.min(now);
            let response =
                Response { id, slot, started, finished: now, ending, batch_size, gpu, ..Response::default() };
            if let Some(entry) = row.entry {
                self.free(entry.slot);
            }
            self.answer(RowAnswer { response, outputs: None }, now);
        }
    }

    fn answer(&mut self, answer: RowAnswer, now: Nanos) {
        match self.path_of.get(usize::from(answer.response.slot.frontend())) {
            Some(&path) => self.paths[path].answer(answer),
            None => self.report(answer.response, now),
        }
    }

    /// Gives a batch to its executor, or completes it where no row of it runs.
    fn hand_over(&mut self, FetchedBatch { header, rows, .. }: FetchedBatch, now: Nanos) {
        if rows.is_empty() {
            let BatchHeader { batch, model, gpu, .. } = header;
            return self.complete(Completion { batch, started: now, finished: now, model, gpu });
        }
        let ring = self.rings.of_gpu(header.gpu);
        // Room was checked.
        let _ = ring.write(BatchHeader { size: rows.len() as u32, ..header }.into());
        let entries: Vec<BatchEntry> = rows.iter().filter_map(|row| row.entry).collect();
        for entries in entries.chunks(ENTRIES_PER_FRAME) {
            let mut frame = [BatchEntry::default(); ENTRIES_PER_FRAME];
            frame[..entries.len()].copy_from_slice(entries);
            let _ = ring.write(frame.into());
        }
        ring.publish();
    }

    /// Takes over what the executors have done.
    fn collect(&mut self, now: Nanos) -> usize {
        // A batch's answers are in their ring before its completion is in the other: so the
        // completions are read first, and passed on last.
        let mut completed = std::mem::take(&mut self.completed);
        for ring in &mut self.rings.completions {
            completed.extend(std::iter::from_fn(|| ring.next()));
        }
        let mut taken = completed.len();
        for at in 0..self.rings.responses.len() {
            while let Some(response) = self.rings.responses[at].pop() {
                self.pass_on(response, now);
                taken += 1;
            }
        }
        completed.drain(..).for_each(|completion| self.complete(completion));
        self.completed = completed;
        taken
    }

    /// Passes an executor's answer on to the row's frontend.
    fn pass_on(&mut self, response: Response, now: Nanos) {
        let (local, gpu) = (response.slot, GpuId(response.gpu.0 + self.first_gpu));
        let HostedRow { id, slot, model } = self.rows[self.slab.index(local)];
        let RowBytes { inputs, outputs } = self.row_bytes[model.0 as usize];
        let is_done = response.ending == Ending::Done as u32;
        let response = Response { id, slot, gpu, ..response };
        if !is_done {
            self.free(local);
        }
        let outputs = is_done.then_some((local, inputs..inputs + outputs));
        self.answer(RowAnswer { response, outputs }, now);
    }

    /// Notes that a batch has left its GPU. One of an earlier connection is nobody's.
    fn complete(&mut self, completion: Completion) {
        let gpu = &mut self.gpus[completion.gpu.0 as usize];
        gpu.under_way -= 1;
        if gpu.is_announced {
            gpu.completed += 1;
            let (incarnation, number) = (self.scheduler.link().incarnation(), gpu.completed);
            let completion = Completion { gpu: GpuId(completion.gpu.0 + self.first_gpu), ..completion };
            self.outbox.completions.push(BackendCompletion { incarnation, number, completion });
        }
    }

    /// Announces the GPUs that have nothing of an earlier connection, once instants of the
    /// scheduler can be mapped.
    fn announce(&mut self, now: Nanos) {
        let link = self.scheduler.link();
        if !link.is_up() || link.clock().error(now).is_none() || self.drains {
            return;
        }
        for (gpu, number) in self.gpus.iter_mut().zip(self.first_gpu..) {
            if !gpu.is_announced && gpu.under_way == 0 {
                gpu.is_announced = true;
                let incarnation = link.incarnation();
                self.outbox.gpus.push(presence(incarnation, GpuId(number), Presence::Up, now));
            }
        }
    }

    fn send(&mut self, now: Nanos) {
        self.announce(now);
        let BackendHost { scheduler, outbox: AwaitingCredits { gpus, responses, completions }, .. } = self;
        scheduler.send_records(now, gpus, |records| Payload::Gpus(records.into()));
        scheduler.send_records(now, responses, |records| Payload::Responses(records.into()));
        if responses.is_empty() {
            scheduler.send_records(now, completions, |records| Payload::Completions(records.into()));
        }
        self.tell_delays(now);
        self.scheduler.send_own(now);
    }

    /// Tells the scheduler what was measured, now and then.
    fn tell_delays(&mut self, now: Nanos) {
        let Some(way) = way_here(self.scheduler.link()) else { return };
        if self.telling.has_come(now) {
            let mut measured = MeasuredDelays { way, ..MeasuredDelays::UNKNOWN };
            self.fetches.add_to(&mut measured, now);
            // The link is up, and it takes no credits.
            let _ = self.scheduler.send(now, &Payload::Delays(measured));
        }
    }
}

/// Notes what the fetch of a batch's inputs has taken, unless that of some row has failed.
fn note_fetch(fetches: &mut FetchTimes, batch: &FetchedBatch, now: Nanos) {
    if batch.bytes > 0 && batch.rows.iter().all(|row| row.failed.is_none()) {
        fetches.record(batch.bytes, now - batch.came, now);
    }
}

fn presence(incarnation: u64, gpu: GpuId, presence: Presence, since: Nanos) -> GpuPresence {
    GpuPresence { incarnation, since, gpu, presence: presence as u32 }
}

fn to_vec(entries: RecordList<'_, BatchEntry>) -> Vec<BatchEntry> {
    entries.iter().collect()
}

/// Returns the batch with instants of this host's clock.
fn mapped(link: &HostLink, granted: GrantedBatch, now: Nanos) -> Option<GrantedBatch> {
    let to_ours = |instant| link.clock().to_ours(instant, now).map(InstantBounds::middle);
    let (exec_at, latest) = (to_ours(granted.exec_at)?, to_ours(granted.latest)?);
    Some(GrantedBatch { exec_at, latest: latest.max(exec_at), ..granted })
}

impl Host for BackendHost {
    fn links(&self) -> usize {
        1 + self.paths.len()
    }

    fn link(&self, at: usize) -> &HostLink {
        at.checked_sub(1).map_or(&self.scheduler, |path| self.paths[path].port()).link()
    }

    fn peer(&self, at: usize) -> (HostRole, u32) {
        at.checked_sub(1).map_or((HostRole::Scheduler, 0), |path| (HostRole::Frontend, path as u32))
    }

    fn connect(&mut self, at: usize, now: Nanos) {
        match at.checked_sub(1) {
            None => {
                self.forget();
                self.scheduler.connect(now);
            }
            Some(path) => self.paths[path].connect(now),
        }
    }

    fn disconnect(&mut self, at: usize, now: Nanos) {
        match at.checked_sub(1) {
            None => {
                self.scheduler.disconnect(now);
                self.forget();
            }
            Some(path) => self.paths[path].disconnect(now),
        }
    }

    fn take_in(&mut self, at: usize, bytes: &[u8]) {
        match at.checked_sub(1) {
            None => self.scheduler.take_in(bytes),
            Some(path) => self.paths[path].port_mut().take_in(bytes),
        }
    }

    fn read(&mut self, at: usize, now: Nanos) -> Option<Parting> {
        match at.checked_sub(1) {
            None => self.receive(now),
            Some(path) => self.paths[path].receive(now),
        }
    }

    fn turn(&mut self, now: Nanos) -> usize {
        self.set_aside.take_back(&mut self.slab, now);
        self.take_outcomes(now) + self.launch(now) + self.collect(now)
    }

    fn take_out(&mut self, at: usize, now: Nanos) -> Vec<u8> {
        match at.checked_sub(1) {
            None => {
                self.send(now);
                self.scheduler.take_out()
            }
            Some(path) => self.paths[path].take_out(now),
        }
    }

    fn awaits_device(&self) -> bool {
        self.paths.iter().any(LinkPath::awaits_device)
    }

    fn direct_counters(&self, at: usize) -> Option<RdmaCounters> {
        self.paths.get(at.checked_sub(1)?)?.counters()
    }

    fn refused(&self) -> u64 {
        self.refused + self.paths.iter().map(LinkPath::refused).sum::<u64>()
    }

    fn drain(&mut self) {
        if std::mem::replace(&mut self.drains, true) {
            return;
        }
        let incarnation = self.scheduler.link().incarnation();
        let announced = self.gpus.iter().zip(self.first_gpu..).filter(|(gpu, _)| gpu.is_announced);
        let down =
            announced.map(|(_, number)| presence(incarnation, GpuId(number), Presence::Down, Nanos(1)));
        self.outbox.gpus.extend(down);
    }

    fn is_idle(&self) -> bool {
        let outbox = &self.outbox;
        self.gpus.iter().all(|gpu| gpu.under_way == 0)
            && self.paths.iter().all(LinkPath::is_idle)
            && self.slab.in_use() == 0
            && outbox.gpus.is_empty()
            && outbox.responses.is_empty()
            && outbox.completions.is_empty()
    }

    fn leave(&mut self, now: Nanos) {
        self.scheduler.leave(now);
        self.paths.iter_mut().for_each(|path| drop(path.port_mut().leave(now)));
    }
}
