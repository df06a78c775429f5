//! The backend thread of one CPU executor, which is a GPU to the scheduler: it runs one batch at a
//! time on its core, between the batch's exec_at and its latest; one that can't start in time is
//! cancelled and answered.

use super::batches::{Answers, Batch, Inbox};
use crate::runtime::clock::Clock;
use crate::runtime::threads::agent::Agent;
use crate::runtime::threads::changes::ChangeReceiver;
use std::collections::VecDeque;
use symphony_gpu::{ComputeThread, CpuModel};
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, ModelId};

/// The time before a batch's start within which it is waited for without a nap.
const SOON: Nanos = Nanos::from_micros(200);

/// The agent of a CPU executor. See the module's description.
pub(crate) struct CpuBackend {
    pub(crate) inbox: Inbox,
    pub(crate) answers: Answers,
    pub(crate) clock: Clock,
    /// The models that it can run, by the engine's numbers; `None` for those of other executors.
    pub(crate) models: Vec<Option<Box<CpuModel>>>,
    /// The models that are loaded and unloaded meanwhile, where that may be.
    pub(crate) changes: Option<ChangeReceiver<Option<Box<CpuModel>>>>,
    /// The handle of this thread, on which the models compute.
    pub(crate) compute: ComputeThread,
    /// The batches that it has been given, in order.
    pub(crate) waiting: VecDeque<Batch>,
}

impl CpuBackend {
    fn run(&mut self, batch: &Batch, now: Nanos) {
        let Some(model) = self.models[batch.header.model.0 as usize].as_mut() else {
            self.answers.answer_all(batch, Ending::Failed, Nanos::ZERO, now);
            self.answers.complete(batch, now, now);
            return;
        };
        let in_one_go = run_rows(model, &self.answers, &batch.entries);
        if in_one_go {
            let finished = self.clock.now();
            self.answers.answer_all(batch, Ending::Done, now, finished);
        } else {
            // One row with, progress, an index out of range fails the whole run: alone, only that
            // one fails.
            for &entry in &batch.entries {
                let ran = run_rows(model, &self.answers, &[entry]);
                let ending = if ran { Ending::Done } else { Ending::Failed };
                self.answers.answer(batch, entry, ending, now, self.clock.now());
            }
        }
        let finished = self.clock.now();
        self.answers.ran(batch, now, finished);
    }
}

/// Stages the inputs of these requests, runs the model and puts the outputs into their slots.
/// Returns false if it failed.
fn run_rows(
    model: &mut CpuModel,
    answers: &Answers,
    entries: &[symphony_transport::message::BatchEntry],
) -> bool {
    let input_bytes = model.signature().input_bytes();
    let output_bytes = model.signature().output_bytes();
    for (row, &entry) in entries.iter().enumerate() {
        let Some(slot) = answers.slot(entry) else { return false };
        model.stage(row, &slot[..input_bytes]);
    }
    if model.run(entries.len()).is_err() {
        return false;
    }
    for (row, &entry) in entries.iter().enumerate() {
        let Some(mut slot) = answers.slot(entry) else { return false };
        model.unstage(row, &mut slot[input_bytes..input_bytes + output_bytes]);
    }
    true
}

impl CpuBackend {
    fn take_changes(&mut self, now: Nanos) -> usize {
        let CpuBackend { changes, models, compute, answers, .. } = self;
        let Some(changes) = changes else { return 0 };
        changes.take(now, |change| {
            change.value.iter_mut().for_each(|model| model.compute_on(compute));
            std::mem::swap(&mut models[change.index], &mut change.value);
            answers.executing.forget(ModelId(change.index as u32));
        })
    }

    fn run_batches(&mut self, now: Nanos) -> usize {
        let CpuBackend { inbox, waiting, .. } = self;
        let received = inbox.receive(now, |batch| waiting.push_back(batch));
        let Some(next) = self.waiting.front().map(|batch| batch.header) else { return received };
        if next.exec_at > now {
            return received + usize::from(next.exec_at < now + SOON);
        }
        let Some(batch) = self.waiting.pop_front() else { return received };
        if now > next.latest {
            self.answers.cancel(&batch, now);
        } else {
            self.run(&batch, now);
        }
        self.inbox.recycle(batch);
        received + 1
    }
}

impl Agent for CpuBackend {
    fn poll(&mut self, now: Nanos) -> usize {
        self.answers.counting.cycle_begins(now);
        let work = self.run_batches(now) + self.take_changes(now);
        self.answers.counting.cycle_ends(now, work);
        work
    }

    fn stop(&mut self, now: Nanos) {
        let CpuBackend { inbox, waiting, answers, .. } = self;
        inbox.receive(now, |batch| waiting.push_back(batch));
        for batch in waiting.drain(..) {
            answers.answer_all(&batch, Ending::Stopped, Nanos::ZERO, now);
        }
        answers.counting.publish();
    }
}
