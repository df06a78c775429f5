//! The backend thread of all emulated GPUs: each batch starts between its exec_at and its latest,
//! takes l(b), and answers zeros of the right shape; one that can't start in time is cancelled and
//! answered.

use super::batches::{Answers, Batch, Inbox, WaitingBatches};
use crate::runtime::threads::agent::Agent;
use crate::runtime::threads::changes::ChangeReceiver;
use std::ops::Range;
use symphony_gpu::EmulatedGpus;
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, ModelId};
use symphony_transport::wheel::Wheel;

/// The agent of all emulated GPUs. See the module's description.
pub(crate) struct EmulatedBackend {
    pub(crate) inbox: Inbox,
    pub(crate) answers: Answers,
    /// The engine's number of the first of these GPUs.
    pub(crate) first_gpu: u32,
    /// The range of each model's outputs in a slot, by the engine's number of the model.
    pub(crate) outputs: Vec<Range<usize>>,
    /// The ranges of outputs of models that are loaded and unloaded meanwhile, where that may be.
    pub(crate) changes: Option<ChangeReceiver<Range<usize>>>,
    gpus: EmulatedGpus,
    /// The time at which the next batch of each idle GPU may start.
    starts: Wheel,
    /// The batch that each GPU runs.
    running: Vec<Option<Batch>>,
    /// The further batches that each GPU has been given.
    waiting: Vec<WaitingBatches>,
}

impl EmulatedBackend {
    /// Makes `count` idle GPUs from `first_gpu` on.
    pub(crate) fn new(
        inbox: Inbox,
        answers: Answers,
        first_gpu: u32,
        count: u32,
        outputs: Vec<Range<usize>>,
        now: Nanos,
    ) -> EmulatedBackend {
        let each = count as usize;
        EmulatedBackend {
            inbox,
            answers,
            first_gpu,
            outputs,
            changes: None,
            gpus: EmulatedGpus::new(count, now),
            starts: Wheel::new(each, now),
            running: (0..each).map(|_| None).collect(),
            waiting: (0..each).map(|_| WaitingBatches::default()).collect(),
        }
    }

    fn finish(&mut self, now: Nanos) -> usize {
        let mut finished = 0;
        while let Some(done) = self.gpus.poll(now) {
            let gpu = done.gpu as usize;
            if let Some(batch) = self.running[gpu].take() {
                self.write_zeros(&batch);
                self.answers.answer_all(&batch, Ending::Done, done.started, done.finished);
                self.answers.ran(&batch, done.started, done.finished);
                self.inbox.recycle(batch);
            }
            self.arm(gpu);
            finished += 1;
        }
        finished
    }

    fn write_zeros(&self, batch: &Batch) {
        let outputs = &self.outputs[batch.header.model.0 as usize];
        for &entry in &batch.entries {
            if let Some(mut slot) = self.answers.slot(entry) {
                slot[outputs.clone()].fill(0);
            }
        }
    }

    /// Sets the timer of an idle GPU to the start of its next batch.
    fn arm(&mut self, gpu: usize) {
        if self.running[gpu].is_none()
            && let Some(next) = self.waiting[gpu].next()
        {
            self.starts.set(gpu, next.exec_at);
        }
    }

    fn start(&mut self, now: Nanos) -> usize {
        let mut started = 0;
        while let Some((gpu, _)) = self.starts.pop_expired(now) {
            if let Some(batch) = self.waiting[gpu].take_next() {
                self.start_one(gpu, batch, now);
            }
            started += 1;
        }
        started
    }

    fn start_one(&mut self, gpu: usize, batch: Batch, now: Nanos) {
        let in_time = now <= batch.header.latest;
        let began =
            in_time && self.gpus.start(gpu as u32, batch.header.batch, now, batch.header.duration).is_ok();
        if began {
            self.running[gpu] = Some(batch);
        } else {
            self.answers.cancel(&batch, now);
            self.inbox.recycle(batch);
            self.arm(gpu);
        }
    }
}

impl Agent for EmulatedBackend {
    fn poll(&mut self, now: Nanos) -> usize {
        self.answers.counting.cycle_begins(now);
        let finished = self.finish(now);
        let EmulatedBackend { inbox, waiting, running, starts, first_gpu, .. } = self;
        let received = inbox.receive(now, |batch| {
            let gpu = (batch.header.gpu.0 - *first_gpu) as usize;
            waiting[gpu].add(batch);
            if running[gpu].is_none()
                && let Some(next) = waiting[gpu].next()
            {
                starts.set(gpu, next.exec_at);
            }
        });
        let mut work = finished + received + self.start(now);
        if let Some(changes) = &mut self.changes {
            let EmulatedBackend { outputs, answers, .. } = self;
            work += changes.take(now, |change| {
                std::mem::swap(&mut outputs[change.index], &mut change.value);
                answers.executing.forget(ModelId(change.index as u32));
            });
        }
        self.answers.counting.cycle_ends(now, work);
        work
    }

    fn stop(&mut self, now: Nanos) {
        let EmulatedBackend { inbox, waiting, running, first_gpu, answers, .. } = self;
        inbox.receive(now, |batch| waiting[(batch.header.gpu.0 - *first_gpu) as usize].add(batch));
        let held = running
            .iter_mut()
            .filter_map(Option::take)
            .chain(waiting.iter_mut().flat_map(WaitingBatches::drain));
        for batch in held {
            answers.answer_all(&batch, Ending::Stopped, Nanos::ZERO, now);
        }
        answers.counting.publish();
    }
}
