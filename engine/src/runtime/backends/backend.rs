//! The loop of every backend thread: batches come from the ModelThreads' rings, run on the
//! thread's executor between their exec_at and their latest, and are answered; one that can't start
//! in time is cancelled and answered. Work that an executor hands out runs here, while the state
//! lies in the lease.

use super::executor_state::ExecutorState;
use super::lease::ExecutorLease;
use super::model_faults::ModelFaults;
use crate::runtime::callbacks::ThreadHook;
use crate::runtime::clock::Clock;
use crate::runtime::threads::agent::Agent;
use std::sync::Arc;
use symphony_gpu::{Executor, Job, RunError, Work};
use symphony_transport::Nanos;
use symphony_transport::message::BatchHeader;

/// The multiple of its profile that a batch may take before its executor counts as hung.
const SLOWER_THAN_PROFILED: u64 = 10;

/// The least time between two log lines about failed batches.
const LOG_EVERY: Nanos = Nanos::from_secs(1);

/// The agent of an executor. See the module's description.
pub(crate) struct Backend<E: Executor> {
    /// The state; `None` while work runs, and once it was taken over: the thread is to end.
    pub(crate) state: Option<Box<ExecutorState<E>>>,
    pub(crate) lease: Arc<ExecutorLease<E>>,
    pub(crate) faults: Arc<ModelFaults>,
    pub(crate) clock: Clock,
    pub(crate) role: String,
    /// A callback of tests.
    pub(crate) hook: Option<ThreadHook>,
    /// The time before a batch's start within which it is waited for without a nap.
    pub(crate) soon: Nanos,
    /// The least time that a batch may take before the executor counts as hung.
    pub(crate) hung_after: Nanos,
    /// The time from which a failure is logged.
    pub(crate) log_at: Nanos,
}

impl<E: Executor> Backend<E> {
    /// Runs the work that the executor hands out, and takes the jobs that are over by it. Returns
    /// `None` if the state was taken over meanwhile.
    fn compute(&mut self) -> Option<()> {
        while let Some((job, mut work)) = self.state.as_mut()?.executor.take_work() {
            self.run(&job, &mut work)?;
            let now = self.clock.now();
            self.lease.cycle_begins(now);
            self.state.as_mut()?.executor.end_work(work, now);
            self.finish(now);
        }
        Some(())
    }

    /// Runs work while the state lies in the lease.
    fn run(&mut self, job: &Job, work: &mut E::Work) -> Option<()> {
        let now = self.clock.now();
        let patience = Nanos(job.duration.0.saturating_mul(SLOWER_THAN_PROFILED)).max(self.hung_after);
        self.lease.put_down(self.state.take()?, now + job.duration, now + patience);
        self.hook.iter().for_each(|hook| hook(&format!("{} runs", self.role)));
        work.run();
        self.state = self.lease.take_back();
        self.state.is_some().then_some(())
    }

    fn finish(&mut self, now: Nanos) -> usize {
        let Backend { state, faults, log_at, .. } = self;
        let Some(state) = state else { return 0 };
        let finished =
            state.finish(now, |header, rows, error| log(faults, log_at, (header, rows, error), now));
        if finished > 0
            && let Some(reason) = state.newly_lost()
        {
            tracing::error!("executor {} is taken out: {reason}", self.role);
        }
        finished
    }
}

#[cold]
fn log(
    faults: &ModelFaults,
    log_at: &mut Nanos,
    (header, rows, error): (&BatchHeader, usize, &RunError),
    now: Nanos,
) {
    if now >= *log_at {
        *log_at = now + LOG_EVERY;
        let (model, gpu) = (faults.name_of(header.model), header.gpu.0);
        tracing::warn!(model, gpu, rows, "a model failed on a batch: {error}");
    }
}

impl<E: Executor> Agent for Backend<E> {
    fn poll(&mut self, now: Nanos) -> usize {
        self.hook.iter().for_each(|hook| hook(&self.role));
        let Some(state) = &mut self.state else { return 0 };
        self.lease.cycle_begins(now);
        state.answers.counting.cycle_begins(now);
        let mut work = self.finish(now);
        if let Some(state) = &mut self.state {
            work += state.receive(now) + state.start(now, &self.faults);
        }
        if self.compute().is_none() {
            return work;
        }
        if let Some(state) = &mut self.state {
            work += usize::from(state.next_start().is_some_and(|at| at < now + self.soon));
            work += state.take_changes(now);
            state.answers.counting.cycle_ends(now, work);
        }
        self.lease.cycle_ends();
        work
    }

    fn next_due(&self) -> Nanos {
        let Some(state) = &self.state else { return Nanos::MAX };
        let start = state.next_start().map(|at| at - self.soon.min(at));
        let end = state.executor.next_end();
        start.into_iter().chain(end).min().unwrap_or(Nanos::MAX)
    }

    fn stop(&mut self, now: Nanos) {
        if let Some(state) = &mut self.state {
            state.stop(now);
        }
    }
}
