//! The backend thread of one CPU executor, which is a GPU to the scheduler: it runs one batch at a
//! time on its core, between the batch's exec_at and its latest; one that can't start in time is
//! cancelled and answered. A batch that fails is run once more, one request at a time, so that only
//! the request that is at fault fails.

use super::batches::Batch;
use super::executor_state::ExecutorState;
use super::lease::ExecutorLease;
use super::model_faults::ModelFaults;
use crate::runtime::callbacks::ThreadHook;
use crate::runtime::clock::Clock;
use crate::runtime::threads::agent::Agent;
use std::ops::Range;
use std::sync::Arc;
use symphony_gpu::{ComputeThread, CpuModel, RunError};
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Ending};

/// The time before a batch's start within which it is waited for without a nap.
const SOON: Nanos = Nanos::from_micros(200);

/// The multiple of its profile that a batch may take before its executor counts as hung.
const SLOWER_THAN_PROFILED: u64 = 10;

/// The least time between two log lines about failed batches.
const LOG_EVERY: Nanos = Nanos::from_secs(1);

/// The agent of a CPU executor. See the module's description.
pub(crate) struct CpuBackend {
    /// The state; `None` while a model runs, and once it was taken over: the thread is to end.
    pub(crate) state: Option<Box<ExecutorState>>,
    pub(crate) lease: Arc<ExecutorLease>,
    pub(crate) faults: Arc<ModelFaults>,
    pub(crate) clock: Clock,
    pub(crate) role: String,
    /// A callback of tests.
    pub(crate) hook: Option<ThreadHook>,
    /// The handle of this thread, on which the models compute.
    pub(crate) compute: ComputeThread,
    /// The least time that a batch may take before the executor counts as hung.
    pub(crate) hung_after: Nanos,
    /// The time from which a failure is logged.
    pub(crate) log_at: Nanos,
}

impl CpuBackend {
    /// Runs a batch, if its model is there and has not been given up.
    fn run(&mut self, batch: Batch, now: Nanos) {
        let Some(state) = &mut self.state else { return };
        let model_id = batch.header.model;
        let at = model_id.0 as usize;
        let model = if self.faults.is_condemned(model_id) { None } else { state.models[at].take() };
        let Some(mut model) = model else { return state.refuse(batch, now) };
        let header = batch.header;
        state.begin(batch, &model, now);
        self.run_requests(&header, &mut model, now);
        if let Some(state) = &mut self.state {
            state.models[at] = Some(model);
            state.finish(self.clock.now());
        }
    }

    /// Runs all requests of the batch together and, if that fails, once more each by itself.
    /// Returns `None` if the state was taken over meanwhile.
    fn run_requests(&mut self, header: &BatchHeader, model: &mut CpuModel, now: Nanos) -> Option<()> {
        let rows = self.state.as_ref()?.rows();
        let mut ran = self.run_part(header, model, 0..rows, now)?;
        if !ran && self.state.as_ref()?.next_request().end < rows {
            loop {
                let part = self.state.as_ref()?.next_request();
                if part.is_empty() {
                    break;
                }
                ran = self.run_part(header, model, part.clone(), self.clock.now())?;
                let ending = if ran { Ending::Done } else { Ending::Failed };
                self.state.as_mut()?.answer_to(part.end, ending, self.clock.now());
            }
        }
        let ending = if ran { Ending::Done } else { Ending::Failed };
        self.state.as_mut()?.answer_to(rows, ending, self.clock.now());
        Some(())
    }

    /// Runs these rows of the batch. Returns false if the model failed, `None` if the state was
    /// taken over meanwhile.
    fn run_part(
        &mut self,
        header: &BatchHeader,
        model: &mut CpuModel,
        part: Range<usize>,
        now: Nanos,
    ) -> Option<bool> {
        if !self.state.as_ref()?.stage(model, part.clone()) {
            return Some(false);
        }
        let patience = Nanos(header.duration.0.saturating_mul(SLOWER_THAN_PROFILED)).max(self.hung_after);
        self.lease.put_down(self.state.take()?, now + header.duration, now + patience);
        self.hook.iter().for_each(|hook| hook(&format!("{} runs", self.role)));
        let result = model.run(part.len());
        self.state = self.lease.take_back();
        let state = self.state.as_ref()?;
        match result {
            Ok(()) => Some(state.unstage(model, part)),
            Err(error) => {
                self.log(header, part.len(), &error);
                Some(false)
            }
        }
    }

    #[cold]
    fn log(&mut self, header: &BatchHeader, rows: usize, error: &RunError) {
        let now = self.clock.now();
        if now >= self.log_at {
            self.log_at = now + LOG_EVERY;
            let (model, gpu) = (self.faults.name_of(header.model), header.gpu.0);
            tracing::warn!(model, gpu, rows, "a model failed on a batch: {error}");
        }
    }

    fn run_next(&mut self, now: Nanos) -> usize {
        let Some(state) = &mut self.state else { return 0 };
        let Some(next) = state.waiting.next().copied() else { return 0 };
        if next.exec_at > now {
            return usize::from(next.exec_at < now + SOON);
        }
        let Some(batch) = state.waiting.take_next() else { return 0 };
        if now > next.latest {
            state.answers.cancel(&batch, now);
            state.inbox.recycle(batch);
        } else {
            self.run(batch, now);
        }
        1
    }
}

impl Agent for CpuBackend {
    fn poll(&mut self, now: Nanos) -> usize {
        self.hook.iter().for_each(|hook| hook(&self.role));
        let Some(state) = &mut self.state else { return 0 };
        state.answers.counting.cycle_begins(now);
        let mut work = state.receive(now) + self.run_next(now);
        if let Some(state) = &mut self.state {
            work += state.take_changes(now, Some(&self.compute));
            state.answers.counting.cycle_ends(now, work);
        }
        work
    }

    fn stop(&mut self, now: Nanos) {
        if let Some(state) = &mut self.state {
            state.stop(now);
        }
    }
}
