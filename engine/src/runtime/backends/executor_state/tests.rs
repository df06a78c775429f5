//! The executor's state behind an executor that runs everything at once, and behind one as a device
//! with a queue and DMA would be.

use super::*;
use crate::runtime::backends::lease::ExecutorLease;
use crate::runtime::counters::Counting;
use crate::runtime::counters::count::Count;
use crate::runtime::counters::executions::Executions;
use crate::runtime::frontend::{ModelInfo, ModelTable};
use crate::runtime::panics::catch;
use crate::runtime::threads::completions::NumberedCompletion;
use std::cell::Cell;
use std::sync::Arc;
use symphony_gpu::CpuExecutor;
use symphony_gpu::NoWork;
use symphony_transport::message::{ENTRIES_PER_FRAME, Frame, Response};
use symphony_transport::ring::{Consumer, Producer, ring};
use symphony_transport::slab::{Slab, SlabOwner, SlabView, SlotClass, SlotId};

/// An executor's state, and the other ends of its rings.
struct Rig<E: Executor> {
    state: Box<ExecutorState<E>>,
    batches: Producer<Frame>,
    responses: Consumer<Response>,
    completions: Consumer<NumberedCompletion>,
}

fn rig() -> Rig<CpuExecutor> {
    rig_of(CpuExecutor::new(vec![None]), Vec::new())
}

fn rig_of<E: Executor>(executor: E, slabs: Vec<SlabView>) -> Rig<E> {
    let (batches, inbox) = ring(64);
    let (frontend, responses) = ring(64);
    let (rank, completions) = ring(64);
    let answers = Answers {
        slabs,
        frontends: vec![frontend],
        completions: vec![rank],
        sent: Arc::new([Count::new()]),
        rank_of: Arc::new([0]),
        counting: Counting::unpublished(),
        executing: Executions::new(std::iter::once(0..1)).of_backend(0),
    };
    let state = ExecutorState::new(Inbox::new(vec![inbox]), answers, executor, None, 0, Nanos::ZERO);
    Rig { state: Box::new(state), batches, responses, completions }
}

impl<E: Executor> Rig<E> {
    /// Sends the batch of this number, with one request of the same number.
    fn send(&mut self, batch: u64, latest: Nanos) {
        self.send_rows(batch, latest, &[(batch, SlotId::default())]);
    }

    /// Sends the batch of this number, with these requests of one row each.
    fn send_rows(&mut self, batch: u64, latest: Nanos, rows: &[(u64, SlotId)]) {
        let size = rows.len() as u32;
        let header = BatchHeader { batch, exec_at: latest, latest, size, ..BatchHeader::default() };
        let mut entries = [BatchEntry::default(); ENTRIES_PER_FRAME];
        for (entry, &(id, slot)) in entries.iter_mut().zip(rows) {
            *entry = BatchEntry { id, slot };
        }
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
    assert_eq!(rig.state.gpus[0].waiting.next().map(|next| next.batch), Some(2));
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

/// An executor as one of a device with a queue: it takes two batches at a time, holds the claims of
/// their rows while it computes, and ends them when the test says. It doubles the first byte.
#[derive(Default)]
struct QueueExecutor {
    queue: VecDeque<(Job, Vec<SlotClaim>)>,
    /// The results of the jobs that are over, oldest first.
    results: VecDeque<Result<(), RunError>>,
    models: [Option<()>; 1],
    /// The call in which it panics, once.
    panics_in: Cell<Option<&'static str>>,
    /// How long before its exec_at it takes a batch.
    ahead: Nanos,
    lost: Option<&'static str>,
}

impl QueueExecutor {
    fn called(&self, call: &str) {
        let panics = self.panics_in.get() == Some(call);
        if panics {
            self.panics_in.set(None);
        }
        assert!(!panics, "a fault in {call}");
    }

    fn end_with(&mut self, result: Result<(), RunError>) {
        self.results.push_back(result);
    }
}

impl Executor for QueueExecutor {
    type Model = ();
    type Work = NoWork;

    fn gpus(&self) -> u32 {
        1
    }

    fn exchange(&mut self, slot: usize, model: &mut Option<()>) {
        std::mem::swap(&mut self.models[slot], model);
    }

    fn has_model(&self, slot: usize) -> bool {
        self.called("has_model");
        self.models[slot].is_some()
    }

    fn is_loaded(&self, slot: usize) -> bool {
        self.models[slot].is_some()
    }

    fn has_room(&self, _: u32) -> bool {
        self.queue.len() < 2
    }

    fn ahead(&self) -> Nanos {
        self.ahead
    }

    fn lost(&self) -> Option<&str> {
        self.lost
    }

    fn enqueue(&mut self, job: Job, rows: &dyn RowSlots, _: Nanos) -> Result<(), EnqueueError> {
        self.called("enqueue");
        let claims: Vec<SlotClaim> = (0..job.rows).map_while(|row| rows.claim(row)).collect();
        if claims.len() < job.rows {
            return Err(EnqueueError::NoInputs);
        }
        self.queue.push_back((job, claims));
        Ok(())
    }

    fn take_work(&mut self) -> Option<(Job, NoWork)> {
        None
    }

    fn end_work(&mut self, work: NoWork, _: Nanos) {
        match work {}
    }

    fn poll(&mut self, now: Nanos) -> Option<FinishedJob> {
        let result = self.results.pop_front()?;
        let (job, mut claims) = self.queue.pop_front()?;
        claims.iter_mut().for_each(|claim| claim[0] *= 2);
        Some(FinishedJob { gpu: 0, batch: job.batch, started: now, finished: now, result })
    }

    fn next_end(&self) -> Option<Nanos> {
        Some(Nanos::ZERO)
    }

    fn write_outputs(&mut self, _: &FinishedJob, _: &dyn RowSlots) -> bool {
        true
    }

    fn memory_bytes(&self) -> u64 {
        self.models.iter().flatten().count() as u64
    }

    fn die(&mut self) {
        self.queue.clear();
        self.results.clear();
    }

    fn revive(&mut self, _: &ComputeThread) {}
}

/// A queue executor with a model, a slab of its rows, and the slots of as many requests.
fn queue_rig(rows: usize) -> (Rig<QueueExecutor>, SlabOwner, Vec<SlotId>) {
    let (mut owner, view) = Slab::new(&[SlotClass { slot_bytes: 64, count: rows }], 0).unwrap();
    let slots: Vec<SlotId> = (0..rows).map(|_| owner.alloc(1).unwrap()).collect();
    for (&slot, number) in slots.iter().zip(1..) {
        view.claim(slot).unwrap()[0] = number;
    }
    let executor = QueueExecutor { models: [Some(())], ..QueueExecutor::default() };
    (rig_of(executor, vec![view]), owner, slots)
}

fn no_faults() -> ModelFaults {
    ModelFaults::new(ModelTable::new([ModelInfo::vacant(ModelId(0), 0)].into()), false)
}

/// Passes what an executor says of failures.
fn unheard(_: &BatchHeader, _: usize, _: &RunError) {}

#[test]
fn a_gpu_is_given_as_many_batches_as_its_executor_takes_and_they_end_in_order() {
    let (mut rig, mut owner, slots) = queue_rig(3);
    for (&slot, batch) in slots.iter().zip(1..) {
        rig.send_rows(batch, Nanos(100), &[(batch, slot)]);
    }
    let faults = no_faults();
    rig.state.receive(Nanos(100));
    assert_eq!(rig.state.start(Nanos(100), &faults), 2, "the third waits for room");
    assert!(!owner.free(slots[0]), "the device holds it");
    assert_eq!(rig.ended(), []);
    for _ in 0..2 {
        rig.state.executor.end_with(Ok(()));
    }
    assert_eq!(rig.state.finish(Nanos(100), unheard), 2);
    assert_eq!(
        (rig.ended(), rig.completed()),
        (vec![(1, Some(Ending::Done)), (2, Some(Ending::Done))], vec![1, 2])
    );
    assert_eq!(owner.view().claim(slots[1]).unwrap()[0], 4);
    assert!(owner.free(slots[0]));
    assert_eq!(rig.state.start(Nanos(100), &faults), 1);
    rig.state.executor.end_with(Ok(()));
    rig.state.finish(Nanos(100), unheard);
    assert_eq!((rig.ended(), rig.completed()), (vec![(3, Some(Ending::Done))], vec![3]));
}

#[test]
fn a_batch_that_fails_is_run_once_more_by_request_behind_those_that_were_enqueued_before() {
    let (mut rig, _owner, slots) = queue_rig(3);
    rig.send_rows(1, Nanos(100), &[(10, slots[0]), (11, slots[1])]);
    rig.send_rows(2, Nanos(100), &[(12, slots[2])]);
    let faults = no_faults();
    rig.state.receive(Nanos(100));
    rig.state.start(Nanos(100), &faults);
    let failed = || Err(RunError::Failed { reason: "a test".into() });
    // The batch fails; the other one runs; then each of its requests, of which the first fails.
    for result in [failed(), Ok(()), failed(), Ok(())] {
        rig.state.executor.end_with(result);
        rig.state.finish(Nanos(100), unheard);
    }
    let endings = [(12, Some(Ending::Done)), (10, Some(Ending::Failed)), (11, Some(Ending::Done))];
    assert_eq!((rig.ended(), rig.completed()), (endings.to_vec(), vec![2, 1]));
}

#[test]
fn a_batch_that_was_taken_ahead_and_could_not_start_is_cancelled() {
    let (mut rig, _owner, slots) = queue_rig(2);
    rig.state.executor.ahead = Nanos(10);
    rig.send_rows(1, Nanos(100), &[(10, slots[0]), (11, slots[1])]);
    let faults = no_faults();
    rig.state.receive(Nanos(80));
    assert_eq!(rig.state.next_start(), Some(Nanos(90)));
    assert_eq!((rig.state.start(Nanos(89), &faults), rig.state.start(Nanos(90), &faults)), (0, 1));
    let (job, _) = &rig.state.executor.queue[0];
    assert_eq!((job.exec_at, job.latest), (Nanos(100), Nanos(100)));
    rig.state.executor.end_with(Err(RunError::Late));
    rig.state.finish(Nanos(101), unheard);
    let dropped = Some(Ending::DroppedAtBackend);
    assert_eq!((rig.ended(), rig.completed()), (vec![(10, dropped), (11, dropped)], vec![1]));
    assert_eq!(rig.state.answers.counting.tally.cancelled, 1);
}

#[test]
fn a_gpu_that_is_lost_answers_its_requests_and_is_never_reported_free() {
    let (mut rig, _owner, slots) = queue_rig(3);
    for (&slot, batch) in slots.iter().zip(1..) {
        rig.send_rows(batch, Nanos(100), &[(batch, slot)]);
    }
    rig.state.receive(Nanos(100));
    rig.state.start(Nanos(100), &no_faults());
    rig.state.executor.lost = Some("a test");
    rig.state.executor.models = [None];
    (0..2).for_each(|_| rig.state.executor.end_with(Err(RunError::Failed { reason: "a test".into() })));
    rig.state.finish(Nanos(100), unheard);
    rig.state.start(Nanos(100), &no_faults());
    let failed = Some(Ending::Failed);
    assert_eq!((rig.ended(), rig.completed()), (vec![(1, failed), (2, failed), (3, failed)], vec![]));
    assert_eq!(rig.state.newly_lost(), Some("a test"));
    assert_eq!(rig.state.newly_lost(), None, "it is reported once");
}

#[test]
fn an_executor_that_dies_gives_its_claims_up_before_its_requests_are_answered() {
    let (mut rig, mut owner, slots) = queue_rig(2);
    for (&slot, batch) in slots.iter().zip(1..) {
        rig.send_rows(batch, Nanos(100), &[(batch, slot)]);
    }
    rig.state.receive(Nanos(100));
    rig.state.start(Nanos(100), &no_faults());
    assert_eq!(rig.state.give_up(Nanos(200)).map(|header| header.batch), Some(1));
    assert_eq!(rig.ended(), [(1, Some(Ending::Failed)), (2, Some(Ending::Failed))]);
    assert!(rig.completed().is_empty(), "its GPU has no thread");
    assert!(slots.iter().all(|&slot| owner.free(slot)));
    rig.state.restore(&ComputeThread::new(), Nanos(300));
    assert_eq!(rig.completed(), [1, 2]);
}

#[test]
fn a_panic_while_a_batch_is_started_loses_neither_its_requests_nor_its_completion() {
    for (call, ending) in [("has_model", Ending::Done), ("enqueue", Ending::Failed)] {
        let (mut rig, _owner, slots) = queue_rig(1);
        rig.send_rows(1, Nanos(100), &[(10, slots[0])]);
        rig.state.receive(Nanos(100));
        rig.state.executor.panics_in.set(Some(call));
        let faults = no_faults();
        catch(|| rig.state.start(Nanos(100), &faults)).unwrap_err();
        let running = rig.state.give_up(Nanos(100)).map(|header| header.batch);
        assert_eq!(running, (call == "enqueue").then_some(1), "only what has begun is given up");
        rig.state.restore(&ComputeThread::new(), Nanos(100));
        rig.state.start(Nanos(100), &faults);
        rig.state.executor.end_with(Ok(()));
        rig.state.finish(Nanos(100), unheard);
        assert_eq!((rig.ended(), rig.completed()), (vec![(10, Some(ending))], vec![1]), "{call}");
    }
}

#[test]
fn the_memory_of_models_is_counted_as_they_come_and_go() {
    let (rig, _owner, _slots) = queue_rig(1);
    assert_eq!(rig.state.answers.counting.tally.model_bytes, 1);
}
