//! The state of a CPU executor that outlives its thread: its rings, its models and its batches. The
//! thread owns it, but for the time in which a model runs: then it lies in an
//! [`ExecutorLease`](super::lease::ExecutorLease), where the watchdog can take it over.

use super::batches::{Answers, Batch, Inbox, WaitingBatches};
use crate::runtime::threads::changes::ChangeReceiver;
use std::ops::Range;
use std::sync::Arc;
use symphony_gpu::{ComputeThread, CpuModel, OnnxGraph};
use symphony_transport::Nanos;
use symphony_transport::message::{BatchEntry, BatchHeader, Ending, ModelId};

/// The receiving end of models that are loaded and unloaded while an executor runs.
pub(crate) type ModelChangeReceiver = ChangeReceiver<Option<Box<CpuModel>>>;

/// A batch that a model runs.
struct StartedBatch {
    batch: Batch,
    /// The graph of the model that runs it, of which another model can be made; `None` once its
    /// slot has another model.
    graph: Option<Arc<OnnxGraph>>,
    started: Nanos,
    /// The number of its entries that have been answered, the first ones.
    ended: usize,
}

/// The state of an executor. See the module's description.
pub(crate) struct ExecutorState {
    pub(crate) inbox: Inbox,
    pub(crate) answers: Answers,
    /// The models that it can run, by the engine's numbers; `None` for those of other executors,
    /// and for the one that runs.
    pub(crate) models: Vec<Option<Box<CpuModel>>>,
    /// The models that are loaded and unloaded meanwhile, where that may be.
    pub(crate) changes: Option<ModelChangeReceiver>,
    /// The batches that it has been given, in order.
    pub(crate) waiting: WaitingBatches,
    running: Option<StartedBatch>,
    /// The batches whose requests have been answered while a model hung or there was no thread, and
    /// whose completions are held back until it is free: until then its GPU is granted to nobody.
    answered: Vec<Batch>,
}

impl ExecutorState {
    /// Makes the state of an executor that has been given nothing.
    pub(crate) fn new(
        inbox: Inbox,
        answers: Answers,
        models: Vec<Option<Box<CpuModel>>>,
        changes: Option<ModelChangeReceiver>,
    ) -> ExecutorState {
        let (waiting, running, answered) = (WaitingBatches::default(), None, Vec::new());
        ExecutorState { inbox, answers, models, changes, waiting, running, answered }
    }

    /// Takes in the batches that have come. Returns their number.
    pub(crate) fn receive(&mut self, now: Nanos) -> usize {
        let ExecutorState { inbox, waiting, .. } = self;
        inbox.receive(now, |batch| waiting.add(batch))
    }

    /// Swaps in the models that were loaded or unloaded. They compute on `compute`, if there is a
    /// thread at the moment.
    pub(crate) fn take_changes(&mut self, now: Nanos, compute: Option<&ComputeThread>) -> usize {
        let ExecutorState { changes, models, answers, running, .. } = self;
        let Some(changes) = changes else { return 0 };
        changes.take(now, |change| {
            if let (Some(model), Some(compute)) = (&mut change.value, compute) {
                model.compute_on(compute);
            }
            std::mem::swap(&mut models[change.index], &mut change.value);
            answers.executing.forget(ModelId(change.index as u32));
            if let Some(running) =
                running.as_mut().filter(|of| of.batch.header.model.0 as usize == change.index)
            {
                running.graph = None;
            }
        })
    }

    /// Notes that `model` is about to run a batch.
    pub(crate) fn begin(&mut self, batch: Batch, model: &CpuModel, started: Nanos) {
        let graph = Some(Arc::clone(model.graph()));
        self.running = Some(StartedBatch { batch, graph, started, ended: 0 });
    }

    /// Returns the number of rows of the running batch.
    pub(crate) fn rows(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.batch.entries.len())
    }

    /// Returns the entries of the running batch's next request that has not been answered, whose
    /// rows follow each other.
    pub(crate) fn next_request(&self) -> Range<usize> {
        let Some(StartedBatch { batch, ended, .. }) = &self.running else { return 0..0 };
        let rest = &batch.entries[*ended..];
        let is_same =
            |entry: &&BatchEntry| entry.id == rest[0].id && entry.slot.frontend() == rest[0].slot.frontend();
        *ended..*ended + rest.iter().take_while(is_same).count()
    }

    /// Copies the inputs of these entries of the running batch into the model. Returns false if a
    /// slot is not theirs.
    pub(crate) fn stage(&self, model: &mut CpuModel, part: Range<usize>) -> bool {
        let Some(StartedBatch { batch, .. }) = &self.running else { return false };
        let bytes = model.signature().input_bytes();
        batch.entries[part].iter().enumerate().all(|(row, &entry)| {
            self.answers.slot(entry).map(|slot| model.stage(row, &slot[..bytes])).is_some()
        })
    }

    /// Copies the model's outputs into the slots of these entries. Returns false if a slot is not
    /// theirs.
    pub(crate) fn unstage(&self, model: &CpuModel, part: Range<usize>) -> bool {
        let Some(StartedBatch { batch, .. }) = &self.running else { return false };
        let (input, output) = (model.signature().input_bytes(), model.signature().output_bytes());
        batch.entries[part].iter().enumerate().all(|(row, &entry)| {
            let slot = self.answers.slot(entry);
            slot.map(|mut slot| model.unstage(row, &mut slot[input..input + output])).is_some()
        })
    }

    /// Answers the entries of the running batch up to this one.
    pub(crate) fn answer_to(&mut self, end: usize, ending: Ending, now: Nanos) {
        let Some(StartedBatch { batch, started, ended, .. }) = &mut self.running else { return };
        for &entry in &batch.entries[*ended..end] {
            self.answers.answer(batch, entry, ending, *started, now);
        }
        if ending == Ending::Failed {
            self.answers.executing.failed(&batch.header, end - *ended);
        }
        *ended = end;
    }

    /// Ends the running batch, whose entries have been answered.
    pub(crate) fn finish(&mut self, now: Nanos) {
        if let Some(StartedBatch { batch, started, .. }) = self.running.take() {
            self.answers.ran(&batch, started, now);
            self.inbox.recycle(batch);
            self.complete_answered(now);
        }
    }

    /// Ends the waiting batches that can't start in time any more, behind one that runs for longer
    /// than it was to.
    pub(crate) fn drop_late(&mut self, now: Nanos) {
        self.receive(now);
        while let Some(batch) = self.waiting.take_late(now) {
            self.answers.drop_late(&batch, now);
            self.answers.counting.publish();
            self.answered.push(batch);
        }
    }

    /// Reports the completions that were held back.
    fn complete_answered(&mut self, now: Nanos) {
        for batch in self.answered.drain(..) {
            self.answers.complete(&batch, now, now);
            self.inbox.recycle(batch);
        }
    }

    /// Ends a batch whose model is not there.
    pub(crate) fn refuse(&mut self, batch: Batch, now: Nanos) {
        self.answers.fail(&batch, now);
        self.answers.complete(&batch, now, now);
        self.inbox.recycle(batch);
    }

    /// Answers what the running batch's model will never answer, since its thread is given up.
    /// Returns the batch, if one runs.
    pub(crate) fn give_up(&mut self, now: Nanos) -> Option<BatchHeader> {
        let header = self.running.as_ref().map(|running| running.batch.header);
        header.iter().for_each(|header| self.answers.executing.hung(header));
        self.answers.counting.tally.hung += 1;
        self.answers.counting.publish();
        self.answer_to(self.rows(), Ending::Failed, now);
        header
    }

    /// Does what can be done without a thread: fails the batches that come, and swaps models.
    pub(crate) fn hold(&mut self, now: Nanos) {
        self.receive(now);
        while let Some(batch) = self.waiting.take_next() {
            self.answers.fail(&batch, now);
            self.answered.push(batch);
        }
        self.take_changes(now, None);
    }

    /// Makes the state that of a new thread, whose models compute on `compute`: the model that was
    /// given up is made anew, and the GPU's completions are reported.
    pub(crate) fn restore(&mut self, compute: &ComputeThread, now: Nanos) {
        self.models.iter_mut().flatten().for_each(|model| model.compute_on(compute));
        if let Some(StartedBatch { batch, graph, .. }) = self.running.take() {
            if let Some(graph) = graph {
                self.models[batch.header.model.0 as usize] =
                    Some(Box::new(CpuModel::of_graph(&graph, compute)));
            }
            // It was given to the GPU before the others.
            self.answered.insert(0, batch);
        }
        self.complete_answered(now);
    }

    /// Ends everything that it has been given.
    pub(crate) fn stop(&mut self, now: Nanos) {
        self.receive(now);
        self.answer_to(self.rows(), Ending::Stopped, now);
        for batch in self.waiting.drain() {
            self.answers.answer_all(&batch, Ending::Stopped, Nanos::ZERO, now);
        }
        self.answers.counting.publish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::backends::lease::ExecutorLease;
    use crate::runtime::counters::Counting;
    use crate::runtime::counters::count::Count;
    use crate::runtime::counters::executions::Executions;
    use crate::runtime::threads::completions::NumberedCompletion;
    use symphony_transport::message::{ENTRIES_PER_FRAME, Frame, Response};
    use symphony_transport::ring::{Consumer, Producer, ring};

    /// An executor without models, and the other ends of its rings.
    struct Rig {
        state: Box<ExecutorState>,
        batches: Producer<Frame>,
        responses: Consumer<Response>,
        completions: Consumer<NumberedCompletion>,
    }

    fn rig() -> Rig {
        let (batches, inbox) = ring(64);
        let (frontend, responses) = ring(64);
        let (rank, completions) = ring(64);
        let answers = Answers {
            slabs: Vec::new(),
            frontends: vec![frontend],
            completions: vec![rank],
            sent: Arc::new([Count::new()]),
            rank_of: Arc::new([0]),
            counting: Counting::unpublished(),
            executing: Executions::new(std::iter::once(0..1)).of_backend(0),
        };
        let state = ExecutorState::new(Inbox::new(vec![inbox]), answers, vec![None], None);
        Rig { state: Box::new(state), batches, responses, completions }
    }

    impl Rig {
        /// Sends the batch of this number, with one request of the same number.
        fn send(&mut self, batch: u64, latest: Nanos) {
            let header = BatchHeader { batch, exec_at: latest, latest, size: 1, ..BatchHeader::default() };
            let mut entries = [BatchEntry::default(); ENTRIES_PER_FRAME];
            entries[0].id = batch;
            self.batches.write(header.into()).unwrap();
            self.batches.push(entries.into()).unwrap();
        }

        /// The requests that have ended since the last call.
        fn ended(&mut self) -> Vec<(u64, Option<Ending>)> {
            std::iter::from_fn(|| self.responses.pop())
                .map(|response| (response.id, Ending::from_code(response.ending)))
                .collect()
        }

        fn completed(&mut self) -> Vec<u64> {
            std::iter::from_fn(|| self.completions.pop()).map(|numbered| numbered.completion.batch).collect()
        }
    }

    #[test]
    fn batches_behind_one_that_hangs_end_once_they_can_start_no_more_and_free_the_gpu_after_it() {
        let mut rig = rig();
        let waits_forever = Nanos(1 << 40);
        for (batch, latest) in [(1, Nanos(100)), (2, waits_forever), (3, Nanos(200))] {
            rig.send(batch, latest);
        }
        rig.state.drop_late(Nanos(100));
        assert_eq!(rig.ended(), [], "the first may still start");
        rig.state.drop_late(Nanos(201));
        let dropped = Some(Ending::DroppedAtBackend);
        assert_eq!(rig.ended(), [(1, dropped), (3, dropped)]);
        assert_eq!((rig.completed(), rig.state.answers.counting.tally.cancelled), (vec![], 2));
        // The next thread runs what still waits.
        rig.state.restore(&ComputeThread::new(), Nanos(300));
        assert_eq!((rig.completed(), rig.ended()), (vec![1, 3], vec![]));
        assert_eq!(rig.state.waiting.next().map(|next| next.batch), Some(2));
    }

    #[test]
    fn the_state_of_an_executor_is_looked_at_only_while_its_model_runs_late() {
        let lease = ExecutorLease::new();
        let looked = |now| {
            let mut looked = false;
            lease.while_late(now, |_| looked = true);
            looked
        };
        assert!(!looked(Nanos(1_000)), "nothing runs");
        lease.put_down(rig().state, Nanos(100), Nanos(1_000));
        assert_eq!((looked(Nanos(99)), looked(Nanos(100))), (false, true));
        assert!(lease.take_back().is_some());
        assert!(!looked(Nanos(1_000)), "it has ended");
    }
}
