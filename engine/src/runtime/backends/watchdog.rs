//! The watchdog of the executors of files: it takes over the state of one whose model hangs or
//! whose thread has died, answers what the thread never will, and starts another thread in its
//! place. The old one can't be ended; it runs on at the lowest priority, without anything that
//! others need, and ends when its model does.
//!
//! The GPU of such an executor is granted to nobody meanwhile: its batch is overdue, and the
//! completion is reported by the new thread. Batches behind one that is overdue are ended once they
//! can't start in time any more.
//!
//! A GPU whose driver does not return from a call is taken out with that reason. Its thread has the
//! state in its hands then, so nothing can be answered for it: frontends end its requests once they
//! are overdue, and set their slots aside.

use super::executor_state::ExecutorState;
use super::executors::{ExecutorSetup, WatchedExecutor};
use super::file_executor::FileExecutor;
use super::model_faults::{HANGS, ModelFaults, WITHIN};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use symphony_transport::Nanos;

/// The pause between two looks at the executors.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// The time that a stop gives to the batches that run.
const STOP_TIMEOUT: Nanos = Nanos::from_secs(5);

/// The time between two looks from which on the whole process was stopped, and no model is at
/// fault.
const LONGEST_GAP: Nanos = Nanos::from_secs(1);

/// The time by which any batch that runs counts as hung.
const ANY_TIME: Nanos = Nanos(u64::MAX - 1);

/// The watchdog. See the module's description.
pub(crate) struct Watchdog {
    executors: Vec<WatchedExecutor>,
    setup: ExecutorSetup,
    faults: Arc<ModelFaults>,
    /// The threads that were given up and still run.
    hung: Vec<JoinHandle<()>>,
    /// The times of the last deaths of threads that ran no model.
    deaths: Vec<Nanos>,
    /// The time of the last look.
    looked: Nanos,
    /// The time before which no model counts as hung.
    lenient_until: Nanos,
}

impl Watchdog {
    /// Starts the watchdog of these executors. It ends after them, once `setup.stop` is set.
    ///
    /// Errors: the system gives no thread.
    pub(crate) fn spawn(
        executors: Vec<WatchedExecutor>,
        setup: ExecutorSetup,
        faults: Arc<ModelFaults>,
    ) -> std::io::Result<JoinHandle<()>> {
        let looked = setup.clock.now();
        let (hung, deaths, lenient_until) = (Vec::new(), Vec::new(), Nanos::ZERO);
        let watchdog = Watchdog { executors, setup, faults, hung, deaths, looked, lenient_until };
        std::thread::Builder::new().name("watchdog".to_owned()).spawn(move || watchdog.run())
    }

    fn run(mut self) {
        while !self.setup.stop.load(Ordering::Relaxed) {
            std::thread::sleep(CHECK_EVERY);
            self.look(true);
        }
        let give_up_at = self.setup.clock.now() + STOP_TIMEOUT;
        let leave_at = give_up_at + self.setup.config.faults.hung_after;
        while self.executors.iter().any(|of| !self.has_ended(of)) && self.looked < leave_at {
            std::thread::sleep(Duration::from_millis(1));
            self.look(false);
            if self.looked >= give_up_at {
                self.take_over_overdue(ANY_TIME);
            }
        }
        for executor in &self.executors {
            if executor.held.is_none() && !executor.thread.is_finished() {
                self.take_out(executor, "its thread does not end");
                tracing::error!("executor {} is left behind: its thread does not end", executor.role);
            }
        }
        // One that died at the last moment has left its state.
        self.look(false);
        let now = self.setup.clock.now();
        self.executors.iter_mut().filter_map(|of| of.held.as_mut()).for_each(|held| held.stop(now));
    }

    /// Returns true if nothing is to be waited for of an executor at a stop.
    fn has_ended(&self, executor: &WatchedExecutor) -> bool {
        executor.held.is_some() || executor.thread.is_finished() || self.is_stuck(executor)
    }

    /// Returns true if an executor's thread does not come back, with its state in its hands.
    fn is_stuck(&self, executor: &WatchedExecutor) -> bool {
        self.looked >= self.lenient_until
            && executor.held.is_none()
            && executor.lease.is_stuck(self.looked, self.setup.config.faults.hung_after)
    }

    /// Gives up the GPU of an executor, if it has one that can still be used. Returns true if so.
    fn take_out(&self, executor: &WatchedExecutor, reason: &str) -> bool {
        let gpu = self.setup.gpu_memory.get(executor.gpu);
        let open = gpu.iter().map(|gpu| &gpu.device().open).find(|open| open.lost().is_none());
        open.iter().for_each(|open| open.give_up(reason.to_owned()));
        open.is_some()
    }

    /// Takes out the GPUs whose driver does not return from a call.
    fn take_out_stuck(&self) {
        for executor in self.executors.iter().filter(|of| self.is_stuck(of)) {
            let seconds = self.setup.config.faults.hung_after.as_secs_f64();
            let reason = format!("a call of its driver has not returned after {seconds} s");
            if self.take_out(executor, &reason) {
                tracing::error!("executor {} is taken out: {reason}", executor.role);
            }
        }
    }

    /// Takes over what has to be, and goes on for the executors that have no thread.
    fn look(&mut self, replacing: bool) {
        let now = self.setup.clock.now();
        if now - self.looked > LONGEST_GAP {
            self.lenient_until = now + self.setup.config.faults.hung_after;
        }
        self.looked = now;
        if now >= self.lenient_until {
            self.take_over_overdue(now);
        }
        self.take_out_stuck();
        for at in 0..self.executors.len() {
            if replacing && self.executors[at].held.is_some() {
                self.replace(at);
            }
            let WatchedExecutor { lease, held, .. } = &mut self.executors[at];
            held.iter_mut().for_each(|held| held.hold(now));
            lease.while_late(now, |state| state.drop_late(now));
        }
    }

    /// Takes over what counts as hung at `now`, and what threads have left.
    fn take_over_overdue(&mut self, now: Nanos) {
        for at in 0..self.executors.len() {
            if let Some((state, has_died)) = self.executors[at].lease.take_over(now) {
                self.take_over(at, state, has_died, self.looked);
            }
        }
    }

    fn take_over(
        &mut self,
        at: usize,
        mut state: Box<ExecutorState<FileExecutor>>,
        has_died: bool,
        now: Nanos,
    ) {
        let WatchedExecutor { role, lease, held, .. } = &mut self.executors[at];
        let running = state.give_up(now);
        *held = Some(state);
        let Some(batch) = running else { return self.died(at, now) };
        let (model, rows) = (self.faults.name_of(batch.model), batch.size);
        if has_died {
            tracing::error!(model, rows, "executor {role} has died in a batch");
        } else {
            lease.lower_priority();
            tracing::error!(model, rows, "executor {role} hangs in a batch and is given up");
        }
        if let Some(reason) = self.faults.hung(batch.model, now) {
            tracing::error!(model, "{reason}");
        }
    }

    /// Notes that an executor's thread has died while it ran no model: a defect of the engine,
    /// which it does not survive if it goes on.
    fn died(&mut self, at: usize, now: Nanos) {
        self.deaths.retain(|death| *death + WITHIN > now);
        self.deaths.push(now);
        if self.deaths.len() >= HANGS {
            let often = format_args!(
                "died: threads of executors did {HANGS} times within {} s",
                WITHIN.as_secs_f64()
            );
            self.setup.faults.report(&self.executors[at].role, often);
        }
    }

    /// Starts another thread for an executor, unless too many hang already or the engine ends.
    fn replace(&mut self, at: usize) {
        if self.setup.faults.get().is_some() {
            return;
        }
        self.hung.retain(|thread| !thread.is_finished());
        let executor = &mut self.executors[at];
        let hung = self.hung.len() + usize::from(!executor.thread.is_finished());
        if hung > self.setup.config.faults.max_hung_threads {
            return;
        }
        match executor.replace_thread(&self.setup, &self.faults) {
            Ok(old) => {
                tracing::warn!("executor {} goes on in another thread", executor.role);
                self.hung.push(old);
            }
            Err(error) => tracing::error!("executor {} gets no thread: {error}", executor.role),
        }
    }
}
