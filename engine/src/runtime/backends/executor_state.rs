//! The state of an executor that outlives its thread: its rings, its models and its batches. The
//! thread owns it, but for the time in which work of the executor runs: then it lies in an
//! [`ExecutorLease`](super::lease::ExecutorLease), where the watchdog can take it over.

use super::batches::{Answers, Batch, Inbox, WaitingBatches};
use super::model_faults::ModelFaults;
use crate::runtime::threads::changes::ChangeReceiver;
use std::collections::VecDeque;
use std::ops::Range;
use symphony_gpu::{ComputeThread, EnqueueError, Executor, FinishedJob, Job, RowSlots, RunError};
use symphony_transport::Nanos;
use symphony_transport::message::{BatchEntry, BatchHeader, Ending, ModelId};
use symphony_transport::slab::SlotClaim;
use symphony_transport::wheel::Wheel;

/// The receiving end of models that are loaded and unloaded while an executor runs.
pub(crate) type ModelChangeReceiver<M> = ChangeReceiver<Option<M>>;

/// A batch that a GPU has.
struct StartedBatch {
    batch: Batch,
    started: Nanos,
    /// The number of its entries that have been answered, the first ones.
    ended: usize,
    /// The entries that were enqueued: all of them or, after that has failed, one request's.
    part: Range<usize>,
}

impl StartedBatch {
    /// Returns the entries of the next request that has not been answered, whose rows follow each
    /// other.
    fn next_request(&self) -> Range<usize> {
        let rest = &self.batch.entries[self.ended..];
        let is_same =
            |entry: &&BatchEntry| entry.id == rest[0].id && entry.slot.frontend() == rest[0].slot.frontend();
        self.ended..self.ended + rest.iter().take_while(is_same).count()
    }

    /// Returns true if what was enqueued is all of a batch of several requests.
    fn is_shared(&self) -> bool {
        self.part == (0..self.batch.entries.len()) && self.next_request() != self.part
    }

    /// Answers the entries up to this one.
    fn answer_to(&mut self, end: usize, ending: Ending, now: Nanos, answers: &mut Answers) {
        for &entry in &self.batch.entries[self.ended..end] {
            answers.answer(&self.batch, entry, ending, self.started, now);
        }
        if ending == Ending::Failed {
            answers.executing.failed(&self.batch.header, end - self.ended);
        }
        self.ended = end;
    }
}

/// The rows of a job, by the entries of its batch.
struct EntryRows<'a> {
    answers: &'a Answers,
    entries: &'a [BatchEntry],
}

impl RowSlots for EntryRows<'_> {
    fn claim(&self, row: usize) -> Option<SlotClaim> {
        self.answers.claim(*self.entries.get(row)?)
    }
}

/// The batches of one GPU.
#[derive(Default)]
struct GpuBatches {
    /// The batches that it has been given and has not begun.
    waiting: WaitingBatches,
    /// The batches that the executor has taken, in order.
    started: VecDeque<StartedBatch>,
}

/// The state of an executor. See the module's description.
pub(crate) struct ExecutorState<E: Executor> {
    inbox: Inbox,
    pub(crate) answers: Answers,
    pub(crate) executor: E,
    /// The models that are loaded and unloaded meanwhile, where that may be.
    pub(crate) changes: Option<ModelChangeReceiver<E::Model>>,
    /// The engine's number of the executor's first GPU.
    first_gpu: u32,
    gpus: Vec<GpuBatches>,
    /// The time at which the next batch of each GPU with room may start.
    starts: Wheel,
    /// The batches whose requests have been answered while a model hung or there was no thread, and
    /// whose completions are held back until it is free: until then its GPU is granted to nobody.
    /// Those of a lost GPU are held back for good.
    answered: Vec<Batch>,
    /// True once the loss of the GPUs was reported.
    is_loss_reported: bool,
}

impl<E: Executor> ExecutorState<E> {
    /// Makes the state of an executor that has been given nothing.
    pub(crate) fn new(
        inbox: Inbox,
        mut answers: Answers,
        executor: E,
        changes: Option<ModelChangeReceiver<E::Model>>,
        first_gpu: u32,
        now: Nanos,
    ) -> ExecutorState<E> {
        let count = executor.gpus() as usize;
        let gpus = (0..count).map(|_| GpuBatches::default()).collect();
        answers.counting.tally.model_bytes = executor.memory_bytes();
        let (starts, answered) = (Wheel::new(count, now), Vec::new());
        ExecutorState {
            inbox,
            answers,
            executor,
            changes,
            first_gpu,
            gpus,
            starts,
            answered,
            is_loss_reported: false,
        }
    }

    /// Takes in the batches that have come. Returns their number.
    pub(crate) fn receive(&mut self, now: Nanos) -> usize {
        let ExecutorState { inbox, gpus, starts, executor, first_gpu, .. } = self;
        inbox.receive(now, |batch| {
            let gpu = (batch.header.gpu.0 - *first_gpu) as usize;
            gpus[gpu].waiting.add(batch);
            arm(gpu, &gpus[gpu], executor, starts);
        })
    }

    /// Swaps in the models that were loaded or unloaded.
    pub(crate) fn take_changes(&mut self, now: Nanos) -> usize {
        let ExecutorState { changes, executor, answers, .. } = self;
        let Some(changes) = changes else { return 0 };
        let taken = changes.take(now, |change| {
            executor.exchange(change.index, &mut change.value);
            answers.executing.forget(ModelId(change.index as u32));
        });
        if taken > 0 {
            answers.counting.tally.model_bytes = executor.memory_bytes();
        }
        taken
    }

    /// Returns a time before which no batch starts; `None` where none waits for a GPU with room.
    pub(crate) fn next_start(&self) -> Option<Nanos> {
        self.starts.next()
    }

    /// Starts the batches whose time has come. Returns their number.
    pub(crate) fn start(&mut self, now: Nanos, faults: &ModelFaults) -> usize {
        let mut started = 0;
        while let Some((gpu, _)) = self.starts.pop_expired(now) {
            self.start_next(gpu, now, faults);
            self.arm(gpu);
            started += 1;
        }
        started
    }

    fn start_next(&mut self, gpu: usize, now: Nanos, faults: &ModelFaults) {
        let GpuBatches { waiting, started } = &mut self.gpus[gpu];
        let Some(&BatchHeader { latest, model, .. }) = waiting.next() else { return };
        // The executor is asked while the batch waits: a panic of it loses nothing.
        let can_run = !faults.is_condemned(model) && self.executor.has_model(model.0 as usize);
        let Some(batch) = waiting.take_due(now + self.executor.ahead()) else { return };
        if now > latest {
            self.answers.drop_late(&batch, now);
            self.complete(batch, now, now);
        } else if !can_run {
            self.answers.fail(&batch, now);
            self.complete(batch, now, now);
        } else if !self.executor.is_loaded(model.0 as usize) {
            self.answers.answer_all(&batch, Ending::Stopped, Nanos::ZERO, now);
            self.complete(batch, now, now);
        } else {
            let part = 0..batch.entries.len();
            started.push_back(StartedBatch { batch, started: now, ended: 0, part });
            let at = started.len() - 1;
            if self.enqueue(gpu, at, now).is_err() {
                self.part_ended((gpu, at), false, now, now);
            }
        }
    }

    /// Gives the executor the part of a started batch that is to run next.
    fn enqueue(&mut self, gpu: usize, at: usize, now: Nanos) -> Result<(), EnqueueError> {
        let StartedBatch { batch, part, .. } = &self.gpus[gpu].started[at];
        let BatchHeader { batch: number, model, duration, exec_at, latest, .. } = batch.header;
        let (gpu, model) = (gpu as u32, model.0 as usize);
        // A part that is run once more comes too late anyway: whether it does was decided for all.
        let latest = if part.len() == batch.entries.len() { latest } else { Nanos::MAX };
        let job = Job { batch: number, gpu, model, rows: part.len(), duration, exec_at, latest };
        let rows = EntryRows { answers: &self.answers, entries: &batch.entries[part.clone()] };
        self.executor.enqueue(job, &rows, now)
    }

    /// Returns why the GPUs are lost, the first time that they are.
    pub(crate) fn newly_lost(&mut self) -> Option<&str> {
        let reason = self.executor.lost()?;
        (!std::mem::replace(&mut self.is_loss_reported, true)).then_some(reason)
    }

    /// Takes the jobs that are over: answers their requests, and frees their GPUs. Calls `failed`
    /// for each on which its model failed. Returns their number.
    pub(crate) fn finish(
        &mut self,
        now: Nanos,
        mut failed: impl FnMut(&BatchHeader, usize, &RunError),
    ) -> usize {
        let mut finished = 0;
        while let Some(job) = self.executor.poll(now) {
            self.finish_one(&job, now, &mut failed);
            finished += 1;
        }
        finished
    }

    fn finish_one(
        &mut self,
        job: &FinishedJob,
        now: Nanos,
        failed: &mut impl FnMut(&BatchHeader, usize, &RunError),
    ) {
        let gpu = job.gpu as usize;
        let started = &self.gpus[gpu].started;
        let Some(at) = started.iter().position(|of| of.batch.header.batch == job.batch) else { return };
        let StartedBatch { batch, part, .. } = &started[at];
        if matches!(job.result, Err(RunError::Late)) {
            return self.cancel_started(gpu, at, now);
        }
        let ran = match &job.result {
            Ok(()) => {
                let rows = EntryRows { answers: &self.answers, entries: &batch.entries[part.clone()] };
                self.executor.write_outputs(job, &rows)
            }
            Err(error) => {
                failed(&batch.header, part.len(), error);
                false
            }
        };
        if part.len() == batch.entries.len() {
            self.gpus[gpu].started[at].started = job.started;
        }
        self.part_ended((gpu, at), ran, job.finished, now);
        self.arm(gpu);
    }

    /// Cancels a batch that the executor has taken and could not start in time.
    fn cancel_started(&mut self, gpu: usize, at: usize, now: Nanos) {
        if let Some(StartedBatch { batch, .. }) = self.gpus[gpu].started.remove(at) {
            self.answers.drop_late(&batch, now);
            self.complete(batch, now, now);
        }
        self.arm(gpu);
    }

    /// Reports that a batch has left its GPU, and that the GPU is free; not of one that is lost,
    /// which is granted to nobody for as long as its batch is overdue.
    fn complete(&mut self, batch: Batch, started: Nanos, finished: Nanos) {
        if self.executor.lost().is_some() {
            return self.answered.push(batch);
        }
        self.answers.complete(&batch, started, finished);
        self.inbox.recycle(batch);
    }

    /// Goes on with a started batch of which a part has run or failed: answers it, and frees the
    /// GPU after the last. A batch of several requests that fails is run once more, one request at
    /// a time, so that only the one that is at fault fails.
    fn part_ended(&mut self, (gpu, at): (usize, usize), mut ran: bool, finished: Nanos, now: Nanos) {
        loop {
            let started = &mut self.gpus[gpu].started[at];
            if ran || !started.is_shared() {
                let slot = started.batch.header.model.0 as usize;
                let is_gone = || self.executor.has_model(slot) && !self.executor.is_loaded(slot);
                // An UNLOAD may begin between two looks at the weights.
                let otherwise = || if is_gone() { Ending::Stopped } else { Ending::Failed };
                let ending = if ran { Ending::Done } else { otherwise() };
                started.answer_to(started.part.end, ending, finished, &mut self.answers);
            }
            started.part = started.next_request();
            if started.part.is_empty() {
                return self.end_batch(gpu, at, finished, now);
            }
            if self.enqueue(gpu, at, now).is_ok() {
                return;
            }
            ran = false;
        }
    }

    /// Ends a started batch, whose entries have been answered.
    fn end_batch(&mut self, gpu: usize, at: usize, finished: Nanos, now: Nanos) {
        if let Some(StartedBatch { batch, started, .. }) = self.gpus[gpu].started.remove(at) {
            self.answers.ran(&batch, started, finished);
            self.complete(batch, started, finished);
            self.complete_answered(now);
        }
    }

    fn arm(&mut self, gpu: usize) {
        arm(gpu, &self.gpus[gpu], &self.executor, &mut self.starts);
    }

    /// Ends the waiting batches that can't start in time any more, behind one that runs for longer
    /// than it was to.
    pub(crate) fn drop_late(&mut self, now: Nanos) {
        self.receive(now);
        for gpu in &mut self.gpus {
            while let Some(batch) = gpu.waiting.take_late(now) {
                self.answers.drop_late(&batch, now);
                self.answers.counting.publish();
                self.answered.push(batch);
            }
        }
    }

    /// Reports the completions that were held back, unless the GPUs are lost.
    fn complete_answered(&mut self, now: Nanos) {
        if self.executor.lost().is_some() {
            return;
        }
        for batch in self.answered.drain(..) {
            self.answers.complete(&batch, now, now);
            self.inbox.recycle(batch);
        }
    }

    /// Answers what the executor will never answer, since its thread is given up. Returns the batch
    /// whose work did not come back, if one was running.
    pub(crate) fn give_up(&mut self, now: Nanos) -> Option<BatchHeader> {
        self.executor.die();
        // Work is run in the order in which batches start.
        let header = self.started().next().map(|started| started.batch.header);
        header.iter().for_each(|header| self.answers.executing.hung(header));
        self.answers.counting.tally.hung += 1;
        self.answers.counting.publish();
        self.answer_started(Ending::Failed, now);
        header
    }

    fn started(&self) -> impl Iterator<Item = &StartedBatch> {
        self.gpus.iter().flat_map(|gpu| &gpu.started)
    }

    fn answer_started(&mut self, ending: Ending, now: Nanos) {
        for started in self.gpus.iter_mut().flat_map(|gpu| &mut gpu.started) {
            started.answer_to(started.batch.entries.len(), ending, now, &mut self.answers);
        }
    }

    /// Does what can be done without a thread: fails the batches that come, and swaps models.
    pub(crate) fn hold(&mut self, now: Nanos) {
        self.receive(now);
        for gpu in &mut self.gpus {
            for batch in gpu.waiting.drain() {
                self.answers.fail(&batch, now);
                self.answered.push(batch);
            }
        }
        self.take_changes(now);
    }

    /// Makes the state that of a new thread, on which the models compute: the model whose work was
    /// given up is made anew, and the completions that were held back are reported.
    pub(crate) fn restore(&mut self, compute: &ComputeThread, now: Nanos) {
        self.executor.revive(compute);
        let given_up = self.gpus.iter_mut().flat_map(|gpu| gpu.started.drain(..));
        // They were given to the GPUs before the others.
        let given_up: Vec<Batch> = given_up.map(|started| started.batch).collect();
        self.answered.splice(..0, given_up);
        self.complete_answered(now);
        (0..self.gpus.len()).for_each(|gpu| self.arm(gpu));
    }

    /// Ends everything that it has been given.
    pub(crate) fn stop(&mut self, now: Nanos) {
        self.receive(now);
        self.answer_started(Ending::Stopped, now);
        for gpu in &mut self.gpus {
            for batch in gpu.waiting.drain() {
                self.answers.answer_all(&batch, Ending::Stopped, Nanos::ZERO, now);
            }
        }
        self.answers.counting.publish();
    }
}

/// Sets the timer of a GPU with room to the start of its next batch.
fn arm<E: Executor>(gpu: usize, batches: &GpuBatches, executor: &E, starts: &mut Wheel) {
    if let Some(next) = batches.waiting.next()
        && executor.has_room(gpu as u32)
    {
        starts.set(gpu, next.exec_at - executor.ahead());
    }
}

#[cfg(test)]
mod tests;
